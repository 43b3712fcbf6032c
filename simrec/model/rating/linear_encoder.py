"""Linear encoders against a frozen last layer, solved exactly.

With W_l frozen and a squared loss, the masked loss of a SimEc over all observed entries of row i is
``y_i . S_i y_i - 2 h_i . y_i + const`` with y_i = B^T x_i (`model.rating.posterior`): the
statistics S and h stand for the ratings. So the encoder is fitted at a cost that does not grow with
the number of ratings, by conjugate gradients, and may be fitted again without some rows at once.
"""

from dataclasses import dataclass, field

import numpy as np
from scipy import sparse

from simrec.mapped import release
from simrec.model.rating.observed import RatingRows
from simrec.model.rating.posterior import Marginal, Statistics
from simrec.model.run.scratch import slices
from simrec.model.run.workers import ONE_WORKER, Workers


@dataclass(eq=False)
class EncoderInputs:
    """What an encoder reads of each entity: its features and, if asked for, its history.

    The history of an entity is the row of its partners, divided by the root of their number, so
    that the encoder can learn from *what* was rated as well as from how.

    Attributes
    ----------
    X : csr_matrix
        Feature rows.
    groups : numpy.ndarray
        For each feature, the number of the column it comes from; history is one more column.
    units : numpy.ndarray, optional
        Further features, dense: the units of a hidden layer. There is no history beside them.
    ratings, partner_ratings : RatingRows, optional
        The ratings arranged by this side and by the other; given if history is wanted.
    row_workers : Workers
        The workers between whom the rows are divided. Where the partners are divided, so are the
        rows of B that belong to them; all else of B is the same on every worker.
    """

    X: sparse.csr_matrix
    groups: np.ndarray
    ratings: RatingRows | None = None
    partner_ratings: RatingRows | None = None
    row_workers: Workers = ONE_WORKER
    units: np.ndarray | None = None
    _XT: sparse.csr_matrix = field(init=False)
    _squares: sparse.csr_matrix = field(init=False)

    def __post_init__(self) -> None:
        self._XT = self.X.T.tocsr()
        self._squares = self._XT.multiply(self._XT).tocsr()
        if self.ratings is not None and self.partner_ratings is not None:
            self.root = history_weight(self.ratings.counts)[:, None]
            history = np.full(self.partner_ratings.n_rows, self.groups.max(initial=-1) + 1)
            self.groups = np.append(self.groups, history)

    @property
    def n_features(self) -> int:
        """Number of features, without those of history."""
        return self.X.shape[1]

    def forward(self, B: np.ndarray) -> np.ndarray:
        """Encode all rows."""
        Y = self.X @ B[: self.n_features]
        if self.units is not None:
            for rows in slices(len(Y)):
                Y[rows] += self.units[rows] @ B[self.n_features :]
                release(self.units[rows])
        if self.ratings is not None:
            Y += self.root * self.ratings.sum_partners(B[self.n_features :])
        return Y

    def backward(self, Y: np.ndarray) -> np.ndarray:
        """Apply the transpose of `forward`."""
        return self._transposed(self._XT, Y, 1)

    def backward_squares(self, Y: np.ndarray) -> np.ndarray:
        """Apply the transpose of `forward` with every entry of the rows squared."""
        return self._transposed(self._squares, Y, 2)

    def _transposed(self, XT: sparse.csr_matrix, Y: np.ndarray, power: int) -> np.ndarray:
        G = XT @ Y
        if self.units is not None:
            of_units = np.zeros((self.units.shape[1], Y.shape[1]), np.float32)
            for rows in slices(len(Y)):
                of_units += (self.units[rows] ** power).T @ Y[rows]
                release(self.units[rows])
            G = np.vstack([G, of_units])
        G = self.row_workers.sum(G)
        if self.partner_ratings is not None:
            G = np.vstack([G, self.partner_ratings.sum_partners(self.root**power * Y)])
        return G

    @property
    def _column_workers(self) -> Workers:
        """The workers between whom the partners in the history are divided."""
        partners = self.partner_ratings
        return ONE_WORKER if partners is None else partners.row_workers

    def inner(self, a: np.ndarray, b: np.ndarray) -> float:
        """Return the scalar product of two arrays of the shape of B, the same on all workers."""
        columns, n = self._column_workers, self.n_features
        if columns.size == 1:
            return _inner(a, b)
        product = _inner(a[n:], b[n:])
        if columns.rank == 0:  # what is on all workers counts once
            product += _inner(a[:n], b[:n])
        return columns.total(product)

    def group_sums(self, values: np.ndarray) -> np.ndarray:
        """Add up a value for each row of B by groups of features."""
        sums = np.bincount(self.groups, values)
        if self._column_workers.size > 1:  # history is the last group
            sums[-1] = self._column_workers.total(sums[-1])
        return sums


def history_weight(counts: np.ndarray) -> np.ndarray:
    """Return the weight of each entry of a row of history."""
    return (1.0 / np.sqrt(np.maximum(counts, 1))).astype(np.float32)


def solve(
    inputs: EncoderInputs,
    stats: Statistics | Marginal,
    penalty: np.ndarray,
    start: np.ndarray | None = None,
    iterations: int = 20,
    tolerance: float = 1e-4,
    weights: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Fit the encoder's weights B; return them and the diagonal of the normal equations.

    Parameters
    ----------
    inputs : EncoderInputs
        Feature rows.
    stats : Statistics or Marginal
        Sufficient statistics of the ratings of each row.
    penalty : numpy.ndarray
        Weight of the squares of B: p x 1 or p x D.
    start : numpy.ndarray, optional
        Weights to begin from.
    iterations : int
        Most steps of conjugate gradients.
    tolerance : float
        Size of the preconditioned residual, relative to the right-hand side, at which to stop.
    weights : numpy.ndarray, optional
        Weight of each row; all count alike without it.
    """
    penalty = penalty.astype(np.float32)
    weight = np.float32(1) if weights is None else weights.astype(np.float32)[:, None]

    def normal(B: np.ndarray) -> np.ndarray:
        Y = stats.times(inputs.forward(B))
        if weights is not None:
            Y *= weight
        G = inputs.backward(Y)
        G += penalty * B
        return G

    right = inputs.backward(stats.h * weight)
    diagonal = inputs.backward_squares(stats.diagonal() * weight)
    diagonal += penalty
    B, residual = np.zeros_like(right), right.copy()
    if start is not None:
        B = start.copy()
        residual -= normal(B)
    # All workers must take the same number of steps.
    agree = inputs.row_workers.agree
    goal = agree(tolerance**2 * inputs.inner(right, right / diagonal))
    del right  # arrays may be as long as all partners
    direction = residual / diagonal
    size = agree(inputs.inner(residual, direction))
    for _ in range(iterations):
        if size <= goal:
            break
        image = normal(direction)
        step = np.float32(size / inputs.inner(direction, image))
        B += step * direction
        image *= step
        residual -= image
        scaled = np.divide(residual, diagonal, out=image)
        size, last = agree(inputs.inner(residual, scaled)), size
        direction *= np.float32(size / last)
        direction += scaled
    return B, diagonal


def _inner(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.einsum("ij,ij->", a, b, dtype=np.float64))


def learned_penalty(
    penalty: np.ndarray, B: np.ndarray, diagonal: np.ndarray, inputs: EncoderInputs
) -> np.ndarray:
    """Re-estimate the penalty of each group of features from its weights.

    The weights of a group are taken as draws from N(0, 1 / penalty). Its new penalty is the number
    of weights that the data determine, over their squares: features that say nothing shrink, their
    penalty grows, and they drop out.
    """
    determined = (1 - np.minimum(penalty[inputs.groups][:, None] / diagonal, 1)).sum(1)
    squares = np.einsum("pd,pd->p", B, B, dtype=np.float64)
    count, size = inputs.group_sums(determined), inputs.group_sums(squares)
    new = (count + 1e-9) / (size + 1e-12)
    # A step at a time: the weights have yet to follow.
    return np.clip(np.clip(new, penalty / 3, penalty * 3), 1.0, 1e6)


def cross_fit(
    inputs: EncoderInputs,
    stats: Statistics,
    penalty: np.ndarray,
    folds: np.ndarray,
    n_folds: int,
    start: np.ndarray | None = None,
    iterations: int = 20,
    tolerance: float = 3e-3,
) -> tuple[np.ndarray, np.ndarray]:
    """Fit the encoder on all rows, and encode each row by an encoder that has not seen it.

    Returns
    -------
    B : numpy.ndarray
        Weights fitted on all rows.
    held_out : numpy.ndarray
        An embedding for each row, from the encoder fitted without the row's fold.
    """
    B, _ = solve(inputs, stats, penalty, start, iterations, tolerance)
    held_out = np.empty_like(stats.h)
    for fold in range(n_folds):
        rows = folds == fold
        without, _ = solve(inputs, stats, penalty, B, iterations, tolerance, weights=~rows)
        held_out[rows] = inputs.forward(without)[rows]
    return B, held_out
