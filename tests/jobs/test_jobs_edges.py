"""Quiet days, odd values, and tables that are not quite alike."""

import inspect

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simrec import InputError, TwoTower
from simrec.cli import main
from simrec.jobs import commands, pipeline
from simrec.jobs.io.inputs import DataOptions
from simrec.jobs.recommend import audience, recommend
from simrec.jobs.score import score


@pytest.fixture
def empty(tables, tmp_path):
    """Give a table without rows, with the columns of another one."""

    def write(name):
        (tmp_path / "empty").mkdir(exist_ok=True)
        path = tmp_path / "empty" / f"{name}.parquet"
        pq.write_table(pq.read_table(tables / f"{name}.parquet").slice(0, 0), path)
        return path

    return write


def test_no_new_items_today(tables, model_directory, empty, tmp_path, capsys):
    items = empty("new_items")
    words = ["recommend", "--model", str(model_directory), "--items", str(items)]
    out = tmp_path / "lists"
    assert main([*words, "--new-items-only", "--out", str(out), "--quiet"]) == 0
    lists = pq.read_table(out)
    assert lists.num_rows == 0
    assert lists.column_names == ["user_id", "item_id", "score", "rank"]
    assert audience(model_directory, tmp_path / "users", items=items)["rows_out"] == 0
    assert pq.read_table(tmp_path / "users").column_names[:2] == ["item_id", "user_id"]
    assert audience(model_directory, tmp_path / "one.parquet", items=items)["rows_out"] == 0
    assert audience(model_directory, tmp_path / "one.parquet", items=items)["already_complete"]
    pairs = tables / "pairs.parquet"
    score(model_directory, pairs, tmp_path / "with.parquet", items=items)
    score(model_directory, pairs, tmp_path / "without.parquet")
    scores = [pq.read_table(tmp_path / f"{name}.parquet") for name in ("with", "without")]
    assert scores[0].equals(scores[1])


def test_nobody_to_recommend_to(model_directory, empty, tmp_path):
    assert recommend(model_directory, tmp_path / "a", users=empty("users"))["rows_out"] == 0
    pq.write_table(pa.table({"user_id": [1, 2]}), tmp_path / "users.parquet")
    users = tmp_path / "users.parquet"
    summary = recommend(model_directory, tmp_path / "b", users=users, unknown="skip", k=2)
    assert (summary["rows_out"], summary["unknown_users"]) == (0, 2)
    assert pq.read_table(tmp_path / "b").num_rows == 0


def test_empty_files(tables, model_directory, empty, tmp_path):
    (tmp_path / "in").mkdir()
    empty("pairs").rename(tmp_path / "in" / "0.parquet")
    pairs = pq.read_table(tables / "pairs.parquet")
    pairs = pairs.set_column(2, "note", pa.array(np.arange(len(pairs)) % 2))
    pq.write_table(pairs.slice(0, 10), tmp_path / "in" / "1.parquet")
    # A row group without rows, as some writers leave them.
    with pq.ParquetWriter(tmp_path / "in" / "2.parquet", pairs.schema) as writer:
        writer.write_table(pairs.slice(0, 0))
    summary = score(model_directory, tmp_path / "in", tmp_path / "out")
    assert summary["rows_out"] == pq.read_table(tmp_path / "out").num_rows == 10


def test_k_takes_no_more_memory_than_there_are_items(model_directory, tmp_path, monkeypatch):
    from simrec.jobs import recommend as module

    asked = []
    top_k = module.top_k

    def noted(queries, items, k, *others, **options):
        asked.append(k)
        return top_k(queries, items, k, *others, **options)

    monkeypatch.setattr(module, "top_k", noted)
    recommend(model_directory, tmp_path / "a.parquet", k=10**6, exclude=None)
    assert set(asked) == {50}
    monkeypatch.undo()
    recommend(model_directory, tmp_path / "b.parquet", k=50, exclude=None)
    found = [pq.read_table(tmp_path / f"{name}.parquet") for name in "ab"]
    assert found[0].equals(found[1]) and found[0].num_rows == 3000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "--ratings", "R", "--random-state", "-1"], "random_state: expected a whole"),
    ],
)
def test_odd_values(tables, model_directory, tmp_path, capsys, words, message):
    places = {"M": str(model_directory), "R": str(tables / "ratings.parquet")}
    words = [places.get(word, word) for word in words]
    assert main([*words, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_fresh_features_of_unrated_items(tables, model_directory, tmp_path):
    """A catalogue with fresh features counts for items without ratings, as in the model."""
    items = pq.read_table(tables / "items.parquet")
    years = pa.array(np.where(np.arange(50) >= 40, 1900, items["year"].to_numpy()))
    items = items.set_column(1, "year", years)
    pq.write_table(items, tmp_path / "items.parquet")
    model = TwoTower.load(model_directory)
    pairs = pq.read_table(tables / "pairs.parquet").select(["user_id", "item_id"])
    pq.write_table(pairs, tmp_path / "pairs.parquet")
    for features in ({}, {"items": tmp_path / "items.parquet"}):
        out = tmp_path / f"scores{len(features)}.parquet"
        score(model_directory, tmp_path / "pairs.parquet", out, **features)
        scores = pq.read_table(out)["score"].to_numpy()
        np.testing.assert_array_equal(scores, model.predict(pairs, **features))
    assert not np.array_equal(scores, model.predict(pairs))
    out = tmp_path / "lists.parquet"
    recommend(model_directory, out, items=tmp_path / "items.parquet", k=50)
    lists = pq.read_table(out)
    expected = model.recommend(items=items, k=50, output="arrow")
    assert lists["item_id"].to_pylist() == expected["item_id"].to_pylist()
    np.testing.assert_array_equal(lists["score"], expected["score"])


def test_a_list_of_ids_is_no_table_of_features(tables, model_directory, tmp_path):
    """Ids without features in --items are as unknown as they are without --items."""
    pairs = pa.table({"user_id": [100, 100], "item_id": ["i00", "zz"]})
    pq.write_table(pairs, tmp_path / "pairs.parquet")
    pq.write_table(pairs.select(["item_id"]), tmp_path / "items.parquet")
    model = TwoTower.load(model_directory)
    words = {"items": tmp_path / "items.parquet", "unknown": "prior"}
    score(model_directory, tmp_path / "pairs.parquet", tmp_path / "out.parquet", **words)
    found = pq.read_table(tmp_path / "out.parquet")["score"].to_numpy()
    np.testing.assert_array_equal(found, model.predict(pairs, **words))
    with pytest.raises(InputError, match="1 rows with ids the model does not know"):
        words = {"items": tmp_path / "items.parquet"}
        score(model_directory, tmp_path / "pairs.parquet", tmp_path / "x.parquet", **words)


@pytest.mark.parametrize("name", ["lists.xlsx", "lists.JSON"])
def test_an_ending_that_is_not_written_is_refused(model_directory, tmp_path, name):
    with pytest.raises(InputError, match="ends in .parquet, .csv or .tsv"):
        recommend(model_directory, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_directory_of_files_that_differ(tmp_path):
    """Files whose integers differ in width, and one that lacks a column."""
    first = {"user_id": pa.array([1, 2], pa.int32()), "item_id": ["a", "b"], "rating": [1.0, 2.0]}
    second = {"user_id": pa.array([3], pa.int64()), "item_id": ["a"], "rating": [3.0]}
    for day, columns in enumerate((first, {**second, "note": [7]})):
        (tmp_path / "r" / f"day={day}").mkdir(parents=True)
        pq.write_table(pa.table(columns), tmp_path / "r" / f"day={day}" / "p.parquet")
    ratings = DataOptions(tmp_path / "r").load_ratings(None)
    assert ratings.users.ids.to_pylist() == [1, 2, 3]
    assert ratings.values.tolist() == [1.0, 2.0, 3.0]
    (tmp_path / "x[1].parquet").write_bytes((tmp_path / "r/day=0/p.parquet").read_bytes())
    assert len(DataOptions(tmp_path / "x[1].parquet").load_ratings(None)) == 2
    text = pa.table({**second, "user_id": ["x"]})
    pq.write_table(text, tmp_path / "r" / "day=0" / "q.parquet")
    with pytest.raises(InputError, match="q.parquet"):
        DataOptions(tmp_path / "r").load_ratings(None)


def test_names_of_id_columns_reach_the_features(tables, tmp_path):
    names = {"user_id": "who", "item_id": "what"}
    for name in ("ratings", "items", "users"):
        table = pq.read_table(tables / f"{name}.parquet")
        renamed = [names.get(column, column) for column in table.column_names]
        pq.write_table(table.rename_columns(renamed), tmp_path / f"{name}.parquet")
    data = DataOptions(*(tmp_path / f"{n}.parquet" for n in ("ratings", "items", "users")), **names)
    ratings = data.load_ratings(None)
    assert ratings.n_users == 60
    model = TwoTower(epochs=1).fit(ratings, **data.features())
    plain = {n: str(tables / f"{n}.parquet") for n in ("ratings", "items", "users")}
    same = TwoTower(epochs=1).fit(plain.pop("ratings"), **plain)
    assert model.schema_ == same.schema_
    assert model.recommend(k=1).columns.tolist()[:2] == ["who", "what"]


def test_interactions_without_ratings(tmp_path):
    table = {"user_id": [1, 2, 2], "item_id": ["a", "b", "a"], "plays": [3, 1, 0.5]}
    pq.write_table(pa.table(table), tmp_path / "r.parquet")
    ratings = DataOptions(tmp_path / "r.parquet", rating=None).load_ratings(None)
    assert not ratings.has_ratings and ratings.values.tolist() == [1, 1, 1]
    option = commands.options("train")["rating"]
    assert option.parse("none") is option.check("none") is None


def test_jobs_take_their_arguments_in_one_order():
    for name in commands.SECTIONS:
        parameters = inspect.signature(commands.function(name)).parameters
        positional = [n for n, p in parameters.items() if p.kind is not p.KEYWORD_ONLY]
        order = [n for n in ("model", "data", "pairs", "out") if n in parameters]
        if name not in ("evaluate", "report", "replay", "compare"):
            assert positional == order, name
        if {"items", "users"} <= set(parameters):
            assert list(parameters).index("items") < list(parameters).index("users"), name
            assert not {"items", "users"} & set(positional), name


def test_sections_take_what_commands_take(tables, tmp_path):
    few = {"user_id": [100, 900], "item_id": ["i00", "i01"], "rating": [5.0, 1.0]}
    pq.write_table(pa.table(few), tmp_path / "few.parquet")
    text = f"""
        [data]
        items = "{tables}/items.parquet"
        [train]
        ratings = "{tables}/ratings.parquet"
        embedding_dim = 2
        bounds = [1, 5]
        epochs = 2
        out = "model"
        [update]
        ratings = "few.parquet"
        out = "updated"
        [[recommend]]
        user = "100"
        k = 3
        [[recommend]]
        user = "900"
        """
    (tmp_path / "pipeline.toml").write_text(text)
    train, update, one, other = pipeline.run(tmp_path / "pipeline.toml", verbose=0)
    assert TwoTower.load(tmp_path / "model").embedding_dim == 2
    assert update["parent"] == train["model_id"] and update["new_users"] == 1
    assert [row["rank"] for row in one["list"]] == [1, 2, 3]
    assert other["user_id"] == 900 and len(other["list"]) == 10
    (tmp_path / "pipeline.toml").write_text("[data]\nratings='r'\n[update]\nmodel='m'\nout='o'")
    with pytest.raises(InputError, match=r"\[update\] lacks 'ratings'"):
        list(pipeline.run(tmp_path / "pipeline.toml"))
