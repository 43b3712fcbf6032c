"""Fit both towers to ratings: posterior embeddings for known entities, encoders for new ones.

Three blocks of coordinates, each with its biases, side by side in one vector (`simrec.model.blocks`):

known    item and user both rated: posteriors around a prior mean from features and history.
items    a new item, from its features, beside users as they are *in terms of what features tell*.
users    a new user, from features, beside items in terms of what users' features tell.

A new item's embedding is less certain than a known one's. If its partners were taken from the known
block they would trust it too much; so they are fitted again, against embeddings of the training
items that were made without the item's own ratings (`cross_fit`).
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from simrec.model.linear import Inputs, cross_fit, learned_penalty, marginal, solve
from simrec.model.observed import Entries, Observed, Side
from simrec.model.posterior import (
    Belief,
    Scales,
    Statistics,
    posterior_covariance,
    statistics,
    update,
)

logger = logging.getLogger(__name__)

ITEMS, USERS = 0, 1
# Steps of conjugate gradients in each sweep: the weights go on from the sweep before.
_STEPS = 4
# Entries on which errors are estimated.
_SAMPLE = 100_000
# The bias of a new entity is shrunk this much more than its embedding: all of an entity's ratings
# share its error.
_BIAS_PENALTY = 3.0


@dataclass(eq=False)
class Known:
    """The block of known entities, items first: beliefs, precisions, prior means and encoders."""

    beliefs: list[Belief]
    scales: list[Scales]
    priors: list[np.ndarray]
    weights: list[np.ndarray]
    penalties: list[np.ndarray]


@dataclass(eq=False)
class New:
    """The block of new entities of one side.

    Attributes
    ----------
    weights : numpy.ndarray
        Encoder of the new side, p x D.
    partners : Belief
        Known entities of the other side in this block.
    scales : Scales
        Precisions of the partners.
    held_out : numpy.ndarray
        Embeddings of the training entities by encoders that did not see them.
    strength : float
        Chosen factor of the penalties.
    error : float
        Estimated root mean squared error for new entities, in units of the ratings' spread.
    """

    weights: np.ndarray
    partners: Belief
    scales: Scales
    held_out: np.ndarray
    strength: float
    error: float


@dataclass(eq=False)
class RatingTowers:
    """All that was learned from ratings; see the module's text for the three blocks."""

    known: Known
    new_items: New
    new_users: New
    user_weights: np.ndarray
    history: list[dict[str, float]]


def fit_rating(
    observed: Observed,
    features: tuple[sparse.csr_matrix, sparse.csr_matrix],
    groups: tuple[np.ndarray, np.ndarray],
    embedding_dim: int,
    epochs: int,
    tolerance: float,
    folds: int,
    rng: np.random.Generator,
    on_epoch: Callable[[int, dict[str, float]], None] | None = None,
) -> RatingTowers:
    """Fit the three blocks.

    Parameters
    ----------
    observed : Observed
        The ratings.
    features : (csr_matrix, csr_matrix)
        Feature rows of the items and of the users, float32, a constant column included.
    groups : (numpy.ndarray, numpy.ndarray)
        For each feature, the number of the column that it comes from.
    embedding_dim : int
        Coordinates of an embedding in each block, without biases.
    epochs : int
        Most sweeps over both sides.
    tolerance : float
        Relative improvement of the estimated error below which sweeps stop.
    folds : int
        Parts in which entities are held out for cross-fitting.
    rng : numpy.random.Generator
        Source of the start and of the folds.
    on_epoch : callable, optional
        Called after each sweep with its number and what is logged of it.
    """
    entries = observed.sample(_SAMPLE, rng)
    known, history = _fit_known(
        observed, features, groups, embedding_dim, epochs, tolerance, entries, rng, on_epoch
    )
    blocks = [
        _fit_new(observed, features, groups, known, side, folds, entries, rng)
        for side in (ITEMS, USERS)
    ]
    # What both are new: users' features against what items' features tell.
    stats = statistics(observed.users, Belief(blocks[ITEMS].held_out))
    penalty = _penalty(known.penalties[USERS], groups[USERS], blocks[USERS].strength, stats)
    user_weights, _ = solve(Inputs(features[USERS], groups[USERS]), stats, penalty)
    return RatingTowers(known, blocks[ITEMS], blocks[USERS], user_weights, history)


def _fit_known(
    observed: Observed,
    features: tuple[sparse.csr_matrix, sparse.csr_matrix],
    groups: tuple[np.ndarray, np.ndarray],
    embedding_dim: int,
    epochs: int,
    tolerance: float,
    entries: Entries,
    rng: np.random.Generator,
    on_epoch: Callable[[int, dict[str, float]], None] | None,
) -> tuple[Known, list[dict[str, float]]]:
    sides: tuple[Side, Side] = (observed.items, observed.users)
    D = embedding_dim + 1
    inputs = [Inputs(features[k], groups[k], sides[k], sides[1 - k]) for k in (ITEMS, USERS)]
    known = Known(
        [_start(side.n_rows, D, rng) for side in sides],
        [Scales.start(D), Scales.start(D)],
        [np.zeros((side.n_rows, D), np.float32) for side in sides],
        [np.zeros((len(i.groups), D), np.float32) for i in inputs],
        [np.full(int(i.groups.max()) + 1, 100.0) for i in inputs],
    )
    history: list[dict[str, float]] = []
    best = np.inf
    for epoch in range(epochs):
        for k in (ITEMS, USERS):
            stats = statistics(sides[k], known.beliefs[1 - k])
            covariance = posterior_covariance(stats, known.scales[k])
            # The first sweep finds embeddings; only then is there something to encode.
            if epoch:
                _encode(known, k, inputs[k], marginal(stats, known.scales[k], covariance))
            known.beliefs[k], scales = update(stats, known.priors[k], known.scales[k], covariance)
            known.scales[k] = scales
            known.scales[1 - k].t = scales.t
        error = _left_out_error(
            known.beliefs[ITEMS], known.beliefs[USERS], known.scales[USERS].t, entries, USERS
        )
        logs = {
            "loss": observed.scale / np.sqrt(known.scales[USERS].t),
            "val_error": observed.scale * error,
        }
        history.append(logs)
        if on_epoch is not None:
            on_epoch(epoch, logs)
        if epoch >= 4 and error > best * (1 - tolerance):
            break
        best = min(best, error)
    return known, history


def _start(n: int, D: int, rng: np.random.Generator) -> Belief:
    mean = rng.normal(0, 0.1, (n, D)).astype(np.float32)
    mean[:, -1] = 0
    return Belief(mean, np.broadcast_to(np.eye(D, dtype=np.float32) * 0.01, (n, D, D)))


def _encode(known: Known, k: int, inputs: Inputs, stats: Statistics) -> None:
    """Take the weights of one side's encoder a step on, and its prior means with them."""
    penalty = known.penalties[k][inputs.groups][:, None]
    known.weights[k], diagonal = solve(inputs, stats, penalty, known.weights[k], _STEPS)
    known.penalties[k] = learned_penalty(known.weights[k], diagonal, inputs.groups)
    known.priors[k] = inputs.forward(known.weights[k])


def _fit_new(
    observed: Observed,
    features: tuple[sparse.csr_matrix, sparse.csr_matrix],
    groups: tuple[np.ndarray, np.ndarray],
    known: Known,
    k: int,
    folds: int,
    entries: Entries,
    rng: np.random.Generator,
) -> New:
    """Fit the block of one side's new entities, its strength of penalty by held-out entities."""
    sides = (observed.items, observed.users)
    inputs = Inputs(features[k], groups[k])
    stats = statistics(sides[k], known.beliefs[1 - k])
    fold = rng.permutation(np.arange(sides[k].n_rows) % folds)
    start: np.ndarray | None = None

    def attempt(strength: float) -> New:
        nonlocal start
        penalty = _penalty(known.penalties[k], groups[k], strength, stats)
        weights, held_out = cross_fit(inputs, stats, penalty, fold, start)
        start = weights
        partners, scales = Belief(np.empty(0)), known.scales[1 - k]
        partner_stats = statistics(sides[1 - k], Belief(held_out))
        for _ in range(2):  # the second time with precisions of this block
            partners, scales = update(partner_stats, known.priors[1 - k], scales)
        beliefs = [partners, partners]
        beliefs[k] = Belief(held_out)
        error = _left_out_error(beliefs[ITEMS], beliefs[USERS], scales.t, entries, 1 - k)
        logger.debug("%s: strength %g, error %.4f", "items users".split()[k], strength, error)
        return New(weights, partners, scales, held_out, strength, error)

    return _search(attempt)


def _search(attempt: Callable[[float], New], first: float = 3.0, ratio: float = 3.0) -> New:
    """Walk along strengths of penalty, from a sensible one, downhill to the least error."""
    best = attempt(first)
    for factor in (ratio, 1 / ratio):
        while 1e-3 < best.strength * factor < 1e5:
            trial = attempt(best.strength * factor)
            if trial.error >= best.error:
                break
            best = trial
        if best.strength > first:
            break
    return best


def _penalty(
    learned: np.ndarray, groups: np.ndarray, strength: float, stats: Statistics
) -> np.ndarray:
    shape = np.ones(stats.h.shape[1])
    shape[-1] = _BIAS_PENALTY
    return strength * learned[groups][:, None] * shape


def _left_out_error(items: Belief, users: Belief, t: float, entries: Entries, fitted: int) -> float:
    """Estimate the error on entries that the fitted side had not seen.

    An entity's posterior without one of its ratings follows in closed form from the one with it:
    the residual grows by 1 / (1 - leverage).
    """
    pair = (items.mean[entries.items], users.mean[entries.users])
    own, partner = pair[fitted], pair[1 - fitted]
    belief = (items, users)[fitted]
    rows = (entries.items, entries.users)[fitted]
    phi = np.hstack([partner[:, :-1], np.ones((len(partner), 1), np.float32)])
    residual = entries.values - partner[:, -1] - np.einsum("nd,nd->n", phi, own)
    assert belief.covariance is not None
    leverage = np.empty(len(rows), np.float32)
    for a in range(0, len(rows), 8192):
        part = slice(a, a + 8192)
        C = belief.covariance[rows[part]]
        leverage[part] = np.einsum("ni,nij,nj->n", phi[part], C, phi[part], optimize=True)
    left_out = residual / (1 - np.minimum(t * leverage, 0.95))
    return float(np.sqrt(np.mean(left_out.astype(np.float64) ** 2)))
