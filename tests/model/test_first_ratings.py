"""First ratings count in lists, by how well the items are liked."""

import copy
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from simrec.model.lists.spectrum import EXPONENT

from simrec import TwoTower

N_USERS, N_ITEMS = 150, 60


@pytest.fixture(scope="module")
def model():
    """Users who like one half of the items and rate some of the other half, too."""
    rng = np.random.default_rng(0)
    half = rng.integers(0, 2, N_USERS)
    user = np.repeat(np.arange(N_USERS), 20)
    item = np.concatenate([rng.choice(N_ITEMS, 20, replace=False) for _ in range(N_USERS)])
    liked = item % 2 == half[user]
    kept = liked | (rng.random(len(user)) < 0.5)  # what they like they take up more often
    rating = np.where(liked, 4.5, 1.5) + rng.choice([-0.5, 0.5], len(user))
    table = pa.table({"user_id": user[kept], "item_id": item[kept], "rating": rating[kept]})
    return TwoTower(bounds=(1, 5), random_state=0).fit(table)


def even(model, rating):
    """Share of even items in the list of a newcomer who rates three of them."""
    few = pa.table({"user_id": [999] * 3, "item_id": [0, 2, 4], "rating": [rating] * 3})
    found = copy.copy(model).fold_in(few).recommend([999], k=10)["item_id"]
    return float((found % 2 == 0).mean())


def test_ones_and_fives_for_the_same_items_give_opposite_lists(model):
    assert even(model, 5.0) >= 0.9
    assert even(model, 1.0) <= 0.1


@pytest.mark.parametrize("slope", [0.0, 0.3])
def test_a_new_item_in_ease_is_its_regression_on_the_others(model, slope):
    rng = np.random.default_rng(1)
    part, counts = model.parts_["ease"], np.asarray(model.towers_.items.counts)
    X = (model.rated_.toarray() > 0).astype(float)
    ratings = rng.integers(1, 6, len(X))
    users = (
        np.asarray(part.heads.users.vectors)
        if slope
        else X @ (np.asarray(part.heads.items.vectors) * np.asarray(part.numbers)[:, None])
    )
    head = replace(part.heads.users, vectors=users.astype(np.float32))
    weighed = replace(
        part, weight=replace(part.weight, slope=slope), heads=part.heads.with_side("users", head)
    )
    changed = copy.copy(model)
    changed.parts_ = {**model.parts_, "ease": weighed}
    took = np.flatnonzero(rng.random(len(X)) < np.where(X[:, 0] > 0, 0.6, 0.1))
    pairs = {"user_id": took, "item_id": [777] * len(took), "rating": ratings[took]}
    changed.fold_in(pa.table(pairs))
    found = changed.parts_["ease"]
    row = int(changed.towers_.items.ids.rows(pa.array([777]))[0])
    e, ridge = part.eigenvalues, part.ridge
    score = (
        X
        @ (np.asarray(part.heads.items.vectors) * np.asarray(part.numbers)[:, None])
        * (e / (e + ridge))
    ) @ np.asarray(found.heads.items.vectors[row])
    Y = X * counts**-EXPONENT
    x = np.zeros(len(X))
    x[took] = 1
    expected = Y @ np.linalg.solve(Y.T @ Y + ridge * np.eye(Y.shape[1]), Y.T @ x)
    assert np.corrcoef(score, expected)[0, 1] > 0.99
    assert score.mean() == pytest.approx(expected.mean(), rel=0.02)


def test_an_item_with_few_pairs_is_ranked_partly_as_a_new_one(model):
    counts = np.array([0, 1, 4, 5, 100])
    kinds = model.blend_.kinds("items", counts)
    assert kinds == pytest.approx(np.array([[1, 0], [0.8, 0.2], [0.2, 0.8], [0, 1], [0, 1]]))
    popularity = model.parts_["popularity"]
    rows = np.arange(3)
    between = popularity.between(rows, np.array([0, 2, 5]), None)
    vectors, prior = np.asarray(between.heads.items.vectors[rows]), popularity.heads.items.prior
    logs = np.log1p(np.asarray(popularity.numbers[rows]))
    assert vectors[:, 0] == pytest.approx(logs * [0, 0.4, 1])
    assert vectors[:, 1] == pytest.approx(prior[1] * np.array([1, 0.6, 0]))
    assert vectors[:, 2] == pytest.approx([1, 0.6, 0])
