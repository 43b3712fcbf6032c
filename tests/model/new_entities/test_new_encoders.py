"""Encoders of new entities in closed form: what is searched for, and what is chosen."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest

from simrec import Ratings, cold_start_split, make_synthetic
from simrec.data.sides import Sides
from simrec.model.fit import fit_towers
from simrec.model.new_entities.cross_fit import Penalty, search
from simrec.model.params import Settings
from simrec.model.posterior.observed import Observed
from simrec.model.posterior.problem import Problem
from simrec.model.posterior.sweeps import posteriors
from simrec.model.prepare import Encoding, prepare


def shop(n_users, n_items):
    data = make_synthetic(n_users=n_users, n_items=n_items, n_ratings=10 * n_users)
    return cold_start_split(Ratings.from_table(data.ratings)), data.items, data.users


def problem_of(split, items=None, users=None):
    encoding = Encoding(Sides(None, None), min_count=2, knots=4)
    train = getattr(split, "train", split)
    data = prepare(train, (1.0, 5.0), Sides(items, users), encoding)
    sides = data.sides
    features, groups = sides.map(lambda side: side.X), sides.map(lambda side: side.groups)
    return Problem(Observed.of(data.ratings), features, groups)


def fitted(problem, dim=4, epochs=6):
    settings = Settings(dim, epochs, folds=3)
    return fit_towers(problem, settings, np.random.default_rng(0), lambda _: None)


@dataclass
class Tried:
    penalty: Penalty
    error: float


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (lambda s: abs(np.log(s / 3**7)), 3**7),
        (lambda s: abs(np.log(s * 3**12)), 3**-12),
        (lambda s: 1.0, 1.0),
        # Errors that fall for ever, by less and less, end where they hardly fall.
        (lambda s: 1 + 1 / s, 3**9),
    ],
)
def test_a_search_ends_where_a_step_gains_nothing(error, expected):
    def attempt(penalty):
        return Tried(penalty, error(penalty.strength))

    best = search(attempt, attempt(Penalty(np.ones(2), strength=1.0)), Penalty.stronger, 1e-4)
    assert best.penalty.strength == pytest.approx(expected)


def test_a_clear_gain_is_more_than_a_gain():
    def attempt(penalty):
        return Tried(penalty, 1 - 0.001 * np.log(penalty.bias))

    start = attempt(Penalty(np.ones(2)))
    assert search(attempt, start, Penalty.stronger_bias, 5e-3) is start
    assert search(attempt, start, Penalty.stronger_bias, 1e-3).penalty.bias > 3


def test_a_side_with_nothing_but_a_constant_is_not_searched():
    split, items, _ = shop(300, 150)
    fit = fitted(problem_of(split, items))
    assert fit.new.users.penalty.strength == Penalty(np.ones(1)).strength


def test_penalties_are_of_features_and_larger_for_the_bias():
    problem = problem_of(*shop(100, 80))
    inputs = problem.inputs("items", history=False)
    columns = np.arange(1.0, inputs.groups.max() + 2)
    penalty = Penalty(columns, strength=2.0, bias=5.0).of_weights(inputs, D=3)
    assert penalty[:, 0] == pytest.approx(2 * columns[inputs.groups])
    assert penalty[:, 2] == pytest.approx(5 * penalty[:, 0])


def test_the_number_of_ratings_says_something_of_known_entities():
    rng = np.random.default_rng(0)
    n = np.where(np.arange(300) % 2, 3, 30)
    u = np.repeat(np.arange(300), n)
    i = np.concatenate([rng.choice(100, k, replace=False) for k in n])
    rating = 3 + 0.8 * (n[u] == 3) + 0.5 * rng.normal(size=len(u))
    train = Ratings.from_table(pa.table({"user_id": u, "item_id": i, "rating": rating}))
    problem = problem_of(train)
    known = posteriors(problem, Settings(2, 6), np.random.default_rng(0), lambda _: None)
    bias = known.users.prior_means[:, -1] * problem.observed.scale
    assert bias[n == 3].mean() - bias[n == 30].mean() > 0.4
