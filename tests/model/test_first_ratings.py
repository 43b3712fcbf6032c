"""First ratings count in lists, by how well the items are liked."""

import copy

import numpy as np
import pyarrow as pa
import pytest

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
