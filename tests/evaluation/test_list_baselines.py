"""List baselines: EASE and the TF-IDF profile by hand, and where they are named."""

import numpy as np
import pyarrow as pa
import pytest
from scipy import sparse

from simrec import Ratings, TwoTower, cold_start_split, evaluate, make_synthetic
from simrec.evaluation.baselines import (
    ContentBaseline,
    EaseBaseline,
    PopularityBaseline,
    fit_list_baselines,
    lists,
)
from simrec.evaluation.baselines.lists import term_counts
from simrec.evaluation.evaluate import verdicts


def ratings(user, item, value=None):
    value = np.ones(len(user)) if value is None else value
    return Ratings.from_arrow(pa.table({"user_id": user, "item_id": item, "rating": value}))


@pytest.fixture(scope="module")
def clubs():
    """Two clubs of users, each with ten items of its own, of which a user has some."""
    rng = np.random.default_rng(0)
    user = np.repeat(np.arange(60), 6)
    item = np.concatenate([10 * (u % 2) + rng.permutation(10)[:6] for u in range(60)])
    return ratings(user, item)


@pytest.fixture
def items():
    return pa.table(
        {
            "item_id": np.arange(22),
            "title": [f"Film {i}" for i in range(22)],
            "club": ["A"] * 10 + ["B"] * 10 + ["A", "B"],
        }
    )


def test_ease_is_the_closed_form(clubs):
    found = EaseBaseline.fit(clubs)
    X = clubs.to_csr().toarray().astype(np.float64)
    inverse = np.linalg.inv(X.T @ X + found.l2 * np.eye(20))
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0)
    np.testing.assert_allclose(found.weights, weights, atol=1e-5)
    users, all_items = clubs.users.ids, clubs.items.ids
    np.testing.assert_allclose(found.scores(users, all_items), X @ weights, atol=1e-5)
    # What the user's club has and the user has not; an item nobody rated has score 0.
    lists = found.recommend(users, 4, all_items, exclude=clubs).to_pandas()
    assert (lists["item_id"] // 10 == lists["user_id"] % 2).all() and len(lists) == 240
    assert (found.scores(users, pa.array([99, 3]))[:, 0] == 0).all()


def test_the_matrix_is_whole_where_it_is_made_in_blocks(clubs, monkeypatch):
    whole = EaseBaseline.fit(clubs).weights
    monkeypatch.setattr(lists, "BLOCK", 7)
    np.testing.assert_allclose(EaseBaseline.fit(clubs).weights, whole, atol=1e-6)


def test_the_penalty_is_chosen_on_held_out_pairs():
    """Rare items that come in twos need a small penalty to be told from popular ones."""
    rng = np.random.default_rng(1)
    popular = rng.random((400, 10)) < 0.6
    firsts = np.stack([rng.permutation(50)[:3] for _ in range(400)])
    twos, alone = np.zeros((2, 400, 110), bool)
    twos[:, :10] = alone[:, :10] = popular
    for shift in (0, 1):
        np.put_along_axis(twos, 10 + 2 * firsts + shift, True, axis=1)
    np.put_along_axis(
        alone, 10 + rng.permuted(np.tile(np.arange(100), (400, 1)), axis=1)[:, :6], True, axis=1
    )
    chosen = [EaseBaseline.fit(ratings(*pairs.nonzero())).l2 for pairs in (twos, alone)]
    assert chosen[0] < chosen[1]


def test_too_many_items_are_said(clubs, monkeypatch, caplog):
    monkeypatch.setattr(lists, "MOST_ITEMS", 19)
    assert EaseBaseline.fit(clubs) is None
    assert "EASE is left out: 20 items, and it is for at most 19" in caplog.text
    assert set(fit_list_baselines(clubs, None, 1.0)) == {"popular"}


def test_the_profile_finds_new_items_like_those_a_user_has(clubs, items):
    found = ContentBaseline.fit(clubs, items)
    lists = found.recommend(clubs.users.ids, 1, pa.array([20, 21])).to_pandas()
    assert (lists["item_id"] - 20 == lists["user_id"] % 2).all()
    # The cosine by hand: the club's term is all that two items share.
    terms = found.terms.toarray()
    np.testing.assert_allclose(np.linalg.norm(terms[:-1], axis=1), 1)
    assert (terms[-1] == 0).all()
    profile = terms[[i for u, i in zip(clubs.user_rows, clubs.item_rows, strict=True) if u == 0]]
    score = found.scores(clubs.users.ids[:1], pa.array([20, 21, 77]))[0]
    np.testing.assert_allclose(score, [*(profile.sum(axis=0) @ terms[[20, 21]].T), 0])
    assert ContentBaseline.fit(clubs, None) is None
    assert ContentBaseline.fit(clubs, items.select(["item_id"])) is None


def test_terms_are_words_elements_and_whole_numbers():
    table = pa.table(
        {
            "item_id": [1, 2, 3],
            "text": ["The red, red Fox", "the fox", None],
            "tags": [["a", "b"], ["b"], []],
            "year": [1999.0, 1999.0, None],
            "price": [0.5, 0.5, 0.5],
            "vector": [[0.1, 0.2]] * 3,
        }
    )
    # the, fox, b, 1999: what is in one row alone, numbers with fractions and vectors are no terms.
    found = term_counts(table)
    assert sparse.issparse(found)
    np.testing.assert_array_equal(found.toarray(), [[1, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0]])


def test_equal_scores_keep_the_order_of_the_items():
    popular = PopularityBaseline.fit(ratings([1, 2, 3], [5, 6, 7]))
    found = popular.recommend(pa.array([9]), 2, pa.array([7, 5, 6]))
    assert found["item_id"].to_pylist() == [7, 5]


class Bad:
    """A model whose lists are the worst there is."""

    def __init__(self, train):
        self.popular = PopularityBaseline.fit(train)

    def predict(self, pairs):
        return np.full(pairs.num_rows, 3.0, np.float32)

    def recommend(self, users, k, items, exclude=None):
        found = self.popular.recommend(users, len(items), items, exclude).to_pandas()
        found["rank"] = found.groupby("user_id")["rank"].rank(ascending=False).astype(int)
        return found[found["rank"] <= k]


def test_evaluate_sets_them_beside_the_model(clubs, items):
    split = cold_start_split(clubs, cold_items=0.2, cold_users=0.2, warm=0.2)
    table = evaluate(Bad(split.train), split, k=3, items=items)
    tasks = table.set_index("task")
    assert tasks["ndcg@3_ease"].notna().tolist() == [True, False, False, False]
    assert tasks["ndcg@3_content"].notna().tolist() == [True, True, False, False]
    assert tasks["ndcg@3_popular"].notna().all()
    assert tasks.loc["warm", "ndcg@3_ease"] > tasks.loc["warm", "ndcg@3_popular"]
    blind = verdicts(evaluate(Bad(split.train), split, k=3), 3)
    assert blind[0].startswith("known users and items: the lists are no better than EASE (NDCG@3 ")
    said = verdicts(table, 3)
    assert any("new items: the lists are no better than a TF-IDF profile" in s for s in said)
    # Printed, it fits a terminal, has the baselines, and says where they are better.
    text = str(table)
    assert all(len(line) <= 100 for line in text.split("\n\n")[0].splitlines())
    assert "ndcg@3_ease" in text and "ndcg@3_content" in text and "recall@3_ease" not in text
    assert all(sentence in text for sentence in said) and repr(table) == text
    assert "<pre>" in table._repr_html_()


def test_several_seeds_fit_a_terminal_too():
    data = make_synthetic(n_users=60, n_items=40, n_ratings=500)
    table = evaluate(TwoTower(epochs=1), data.ratings, seeds=2, items=data.items)
    assert "±" in str(table) and all(
        len(line) <= 100 for line in str(table).split("\n\n")[0].splitlines()
    )
