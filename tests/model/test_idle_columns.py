"""Columns of items that tell nothing are left out, and only those."""

import numpy as np
import pyarrow as pa
import pytest

from simrec import Ratings, TwoTower, cold_start_split, make_synthetic


def noise(kind, n):
    rng = np.random.default_rng(5)
    if kind == "number":
        return pa.array(rng.normal(size=n))
    if kind == "category":
        return pa.array([f"c{k}" for k in rng.integers(0, 20, n)])
    if kind == "text":
        return pa.array([" ".join(f"w{k}" for k in row) for row in rng.integers(0, 900, (n, 25))])
    return pa.FixedSizeListArray.from_arrays(pa.array(rng.normal(size=n * 96).astype("f4")), 96)


@pytest.fixture(scope="module")
def data():
    return make_synthetic(n_users=500, n_items=700, n_ratings=16_000)


@pytest.fixture(scope="module")
def split(data):
    return cold_start_split(Ratings.from_table(data.ratings), random_state=0)


def fitted(data, split, items, **params):
    settings = {"embedding_dim": 4, "epochs": 4, "folds": 3, **params}
    return TwoTower(**settings).fit(split.train, items=items, users=data.users)


@pytest.fixture(scope="module")
def plain(data, split):
    return fitted(data, split, data.items)


slow = pytest.mark.slow


@pytest.mark.parametrize(
    "kind", ["vector", *(pytest.param(k, marks=slow) for k in ("category", "number", "text"))]
)
def test_noise_changes_nothing(data, split, plain, kind, caplog):
    items = data.items.append_column("noise", noise(kind, data.items.num_rows))
    with caplog.at_level("INFO"):
        model = fitted(data, split, items)
    assert "column 'noise' is left out: it tells nothing" in caplog.text
    assert model.schema_["items"] == plain.schema_["items"]
    pairs = split.new_items.to_arrow()
    np.testing.assert_array_equal(model.predict(pairs), plain.predict(pairs))
    assert model.recommend(k=5).equals(plain.recommend(k=5))
    # Filters go on working.
    assert kind == "vector" or "noise" in model.catalogue_.column_names


def test_columns_that_tell_stay(data, split, plain):
    planted = [name for name in data.items.column_names if name not in ("item_id", "title")]
    assert set(plain.schema_["items"]) == set(planted)


def test_what_is_asked_for_stays(data, split):
    items = data.items.append_column("noise", noise("category", data.items.num_rows))
    model = fitted(data, split, items, item_columns={"noise": "category"}, lists=False)
    assert "noise" in model.schema_["items"]


def test_taste_in_ratings_counts_where_items_are_met_at_random():
    rng = np.random.default_rng(0)
    kinds, likes = rng.integers(2, size=520), rng.normal(size=400)
    users, items = rng.integers(400, size=9000), rng.integers(520, size=9000)
    stars = 3 + likes[users] * (2 * kinds[items] - 1) + 0.3 * rng.normal(size=9000)
    ratings = pa.table({"user_id": users, "item_id": items, "rating": np.clip(stars, 1, 5)})
    kinds = pa.array(np.array(["a", "b"])[kinds])
    table = pa.table({"item_id": np.arange(520), "kind": kinds, "noise": rng.normal(size=520)})
    ratings = ratings.to_pandas().drop_duplicates(["user_id", "item_id"])
    model = TwoTower(lists=False, epochs=4, folds=3).fit(ratings, items=table)
    assert set(model.schema_["items"]) == {"kind"}


def test_a_column_without_features_tells_nothing(data, split):
    n = data.items.num_rows
    same = pa.FixedSizeListArray.from_arrays(pa.array(np.ones(96 * n, np.float32)), 96)
    model = fitted(data, split, data.items.append_column("same", same), lists=False)
    assert "same" not in model.schema_["items"]


def test_a_few_hundred_items_are_too_few_to_judge_by():
    small = make_synthetic(n_users=200, n_items=200, n_ratings=4000)
    items = small.items.append_column("noise", noise("category", 200))
    model = TwoTower(lists=False, epochs=2, folds=2).fit(small.ratings, items=items)
    assert "noise" in model.schema_["items"]
