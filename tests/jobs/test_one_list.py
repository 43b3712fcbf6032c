"""One list, seen: of a user or a newcomer; with titles, and nothing is written."""

import json

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from simrec import InputError, TwoTower, console
from simrec.cli import main
from simrec.jobs.recommend import recommend


@pytest.fixture(scope="module")
def titled(tables, tmp_path_factory):
    """A model of a shop with its own names of columns, and users whose ids are large numbers."""
    directory = tmp_path_factory.mktemp("titled")
    ratings = pq.read_table(tables / "ratings.parquet").to_pandas()
    ratings["user_id"] += 1_000_000
    ratings = ratings.rename(columns={"user_id": "customer", "item_id": "product"})
    items = (
        pq.read_table(tables / "items.parquet").to_pandas().rename(columns={"item_id": "product"})
    )
    items["name"] = [f"Film {i}" for i in items["product"]]
    items["blurb"] = [f"About {i}" for i in items["product"]]
    ratings.to_parquet(directory / "ratings.parquet")
    items.to_parquet(directory / "items.parquet")
    names = ["--user-id", "customer", "--item-id", "product"]
    words = ["train", "--ratings", directory / "ratings.parquet", "--items"]
    words += [directory / "items.parquet", *names, "--epochs", 2, "--embedding-dim", 2]
    assert (
        main([*map(str, words), "--bounds", "1", "5", "--out", str(directory / "m"), "--quiet"])
        == 0
    )
    return directory


def test_the_list_of_a_user(titled, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["recommend", "--model", str(titled / "m"), "--user", "1000103", "--k", "4"]
    assert main(words) == 0
    shown, _ = capsys.readouterr()
    expected = TwoTower.load(titled / "m").recommend(1_000_103, k=4)
    for item in expected["product"]:
        assert f"{item}      Film {item}" in shown
    assert "1000103" in shown and "1,000,103" not in shown
    assert list(tmp_path.iterdir()) == []
    assert main([*words, "--json", "--rank-by", "rating"]) == 0
    found = json.loads(capsys.readouterr().out)
    by_rating = TwoTower.load(titled / "m").recommend(1_000_103, k=4, rank_by="rating")
    assert [row["product"] for row in found["list"]] == by_rating["product"].tolist()
    assert [row["title"] for row in found["list"]] == [f"Film {i}" for i in by_rating["product"]]
    assert all(1 <= row["rating"] <= 5 for row in found["list"]) and found["customer"] == 1_000_103


def test_what_may_be_in_the_list(titled, tmp_path):
    model = TwoTower.load(titled / "m")
    whole = model.recommend(1_000_100, k=50)["product"].tolist()
    pd.DataFrame({"product": whole[3:9]}).to_csv(tmp_path / "some.csv", index=False)
    pd.DataFrame({"product": [whole[4]], "name": ["Four"]}).to_csv(
        tmp_path / "items.csv", index=False
    )
    few = recommend(titled / "m", user="1000100", items=tmp_path / "some.csv", k=3)
    assert [row["product"] for row in few["list"]] == whole[3:6]
    one = recommend(titled / "m", user="1000100", items=tmp_path / "items.csv")
    assert [(row["product"], row["title"]) for row in one["list"]] == [(whole[4], "Four")]


def test_a_table_of_names_takes_no_features_from_known_items(titled):
    """Of items without ratings the model knows the features, which the table does not have."""
    model, names = TwoTower.load(titled / "m"), {"product": ["i45"], "name": ["Film i45"]}
    assert model.towers_.items.counts[model.items_.rows(["i45"])].tolist() == [0]
    found = model.recommend(1_000_100, items=pd.DataFrame(names))
    assert found["score"].tolist() == model.recommend(1_000_100, items=["i45"])["score"].tolist()


def test_the_list_of_a_newcomer(titled, tmp_path):
    rated = pd.DataFrame({"product": ["i00", "i03", "i07"], "rating": [5.0, 1, 4]})
    rated.to_csv(tmp_path / "new.csv", index=False)
    found = recommend(titled / "m", new_user=tmp_path / "new.csv", k=5)
    model = TwoTower.load(titled / "m")
    expected = model.fold_in(rated.assign(customer=9_000_000)).recommend(9_000_000, k=5)
    assert [row["product"] for row in found["list"]] == expected["product"].tolist()
    assert not {"i00", "i03", "i07"} & {row["product"] for row in found["list"]}
    rated.assign(customer=1_000_100).to_csv(tmp_path / "known.csv", index=False)
    known = recommend(titled / "m", new_user=tmp_path / "known.csv", k=5)
    expected = TwoTower.load(titled / "m").guests(rated.assign(customer=1_000_100))
    assert [row["product"] for row in known["list"]] == expected.recommend(1_000_100, k=5)[
        "product"
    ].tolist()
    rated.rename(columns={"product": "film"}).to_csv(tmp_path / "film.csv", index=False)
    with pytest.raises(InputError, match="no column 'product'.* The columns are: film, rating"):
        recommend(titled / "m", new_user=tmp_path / "film.csv")
    rated.assign(customer=[1, 1, 2]).to_csv(tmp_path / "two.csv", index=False)
    with pytest.raises(InputError, match="two.csv.*: ratings of 2 users"):
        recommend(titled / "m", new_user=tmp_path / "two.csv")


def test_one_or_all(titled, tmp_path):
    for arguments in ({}, {"user": "1000100", "out": tmp_path / "out"}):
        with pytest.raises(InputError, match="give either out, .*or a user.*not both"):
            recommend(titled / "m", **arguments)
    remedy = "^--user 7: .*neither ratings nor features.*--users, .*--new-user, .*--unknown prior"
    with pytest.raises(InputError, match=remedy):
        recommend(titled / "m", user="7")


def test_why_a_list_is_empty(titled, tmp_path, capsys):
    ids = TwoTower.load(titled / "m").items_.ids.to_pylist()
    pd.DataFrame({"product": ids[:3]}).to_csv(tmp_path / "some.csv", index=False)
    words = ["recommend", "--model", titled / "m", "--user", "1000100", "--new-items-only"]
    assert main([*map(str, words), "--items", str(tmp_path / "some.csv")]) == 0
    assert "no item without ratings is left; give new ones with --items" in capsys.readouterr().out


def test_a_category_is_no_title(titled, tmp_path):
    """In a table of few rows each may have a category of its own."""
    items = pq.read_table(titled / "items.parquet").to_pandas()[:3]
    items = items.drop(columns=["name", "blurb"]).assign(product=["n1", "n2", "n3"], kind=[*"abc"])
    items.to_csv(tmp_path / "new.csv", index=False)
    found = recommend(titled / "m", user="1000100", items=tmp_path / "new.csv")["list"]
    assert len(found) == 3 and not any(row.get("title") for row in found)


@pytest.mark.slow
def test_what_is_alike_on_movielens(movielens):
    """Star Wars: its sequels first, not what is popular and of the same year."""
    ratings = pd.read_parquet(movielens / "ratings.parquet")
    items = pd.read_parquet(movielens / "items.parquet")
    few = ratings[ratings["user_id"] <= 300]
    model = TwoTower(bounds=(1, 5), epochs=8).fit(few, items=items)
    assert set(model.similar_items(50, k=2)["item_id"]) == {172, 181}
    assert 95 in model.similar_items(1, k=4)["item_id"].tolist()  # Toy Story, Aladdin
    found = model.similar_items([50, 1, 127, 172], k=10)
    assert found["similarity"].median() < 0.9


def test_words_for_people(tables, tmp_path, capsys, caplog):
    """Piped: no bar; what was chosen on request; nothing for machines."""
    words = ["train", "--ratings", tables / "ratings.parquet", "--epochs", 1, "--embedding-dim", 1]
    assert main([*map(str, words), "--out", str(tmp_path / "m")]) == 0
    out, err = capsys.readouterr()
    assert "%|" not in err and "chosen:" not in caplog.text and "peak_bytes" not in out
    assert main([*map(str, words), "--out", str(tmp_path / "v"), "-v"]) == 0
    assert "chosen: rating_output" in caplog.text and "epoch 1" in caplog.text
    # Progress is no part of a model.
    ids = {TwoTower.load(tmp_path / name).model_id_ for name in ("m", "v")}
    assert len(ids) == 1
    shown = console.table([{"movie": 1234567, "n": np.int64(5).item()}])
    assert "1234567" in shown and "1,234,567" in console.facts({"rows": 1234567})


def test_ratings_of_a_newcomer_for_a_model_of_pairs_are_said_to_count_as_pairs(tmp_path, caplog):
    rng = np.random.default_rng(0)
    pairs = pd.DataFrame({"user_id": rng.integers(0, 30, 300), "item_id": rng.integers(0, 20, 300)})
    TwoTower().fit(pairs.drop_duplicates()).save(tmp_path / "m")
    few = pd.DataFrame({"item_id": [3, 5]})
    few.to_csv(tmp_path / "pairs.csv", index=False)
    few.assign(rating=[1.0, 1.0]).to_csv(tmp_path / "rated.csv", index=False)
    expected = recommend(tmp_path / "m", new_user=tmp_path / "pairs.csv")["list"]
    assert "however rated" not in caplog.text
    assert recommend(tmp_path / "m", new_user=tmp_path / "rated.csv")["list"] == expected
    assert "each of 2 counts as one, however rated" in caplog.text
