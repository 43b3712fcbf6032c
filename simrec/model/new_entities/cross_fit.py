"""Out-of-fold embeddings, by encoders that have not seen an entity's ratings: penalties, errors.

The fit to all rows and the fits without each fold are systems of linear equations of one shape,
solved side by side. A fit without a fold starts from zero or from an earlier fit without the same
fold, never from one that has seen it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from simrec.data.sides import Side, Sides
from simrec.model.posterior.encoder import EncoderInputs
from simrec.model.posterior.observed import Entries
from simrec.model.posterior.packed import unpack
from simrec.model.posterior.posterior import Posterior, Statistics
from simrec.simec.linear_algebra import conjugate_gradients

# Most steps, and the size of the residual relative to the right-hand side at which they end.
_ITERATIONS, _TOLERANCE = 100, 1e-3
# Penalty of a column that was found to say nothing.
_DROPPED = 1e9
# Searches go on in steps of this factor, for as long as a step lowers the error by a share of it.
# Errors with one and with several workers agree to 1e-5: a smaller gain is one of rounding.
STEP = 3.0
_GAIN = 2e-4


@dataclass(frozen=True, eq=False)
class CrossFit:
    """Encoders of a side's features, one fitted to all entities and one without each fold."""

    inputs: EncoderInputs
    stats: Statistics  # of the ratings of each row, as whole matrices
    folds: np.ndarray  # the fold of each row
    n_folds: int
    solution: np.ndarray | None = None  # weights of all encoders to go on from, p x (1 + folds) x D

    def fitted(self, penalty: np.ndarray) -> Self:
        """Fit all encoders with a penalty of each weight, p x 1 or p x D."""
        inputs, stats, penalty = self.inputs, self.stats, penalty.astype(np.float32)[:, None]
        n, D = stats.h.shape
        width = (1 + self.n_folds) * D
        # Which rows each encoder has seen: the first all of them.
        seen = (self.folds[:, None] != np.arange(-1, self.n_folds)).astype(np.float32)[:, :, None]

        def systems(G: np.ndarray) -> np.ndarray:
            return G.reshape(len(G), -1, D)

        def normal(B: np.ndarray) -> np.ndarray:
            Y = systems(inputs.forward(B.reshape(len(B), width)))
            Y = (Y @ stats.S) * seen
            return systems(inputs.backward(Y.reshape(n, width))) + penalty * B

        def inner(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            products = np.einsum("pkd,pkd->k", a, b, dtype=np.float64)
            return inputs.row_workers.first(products)[None, :, None]

        right = systems(inputs.backward((stats.h[:, None] * seen).reshape(n, width)))
        squares = (stats.diagonal()[:, None] * seen).reshape(n, width)
        diagonal = systems(inputs.backward_squares(squares)) + penalty
        solution = conjugate_gradients(
            normal, right, lambda r: r / diagonal, self.solution, _ITERATIONS, _TOLERANCE, inner
        )
        return replace(self, solution=solution)

    @property
    def weights(self) -> np.ndarray:
        """Weights of the encoder that was fitted to all rows."""
        assert self.solution is not None
        return np.ascontiguousarray(self.solution[:, 0])

    def held_out(self) -> np.ndarray:
        """Return an embedding for each row, from the encoder fitted without the row's fold."""
        assert self.solution is not None
        p, systems, D = self.solution.shape
        Y = self.inputs.forward(self.solution.reshape(p, systems * D)).reshape(-1, systems, D)
        return Y[np.arange(len(Y)), 1 + self.folds]

    def error(self) -> float:
        """Return the root mean squared error of the ratings of held-out rows, given their partners.

        It is the loss that the encoders minimise, on rows that they have not seen.
        """
        stats, Y = self.stats, self.held_out()
        moments = np.einsum("nd,nd->", stats.times(Y), Y, dtype=np.float64)
        fit = np.einsum("nd,nd->", stats.h, Y, dtype=np.float64)
        sums = np.array([stats.squares.sum() - 2 * fit + moments, stats.counts().sum()])
        squares, count = stats.workers.sum(sums)
        return float(stats.workers.agree(float(np.sqrt(max(squares, 0) / max(count, 1)))))


@dataclass(frozen=True, eq=False)
class Penalty:
    """What the squared weights of an encoder of new entities cost."""

    columns: np.ndarray  # of each column of features, as learned on known entities
    strength: float = 3.0  # factor of all of them
    bias: float = 3.0  # further factor of the bias: all ratings of an entity share its error

    def of_weights(self, inputs: EncoderInputs, D: int) -> np.ndarray:
        """Return the penalty of each weight: of each feature in each coordinate."""
        shape = np.ones(D)
        shape[-1] = self.bias
        return (self.strength * self.columns[inputs.groups])[:, None] * shape

    def stronger(self, factor: float) -> Self:
        """Return the same with another strength."""
        return replace(self, strength=self.strength * factor)

    def stronger_bias(self, factor: float) -> Self:
        """Return the same with another penalty of the bias."""
        return replace(self, bias=self.bias * factor)


@dataclass(frozen=True, eq=False)
class Attempt:
    """What a penalty gave: encoders, and their error on held-out entities."""

    encoders: CrossFit
    penalty: Penalty
    error: float


def attempts(encoders: CrossFit, report: Callable[[float], None]) -> Callable[[Penalty], Attempt]:
    """Return a function that fits encoders with a penalty, and reports their error.

    Each fit without a fold goes on from the last one without the same fold.
    """

    def attempt(penalty: Penalty) -> Attempt:
        nonlocal encoders
        of_weights = penalty.of_weights(encoders.inputs, encoders.stats.h.shape[1])
        encoders = encoders.fitted(of_weights)
        found = Attempt(encoders, penalty, encoders.error())
        report(found.error)
        return found

    return attempt


def search(
    attempt: Callable[[Penalty], Attempt],
    best: Attempt,
    change: Callable[[Penalty, float], Penalty],
    gain: float = _GAIN,
) -> Attempt:
    """Change a penalty step by step, up or else down, until a step gains too little."""
    for factor in (STEP, 1 / STEP):
        first = best
        while (trial := attempt(change(best.penalty, factor))).error < (1 - gain) * best.error:
            best = trial
        if best is not first:
            break
    return best


def prune(attempt: Callable[[Penalty], Attempt], best: Attempt, constant: int) -> Attempt:
    """Drop columns of features, the most penalised first, unless the error is clearly larger then.

    The encoder of new entities weighs every rating alike, that of the prior means every entity.
    Columns that say next to nothing need a larger penalty here than the one learned there.
    """
    columns, lowest = best.penalty.columns, best.error
    dropped = np.zeros(len(columns), bool)
    edge = np.delete(columns, constant).max(initial=0) / STEP
    while not dropped.all():
        more = columns > edge
        more[constant] = False
        if more.sum() > dropped.sum():
            trial = attempt(replace(best.penalty, columns=np.where(more, _DROPPED, columns)))
            if trial.error >= (1 + _GAIN) * lowest:
                break
            best, dropped, lowest = trial, more, min(lowest, trial.error)
        edge /= STEP
        if edge < 1e-3:
            break
    return best


def pair_residuals(embeddings: Sides[np.ndarray], entries: Entries) -> np.ndarray:
    """Return the errors of ratings, given embeddings and biases of items and users."""
    y, w = embeddings.items[entries.rows.items], embeddings.users[entries.rows.users]
    residual = entries.values - y[:, -1] - w[:, -1]
    residual -= np.einsum("nd,nd->n", y[:, :-1], w[:, :-1])
    return residual


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
        residual = entries.values[part] - z[:, -1] - np.einsum("nd,nd->n", phi, own)
        leverage = t * np.einsum("nd,nd->n", phi, (C @ phi[:, :, None])[:, :, 0])
        yield residual / (1 - np.minimum(leverage, 0.95))


def left_out_error(
    new: Posterior, partners: Posterior, t: float, entries: Entries, side: Side
) -> float:
    """Estimate the error for new entities of a side, in units of the ratings' spread."""
    total = 0.0
    for residuals in left_out_residuals(new, partners, t, entries, side):
        total += float(np.sum(residuals.astype(np.float64) ** 2))
    return float(np.sqrt(entries.workers.total(total) / entries.drawn))
