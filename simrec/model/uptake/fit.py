"""Learn which items users take up, by least squares over all pairs.

Every pair of a user and an item counts: one for what was taken up, zero for all the rest. Vectors
have one coordinate more than an embedding, for popularity::

    known item  [ v * factor,     popularity ]       new item  [ features -> v,  of features ]
    known user  [ u,              0          ]       new user  [ features -> u,  share of it ]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from threadpoolctl import threadpool_limits

from simrec.data.sides import Sides
from simrec.mapped import release
from simrec.model.head import Encoder
from simrec.model.run.progress import Step, no_step
from simrec.model.run.scratch import IN_MEMORY, Scratch, slices
from simrec.model.run.workers import Workers
from simrec.model.uptake.add_pairs import Solver, axes_of, spread_axes
from simrec.model.uptake.choices import (
    Choices,
    Whole,
    choose,
    factor_norm,
    item_factor,
)
from simrec.model.uptake.encoders import Regression, choose_regression, popularity_encoder
from simrec.model.uptake.held_out import HeldOut
from simrec.model.uptake.least_squares import products, start_vectors
from simrec.model.uptake.sweeps import factorize, solve_items
from simrec.scoring.output import Output

# Passes over both sides.
_SWEEPS = 3
# Pairs that are not there on which probabilities are calibrated.
_ABSENT = 50_000


@dataclass(eq=False)
class UptakeFit:
    """What was learned of the entities with pairs, and how to encode and solve for others.

    Attributes
    ----------
    vectors, encoders, priors : Sides
        Vectors of entities with pairs, encoders of others, vectors of average ones.
    axes : Sides of numpy.ndarray
        How vectors are spread around what features say; see `spread_axes`.
    item_factors : numpy.ndarray
        Factor that the vector of each item carries.
    solver : Solver
        How vectors follow from pairs.
    output : Output
        From scalar products to probabilities.
    held, sample : HeldOut, Sides of numpy.ndarray
        Held-out pairs, and vectors that were learned without them.
    sample_new_users : numpy.ndarray
        Vectors of the new users of the sample, of whom no pairs are known.
    chosen : dict
        What was chosen.
    """

    vectors: Sides[np.ndarray]
    encoders: Sides[Encoder]
    priors: Sides[np.ndarray]
    axes: Sides[np.ndarray]
    item_factors: np.ndarray
    solver: Solver
    output: Output
    held: HeldOut
    sample: Sides[np.ndarray]
    sample_new_users: np.ndarray
    chosen: dict[str, Any]


def fit_uptake(
    R: sparse.csr_matrix,
    features: Sides[sparse.csr_matrix],
    sample: sparse.csr_matrix,
    sample_features: sparse.csr_matrix,
    confidence: float,
    embedding_dim: int | None,
    rng: np.random.Generator,
    workers: Workers,
    step: Step = no_step,
    scratch: Scratch = IN_MEMORY,
) -> UptakeFit:
    """Learn from pairs.

    Parameters
    ----------
    R : csr_matrix
        This worker's users x items: confidence in each pair, in units of the mean.
    features : Sides of csr_matrix
        Feature rows of items and these users; without columns where there are none.
    sample, sample_features : csr_matrix
        Pairs and feature rows of some users of all workers, on which choices are made.
    confidence : float
        The mean confidence.
    embedding_dim : int or None
        Coordinates without popularity; None to choose.
    rng : numpy.random.Generator
        Source of the start and of what is held out.
    workers : Workers
        The workers between whom the users are divided.
    step : callable
        Called after each point that was tried.
    """
    # Threads of our own work on batches of small matrices: those of the BLAS get in the way.
    with threadpool_limits(1, "blas"):
        X = Sides(features.items, sample_features).map(lambda one: one if one.shape[1] else None)
        held = HeldOut.of(sample, rng)
        whole = Whole.of(R, workers)
        choices = choose(X, held, whole, embedding_dim, rng, step).agreed(workers)
        prior = None
        if X.items is not None and choices.item_prior:
            prior = Regression(X.items, choices.item_by_rarity, choices.item_penalty)
        start = start_vectors(R, choices.embedding_dim, rng, workers)
        U, V = factorize(R, start, choices.ridge, choices.zero, _SWEEPS, prior, workers, scratch)
        items = None
        if X.items is not None:
            items = _item_encoder(R, X.items, U, V, choices, rng, step, workers, scratch)
        return _assembled(
            R, features, U, V, items, choices, held, confidence, rng, workers, scratch
        )


def _item_encoder(
    R: sparse.csr_matrix,
    X: sparse.csr_matrix,
    U: np.ndarray,
    V: np.ndarray,
    choices: Choices,
    rng: np.random.Generator,
    step: Step,
    workers: Workers,
    scratch: Scratch,
) -> Encoder:
    """Fit the encoder of new items to what pairs alone say of the items.

    Vectors that were drawn towards features would say how well features agree with themselves. The
    penalty is chosen again: a sample's vectors have more noise.
    """
    if choices.item_prior:
        V = solve_items(R, U, choices.ridge, choices.zero, workers, scratch)
    reached, by_rarity, penalty = choose_regression(R, X, U, V, rng, step, workers)
    choices.quality["new_items"] = reached
    return Regression(X, by_rarity, penalty).encoder(V)


def _assembled(
    R: sparse.csr_matrix,
    features: Sides[sparse.csr_matrix],
    U: np.ndarray,
    V: np.ndarray,
    item_encoder: Encoder | None,
    choices: Choices,
    held: HeldOut,
    confidence: float,
    rng: np.random.Generator,
    workers: Workers,
    scratch: Scratch,
) -> UptakeFit:
    counts = workers.sum(np.asarray(R.sum(0)).ravel())
    n_users, n_items = int(workers.total(R.shape[0])), R.shape[1]
    weight = workers.total(float(R.sum()))
    sample = _sample_vectors(choices, held)
    unit, shift = workers.agreed(_calibrated(sample, held, rng))
    solver = Solver(
        choices.ridge,
        choices.zero,
        choices.begun_zero,
        choices.begun_ridge,
        weight / n_items,
        weight / n_users,
        choices.exponent,
        factor_norm(counts, choices.exponent),
        unit,
        n_users,
        confidence,
    )
    d = V.shape[1]
    prior_item = np.append(V.mean(0), 0).astype(np.float32)
    prior_user = np.append(np.zeros(d), unit).astype(np.float32)
    items = Encoder(prior_item[None].copy())
    if item_encoder is not None:
        items = item_encoder
        said = popularity_encoder(features.items, items.idf is not None, counts / n_users, n_users)
        items.weights = np.hstack([items.weights, said[:, None]])
    users = Encoder(np.zeros((features.users.shape[1] + 1, d + 1), np.float32))
    users.weights[-1] = prior_user
    if features.users.shape[1] and choices.popularity_share < 1:
        share = np.float32(choices.popularity_share)
        users = Regression(features.users, False, choices.user_penalty, workers).encoder(U)
        users.weights = np.pad(users.weights * (1 - share) * np.float32(unit), ((0, 0), (0, 1)))
        users.weights[-1, -1] = share * unit
    user_vectors, gram = scratch.empty((len(U), d + 1)), np.zeros((d, d))
    for rows in slices(len(U)):
        user_vectors[rows] = solver.user_vectors(U[rows])
        offsets = U[rows] - users(features.users[rows])[:, :d] / np.float32(unit)
        gram += offsets.T @ offsets
        release(U[rows], user_vectors[rows])
    axes = Sides(
        spread_axes(V - items(features.items)[:, :d]),
        axes_of(workers.sum(gram)),
    )
    chosen = {
        "uptake_dimensions": d,
        "uptake_zero": choices.zero,
        "uptake_ridge": choices.ridge,
        "uptake_item_prior": choices.item_prior,
        **{f"expected_ndcg@20_{task}": value for task, value in choices.quality.items()},
    }
    return UptakeFit(
        Sides(solver.item_vectors(V, counts), user_vectors),
        Sides(items, users),
        Sides(prior_item, prior_user),
        axes,
        solver.item_factor(counts),
        solver,
        Output(0.0, 1.0, shift),
        held,
        Sides(sample.items, sample.users * np.float32(unit)),
        choices.new_users * np.float32(unit),
        chosen,
    )


def _sample_vectors(choices: Choices, held: HeldOut) -> Sides[np.ndarray]:
    counts = np.asarray(held.train.sum(0)).ravel()
    popularity = (counts / len(choices.U)).astype(np.float32)[:, None]
    items = np.hstack([choices.V * item_factor(counts, choices.exponent)[:, None], popularity])
    return Sides(items, np.hstack([choices.U, np.zeros((len(choices.U), 1), np.float32)]))


def _calibrated(
    sample: Sides[np.ndarray], held: HeldOut, rng: np.random.Generator
) -> tuple[float, float]:
    """Fit the logit of uptake as a line of the scalar product; return slope and intercept.

    Held-out pairs are the ones; zeros are drawn among all pairs that are not in the training
    sample, and weighted to be as many as there are. A tenth of the pairs was held out, so the ones
    stand for ten times as many.
    """
    ones = held.warm.tocoo()
    if not ones.nnz:
        return 1.0, 0.0
    n_users, n_items = held.train.shape
    n = min(_ABSENT, n_users * n_items)
    users, items = rng.integers(0, n_users, n), rng.integers(0, n_items, n)
    there = np.asarray((held.train + held.warm)[users, items]).ravel() > 0
    users, items = users[~there], items[~there]
    rows, columns = np.append(ones.row, users), np.append(ones.col, items)
    z = products(sample.users, sample.items, rows, columns).astype(np.float64)
    y = np.r_[np.ones(ones.nnz), np.zeros(len(users))]
    absent = n_users * n_items - held.train.nnz - held.warm.nnz
    weight = np.r_[np.full(ones.nnz, 10.0), np.full(len(users), absent / max(len(users), 1))]
    return _logistic_line(z, y, weight)


def _logistic_line(z: np.ndarray, y: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
    """Fit a weighted logistic regression on one variable by Newton's method."""
    rate = float(np.clip((weight * y).sum() / weight.sum(), 1e-6, 1 - 1e-6))
    scale = float(z.std()) or 1.0
    a, b = 1.0, np.log(rate / (1 - rate))
    x = z / scale
    for _ in range(50):
        p = 1 / (1 + np.exp(-np.clip(a * x + b, -30, 30)))
        slope, v = weight * (y - p), weight * p * (1 - p)
        gradient = np.array([(slope * x).sum(), slope.sum()]) - np.array([1e-3 * a, 0])
        H = np.array([[(v * x * x).sum() + 1e-3, (v * x).sum()], [(v * x).sum(), v.sum()]])
        step = np.linalg.solve(H + 1e-9 * np.eye(2), gradient)
        step *= min(1.0, 5.0 / max(float(np.abs(step).max()), 1e-12))
        a, b = a + step[0], b + step[1]
        if np.abs(step).max() < 1e-6:
            break
    return max(a / scale, 1e-6), float(b)
