"""First ratings count in lists, by how well the items are liked."""

import copy

import numpy as np
import pyarrow as pa
import pytest

from simrec import Ratings, TwoTower
from simrec.model.head import Encoder, Found, JoinedHead, StoredHead
from simrec.model.lists.blend import item_kinds, user_kinds
from simrec.model.lists.pair_weight import PairWeight

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


def test_an_item_that_is_partly_known_is_ranked_partly_as_a_new_one():
    known = np.array([0, 0.2, 0.8, 1, 1], np.float32)
    kinds = item_kinds(known)
    assert kinds == pytest.approx(np.array([[1, 0], [0.8, 0.2], [0.2, 0.8], [0, 1], [0, 1]]))
    own, cold = np.full((5, 1), 7, np.float32), Encoder(np.array([[3], [0]], np.float32))
    head = StoredHead(own, cold, np.zeros(1, np.float32))
    joined = JoinedHead([head, head], lambda known: item_kinds(known)[:, ::-1], lambda: known)
    expected = np.array([[0, 7], [1.4, 5.6], [5.6, 1.4], [7, 0], [7, 0]])
    assert joined.vectors == pytest.approx(expected)
    some = Found(np.array([2, 1]), 5, None, np.zeros(2, bool))
    assert joined.of(some) == pytest.approx(expected[[2, 1]])


def test_a_user_with_few_pairs_is_encoded_as_such():
    """From ten pairs on a history counts as whole; between five and ten, in part."""
    kinds = user_kinds(np.array([0, 1, 5, 7, 10, 500]))
    assert kinds.sum(1) == pytest.approx(np.ones(6))
    assert kinds[:, 0].tolist() == [1, 0, 0, 0, 0, 0]
    assert kinds[:, 2] == pytest.approx([0, 0, 0, np.log2(7 / 5), 1, 1])


def test_a_pair_counts_by_its_rating():
    """One standard deviation above the mean counts a quarter more."""
    columns = {"user_id": [1, 2, 3, 4], "item_id": [1, 1, 1, 1]}
    rated = Ratings.from_table(pa.table({**columns, "rating": [1.0, 1.0, 5.0, 5.0]}))
    weight = PairWeight.of(rated, 4.0)
    assert weight(np.array([1.0, 3.0, 5.0])) == pytest.approx([0.75, 1, 1.25])
    taken = Ratings.from_table(pa.table(columns), rating=None)
    assert PairWeight.of(taken, 0.0)(np.ones(3)).tolist() == [1, 1, 1]
    same = Ratings.from_table(pa.table({**columns, "rating": [3.0] * 4}))
    assert PairWeight.of(same, 4.0)(np.array([3.0, 5.0])).tolist() == [1, 1]


def test_first_pairs_of_a_new_item_do_not_take_it_out_of_lists():
    """Its place moves from that of its features to that of its pairs, and does not fall between."""
    rng = np.random.default_rng(1)
    taste, group = rng.integers(0, 2, 300), np.arange(80) % 2
    level = np.where(np.arange(80) < 40, 0.5, 0.1)  # the first forty are the ones of a good label
    p = np.where(taste[:, None] == group, level, 0.02)
    users, taken = np.nonzero(rng.random(p.shape) < p)
    label = np.where(np.arange(80) < 40, "good", "other")
    items = pa.table({"item_id": np.arange(80), "group": group.astype(str), "label": label})
    new = taken < 4  # good ones of both groups
    model = TwoTower(random_state=0).fit(
        pa.table({"user_id": users[~new], "item_id": taken[~new]}), items=items.slice(4)
    )
    model.fold_in(None, items=items.slice(0, 4))
    order = rng.permutation(np.flatnonzero(new))
    others = np.setdiff1d(np.arange(300), users[order[:40]])  # who have not yet taken one
    shares = []
    for n in (0, 4, 8, 20, 40):
        grown = copy.copy(model)
        if n:
            some = order[:n]
            grown.update(pa.table({"user_id": users[some], "item_id": taken[some]}))
        best = grown.recommend(model.users_.take(others).to_pylist(), k=5)
        of_new = best[best["item_id"] < 4]
        right = group[of_new["item_id"]] == taste[of_new["user_id"].to_numpy(int)]
        shares.append(right.sum() / len(others) / 2)
    assert np.diff(shares).min() > -0.04
    # Pairs alone would take it away: with ten pairs each they have an eighth of those of others.
    assert shares[-1] > 0.7 * shares[0] > 0.1
