"""Explanations of vectors: items that have much the same, instead of coordinates."""

import copy
import re

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


def small_model():
    """Items without titles: their parity is in a vector of three numbers, and is what is rated."""
    rng = np.random.default_rng(2)
    users, items = rng.integers(0, 30, 400), rng.integers(0, 20, 400)
    pairs = {(u, i): float(i % 2 * 4 + 1) for u, i in zip(users, items, strict=True)}
    columns = {"user_id": [u for u, _ in pairs], "item_id": [i for _, i in pairs]}
    ratings = Ratings.from_arrow(pa.table({**columns, "rating": list(pairs.values())}))
    vectors = [[float(i % 2), 1.0, 0.0] for i in range(19)] + [None]
    features = pa.table({"item_id": range(20), "v": pa.array(vectors, pa.list_(pa.float32(), 3))})
    return TwoTower(epochs=2, random_state=0).fit(ratings, items=features)


def value_of(model, user, item, feature, **how):
    why = model.explain(user, item, output="arrow", **how).to_pylist()
    return next(row["value"] for row in why if row["feature"] == feature)


def ids_in(value):
    return {int(i) for i in value.removeprefix("like ").split(" (")[0].split(", ")}


@pytest.mark.slow
def test_without_titles_items_are_told_by_their_ids_and_missing_vectors_by_nothing():
    model = small_model()
    assert {i % 2 for i in ids_in(value_of(model, 5, 1, "v"))} == {1}
    assert value_of(model, 5, 19, "v") == "missing"


def liked_by(model, user):
    """The items that a user rated from 3.5 on: the kind of their own parity."""
    return set(model.rated_[[user]].indices.tolist()) & set(range(user % 2, N_ITEMS, 2))


def named_in(value):
    return {int(i) for i in re.findall(r"film (\d+)", value)}


def test_a_user_is_told_items_that_they_liked(model, tmp_path):
    """Because you liked X: only items of the user's own that they rated highly."""
    new = table(range(100, 104))
    model.save(tmp_path / "m")
    for own in (model, TwoTower.load(tmp_path / "m")):
        for user, item in ((0, 100), (1, 101)):
            why = own.explain(user, item, items=new, output="arrow").to_pylist()
            vector = next(row for row in why if row["feature"] == "embedding")
            assert vector["contribution"] > 0 and vector["value"].endswith(" (liked)")
            assert len(named_in(vector["value"])) == 3
            assert named_in(vector["value"]) <= liked_by(model, user)
            history = [row for row in why if " ratings" in row["value"] and row["side"] == "user"]
            told = [named_in(row["value"]) for row in history if row["contribution"] > 0]
            assert all(len(names) == 3 and names <= liked_by(model, user) for names in told)
        # What lowers a score is not due to what was liked.
        why = own.explain(0, 101, items=new, output="arrow").to_pylist()
        vector = next(row for row in why if row["feature"] == "embedding")
        assert vector["contribution"] < 0 and "liked" not in vector["value"]


def test_what_later_ratings_say_is_liked_or_not():
    model = small_model()
    later = {"user_id": [900] * 4, "item_id": [1, 3, 0, 2], "rating": [5.0, 5.0, 1.0, 1.0]}
    folded = copy.copy(model).fold_in(pa.table(later))
    row = folded.users_.rows([900])
    assert set(folded.liked_[row].indices) == set(folded.items_.rows([1, 3]))
    again = copy.copy(folded)
    again.update(pa.table({"user_id": [900], "item_id": [3], "rating": [1.0]}))
    assert set(again.liked_[row].indices) == set(again.items_.rows([1]))
    guest = model.guests(pa.table(later))
    assert set(guest.liked_[[0]].indices) == set(guest.items_.rows([1, 3]))
    n = folded.liked_.nnz
    folded.forget([900])
    assert folded.liked_.nnz == n - 2 and folded.liked_.shape == folded.rated_.shape


def test_a_feature_has_one_row_where_an_item_is_partly_new(model):
    few = pa.table({"user_id": [0, 1], "item_id": [500, 500], "rating": [5.0, 1.0]})
    partly = copy.copy(model).fold_in(few, items=table([500]))
    why = partly.explain(3, 500, rank_by="both")
    assert not why.duplicated(["side", "feature"]).any()


def test_without_ratings_items_are_told_that_were_taken_up():
    rng = np.random.default_rng(3)
    pairs = pa.table({"user_id": np.repeat(range(40), 6), "item_id": rng.integers(0, 25, 240)})
    model = TwoTower(epochs=2, random_state=0).fit(pairs)
    user, item = 3, 7
    why = model.explain(user, item, output="arrow").to_pylist()
    told = [row["value"] for row in why if "took up" in row["value"]]
    mine = set(model.rated_[model.users_.rows([user])].indices) - {item}
    for value in told:
        assert {int(i) for i in value.split("took up ")[1].split(", ")} <= mine
    assert model.liked_ is None


def test_a_vector_is_told_by_items_that_carry_what_matters():
    """Ratings depend on the first number of a vector, which the others drown."""
    rng = np.random.default_rng(4)
    n_users, n_items = 80, 60
    vectors = 2 * rng.normal(size=(n_items + 2, 8)).astype(np.float32)
    vectors[:, 0] = np.where(np.arange(n_items + 2) % 2, 1, -1)
    users, items = (a.ravel() for a in np.mgrid[:n_users, :n_items])
    kept = rng.random(len(users)) < 0.5
    users, items = users[kept], items[kept]
    values = np.where(users % 2 == items % 2, 5.0, 1.0)
    ratings = pa.table({"user_id": users, "item_id": items, "rating": values})
    flat = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 8)
    features = pa.table({"item_id": range(n_items + 2), "v": flat})
    model = TwoTower(epochs=3, random_state=0).fit(ratings, items=features.slice(0, n_items))
    for item in (n_items, n_items + 1):
        assert {i % 2 for i in ids_in(value_of(model, item % 2, item, "v", items=features))} == {
            item % 2
        }
