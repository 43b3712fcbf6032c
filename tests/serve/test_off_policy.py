"""Estimates from a log of drawn lists, against a truth that is known."""

import numpy as np
import pandas as pd
import pytest

from simrec import off_policy
from simrec.errors import InputError
from simrec.model.answer.rerank import propensities


@pytest.fixture(scope="module")
def simulation():
    """Clicks on drawn lists of five, and what the five best by other scores would have earned."""
    rng = np.random.default_rng(0)
    n_users, n_items, k = 40, 30, 5
    chance = rng.beta(2, 5, (n_users, n_items))
    scores = chance + rng.normal(0, 0.2, chance.shape)
    other = chance + rng.normal(0, 0.1, chance.shape)
    log, lists = [], []
    deviations = np.full(n_items, 0.3)
    for user in range(n_users):
        # As `draw` has it; propensities do not depend on what was drawn, so once for each user.
        of_all = propensities(scores[user], deviations, k, np.arange(n_items))
        for turn in range(40):
            drawn = scores[user] + deviations * rng.standard_normal(n_items)
            places = np.argsort(-drawn, kind="stable")[:k]
            propensity = of_all[places]
            clicks = rng.random(k) < chance[user, places]
            log.append(
                pd.DataFrame(
                    {
                        "list_id": user * 1000 + turn,
                        "user_id": user,
                        "item_id": places,
                        "propensity": propensity,
                        "reward": clicks.astype(float),
                    }
                )
            )
        best = np.argsort(-other[user])[:k]
        lists.append(pd.DataFrame({"user_id": user, "item_id": best}))
    target = pd.concat(lists)
    truth = chance[target["user_id"], target["item_id"]].sum() / n_users
    user, item = np.indices(chance.shape)
    guess = np.clip(chance + rng.normal(0, 0.1, chance.shape), 0, 1)
    model = pd.DataFrame(
        {"user_id": user.ravel(), "item_id": item.ravel(), "reward": guess.ravel()}
    )
    return pd.concat(log), target, model, truth


def test_estimates_are_within_five_percent(simulation):
    log, target, model, truth = simulation
    found = off_policy(log, target, model=model).set_index("estimate")
    assert found.index.tolist() == ["ips", "snips", "dr"]
    assert (abs(found["value"] / truth - 1) < 0.05).all(), (found, truth)
    assert found.loc["dr", "std"] < found.loc["ips", "std"]
    shown = log.groupby("list_id")["reward"].sum().mean()
    assert abs(shown / truth - 1) > 0.1  # what was shown earned something else


def test_bad_logs_are_told(simulation):
    log, target, _, _ = simulation
    with pytest.raises(InputError, match="propensity outside"):
        off_policy(log.assign(propensity=0.0), target)
    with pytest.raises(InputError, match="no list for"):
        off_policy(log, target[target["user_id"] > 3])
