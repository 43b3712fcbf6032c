"""The item encoder of implicit feedback: a ridge regression of item embeddings on features."""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve

from simrec.model.head import Encoder
from simrec.simec.linear_algebra import by_column, conjugate_gradients

# Features, or items, up to which the normal equations are solved whole; with more, conjugate
# gradients: their steps, and the residual at which they end before.
_DENSE, _STEPS, _TOLERANCE = 4096, 12, 0.03


class ItemRegression:
    """Ridge regression of vectors on features; what does not depend on the vectors is kept.

    Parameters
    ----------
    X : csr_matrix
        Feature rows.
    weights : numpy.ndarray or None
        What features are multiplied with before rows are brought to unit length; None for features
        as they are.
    penalty : float
        Ridge penalty.
    """

    def __init__(self, X: sparse.csr_matrix, weights: np.ndarray | None, penalty: float) -> None:
        self._idf = weights
        inputs = Encoder(np.empty((0, 0)), idf=self._idf).inputs(X)
        constant = sparse.csr_matrix(np.ones((X.shape[0], 1), np.float32))
        self._Z = sparse.hstack([inputs, constant], format="csr", dtype=np.float32)
        self._ZT = self._Z.T.tocsr()
        self._solved: np.ndarray | None = None
        self._gram = None
        # A weight for each feature, or a combination of items for each coordinate.
        self._of_items = self._Z.shape[0] < self._Z.shape[1]
        if min(self._Z.shape) <= _DENSE:
            A, B = (self._Z, self._ZT) if self._of_items else (self._ZT, self._Z)
            self._gram = (A.astype(np.float64) @ B.astype(np.float64)).toarray()
        self.set_penalty(penalty)

    def set_penalty(self, penalty: float) -> None:
        """Take another penalty; solutions go on from the last one."""
        if getattr(self, "_penalty", None) == np.float32(penalty):
            return
        self._penalty, self._factor = np.float32(penalty), None
        if self._gram is not None:
            A = self._gram.copy()
            # Against rounding, where features are large and repeat each other.
            A[np.diag_indices(len(A))] += penalty + 1e-9 * np.trace(A) / len(A)
            self._factor = cho_factor(A, overwrite_a=True, check_finite=False)

    def encoder(self, Y: np.ndarray) -> Encoder:
        """Return the encoder that fits the vectors Y."""
        return Encoder(self._weights(Y), idf=self._idf)

    def _weights(self, Y: np.ndarray) -> np.ndarray:
        right = Y if self._of_items else np.asarray(self._ZT @ Y.astype(np.float64))
        if self._factor is not None:
            found = cho_solve(self._factor, right, check_finite=False).astype(np.float32)
        else:
            A, AT = (self._Z, self._ZT) if self._of_items else (self._ZT, self._Z)
            found = self._conjugate_gradients(A, AT, right)
        return np.asarray(self._ZT @ found) if self._of_items else found

    def _conjugate_gradients(
        self, A: sparse.csr_matrix, AT: sparse.csr_matrix, right: np.ndarray
    ) -> np.ndarray:
        """Solve (A A' + penalty) W = right, all columns at once, from the last solution on."""
        diagonal = np.asarray(A.multiply(A).sum(1)).ravel()[:, None] + self._penalty
        start = self._solved
        if start is not None and start.shape != right.shape:
            start = None

        def normal(W: np.ndarray) -> np.ndarray:
            return A @ (AT @ W) + self._penalty * W

        right = right.astype(np.float32)
        self._solved = conjugate_gradients(
            normal, right, lambda r: r / diagonal, start, _STEPS, _TOLERANCE, by_column
        )
        return self._solved


# Ways to weigh features.
Weighing = Literal["plain", "rarity", "rarity and full columns"]


def feature_weights(
    X: sparse.csr_matrix, groups: np.ndarray, weighing: Weighing
) -> np.ndarray | None:
    """Return what each feature is multiplied with; None for features as they are.

    By rarity, what is there for nearly all rows (numbers, vectors, texts) counts for nothing; with
    full columns, each of them as much as all others together. `groups` has the column of each
    feature.
    """
    if weighing == "plain":
        return None
    weights = idf_of(X)
    if weighing == "rarity and full columns":
        squares = np.asarray(X.multiply(X).sum(0)).ravel()
        total = float(squares @ np.square(weights)) or float(X.shape[0])
        for group in full_columns(X, groups):
            here = groups == group
            weights[here] = np.sqrt(total / max(float(squares[here].sum()), 1e-30))
    return weights


def full_columns(X: sparse.csr_matrix, groups: np.ndarray) -> np.ndarray:
    """Return the columns whose features are there for most rows: numbers, vectors, texts."""
    there = np.bincount(X.indices[X.data != 0], minlength=X.shape[1]) > X.shape[0] / 2
    share = np.bincount(groups, there) / np.maximum(np.bincount(groups), 1)
    return np.flatnonzero(share > 0.5)


def idf_of(X: sparse.csr_matrix) -> np.ndarray:
    """Return the inverse document frequency of each feature."""
    count = np.bincount(X.indices[X.data != 0], minlength=X.shape[1])
    return np.where(count > 0, np.log((X.shape[0] + 1) / (count + 1)), 0).astype(np.float32)
