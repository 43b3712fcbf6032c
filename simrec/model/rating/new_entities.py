"""New entities of one side: an encoder of their features, and partners refitted for them.

The embedding that features give a new entity is less certain than that of a known one. If its
partners were taken from the fit of known entities they would trust it too much. So partners are
fitted again, against out-of-fold embeddings: those that the encoder gives each training entity
when it has not seen its ratings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from simrec.data.sides import Side, Sides
from simrec.model.rating.known_entities import KnownEntities, Problem, Report
from simrec.model.rating.linear_encoder import cross_fit
from simrec.model.rating.networks import cross_fit_network
from simrec.model.rating.observed import Entries
from simrec.model.rating.packed import unpack
from simrec.model.rating.posterior import (
    Posterior,
    Precisions,
    Statistics,
    fit_posterior,
    posterior_covariance,
    statistics,
)
from simrec.model.run.scratch import release

if TYPE_CHECKING:
    from simrec.simec.simec import SimEc

# Penalty of a column that was found to say nothing.
_DROPPED = 1e9
# The bias of a new entity is shrunk this much more than its embedding: all of an entity's ratings
# share its error.
_BIAS_PENALTY = 3.0


@dataclass(eq=False)
class NewEntities:
    """How new entities of one side are encoded, and their partners of the other side.

    Attributes
    ----------
    weights : numpy.ndarray
        Encoder of the new side, p x D.
    partners : Posterior
        Known entities of the other side, refitted against out-of-fold embeddings; the means alone,
        until `with_covariance`.
    held_out : numpy.ndarray
        Out-of-fold embeddings of the training entities of the new side.
    around, precisions : Precisions
        Those that the partners' posterior was computed with, and as it estimates them.
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
    partners: Posterior
    held_out: np.ndarray
    around: Precisions
    precisions: Precisions
    error: float
    penalties: np.ndarray = field(default_factory=lambda: np.empty(0))
    strength: float = 1.0
    network: SimEc | None = None


def fit_new(
    problem: Problem,
    known: Sides[KnownEntities],
    side: Side,
    folds: int,
    entries: Entries,
    rng: np.random.Generator,
    report: Report,
) -> NewEntities:
    """Fit a linear encoder of one side's new entities; held-out ones choose its penalty."""
    inputs = problem.inputs(side, history=False)
    stats = statistics(problem.observed.rows[side], known.other(side).posterior).unpacked()
    n_folds = min(folds, problem.n_rows[side])
    fold = problem.folds(side, folds, rng)
    start: np.ndarray | None = None

    def attempt(strength: float, penalties: np.ndarray) -> NewEntities:
        nonlocal start
        penalty = coordinate_penalty(strength * penalties[inputs.groups], stats)
        weights, held_out = cross_fit(inputs, stats, penalty, fold, n_folds, start)
        start = weights
        new = _with_partners(problem, known, side, weights, held_out, entries, report)
        new.strength, new.penalties = strength, penalties
        return new

    constant = int(inputs.groups[-1])
    penalties = problem.observed.workers.first(known[side].penalties[: constant + 1])
    best = _search(attempt, attempt(3.0, penalties))
    pruned = _prune(attempt, best, constant)
    return best if pruned is best else _search(attempt, pruned)


def fit_new_network(
    problem: Problem,
    known: Sides[KnownEntities],
    side: Side,
    folds: int,
    hidden_layers: tuple[int, ...],
    entries: Entries,
    rng: np.random.Generator,
    report: Report,
) -> NewEntities:
    """Fit an encoder with hidden layers; held-out entities tell when to stop."""
    X, partners = problem.features[side][:, :-1], known.other(side).posterior
    fold, seed = problem.folds(side, folds, rng), int(rng.integers(2**31))
    network, held_out = cross_fit_network(
        X, problem.observed.rows[side], partners, hidden_layers, fold, seed
    )
    weights = np.zeros((X.shape[1] + 1, held_out.shape[1]), np.float32)
    new = _with_partners(problem, known, side, weights, held_out, entries, report)
    new.network = network
    return new


def _with_partners(
    problem: Problem,
    known: Sides[KnownEntities],
    side: Side,
    weights: np.ndarray,
    held_out: np.ndarray,
    entries: Entries,
    report: Report,
) -> NewEntities:
    """Refit the partners of new entities against out-of-fold embeddings."""
    new, other = Posterior(held_out), known.other(side)
    stats = statistics(problem.observed.rows.other(side), new)
    around = fit_posterior(stats, other.prior_means, other.precisions)[1]
    # Once more, with precisions estimated against out-of-fold embeddings.
    partners, precisions = fit_posterior(stats, other.prior_means, around)
    error = _left_out_error(new, partners, precisions.t, entries, side)
    report({f"val_new_{side}": problem.observed.scale * error})
    # Covariances are large, and only those of the best attempt are of use.
    return NewEntities(weights, partners.certain(), held_out, around, precisions, error)


def with_covariance(new: NewEntities, problem: Problem, side: Side) -> Posterior:
    """Return the posterior of the partners of a side's new entities, with its covariances."""
    stats = statistics(problem.observed.rows.other(side), Posterior(new.held_out))
    return Posterior(new.partners.mean, posterior_covariance(stats, new.around))


Attempt = Callable[[float, np.ndarray], NewEntities]


def _search(attempt: Attempt, best: NewEntities, ratio: float = 3.0) -> NewEntities:
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


def _prune(attempt: Attempt, best: NewEntities, constant: int, ratio: float = 3.0) -> NewEntities:
    """Drop columns of features, the most penalised first, as long as that lowers the error.

    The encoder of new entities weighs every rating alike, that of the prior means every entity.
    Columns that say next to nothing need a larger penalty here than the one learned there.
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
    """Return the penalty of each feature in each coordinate."""
    shape = np.ones(stats.h.shape[1])
    shape[-1] = _BIAS_PENALTY
    return penalties[:, None] * shape


def _left_out_error(
    new: Posterior, partners: Posterior, t: float, entries: Entries, side: Side
) -> float:
    """Estimate the error for new entities of a side from their out-of-fold embeddings.

    The partners have seen the entries. A partner's posterior without one of its ratings follows
    from the one with it in closed form: the residual grows by 1 / (1 - leverage).
    """
    new_rows, rows = entries.rows[side], entries.rows.other(side)
    assert partners.covariance is not None
    total = 0.0
    for a in range(0, len(rows), 8192):
        part = slice(a, a + 8192)
        z = new.mean[new_rows[part]]
        phi = np.hstack([z[:, :-1], np.ones((len(z), 1), np.float32)])
        own, C = partners.mean[rows[part]], unpack(partners.covariance[rows[part]])
        release(partners.covariance)
        residual = entries.values[part] - z[:, -1] - np.einsum("nd,nd->n", phi, own)
        leverage = t * np.einsum("nd,nd->n", phi, (C @ phi[:, :, None])[:, :, 0])
        left_out = residual / (1 - np.minimum(leverage, 0.95))
        total += float(np.sum(left_out.astype(np.float64) ** 2))
    return float(np.sqrt(entries.workers.total(total) / entries.drawn))
