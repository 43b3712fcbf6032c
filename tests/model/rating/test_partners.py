"""Penalties of encoders of new entities are chosen on some partners, where there are many."""

import numpy as np
import pytest
from workers import in_threads

from simrec import Ratings, TwoTower, cold_start_split, make_synthetic
from simrec.model.rating import fit as rating_fit
from simrec.model.rating.partners import Partners

SETTINGS = {"embedding_dim": 4, "epochs": 5, "folds": 3, "bounds": (0.5, 5.0)}


@pytest.fixture(scope="module")
def data():
    return make_synthetic(n_users=400, n_items=60, n_ratings=6000, random_state=1)


@pytest.fixture(scope="module")
def split(data):
    return cold_start_split(Ratings.from_arrow(data.ratings), random_state=0)


@pytest.fixture
def few_entries(monkeypatch):
    """Estimate errors on the ratings of less than half of the users; count these."""
    monkeypatch.setattr(rating_fit, "_SAMPLE", 150)
    seen, plain = [], Partners.some

    def some(self, side):
        found = plain(self, side)
        if side == "items":
            seen.append((found.ratings.n_rows, self.ratings.n_rows))
        return found

    monkeypatch.setattr(Partners, "some", some)
    return seen


def fit(data, split, **how):
    return TwoTower(**SETTINGS).fit(split.train, items=data.items, users=data.users, **how)


def test_some_partners_choose_and_all_are_refitted(data, split, few_entries):
    model = fit(data, split)
    some, everyone = few_entries[0]
    assert some < everyone / 2
    # Every known user has coordinates that new items meet.
    rating = model.parts_["rating"]
    users = np.asarray(rating.heads.users.vectors)
    assert len(users) == 400
    _, to_new = rating.layout.from_features("users", users)
    assert (np.abs(to_new).sum(1) > 0).all()


def test_a_penalty_is_chosen_as_with_all_partners(data, split, few_entries, monkeypatch):
    model = fit(data, split)
    monkeypatch.setattr(Partners, "some", lambda self, side: self)
    everyone = fit(data, split)
    assert model.chosen_["item_penalty"] == everyone.chosen_["item_penalty"]
    for side in ("items", "users"):
        one, other = (m.parts_["rating"].heads[side].vectors for m in (model, everyone))
        assert np.array_equal(one, other)


def test_workers_choose_alike(data, split, few_entries):
    alone = fit(data, split)
    together = in_threads(2, lambda workers: fit(data, split, strategy=workers))
    for model in together:
        assert model.chosen_["item_penalty"] == alone.chosen_["item_penalty"]
        assert np.isclose(*(m.chosen_["expected_rmse_new_items"] for m in (model, alone)), 1e-4)
