"""Fit both towers to ratings: posterior embeddings for known entities, encoders for new ones.

Three blocks of coordinates, each with biases, side by side in one vector (`simrec.model.blocks`):

known    item and user both rated: posteriors around a prior mean from features and history.
items    a new item, from its features, beside users as they are *in terms of what features tell*.
users    a new user, from features, beside items in terms of what users' features tell.

A new item's embedding is less certain than a known one's. If its partners were taken from the known
block they would trust it too much; so they are fitted again, against embeddings of the training
items that were made without the item's own ratings (`cross_fit`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from simrec.model.deep import cross_fit_network, fit_network
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

if TYPE_CHECKING:
    from simrec.model.simec import SimEc

ITEMS, USERS = 0, 1
# Steps of conjugate gradients in each sweep: the weights go on from the sweep before.
_STEPS = 4
# Entries on which errors are estimated.
_SAMPLE = 100_000
# Where both are new, users' features are shrunk this much more than beside known items.
_BOTH_PENALTY = 3.0
# Penalty of a column that was found to say nothing.
_DROPPED = 1e9
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
    error : float
        Estimated root mean squared error for new entities, in units of the ratings' spread.
    penalties : numpy.ndarray
        Penalty of each column of features; a very large one has dropped it.
    strength : float
        Chosen factor of the penalties.
    network : SimEc or None
        Encoder of the new side in place of the weights, if it has hidden layers.
    """

    weights: np.ndarray
    partners: Belief
    scales: Scales
    held_out: np.ndarray
    error: float
    penalties: np.ndarray = field(default_factory=lambda: np.empty(0))
    strength: float = 1.0
    network: SimEc | None = None


@dataclass(eq=False)
class RatingTowers:
    """All that was learned from ratings; see the module's text for the three blocks.

    `user_weights` (or `user_network`) encodes new users in the block of new items.
    """

    known: Known
    new_items: New
    new_users: New
    user_weights: np.ndarray
    user_network: SimEc | None = None


@dataclass(frozen=True, eq=False)
class Problem:
    """What is learned from: the ratings, and features of both sides, items first.

    Attributes
    ----------
    observed : Observed
        The ratings.
    features : (csr_matrix, csr_matrix)
        Feature rows, float32, a constant column included.
    groups : (numpy.ndarray, numpy.ndarray)
        For each feature, the number of the column that it comes from.
    """

    observed: Observed
    features: tuple[sparse.csr_matrix, sparse.csr_matrix]
    groups: tuple[np.ndarray, np.ndarray]

    @property
    def sides(self) -> tuple[Side, Side]:
        """The two directions of R."""
        return self.observed.items, self.observed.users


Report = Callable[[dict[str, float]], None]


def fit_rating(
    problem: Problem,
    embedding_dim: int,
    epochs: int,
    folds: int,
    hidden_layers: tuple[int, ...],
    rng: np.random.Generator,
    report: Report,
) -> RatingTowers:
    """Fit the three blocks.

    Parameters
    ----------
    problem : Problem
        Ratings and features.
    embedding_dim : int
        Coordinates of an embedding in each block, without biases.
    epochs : int
        Sweeps over both sides.
    folds : int
        Parts in which entities are held out for cross-fitting.
    hidden_layers : tuple of int
        Widths of the hidden layers of the encoders of new entities; none for linear ones.
    rng : numpy.random.Generator
        Source of the start and of the folds.
    report : callable
        Told the loss of each sweep, and the error of each attempt on held-out entities.
    """
    known = _fit_known(problem, embedding_dim, epochs, rng, report)
    entries = problem.observed.sample(_SAMPLE, rng)
    # A side without features has only a constant, for which there is nothing to hide.
    deep = [bool(hidden_layers) and X.shape[1] > 1 for X in problem.features]
    items, users = (
        (_fit_deep if deep[k] else _fit_new)(
            problem, known, k, folds, hidden_layers, entries, rng, report
        )
        for k in (ITEMS, USERS)
    )
    # Where both are new: users' features against what items' features tell.
    beside = Belief(items.held_out)
    if deep[USERS]:
        X, seed = problem.features[USERS][:, :-1], int(rng.integers(2**31))
        network = fit_network(X, problem.observed.users, beside, hidden_layers, seed)
        return RatingTowers(known, items, users, np.zeros_like(users.weights), network)
    stats = statistics(problem.observed.users, beside)
    inputs = Inputs(problem.features[USERS], problem.groups[USERS])
    strength = _BOTH_PENALTY * users.strength
    penalty = _penalty(strength * users.penalties[inputs.groups], stats)
    user_weights, _ = solve(inputs, stats, penalty)
    return RatingTowers(known, items, users, user_weights)


def _fit_known(
    problem: Problem,
    embedding_dim: int,
    epochs: int,
    rng: np.random.Generator,
    report: Report,
) -> Known:
    sides = problem.sides
    D = embedding_dim + 1
    inputs = [
        Inputs(problem.features[k], problem.groups[k], sides[k], sides[1 - k])
        for k in (ITEMS, USERS)
    ]
    known = Known(
        [_start(side.n_rows, D, rng) for side in sides],
        [Scales.start(D), Scales.start(D)],
        [np.zeros((side.n_rows, D), np.float32) for side in sides],
        [np.zeros((len(i.groups), D), np.float32) for i in inputs],
        [np.full(int(i.groups.max()) + 1, 100.0) for i in inputs],
    )
    for epoch in range(epochs):
        for k in (ITEMS, USERS):
            stats = statistics(sides[k], known.beliefs[1 - k])
            covariance = posterior_covariance(stats, known.scales[k])
            # The first sweep finds embeddings; only then is there something to encode.
            if epoch:
                _encode(known, k, inputs[k], marginal(stats, known.scales[k], covariance))
            known.beliefs[k], known.scales[k] = update(
                stats, known.priors[k], known.scales[k], covariance
            )
            known.scales[1 - k].t = known.scales[k].t
        report({"loss": problem.observed.scale / np.sqrt(known.scales[USERS].t)})
    return known


def _start(n: int, D: int, rng: np.random.Generator) -> Belief:
    mean = rng.normal(0, 0.1, (n, D)).astype(np.float32)
    mean[:, -1] = 0
    return Belief(mean, np.broadcast_to(np.eye(D, dtype=np.float32) * 0.01, (n, D, D)))


def _encode(known: Known, k: int, inputs: Inputs, stats: Statistics) -> None:
    """Take the weights of one side's encoder a step on, and its prior means with them."""
    penalty = known.penalties[k][inputs.groups][:, None]
    known.weights[k], diagonal = solve(inputs, stats, penalty, known.weights[k], _STEPS)
    known.penalties[k] = learned_penalty(
        known.penalties[k], known.weights[k], diagonal, inputs.groups
    )
    known.priors[k] = inputs.forward(known.weights[k])


def _fit_new(
    problem: Problem,
    known: Known,
    k: int,
    folds: int,
    hidden_layers: tuple[int, ...],
    entries: Entries,
    rng: np.random.Generator,
    report: Report,
) -> New:
    """Fit the block of one side's new entities, its strength of penalty by held-out entities."""
    inputs = Inputs(problem.features[k], problem.groups[k])
    stats = statistics(problem.sides[k], known.beliefs[1 - k])
    fold = _folds(problem, k, folds, rng)
    start: np.ndarray | None = None

    def attempt(strength: float, penalties: np.ndarray) -> New:
        nonlocal start
        penalty = _penalty(strength * penalties[inputs.groups], stats)
        weights, held_out = cross_fit(inputs, stats, penalty, fold, start)
        start = weights
        new = _beside(problem, known, k, weights, held_out, entries, report)
        new.strength, new.penalties = strength, penalties
        return new

    constant = int(inputs.groups[-1])
    best = _search(attempt, attempt(3.0, known.penalties[k][: constant + 1]))
    pruned = _prune(attempt, best, constant)
    return best if pruned is best else _search(attempt, pruned)


def _fit_deep(
    problem: Problem,
    known: Known,
    k: int,
    folds: int,
    hidden_layers: tuple[int, ...],
    entries: Entries,
    rng: np.random.Generator,
    report: Report,
) -> New:
    """Fit the block of one side's new entities with hidden layers, stopped by held-out ones."""
    X, partners = problem.features[k][:, :-1], known.beliefs[1 - k]
    fold, seed = _folds(problem, k, folds, rng), int(rng.integers(2**31))
    network, held_out = cross_fit_network(X, problem.sides[k], partners, hidden_layers, fold, seed)
    weights = np.zeros((X.shape[1] + 1, held_out.shape[1]), np.float32)
    new = _beside(problem, known, k, weights, held_out, entries, report)
    new.network = network
    return new


def _folds(problem: Problem, k: int, folds: int, rng: np.random.Generator) -> np.ndarray:
    return rng.permutation(np.arange(problem.sides[k].n_rows) % folds)


def _beside(
    problem: Problem,
    known: Known,
    k: int,
    weights: np.ndarray,
    held_out: np.ndarray,
    entries: Entries,
    report: Report,
) -> New:
    """Fit the partners of new entities, as they are in terms of what features tell of those."""
    new, side = Belief(held_out), problem.sides[1 - k]
    stats = statistics(side, new)
    partners, scales = update(stats, known.priors[1 - k], known.scales[1 - k])
    # Once more, with the precisions of this block.
    partners, scales = update(stats, known.priors[1 - k], scales)
    error = _left_out_error(new, partners, scales.t, entries, k)
    report({("val_new_items", "val_new_users")[k]: problem.observed.scale * error})
    return New(weights, partners, scales, held_out, error)


Attempt = Callable[[float, np.ndarray], New]


def _search(attempt: Attempt, best: New, ratio: float = 3.0) -> New:
    """Walk along strengths of penalty, downhill to the least error."""
    first = best.strength
    for factor in (ratio, 1 / ratio):
        while 1e-3 < best.strength * factor < 1e5:
            trial = attempt(best.strength * factor, best.penalties)
            if trial.error >= best.error:
                break
            best = trial
        if best.strength > first:
            break
    return best


def _prune(attempt: Attempt, best: New, constant: int, ratio: float = 3.0) -> New:
    """Drop columns of features, the most penalised first, as long as that lowers the error.

    A new entity is encoded as ratings weigh, not as entities do: columns that say next to nothing
    need a harder hand there than their learned penalty.
    """
    dropped = np.zeros(len(best.penalties), bool)
    edge = np.delete(best.penalties, constant).max(initial=0) / ratio
    while not dropped.all():
        more = best.penalties > edge
        more[constant] = False
        if more.sum() > dropped.sum():
            trial = attempt(best.strength, np.where(more, _DROPPED, best.penalties))
            if trial.error >= best.error:
                break
            best, dropped = trial, more
        edge /= ratio
        if edge < 1e-3:
            break
    return best


def _penalty(penalties: np.ndarray, stats: Statistics) -> np.ndarray:
    """Spread the penalty of each feature over the coordinates."""
    shape = np.ones(stats.h.shape[1])
    shape[-1] = _BIAS_PENALTY
    return penalties[:, None] * shape


def _left_out_error(new: Belief, partners: Belief, t: float, entries: Entries, k: int) -> float:
    """Estimate the error for new entities of side k from embeddings that did not see them.

    The partners have seen the entries. A partner's posterior without one of its ratings follows
    from the one with it in closed form: the residual grows by 1 / (1 - leverage).
    """
    new_rows, rows = (entries.items, entries.users)[k], (entries.items, entries.users)[1 - k]
    assert partners.covariance is not None
    total = 0.0
    for a in range(0, len(rows), 8192):
        part = slice(a, a + 8192)
        z = new.mean[new_rows[part]]
        phi = np.hstack([z[:, :-1], np.ones((len(z), 1), np.float32)])
        own, C = partners.mean[rows[part]], partners.covariance[rows[part]]
        residual = entries.values[part] - z[:, -1] - np.einsum("nd,nd->n", phi, own)
        leverage = t * np.einsum("nd,nd->n", phi, (C @ phi[:, :, None])[:, :, 0])
        left_out = residual / (1 - np.minimum(leverage, 0.95))
        total += float(np.sum(left_out.astype(np.float64) ** 2))
    return float(np.sqrt(total / len(rows)))
