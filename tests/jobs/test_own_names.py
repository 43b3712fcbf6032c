"""Columns under the names that people have: given once, in training, and known from then on."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simrec import Ratings, TwoTower, cold_start_split, evaluate, replay
from simrec.cli import main
from simrec.data.tables import read_table
from simrec.errors import InputError

OWN = {"user_id": "userId", "item_id": "movieId", "rating": "stars", "timestamp": "at"}
NAMES = ["--user-id", "userId", "--item-id", "movieId", "--rating", "stars"]


def own(table):
    return table.rename_columns([OWN.get(name, name) for name in table.column_names])


@pytest.fixture(scope="module")
def root(tables, tmp_path_factory):
    """The tables under names of their own, and a model trained with them."""
    root = tmp_path_factory.mktemp("own")
    for name in ("ratings", "items", "users", "pairs", "new_items"):
        pq.write_table(own(pq.read_table(tables / f"{name}.parquet")), root / f"{name}.parquet")
    words = ["train", "--ratings", root / "ratings.parquet", "--items", root / "items.parquet"]
    words += ["--users", root / "users.parquet", *NAMES, "--out", root / "model", "--epochs", "2"]
    assert main([*map(str, words), "--embedding-dim", "4", "--quiet"]) == 0
    return root


def run(*words):
    return main([*map(str, words), "--quiet"])


def test_a_model_remembers_them(root, tables):
    model = TwoTower.load(root / "model")
    assert (model.columns_.user_id, model.columns_.rating) == ("userId", "stars")
    pairs = pq.read_table(root / "pairs.parquet")
    expected = model.predict(pairs)
    usual = pq.read_table(tables / "pairs.parquet")
    np.testing.assert_array_equal(model.predict(usual), expected)  # the usual names are fine too
    users = pairs["userId"].to_pylist()[:3]
    items = pairs["movieId"].to_pylist()[:3]
    np.testing.assert_array_equal(model.predict(users, items), expected[:3])
    np.testing.assert_array_equal(model.predict(np.array(users), items), expected[:3])
    found = model.recommend(users[:1], k=2, exclude=root / "pairs.parquet")
    assert found.columns.tolist() == ["userId", "movieId", "score", "rank"]
    assert model.embed_items(items[:1]).columns.tolist() == ["movieId", "vector"]
    assert "movieId" in model.similar_items(items[0], k=2).columns
    with pytest.raises(InputError, match=r"no column 'userId'.*The columns are: who"):
        model.predict(pairs.rename_columns(["who", *pairs.column_names[1:]]))


def test_later_tables_are_read_by_them(root):
    model = TwoTower.load(root / "model")
    few = own(pa.table({"user_id": [9001] * 2, "item_id": ["i00", "i01"], "rating": [5.0, 3.0]}))
    user = {"userId": 9001, **_features(root / "users.parquet", "userId")}
    model.fold_in(few, users=user)
    assert model.predict(9001, "i02").shape == (1,)
    model.update(few.set_column(0, "userId", pa.array([9002] * 2)), users={**user, "userId": 9002})
    assert len(model.users_.rows([9001, 9002]).nonzero()[0]) == 2
    new = {"movieId": "z9", **_features(root / "items.parquet", "movieId")}
    assert model.predict([9001, 9002], ["z9"], items=new).shape == (2,)


def _features(path, ids):
    row = pq.read_table(path).slice(0, 1).to_pylist()[0]
    return {name: value for name, value in row.items() if name != ids}


def test_evaluation(root):
    ratings = Ratings.from_table(root / "ratings.parquet", **{**OWN, "timestamp": None})
    split = cold_start_split(ratings, random_state=0)
    tables = {"items": root / "items.parquet", "users": root / "users.parquet"}
    model = TwoTower(embedding_dim=2, epochs=2).fit(split.train, **tables)
    found = evaluate(model, split, items=tables["items"])
    assert np.isfinite(found["ndcg@10"][0]) and np.isfinite(found["rmse"]).all()
    timed = read_table(root / "ratings.parquet", ["userId", "movieId", "stars"])
    timed = timed.append_column("at", pa.array(np.arange(len(timed)) * 86_400))
    walked = replay(TwoTower(epochs=2), Ratings.from_table(timed, **OWN), every="300d", **tables)
    assert np.isfinite(walked.periods["ndcg@10"]).any()


def test_jobs(root, tables, tmp_path, capsys):
    model = ["--model", root / "model"]
    pairs = ["--pairs", root / "pairs.parquet", "--items", root / "new_items.parquet"]
    assert run("score", *model, *pairs, "--out", tmp_path / "scores.csv") == 0
    scores = read_table(tmp_path / "scores.csv")
    assert {"userId", "movieId", "score"} <= set(scores.column_names)
    few = own(pa.table({"user_id": [9001], "item_id": ["i00"], "rating": [5.0]}))
    pq.write_table(few, tmp_path / "few.parquet")
    assert run("recommend", *model, "--k", 3, "--out", tmp_path / "lists.parquet") == 0
    lists = pq.read_table(tmp_path / "lists.parquet")
    assert lists.column_names == ["userId", "movieId", "score", "rank"]
    capsys.readouterr()
    assert run("recommend", *model, "--new-user", tmp_path / "few.parquet") == 0
    assert "9001" in capsys.readouterr().out
    vectors = ["--format", "parquet", "--items", root / "new_items.parquet"]
    assert run("export", *model, *vectors, "--side", "item", "--out", tmp_path / "export") == 0
    assert pq.read_schema(tmp_path / "export" / "items.parquet").names == ["movieId", "vector"]
    assert (
        run("update", *model, "--ratings", tmp_path / "few.parquet", "--out", tmp_path / "m") == 0
    )
    assert TwoTower.load(tmp_path / "m").columns_.item_id == "movieId"
    # The usual names, and no others.
    assert (
        run(
            "score",
            *model,
            "--pairs",
            tables / "pairs.parquet",
            "--items",
            tables / "new_items.parquet",
            "--out",
            tmp_path / "usual",
        )
        == 0
    )
    others = pq.read_table(root / "pairs.parquet").rename_columns(["u", "m", "note"])
    pq.write_table(others, tmp_path / "others.parquet")
    assert (
        run("score", *model, *pairs[:1], tmp_path / "others.parquet", "--out", tmp_path / "x") == 2
    )
    assert "no column 'userId', 'movieId'" in capsys.readouterr().err


def test_the_names_are_data_and_not_believed(root, tmp_path):
    from simrec.data.sides import Columns

    facts = json.loads((root / "model" / "manifest.json").read_text())["facts"]
    assert Columns.from_dict(facts["columns"]).item_id == "movieId"
    for wrong in ({"user_id": 3}, {"user": "x"}, {"item_id": None}):
        with pytest.raises(InputError, match="columns are"):
            Columns.from_dict(wrong)


def test_unknown_ids_are_named_by_the_column_of_the_table(root, tmp_path, capsys):
    pq.write_table(pa.table({"userId": [100], "movieId": ["zz"]}), tmp_path / "pairs.parquet")
    words = ["--model", root / "model", "--pairs", tmp_path / "pairs.parquet"]
    assert run("score", *words, "--out", tmp_path / "out") == 2
    assert "column movieId: 1 rows with ids the model does not know" in capsys.readouterr().err
