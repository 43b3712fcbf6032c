"""Linear encoders against a frozen last layer, in closed form.

With W_l frozen and a squared loss, the masked loss of a SimEc over all observed entries of row i is
``y_i . S_i y_i - 2 h_i . y_i + const`` with y_i = B^T x_i (`simrec.model.posterior.posterior`): the
statistics S and h stand for the ratings. So the encoder is fitted at a cost that does not grow with
the number of ratings, by conjugate gradients, and may be fitted again without some rows at once.
"""

from dataclasses import dataclass, field

import numpy as np
from scipy import sparse

from simrec.model.posterior.observed import RatingRows
from simrec.model.posterior.posterior import Marginal, Statistics
from simrec.model.run.workers import ONE_WORKER, Workers
from simrec.simec.linear_algebra import conjugate_gradients, inner_product

# With fewer nearly full columns it is not worth it.
_FULL_COLUMNS = 8
# Size of the preconditioned residual, relative to the right-hand side, at which to stop.
_TOLERANCE = 1e-4


@dataclass(eq=False)
class EncoderInputs:
    """What an encoder reads of each entity: its features and, if asked for, its history.

    The history of an entity is the row of its partners, divided by the root of their number, so
    that the encoder can learn from *what* was rated as well as from how.
    """

    X: sparse.csr_matrix
    groups: np.ndarray  # the column that each feature comes from; history is one more column
    # The ratings arranged by this side and by the other; given if history is wanted.
    ratings: RatingRows | None = None
    partner_ratings: RatingRows | None = None
    # Between whom the rows are divided. Where the partners are divided, so are the rows of B that
    # belong to them; all else of B is the same on every worker.
    row_workers: Workers = ONE_WORKER
    _sparse: sparse.csr_matrix = field(init=False)
    _XT: sparse.csr_matrix = field(init=False)
    _squares: sparse.csr_matrix = field(init=False)

    def __post_init__(self) -> None:
        # Columns that are nearly full, such as those of vectors, are multiplied as dense ones.
        full = np.bincount(self.X.indices, minlength=self.n_features) > self.X.shape[0] / 2
        self._columns = np.flatnonzero(full) if full.sum() >= _FULL_COLUMNS else np.empty(0, int)
        self._dense, self._sparse = self.X[:, self._columns].toarray(), self.X
        if len(self._columns):
            self._sparse = sparse.csr_matrix(self.X @ sparse.diags_array((~full).astype("f4")))
            self._sparse.eliminate_zeros()
        self._XT = self._sparse.T.tocsr()
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
        Y = self._sparse @ B[: self.n_features]
        if len(self._columns):
            Y += self._dense @ B[self._columns]
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
        if len(self._columns):
            G[self._columns] += (self._dense**power).T @ Y
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
        """Return the scalar product of two arrays of the shape of B, the same on all workers.

        All workers must take the same number of steps: the first one's number counts.
        """
        columns, n = self._column_workers, self.n_features
        if columns.size == 1:
            return self.row_workers.agree(inner_product(a, b))
        product = inner_product(a[n:], b[n:])
        if columns.rank == 0:  # what is on all workers counts once
            product += inner_product(a[:n], b[:n])
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
    start: np.ndarray,
    iterations: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Fit the encoder's weights B; return them and the diagonal of the normal equations.

    `penalty` is the weight of the squares of B, p x 1 or p x D.
    """
    penalty = penalty.astype(np.float32)

    def normal(B: np.ndarray) -> np.ndarray:
        return inputs.backward(stats.times(inputs.forward(B))) + penalty * B

    right = inputs.backward(stats.h)
    diagonal = inputs.backward_squares(stats.diagonal()) + penalty
    B = conjugate_gradients(
        normal, right, lambda r: r / diagonal, start, iterations, _TOLERANCE, inputs.inner
    )
    return B, diagonal


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
