"""New entities of one side: an encoder of their features, and partners that know its limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from simrec.model.fit.known_entities import Known, Problem, Report
from simrec.model.fit.linear_encoder import Inputs, cross_fit
from simrec.model.fit.networks import cross_fit_network
from simrec.model.fit.observed import Entries
from simrec.model.fit.posterior import Belief, Scales, Statistics, statistics, update

if TYPE_CHECKING:
    from simrec.simec.simec import SimEc

# Penalty of a column that was found to say nothing.
_DROPPED = 1e9
# The bias of a new entity is shrunk this much more than its embedding: all of an entity's ratings
# share its error.
_BIAS_PENALTY = 3.0


@dataclass(eq=False)
class New:
    """The block of new entities of one side.

    Attributes
    ----------
    weights : numpy.ndarray
        Encoder of the new side, p x D.
    partners : Belief
        Known entities of the other side in this block.
    held_out : numpy.ndarray
        Embeddings of the training entities by encoders that did not see them.
    scales : Scales
        Precisions of the partners' posterior.
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
    held_out: np.ndarray
    scales: Scales
    error: float
    penalties: np.ndarray = field(default_factory=lambda: np.empty(0))
    strength: float = 1.0
    network: SimEc | None = None


def fit_new(
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
    inputs = Inputs(problem.features[k], problem.groups[k], rows=problem.sides[k].rows)
    stats = statistics(problem.sides[k], known.beliefs[1 - k])
    n_folds = min(folds, problem.n_rows[k])
    fold = problem.folds(k, folds, rng)
    start: np.ndarray | None = None

    def attempt(strength: float, penalties: np.ndarray) -> New:
        nonlocal start
        penalty = coordinate_penalty(strength * penalties[inputs.groups], stats)
        weights, held_out = cross_fit(inputs, stats, penalty, fold, n_folds, start)
        start = weights
        new = _beside(problem, known, k, weights, held_out, entries, report)
        new.strength, new.penalties = strength, penalties
        return new

    constant = int(inputs.groups[-1])
    penalties = problem.observed.group.first(known.penalties[k][: constant + 1])
    best = _search(attempt, attempt(3.0, penalties))
    pruned = _prune(attempt, best, constant)
    return best if pruned is best else _search(attempt, pruned)


def fit_deep(
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
    fold, seed = problem.folds(k, folds, rng), int(rng.integers(2**31))
    network, held_out = cross_fit_network(X, problem.sides[k], partners, hidden_layers, fold, seed)
    weights = np.zeros((X.shape[1] + 1, held_out.shape[1]), np.float32)
    new = _beside(problem, known, k, weights, held_out, entries, report)
    new.network = network
    return new


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
    return New(weights, partners, held_out, scales, error)


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


def coordinate_penalty(penalties: np.ndarray, stats: Statistics) -> np.ndarray:
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
    return float(np.sqrt(entries.group.total(total) / entries.drawn))
