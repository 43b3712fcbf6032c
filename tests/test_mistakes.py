"""Mistakes that people make with other libraries in mind: errors name what is right."""

import logging

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simrec import InputError, TwoTower, cold_start_split, compare, evaluate

RATINGS = pd.DataFrame({"user_id": [1, 1, 2], "item_id": [1, 2, 1], "rating": [1.0, 2.0, 3.0]})
ITEMS = pd.DataFrame({"item_id": [1, 2], "year": [1990, 2000]})


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: TwoTower().fit(RATINGS, ITEMS), TypeError, "positional arguments"),
        (lambda: evaluate("no model", None), InputError, "no model: does not exist"),
        (lambda: evaluate(RATINGS, None), InputError, "a model has predict"),
        (lambda: compare(TwoTower(), RATINGS), InputError, "a mapping of names to two models"),
        (lambda: compare({"a": TwoTower(), "b": TwoTower()}, RATINGS), InputError, "needs a split"),
    ],
)
def test_the_right_name_is_said(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


def test_a_saved_model_is_evaluated_by_its_path(model_directory, tables):
    split = cold_start_split(pq.read_table(tables / "ratings.parquet"))
    assert evaluate(str(model_directory), split)["rmse"].notna().all()


def test_new_items_without_a_feature_are_said_once(model_directory, tables, caplog):
    model = TwoTower.load(model_directory)
    items = pq.read_table(tables / "new_items.parquet").drop_columns(["kind"])
    pairs = pa.table({"user_id": [100] * 8, "item_id": items["item_id"]})
    with caplog.at_level(logging.WARNING):
        first, again = (model.predict(pairs, items=items) for _ in range(2))
    assert first.tolist() == again.tolist() and caplog.text.count("no column 'kind'") == 1


def test_a_directory_of_users_is_a_table(model_directory, tables, tmp_path):
    model = TwoTower.load(model_directory)
    users = pq.read_table(tables / "new_users.parquet")
    for i in range(2):
        pq.write_table(users.slice(4 * i, 4), tmp_path / f"{i}.parquet")
    found = model.recommend(users=str(tmp_path), k=2)
    pd.testing.assert_frame_equal(found, model.recommend(users=users, k=2))
