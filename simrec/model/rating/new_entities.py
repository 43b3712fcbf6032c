"""New entities of one side: an encoder of their features, and partners refitted for them.

The embedding that features give a new entity is less certain than that of a known one. If its
partners were taken from the fit of known entities they would trust it too much. So partners are
fitted again, against out-of-fold embeddings: those that the encoder gives each training entity
when it has not seen its ratings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from simrec.data.sides import Side, Sides
from simrec.mapped import release
from simrec.model.rating.hidden_layer import HiddenLayer
from simrec.model.rating.known_entities import KnownEntities, Problem, Report
from simrec.model.rating.linear_encoder import EncoderInputs, cross_fit
from simrec.model.rating.networks import Sampled, cross_fit_network
from simrec.model.rating.observed import Entries
from simrec.model.rating.packed import unpack
from simrec.model.rating.partners import Partners
from simrec.model.rating.posterior import (
    Posterior,
    Precisions,
    fit_posterior,
    posterior_covariance,
    statistics,
)

if TYPE_CHECKING:
    from simrec.simec.simec import SimEc

# Penalty of a column that was found to say nothing.
_DROPPED = 1e9
# Searches go on in steps of this factor, for as long as a step lowers the error by a share of it.
_STEP = 3.0
_GAIN = 1e-5
# For choices that matter little on most data: more than what the choice of the best gains by noise.
_CLEAR_GAIN = 5e-3
# Where the search for the penalty of hidden units starts: what they add to an embedding has then a
# fifth of the ratings' spread.
_HIDDEN_PENALTY = 30.0


@dataclass(frozen=True, eq=False)
class Penalty:
    """What the squared weights of an encoder of new entities cost.

    Attributes
    ----------
    columns : numpy.ndarray
        For each column of features, as known entities have taught it; a very large one has dropped
        the column.
    strength : float
        Factor of all of them.
    bias : float
        Further factor of the weights of the bias: all ratings of an entity share its error.
    hidden : float or None
        Of the weights of hidden units, if there are any.
    """

    columns: np.ndarray
    strength: float = 3.0
    bias: float = 3.0
    hidden: float | None = None

    def of_weights(self, inputs: EncoderInputs, D: int) -> np.ndarray:
        """Return the penalty of each weight: of each feature in each coordinate."""
        shape = np.ones(D)
        shape[-1] = self.bias
        of_features = self.strength * self.columns[inputs.groups]
        if inputs.units is not None:
            of_features = np.append(of_features, np.full(inputs.units.shape[1], self.hidden))
        return of_features[:, None] * shape

    def stronger(self, factor: float) -> Penalty:
        """Return the same with another strength."""
        return replace(self, strength=self.strength * factor)

    def stronger_bias(self, factor: float) -> Penalty:
        """Return the same with another penalty of the bias."""
        return replace(self, bias=self.bias * factor)

    def stronger_hidden(self, factor: float) -> Penalty:
        """Return the same with another penalty of hidden units."""
        assert self.hidden is not None
        return replace(self, hidden=self.hidden * factor)


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
    penalty : Penalty or None
        The penalty that was chosen, if the encoder was fitted in closed form.
    hidden : HiddenLayer or None
        The hidden layer of an encoder in closed form that was chosen to have one.
    network : SimEc or None
        Encoder of the new side in place of the weights, if it has hidden layers.
    """

    weights: np.ndarray
    partners: Posterior
    held_out: np.ndarray
    around: Precisions
    precisions: Precisions
    error: float
    penalty: Penalty | None = None
    hidden: HiddenLayer | None = None
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
    """Fit an encoder of one side's new entities in closed form.

    Held-out entities choose its penalty, and whether it has a hidden layer.
    """
    inputs = problem.inputs(side, history=False)
    stats = statistics(problem.observed.rows[side], known.other(side).posterior).unpacked()
    n_folds = min(folds, problem.n_rows[side])
    fold = problem.folds(side, folds, rng)
    everyone = Partners.of(problem, known, side, entries)
    partners = everyone.some(side)
    start: np.ndarray | None = None
    hidden: HiddenLayer | None = None

    def attempt(penalty: Penalty) -> NewEntities:
        nonlocal start
        of_weights = penalty.of_weights(inputs, stats.h.shape[1])
        start, held_out = cross_fit(inputs, stats, of_weights, fold, n_folds, start)
        new = with_partners(problem, partners, side, start, held_out, report)
        new.penalty, new.hidden = penalty, hidden
        return new

    def chosen(best: NewEntities) -> NewEntities:
        """Return the best attempt, with all partners."""
        if partners is everyone:
            return best
        new = with_partners(problem, everyone, side, best.weights, best.held_out, report)
        return replace(new, penalty=best.penalty, hidden=best.hidden)

    constant = int(inputs.groups[-1])
    columns = problem.observed.workers.first(known[side].penalties[: constant + 1])
    best = attempt(Penalty(columns))
    if not constant:  # an average does not depend on its penalty
        return chosen(best)
    best = _search(attempt, best, Penalty.stronger)
    pruned = _prune(attempt, best, constant)
    if pruned is not best:
        best = _search(attempt, pruned, Penalty.stronger)
    best = _search(attempt, best, Penalty.stronger_bias, _CLEAR_GAIN)
    # From here on with hidden units; they go on from the weights of the features.
    assert best.penalty is not None
    relevance = 1 / np.sqrt(best.penalty.columns[inputs.groups[:-1]])
    X = inputs.X[:, :-1]
    hidden = HiddenLayer.drawn(X, relevance, rng.spawn(1)[0], inputs.row_workers)
    inputs = replace(inputs, units=hidden(X, stats.scratch))
    start = np.vstack([best.weights, np.zeros((hidden.width, best.weights.shape[1]), np.float32)])
    bent = attempt(replace(best.penalty, hidden=_HIDDEN_PENALTY))
    if bent.error >= (1 - _CLEAR_GAIN) * best.error:
        return chosen(best)
    best = chosen(_search(attempt, bent, Penalty.stronger_hidden))
    best.network = hidden.network(best.weights)
    best.weights = np.zeros_like(best.weights[: inputs.n_features])
    return best


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
    known_partners = known.other(side).posterior
    n_folds, fold = min(folds, problem.n_rows[side]), problem.folds(side, folds, rng)
    seed, sampled = int(rng.integers(2**31)), Sampled.of(problem, rng)
    network, held_out = cross_fit_network(
        problem, sampled, side, known_partners, hidden_layers, n_folds, fold, seed
    )
    weights = np.zeros((problem.features[side].shape[1], held_out.shape[1]), np.float32)
    partners = Partners.of(problem, known, side, entries)
    new = with_partners(problem, partners, side, weights, held_out, report)
    new.network = network
    return new


def with_partners(
    problem: Problem,
    partners: Partners,
    side: Side,
    weights: np.ndarray,
    held_out: np.ndarray,
    report: Report,
) -> NewEntities:
    """Refit the partners of new entities against out-of-fold embeddings."""
    new, prior_means = Posterior(held_out), partners.prior_means
    stats = statistics(partners.ratings, new)
    around = fit_posterior(stats, prior_means, partners.precisions)[1]
    # Once more, with precisions estimated against out-of-fold embeddings.
    refitted, precisions = fit_posterior(stats, prior_means, around)
    error = _left_out_error(new, refitted, precisions.t, partners.entries, side)
    report({f"val_new_{side}": problem.observed.unit * error})
    # Covariances are large, and only those of the best attempt are of use.
    return NewEntities(weights, refitted.certain(), held_out, around, precisions, error)


def with_covariance(new: NewEntities, problem: Problem, side: Side) -> Posterior:
    """Return the posterior of the partners of a side's new entities, with its covariances."""
    stats = statistics(problem.observed.rows.other(side), Posterior(new.held_out))
    return Posterior(new.partners.mean, posterior_covariance(stats, new.around))


def fit_both(
    problem: Problem,
    new: Sides[NewEntities],
    folds: int,
    entries: Entries,
    rng: np.random.Generator,
) -> np.ndarray:
    """Fit the encoder of new users as new items meet them; held-out users choose its penalty.

    Users' features are regressed on the embeddings that features give to items.
    """
    inputs, hidden = problem.inputs("users", history=False), new.users.hidden
    stats = statistics(problem.observed.rows.users, Posterior(new.items.held_out)).unpacked()
    if hidden is not None:
        inputs = replace(inputs, units=hidden(inputs.X[:, :-1], stats.scratch))
    n_folds = min(folds, problem.n_rows.users)
    fold = problem.folds("users", folds, rng)
    assert new.users.penalty is not None

    def attempt(penalty: Penalty) -> _Both:
        of_weights = penalty.of_weights(inputs, stats.h.shape[1])
        weights, held_out = cross_fit(inputs, stats, of_weights, fold, n_folds)
        return _Both(weights, penalty, _pair_error(new.items.held_out, held_out, entries))

    # Items from features tell less of users than known ones.
    best = attempt(new.users.penalty.stronger(_STEP))
    if inputs.n_features > 1:
        best = _search(attempt, best, Penalty.stronger, _CLEAR_GAIN)
    return best.weights


@dataclass(eq=False)
class _Both:
    """An encoder of new users as new items meet them."""

    weights: np.ndarray
    penalty: Penalty
    error: float


class _Attempt(Protocol):
    """What a penalty gave."""

    penalty: Any
    error: float


_A = TypeVar("_A", bound=_Attempt)


def _search(
    attempt: Callable[[Penalty], _A],
    best: _A,
    change: Callable[[Penalty, float], Penalty],
    gain: float = _GAIN,
) -> _A:
    """Change a penalty step by step, up or else down, until a step gains too little."""
    for factor in (_STEP, 1 / _STEP):
        first = best
        while (trial := attempt(change(best.penalty, factor))).error < (1 - gain) * best.error:
            best = trial
        if best is not first:
            break
    return best


def _prune(
    attempt: Callable[[Penalty], NewEntities], best: NewEntities, constant: int
) -> NewEntities:
    """Drop columns of features, the most penalised first, as long as that lowers the error.

    The encoder of new entities weighs every rating alike, that of the prior means every entity.
    Columns that say next to nothing need a larger penalty here than the one learned there.
    """
    assert best.penalty is not None
    columns = best.penalty.columns
    dropped = np.zeros(len(columns), bool)
    edge = np.delete(columns, constant).max(initial=0) / _STEP
    while not dropped.all():
        more = columns > edge
        more[constant] = False
        if more.sum() > dropped.sum():
            trial = attempt(replace(best.penalty, columns=np.where(more, _DROPPED, columns)))
            if trial.error >= best.error:
                break
            best, dropped = trial, more
        edge /= _STEP
        if edge < 1e-3:
            break
    return best


def _pair_error(items: np.ndarray, users: np.ndarray, entries: Entries) -> float:
    """Return the error of ratings when item and user both have out-of-fold embeddings."""
    y, w = items[entries.rows.items], users[entries.rows.users]
    residual = entries.values - y[:, -1] - w[:, -1]
    residual -= np.einsum("nd,nd->n", y[:, :-1], w[:, :-1])
    total = entries.workers.total(float(np.sum(residual.astype(np.float64) ** 2)))
    return float(np.sqrt(total / entries.drawn))


def left_out_residuals(
    new: Posterior, partners: Posterior, t: float, entries: Entries, side: Side
) -> Iterator[np.ndarray]:
    """Yield the errors for new entities of a side, some entries at a time.

    New entities have out-of-fold embeddings; the partners have seen the entries. A partner's
    posterior without one of its ratings follows from the one with it in closed form: the residual
    grows by 1 / (1 - leverage).
    """
    new_rows, rows = entries.rows[side], entries.rows.other(side)
    assert partners.covariance is not None
    for a in range(0, len(rows), 8192):
        part = slice(a, a + 8192)
        z = new.mean[new_rows[part]]
        phi = np.hstack([z[:, :-1], np.ones((len(z), 1), np.float32)])
        own, C = partners.mean[rows[part]], unpack(partners.covariance[rows[part]])
        release(partners.covariance)
        residual = entries.values[part] - z[:, -1] - np.einsum("nd,nd->n", phi, own)
        leverage = t * np.einsum("nd,nd->n", phi, (C @ phi[:, :, None])[:, :, 0])
        yield residual / (1 - np.minimum(leverage, 0.95))


def _left_out_error(
    new: Posterior, partners: Posterior, t: float, entries: Entries, side: Side
) -> float:
    """Estimate the error for new entities of a side, in units of the ratings' spread."""
    total = 0.0
    for residuals in left_out_residuals(new, partners, t, entries, side):
        total += float(np.sum(residuals.astype(np.float64) ** 2))
    return float(np.sqrt(entries.workers.total(total) / entries.drawn))
