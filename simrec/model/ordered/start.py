"""The two SimEcs in closed form, with their output taken as straight around the mean.

There a SimEc is linear in its encoder and in W_l in turn, and both have exact solutions. L-BFGS
goes on from here with the bounded output. Of the coordinates of an embedding one begins as a
constant of the items and one as a constant of the users, so that both sides have biases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from simrec.data.sides import Sides
from simrec.model.ordered.training import Point, Start, entries
from simrec.model.rating.linear_encoder import EncoderInputs, learned_penalty, solve
from simrec.model.rating.observed import RatingRows, rating_rows
from simrec.model.rating.packed import pack, unpack
from simrec.model.rating.posterior import (
    Marginal,
    Posterior,
    Precisions,
    Statistics,
    expected_squares,
    fit_posterior,
    posterior_covariance,
    statistics,
)
from simrec.scoring.output import Output

if TYPE_CHECKING:
    from simrec.model.ordered.two_simecs import Inputs

# Strengths of penalty that are tried, from strong to weak, and sweeps over encoder and W_l.
_STRENGTHS = tuple(3.0**k for k in range(6, -7, -1))
_SWEEPS = 6
# The search ends where the error on held-out entities is this much above the least.
_WORSE = 1.005
# With fewer entities none is held out: the penalties of the start are used as they are.
_FEWEST = 20
# Directions of the users' prior are taken as at most this much wider or narrower than the middle
# one. Those that the ratings do not use have a width that means nothing.
_MOST_STRETCHED = 10.0
# Penalty of the constant.
_CONSTANT = 1e-3


def item_start(
    R: sparse.csr_matrix,
    inputs: Inputs,
    bounds: tuple[float, float],
    d: int,
    rng: np.random.Generator,
) -> Start:
    """Solve the first SimEc: item features -> R.

    Sweeps in turn over W_l (posterior means of the users, precisions learned) and the linear
    encoder (a penalty learned for each column of features). Held-out items choose the strength of
    the penalties.
    """
    T, output, unit = _standard(R, bounds)
    held = _held_out(R.shape[0], rng)
    whole = _with_constant(inputs.X, inputs.groups)
    D = d - 1  # [y, b]: the constant beside the users' biases is one more
    B = np.zeros((whole.n_features, D), np.float32)
    B[:, :-1] = rng.normal(0, 0.1, (whole.n_features, D - 1))
    penalties = np.full(int(whole.groups.max()) + 1, 100.0)
    precisions, around = Precisions.start(D), Precisions.start(D)

    def arranged(rows: np.ndarray) -> tuple[RatingRows, RatingRows, EncoderInputs]:
        part = sparse.csr_matrix(T[rows])
        by_users = rating_rows(sparse.csr_matrix(part.T))
        return rating_rows(part), by_users, EncoderInputs(whole.X[rows], whole.groups)

    def columns(users: RatingRows, encoder: EncoderInputs, B: np.ndarray) -> Posterior:
        nonlocal precisions
        zero = np.zeros((users.n_rows, D), np.float32)
        stats = statistics(users, Posterior(encoder.forward(B)))
        posterior, precisions = fit_posterior(stats, zero, precisions)
        return posterior

    items, users, encoder = arranged(~held)
    for sweep in range(_SWEEPS):
        posterior = columns(users, encoder, B)
        around = Precisions(around.L, precisions.t)
        stats = statistics(items, posterior)
        B, penalties, around = _sweep(encoder, stats, B, penalties, around, learn=sweep > 0)
    best = (np.inf, 1.0, B)
    for strength in _STRENGTHS if held.any() else ():
        for _ in range(2):
            stats = statistics(items, columns(users, encoder, B))
            penalty = _penalty(strength * penalties, encoder, precisions.t, D)
            B, _ = solve(encoder, stats, penalty, B)
        w = columns(users, encoder, B).mean
        error = _error(T[held], _products(T[held], whole.X[held] @ B, w, biases=True))
        if error < best[0]:
            best = (error, strength, B)
        elif error > best[0] * _WORSE:
            break
    _, strength, B = best
    widths = np.sqrt(1 / penalties)[whole.groups[:-1]].astype(np.float32)
    scale = _Scale.of(B[:-1] / widths[:, None], precisions, unit, output)

    def point(rows: np.ndarray) -> Point:
        items, users, encoder = arranged(rows)
        stats = statistics(items, columns(users, encoder, B))
        penalty = _penalty(strength * penalties, encoder, precisions.t, D)
        weights, _ = solve(encoder, stats, penalty, B)
        Y, W = scale(weights, columns(users, encoder, weights).mean)
        Y[:-1, -1] = 0  # the constant of the items is no feature
        return Point([Y[:-1] / widths[:, None], Y[-1]], W)

    l2 = strength * output.slope() ** 2 / precisions.t / R.nnz
    return Start(widths, l2, scale.l2_last(R), held, point(~held), point(held | ~held))


def identity_start(
    R: sparse.csr_matrix,
    inputs: Inputs,
    bounds: tuple[float, float],
    d: int,
    rng: np.random.Generator,
) -> Start:
    """Solve the first SimEc without features: posterior means of items and users in turn.

    A tenth of the ratings is held out.
    """
    T, output, unit = _standard(R, bounds)
    held = _held_out(R.nnz, rng)
    drawn = rng.normal(0, 0.1, (R.shape[0], d - 1)).astype(np.float32)
    drawn[:, -1] = 0

    def solved(T: sparse.csr_matrix) -> tuple[Sides[Posterior], Sides[Precisions]]:
        items, users = rating_rows(T), rating_rows(sparse.csr_matrix(T.T))
        item_precisions, precisions = Precisions.start(d - 1), Precisions.start(d - 1)
        found = Posterior(drawn)
        for _ in range(_SWEEPS):
            zero = np.zeros((users.n_rows, d - 1), np.float32)
            columns, precisions = fit_posterior(statistics(users, found), zero, precisions)
            stats = statistics(items, columns)
            found, item_precisions = fit_posterior(stats, np.zeros_like(drawn), item_precisions)
        return Sides(found, columns), Sides(item_precisions, precisions)

    final, precisions = solved(T)
    trial = solved(entries(T, ~held))[0] if held.any() else final
    scale = _Scale.of(final.items.mean, precisions.users, unit, output)

    def point(found: Sides[Posterior]) -> Point:
        Y, W = scale(found.items.mean, found.users.mean)
        return Point([Y], W)

    tightness = float(np.diag(precisions.items.L)[:-1].mean())
    l2 = tightness * output.slope() ** 2 / precisions.items.t / R.nnz
    return Start(None, l2, scale.l2_last(R), held, point(trial), point(final))


def user_start(
    RT: sparse.csr_matrix,
    X: sparse.csr_matrix,
    groups: np.ndarray,
    Y: np.ndarray,
    output: Output,
    rng: np.random.Generator,
) -> Start:
    """Solve the second SimEc: user features -> R^T with W_l frozen to the item embeddings Y."""
    held, D = _held_out(RT.shape[0], rng), Y.shape[1]
    encoder = _with_constant(X, groups)
    T, stats = frozen_statistics(RT, Y, output)
    penalties, around = np.full(int(encoder.groups.max()) + 1, 100.0), Precisions.start(D)
    B = np.zeros((encoder.n_features, D), np.float32)
    for sweep in range(_SWEEPS):
        B, penalties, around = _sweep(encoder, stats, B, penalties, around, sweep > 0, RT.nnz)
    best = (np.inf, 1.0, B)
    for strength in _STRENGTHS if held.any() else ():
        penalty = _penalty(strength * penalties, encoder, around.t, D)
        B, _ = solve(encoder, stats, penalty, B, weights=~held)
        error = _error(T[held], _products(T[held], encoder.X[held] @ B, Y))
        if error < best[0]:
            best = (error, strength, B)
        elif error > best[0] * _WORSE:
            break
    _, strength, B = best
    penalty = _penalty(strength * penalties, encoder, around.t, D)
    widths = np.sqrt(1 / penalties)[encoder.groups[:-1]].astype(np.float32)
    final, _ = solve(encoder, stats, penalty, B, 40)

    def point(B: np.ndarray) -> Point:
        return Point([B[:-1] / widths[:, None], B[-1]], None)

    l2 = strength * output.slope() ** 2 / around.t / RT.nnz
    return Start(widths, l2, 0.0, held, point(B), point(final))


def frozen_statistics(
    R: sparse.csr_matrix, partners: np.ndarray, output: Output
) -> tuple[sparse.csr_matrix, Statistics]:
    """Return R on the scale of scalar products, and its statistics against frozen vectors."""
    T, D = R.astype(np.float32), partners.shape[1]
    T.data = (T.data - output(np.zeros(1, np.float32))) / np.float32(output.slope())
    # Statistics have a coordinate for biases, which is left out.
    padded = np.hstack([partners, np.zeros((len(partners), 1), np.float32)])
    full = statistics(rating_rows(T), Posterior(padded))
    S = pack(unpack(full.S)[:, :D, :D])
    return T, Statistics(S, full.h[:, :D].copy(), full.squares)


def frozen_precisions(
    stats: Statistics, prior_means: np.ndarray, precisions: Precisions, n_entries: int
) -> Precisions:
    """Re-estimate precisions of prior and noise of entities whose partners are frozen."""
    posterior, found = fit_posterior(stats, prior_means, precisions)
    noise = expected_squares(stats, posterior) / n_entries
    return Precisions(found.L, 1 / max(noise, 1e-6))


def _sweep(
    encoder: EncoderInputs,
    stats: Statistics,
    B: np.ndarray,
    penalties: np.ndarray,
    around: Precisions,
    learn: bool,
    n_entries: int | None = None,
) -> tuple[np.ndarray, np.ndarray, Precisions]:
    """Take a step of the encoder of prior means, and learn penalties and precisions from it."""
    covariance = posterior_covariance(stats, around)
    evidence = Marginal(stats, around, covariance)
    B, diagonal = solve(encoder, evidence, penalties[encoder.groups][:, None], B, 8)
    if n_entries is None:
        _, around = fit_posterior(stats, encoder.forward(B), around, covariance)
    else:
        around = frozen_precisions(stats, encoder.forward(B), around, n_entries)
    if learn:
        penalties = learned_penalty(penalties, B, diagonal, encoder)
    return B, penalties, around


def _standard(
    R: sparse.csr_matrix, bounds: tuple[float, float]
) -> tuple[sparse.csr_matrix, Output, float]:
    """Return R as deviations from its mean in units of its spread, its output, and the unit."""
    mean, unit = float(R.data.mean(dtype=float)), float(R.data.std(dtype=float)) or 1.0
    T = R.astype(np.float32)
    T.data = (T.data - np.float32(mean)) / np.float32(unit)
    return T, Output.fit(bounds, mean), unit


@dataclass(frozen=True, eq=False)
class _Scale:
    """From [y, b] in units of the ratings' spread to rows of Y and columns of W_l.

    Coordinates are chosen such that the users' prior is about the same in all directions: one
    `l2_last` then stands for it, and training does not drift off where it would be too weak.

    Attributes
    ----------
    items, users : numpy.ndarray
        What embeddings of items and users are multiplied by; scalar products stay the same.
    z : float
        A unit of spread as a step of the scalar product.
    precision : float
        Of W_l's entries over that of the noise, in units of the ratings.
    """

    items: np.ndarray
    users: np.ndarray
    z: np.float32
    precision: float

    @classmethod
    def of(cls, kernel: np.ndarray, users: Precisions, unit: float, output: Output) -> _Scale:
        """Choose coordinates in which the encoder's kernel keeps its size."""
        values, vectors = np.linalg.eigh(users.L[:-1, :-1])
        middle = np.median(values)
        values = np.clip(values, middle / _MOST_STRETCHED, middle * _MOST_STRETCHED)
        root = np.linalg.cholesky((vectors * values) @ vectors.T)
        turned = np.linalg.inv(root).T
        size = np.square(kernel[:, :-1]).sum() / np.square(kernel[:, :-1] @ turned).sum()
        factor = float(np.sqrt(size)) if np.isfinite(size) and size > 0 else 1.0
        z = np.float32(unit / output.slope())
        return cls(factor * turned, root / factor, z, (unit * factor) ** 2 / users.t)

    def __call__(self, items: np.ndarray, users: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return Y and W_l, with a coordinate for the biases of each side."""
        one, ones = np.ones((len(items), 1)), np.ones((len(users), 1))
        y, w = items[:, :-1] @ self.items, users[:, :-1] @ self.users
        Y = np.hstack([self.z * y, self.z * items[:, -1:], one])
        W = np.hstack([w, ones, self.z * users[:, -1:]]).T
        return Y.astype(np.float32), W.astype(np.float32)

    def l2_last(self, R: sparse.csr_matrix) -> float:
        """Return the weight of W_l's squares in a SimEc's loss."""
        return self.precision * R.shape[1] / R.nnz


def _penalty(penalties: np.ndarray, encoder: EncoderInputs, t: float, D: int) -> np.ndarray:
    """Return the penalty of each weight, where each rating counts once."""
    penalty = np.repeat((penalties[encoder.groups] / t)[:, None], D, 1).astype(np.float32)
    penalty[-1] = _CONSTANT
    return penalty


def _with_constant(X: sparse.csr_matrix, groups: np.ndarray) -> EncoderInputs:
    one = sparse.csr_matrix(np.ones((X.shape[0], 1), np.float32))
    if len(groups) != X.shape[1]:
        groups = np.zeros(X.shape[1], np.int64)
    with_one = sparse.hstack([X, one], format="csr", dtype=np.float32)
    return EncoderInputs(with_one, np.append(groups, groups.max(initial=-1) + 1))


def _held_out(n: int, rng: np.random.Generator) -> np.ndarray:
    held = np.zeros(n, bool)
    if n >= _FEWEST:
        held[rng.permutation(n)[: n // 10]] = True
    return held


def _products(
    T: sparse.csr_matrix, y: np.ndarray, w: np.ndarray, biases: bool = False
) -> np.ndarray:
    rows = np.repeat(np.arange(T.shape[0]), np.diff(T.indptr))
    if not biases:
        return np.einsum("nd,nd->n", y[rows], w[T.indices])
    z = np.einsum("nd,nd->n", y[rows, :-1], w[T.indices, :-1])
    return z + y[rows, -1] + w[T.indices, -1]


def _error(T: sparse.csr_matrix, z: np.ndarray) -> float:
    return float(np.mean((T.data - z) ** 2))
