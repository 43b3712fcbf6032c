"""New items among others, and for users of whom nothing is known."""

import numpy as np
import pytest

from simrec import Ratings, TwoTower, cold_start_split, evaluate, make_synthetic
from simrec.model.lists.new_items import Levels


def test_new_items_get_the_spread_and_level_of_others():
    rng = np.random.default_rng(0)
    old, cold = rng.normal(2, 3, (200, 300)), rng.normal(10, 0.5, (200, 100))
    factor, shift = Levels.of([old], [cold]).line(1.0, 0.5)
    moved = factor * cold + shift
    assert moved.std() == pytest.approx(3, rel=0.02)
    assert moved.mean() == pytest.approx(2 + 0.5 * 3, abs=0.05)


def test_cold_users_get_new_items_at_least_as_good_as_popular_ones(monkeypatch):
    """Weights that suit known users once ranked new items worse than popularity for cold users."""
    monkeypatch.setattr("simrec.model.lists.fit.LEAST_DRAWS", 2)
    monkeypatch.setattr("simrec.model.lists.fit.MOST_DRAWS", 8)
    made = make_synthetic(n_users=300, n_items=200, n_ratings=8_000, random_state=0)
    split = cold_start_split(Ratings.from_table(made.ratings), random_state=0)
    model = TwoTower(bounds=(0.5, 5), random_state=0)
    model.fit(split.train, items=made.items, users=made.users)
    figures = evaluate(model, split, items=made.items).set_index("task").loc["new_both"]
    assert figures["ndcg@10"] > 0.95 * figures["ndcg@10_popular"]
