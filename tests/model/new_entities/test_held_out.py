"""Held-out means held-out: what is held out is not seen, and noise gains nothing by it."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from simrec import Ratings, TwoTower, cold_start_split, make_synthetic
from simrec.data.sides import Sides
from simrec.model.fit import fit_towers
from simrec.model.new_entities.cross_fit import Attempt, CrossFit, Penalty, prune
from simrec.model.params import Settings
from simrec.model.posterior.encoder import EncoderInputs
from simrec.model.posterior.posterior import Statistics
from simrec.model.posterior.problem import Problem
from simrec.model.prepare import Encoding, prepare
from simrec.scoring.output import Output


@pytest.fixture(scope="module")
def data():
    return make_synthetic(n_users=160, n_items=90, n_ratings=3500, random_state=4)


@pytest.fixture(scope="module")
def split(data):
    return cold_start_split(Ratings.from_arrow(data.ratings), random_state=0)


def cross_fit(n=60, p=60, D=3, seed=0):
    """Ratings of entities that a column of noise as wide as their number cannot explain."""
    rng = np.random.default_rng(seed)
    X = sparse.csr_matrix(np.hstack([rng.normal(size=(n, p)), np.ones((n, 1))]).astype("f4"))
    A = rng.normal(size=(n, D, 2 * D)).astype("f4")
    S = A @ A.transpose(0, 2, 1)
    h = (S @ rng.normal(size=(n, D, 1)).astype("f4"))[:, :, 0]
    inputs = EncoderInputs(X, np.append(np.zeros(p, int), 1))
    return CrossFit(inputs, Statistics(S, h, np.zeros(n)), np.arange(n) % 4, 4)


def test_an_embedding_does_not_depend_on_the_ratings_of_its_fold():
    """Also where fits go on from those with another penalty."""
    encoders = cross_fit()
    there = encoders.folds == 2
    stats = encoders.stats
    S, h = stats.S.copy(), stats.h.copy()
    S[there], h[there] = 9 * S[there], 100 - h[there]
    other = replace(encoders, stats=replace(stats, S=S, h=h))
    for strength in (100.0, 1.0, 1e-4):
        penalty = np.full((61, 1), strength)
        encoders, other = encoders.fitted(penalty), other.fitted(penalty)
        assert np.array_equal(encoders.held_out()[there], other.held_out()[there])
        assert not np.allclose(encoders.weights, other.weights)


@pytest.mark.parametrize("strength", [300.0, 30.0])
def test_every_fit_without_a_fold_is_the_exact_solution(strength):
    encoders = cross_fit().fitted(np.full((61, 1), strength))
    X, D = encoders.inputs.X.toarray().astype(float), encoders.stats.h.shape[1]
    for fold in range(4):
        seen = encoders.folds != fold
        A = np.einsum("ip,iq,ide->pdqe", X[seen], X[seen], encoders.stats.S[seen], optimize=True)
        A = A.reshape(61 * D, 61 * D) + strength * np.eye(61 * D)
        b = np.einsum("ip,id->pd", X[seen], encoders.stats.h[seen]).ravel()
        exact = X[~seen] @ np.linalg.solve(A, b).reshape(61, D)
        found = encoders.held_out()[~seen]
        assert np.abs(found - exact).max() < 0.01 * np.abs(exact).max()


def problems(data, split, noisy_side):
    """The ratings with their features, and with a column of noise as wide as the entities."""
    encoding = Encoding(Sides(None, None), min_count=2, knots=4)
    prepared = prepare(split.train, (0.5, 5.0), Sides(data.items, data.users), encoding)
    plain = Problem.of(prepared, Output(0.5, 5.0, kind="clip"))
    X, groups = plain.features[noisy_side], plain.groups[noisy_side]
    noise = np.random.default_rng(0).normal(size=(X.shape[0], X.shape[0])).astype("f4")
    wide = sparse.hstack([X[:, :-1], noise, X[:, -1:]], "csr", dtype=np.float32)
    column = np.full(X.shape[0], groups[-1])
    noisy = replace(
        plain,
        features=plain.features.with_side(noisy_side, wide),
        groups=plain.groups.with_side(
            noisy_side, np.concatenate([groups[:-1], column, [groups[-1] + 1]])
        ),
    )
    return plain, noisy


WAYS = {
    "default": {},
    "two SimEcs": {"refine": False},
    "hidden layers": {"hidden_layers": (4,)},
}


@pytest.mark.parametrize("side", ["items", "users"])
@pytest.mark.parametrize(
    "way", ["default", "two SimEcs", pytest.param("hidden layers", marks=pytest.mark.slow)]
)
def test_noise_does_not_lower_the_expected_error(data, split, side, way):
    """Neither by penalties, nor by hidden units, nor by a network that stops early."""
    settings = Settings(4, 6, folds=3, **WAYS[way])
    plain, noisy = (
        fit_towers(problem, settings, np.random.default_rng(0), lambda _: None)
        for problem in problems(data, split, side)
    )
    assert noisy.new[side].error > 0.99 * plain.new[side].error
    assert not noisy.both.error < 0.98 * plain.both.error  # of networks it is not estimated


@pytest.mark.parametrize("output", ["identity", "sigmoid"])
def test_what_is_expected_is_reached(data, split, output):
    """Errors and standard deviations for new entities, with a column of noise among features."""
    rng = np.random.default_rng(1)
    items = data.items.append_column("noise", [rng.normal(size=(len(data.items), 90)).tolist()])
    settings = {"embedding_dim": 4, "epochs": 6, "rating_output": output, "bounds": (0.5, 5)}
    settings["lists"] = False
    model = TwoTower(**settings).fit(split.train, items=items, users=data.users)
    for part, side in ((split.new_items, "items"), (split.new_users, "users")):
        predicted, std = model.predict(part, return_std=True)
        reached = float(np.sqrt(np.mean((predicted - part.values) ** 2)))
        assert model.chosen_[f"expected_rmse_new_{side}"] == pytest.approx(reached, rel=0.12)
        assert 0.55 < np.mean(np.abs(predicted - part.values) < std) < 0.8


@pytest.mark.parametrize(("without_noise", "dropped"), [(0.9, True), (1.0001, True), (1.01, False)])
def test_columns_are_dropped_unless_the_error_is_clearly_larger_then(without_noise, dropped):
    columns, constant = np.array([1.0, 100.0, 1.0, 1.0]), 3

    def attempt(penalty):
        gone = penalty.columns > columns
        return Attempt(None, penalty, 1.2 if gone[0] else without_noise if gone[1] else 1.0)

    best = prune(attempt, attempt(Penalty(columns)), constant)
    assert (best.penalty.columns > columns).tolist() == [False, dropped, False, False]
