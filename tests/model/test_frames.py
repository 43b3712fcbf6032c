"""A model takes the frames that people have, and answers in kind; ids match across files."""

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from simrec import Ratings, TwoTower, make_synthetic
from simrec.errors import InputError
from simrec.jobs.io.parts import open_writer
from simrec.jobs.score import score


@pytest.fixture(scope="module")
def data():
    return make_synthetic(n_users=60, n_items=40, n_ratings=600)


@pytest.fixture(scope="module")
def model(data):
    frames = {"items": pl.from_arrow(data.items), "users": duckdb.from_arrow(data.users)}
    return TwoTower(embedding_dim=2, epochs=2).fit(pl.from_arrow(data.ratings), **frames)


def test_frames_in_and_out(data, model):
    same = TwoTower(embedding_dim=2, epochs=2).fit(data.ratings, items=data.items, users=data.users)
    pairs = data.ratings.select(["user_id", "item_id"])
    expected = same.predict(pairs)
    for form in (pl.from_arrow(pairs), duckdb.from_arrow(pairs), pairs.to_reader()):
        np.testing.assert_array_equal(model.predict(form), expected)
    lists = same.recommend(k=2, output="arrow")
    found = model.recommend(pl.from_arrow(data.users), k=2, output="polars")
    assert isinstance(found, pl.DataFrame) and found.to_dicts() == lists.to_pylist()
    assert model.recommend(k=2, output="duckdb").fetchall()[0] == tuple(
        lists.to_pylist()[0].values()
    )
    some = pl.Series([1, 2])
    assert len(model.recommend(some, k=2)) == 4
    with pytest.raises(InputError, match="output must be one of"):
        model.recommend(k=2, output="dask")


def test_pairs_as_lists_and_arrays(data, model):
    pairs = data.ratings.slice(0, 3)
    users, items = (pairs[name].to_pylist() for name in ("user_id", "item_id"))
    expected = model.predict(pairs)
    for form in (list, np.array, pl.Series, pa.array):
        np.testing.assert_array_equal(model.predict(form(users), form(items)), expected)
    np.testing.assert_array_equal(model.predict(users[0], items)[:1], expected[:1])
    assert model.predict(users, items[0]).shape == (3,)
    assert model.predict([], []).shape == (0,)
    with pytest.raises(InputError, match="3 users and 2 items"):
        model.predict(users, items[:2])


def test_a_dict_for_one_new_item_or_user(data, model):
    item = {**data.items.slice(0, 1).to_pylist()[0], "item_id": 9999}
    user = {**data.users.slice(0, 1).to_pylist()[0], "user_id": 8888}
    rows = pa.Table.from_pylist([item]), pa.Table.from_pylist([user])
    expected = model.predict(8888, 9999, items=rows[0], users=rows[1])
    np.testing.assert_array_equal(model.predict(8888, 9999, items=item, users=user), expected)
    assert len(model.recommend(user, k=3)) == 3
    assert model.recommend([user, {**user, "user_id": 8889}], k=3)["user_id"].nunique() == 2


def test_ids_with_leading_zeros_join_again(data, tmp_path):
    def padded(table):
        ids = [f"{i:06d}" for i in table["item_id"].to_pylist()]
        return table.set_column(table.column_names.index("item_id"), "item_id", pa.array(ids))

    ratings = padded(data.ratings.select(["user_id", "item_id", "rating"]))
    pl.from_arrow(ratings).write_csv(tmp_path / "ratings.csv")
    model = TwoTower(lists=False, embedding_dim=2, epochs=2).fit(
        Ratings.from_table(tmp_path / "ratings.csv")
    )
    assert model.items_.take([0]).to_pylist() == [min(ratings["item_id"].to_pylist())]
    model.save(tmp_path / "model")
    score(tmp_path / "model", tmp_path / "ratings.csv", tmp_path / "scores.csv")
    scores = pl.read_csv(tmp_path / "scores.csv", schema_overrides={"item_id": pl.String})
    assert scores["item_id"].to_list() == ratings["item_id"].to_pylist()
    # Numbers, as another program reads them, are the same ids.
    numbers = data.ratings.select(["user_id", "item_id"])
    np.testing.assert_array_equal(model.predict(numbers), model.predict(ratings))
    with open_writer(tmp_path / "numbers.parquet", numbers.schema) as writer:
        writer.write_table(numbers)
    score(tmp_path / "model", tmp_path / "numbers.parquet", tmp_path / "again.csv")
    again = pl.read_csv(tmp_path / "again.csv")
    np.testing.assert_allclose(again["score"], scores["score"], rtol=1e-6)
    # Features by numbers belong to ratings by text.
    fitted = TwoTower(embedding_dim=2, epochs=2).fit(ratings, items=data.items)
    assert len(fitted.items_) == data.items.num_rows
    with pytest.raises(InputError, match=r"string ids were given.*'x1'.*train again with"):
        TwoTower(lists=False, embedding_dim=2, epochs=2).fit(data.ratings).predict([1], ["x1"])


def test_new_items_without_a_trained_feature(data, model, caplog):
    new = data.items.slice(0, 5).set_column(0, "item_id", pa.array(range(9000, 9005)))
    place = new.column_names.index("mood")
    nulls = new.set_column(place, "mood", pa.nulls(5, new["mood"].type))
    expected = model.predict([1] * 5, range(9000, 9005), items=nulls)
    for _ in range(3):
        found = model.predict([1] * 5, range(9000, 9005), items=new.drop_columns(["mood"]))
        np.testing.assert_array_equal(found, expected)
    assert caplog.text.count("no column 'mood', which the model has learned from") == 1


def test_a_directory_of_users_is_a_table(data, model, tmp_path, monkeypatch):
    (tmp_path / "users").mkdir()
    pl.from_arrow(data.users.slice(0, 3)).write_parquet(tmp_path / "users" / "part.parquet")
    monkeypatch.chdir(tmp_path)
    for users in ("users", str(tmp_path / "users"), tmp_path / "users"):
        assert len(model.recommend(users, k=2)) == 6
