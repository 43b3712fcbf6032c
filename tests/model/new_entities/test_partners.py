"""Partners of new entities are refitted, and workers choose alike."""

import numpy as np
import pytest
from workers import fit_together

from simrec import Ratings, TwoTower, cold_start_split, make_synthetic
from simrec.model import fit as model_fit

SETTINGS = {"embedding_dim": 4, "epochs": 5, "folds": 3, "bounds": (0.5, 5.0), "lists": False}


@pytest.fixture(scope="module")
def data():
    return make_synthetic(n_users=400, n_items=60, n_ratings=6000, random_state=1)


@pytest.fixture(scope="module")
def split(data):
    return cold_start_split(Ratings.from_arrow(data.ratings), random_state=0)


def fit(data, split):
    return TwoTower(**SETTINGS).fit(split.train, items=data.items, users=data.users)


def test_all_partners_are_refitted(data, split):
    rating = fit(data, split).parts_["rating"]
    # Every known user has coordinates that are used against new items.
    users = np.asarray(rating.heads.users.vectors)
    assert len(users) == 400
    _, cold = rating.layout.from_features("users", users)
    assert (np.abs(cold).sum(1) > 0).all()


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_workers_choose_alike(data, split, monkeypatch, tmp_path, size):
    monkeypatch.setattr(model_fit, "_SAMPLE", 150)
    alone = fit(data, split)
    tables = data.items, data.users
    model = fit_together(TwoTower(**SETTINGS), size, split.train, *tables, tmp_path / "model")
    for name in ("rating_output", "item_penalty", "user_penalty"):
        assert model.chosen_[name] == alone.chosen_[name]
    assert np.isclose(*(m.chosen_["expected_rmse_new_items"] for m in (model, alone)), 1e-4)
