"""Encoders of new entities in closed form: what is searched for, and what is chosen."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from scipy import sparse

from simrec import Ratings, TwoTower, cold_start_split
from simrec.data.sides import Sides
from simrec.model.fit import fit_towers
from simrec.model.new_entities.cross_fit import Penalty, search
from simrec.model.new_entities.networks import HiddenLayer
from simrec.model.params import Settings
from simrec.model.posterior.observed import Observed
from simrec.model.posterior.problem import Problem
from simrec.model.posterior.sweeps import posteriors
from simrec.model.prepare import Encoding, prepare

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(autouse=True)
def on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def shop(interaction, n_users=900, n_items=500, seed=0):
    from _few_ratings import few_ratings

    ratings, items, users = few_ratings(n_users, n_items, interaction, seed)
    return cold_start_split(Ratings.from_table(ratings), random_state=seed), items, users


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
    split, items, _ = shop(0.0, 300, 150)
    fit = fitted(problem_of(split, items))
    assert fit.new.users.penalty.strength == Penalty(np.ones(1)).strength
    assert fit.new.users.hidden is None


def test_penalties_are_of_features_and_units_and_larger_for_the_bias():
    problem = problem_of(*shop(0.0, 100, 80))
    inputs = problem.inputs("items", history=False)
    inputs.units = np.ones((len(inputs.X.indptr) - 1, 2), np.float32)
    columns = np.arange(1.0, inputs.groups.max() + 2)
    penalty = Penalty(columns, strength=2.0, bias=5.0, hidden=7.0).of_weights(inputs, D=3)
    assert penalty[:-2, 0] == pytest.approx(2 * columns[inputs.groups])
    assert penalty[-2:].tolist() == [[7, 7, 35]] * 2
    assert penalty[:, 2] == pytest.approx(5 * penalty[:, 0])


def test_the_network_of_a_hidden_layer_is_its_closed_form():
    rng = np.random.default_rng(0)
    X = sparse.random(60, 9, 0.4, format="csr", dtype=np.float32, rng=rng)
    layer = HiddenLayer.drawn(X, np.ones(9), rng)
    units = layer(X)
    assert units.mean(0) == pytest.approx(np.zeros(layer.width), abs=1e-5)
    assert np.sum(units.var(0)) == pytest.approx(1, abs=0.05)
    weights = rng.normal(size=(9 + 1 + layer.width, 3)).astype(np.float32)
    expected = np.hstack([X.toarray(), np.ones((60, 1)), units]) @ weights
    assert layer.network(weights).transform(X) == pytest.approx(expected, abs=1e-3)


def test_a_hidden_layer_is_chosen_where_columns_work_together_and_only_there():
    together, alone = (fitted(problem_of(*shop(share))) for share in (0.9, 0.0))
    assert together.new.users.network is not None
    assert together.both.network is not None
    assert alone.new.items.hidden is alone.new.users.hidden is None
    assert alone.both.network is None


def test_a_model_that_chose_a_hidden_layer_is_saved_and_explained(tmp_path):
    split, items, users = shop(0.9)
    model = TwoTower(lists=False, embedding_dim=4, epochs=6, folds=3, bounds=(1, 5), knots=4)
    model.fit(split.train, items=items, users=users)
    predicted = model.predict(split.new_users)
    model.save(tmp_path / "model")
    assert np.array_equal(TwoTower.load(tmp_path / "model").predict(split.new_users), predicted)
    X = model.towers_.users.features[:5]
    embedded = model.user_simec_.transform(X)
    own, _ = model.parts_["rating"].layout.from_features(
        "users", model.parts_["rating"].heads.users.encoder(X)
    )
    assert embedded == pytest.approx(own, abs=1e-5)


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
