"""Explanations of vectors: items that have much the same, instead of coordinates."""

import numpy as np
import pyarrow as pa
import pytest

from simrec import Ratings, TwoTower

N_USERS, N_ITEMS = 60, 40


@pytest.fixture(scope="module")
def model():
    """Items of two kinds by their vectors of 80 numbers; each user likes one kind."""
    rng = np.random.default_rng(0)
    users, items = (a.ravel() for a in np.mgrid[:N_USERS, :N_ITEMS])
    kept = rng.random(len(users)) < 0.5
    users, items = users[kept], items[kept]
    values = np.where(users % 2 == items % 2, 5, 1) + rng.integers(0, 2, len(users)) * 0.5
    ratings = Ratings.from_arrow(pa.table({"user_id": users, "item_id": items, "rating": values}))
    return TwoTower(epochs=3, random_state=0).fit(ratings, items=table(range(N_ITEMS)))


def table(ids, **more):
    rng = np.random.default_rng(1)
    kinds = rng.normal(size=(2, 80))
    rows = [(kinds[i % 2] + 0.3 * rng.normal(size=80)).astype(np.float32).tolist() for i in ids]
    vectors = pa.array(rows, pa.list_(pa.float32(), 80))
    titles = [f"{'even' if i % 2 == 0 else 'odd'} film {i}" for i in ids]
    return pa.table({"item_id": list(ids), "title": titles, "embedding": vectors, **more})


def told(model, item, items=None):
    why = model.explain(0, item, items=items, output="arrow").to_pylist()
    return next(row["value"] for row in why if row["feature"] == "embedding")


def test_a_new_vector_is_told_by_known_items_like_it(model):
    new = table(range(100, 104))
    for item, kind, other in ((100, "even", "odd"), (101, "odd", "even")):
        value = told(model, item, new)
        assert value.startswith("like ") and value.count(f"{kind} film") == 3
        assert f"{other} film" not in value


def test_a_known_item_is_not_told_by_itself(model):
    value = told(model, 7)
    assert "odd film" in value and "odd film 7," not in f"{value},"


def test_without_titles_items_are_told_by_their_ids_and_missing_vectors_by_nothing():
    rng = np.random.default_rng(2)
    users, items = rng.integers(0, 30, 400), rng.integers(0, 20, 400)
    pairs = {(u, i): float(i % 2 * 4 + 1) for u, i in zip(users, items, strict=True)}
    columns = {"user_id": [u for u, _ in pairs], "item_id": [i for _, i in pairs]}
    ratings = Ratings.from_arrow(pa.table({**columns, "rating": list(pairs.values())}))
    vectors = [[float(i % 2), 1.0, 0.0] for i in range(19)] + [None]
    features = pa.table({"item_id": range(20), "v": pa.array(vectors, pa.list_(pa.float32(), 3))})
    model = TwoTower(epochs=2, random_state=0).fit(ratings, items=features)
    values = {
        item: next(
            row["value"]
            for row in model.explain(users[0], item, output="arrow").to_pylist()
            if row["feature"] == "v"
        )
        for item in (1, 19)
    }
    assert {int(i) % 2 for i in values[1].removeprefix("like ").split(", ")} == {1}
    assert values[19] == "missing"
