"""Linear encoders of uptake vectors: ridge regressions on features."""

from __future__ import annotations

import numpy as np
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve

from simrec.model.head import Encoder
from simrec.model.run.workers import ONE_WORKER, Workers

# Features up to which the normal equations are solved whole; with more, conjugate gradients.
_DENSE = 3000
# Their steps for an encoder, and for what features say in a sweep: that is only a prior, and goes
# on from the sweep before.
_STEPS, _STEPS_OF_SWEEP = 12, 3


class Regression:
    """Ridge regression of vectors on features; what does not depend on the vectors is kept.

    Parameters
    ----------
    X : csr_matrix
        Feature rows.
    by_rarity : bool
        Whether to weigh features by their rarity (idf) and bring rows to unit length.
    penalty : float
        Ridge penalty.
    workers : Workers
        The workers between whom the rows are divided.
    """

    def __init__(
        self,
        X: sparse.csr_matrix,
        by_rarity: bool,
        penalty: float,
        workers: Workers = ONE_WORKER,
    ) -> None:
        self._workers = workers
        self._idf = _idf(X) if by_rarity else None
        inputs = Encoder(np.empty((0, 0)), idf=self._idf).inputs(X)
        constant = sparse.csr_matrix(np.ones((X.shape[0], 1), np.float32))
        self._Z = sparse.hstack([inputs, constant], format="csr", dtype=np.float32)
        self._ZT = self._Z.T.tocsr()
        self._penalty = np.float32(penalty)
        self._weights: np.ndarray | None = None
        self._factor = None
        if self._Z.shape[1] <= _DENSE:
            A = (self._ZT.astype(np.float64) @ self._Z.astype(np.float64)).toarray()
            A = workers.sum(A)
            # Against rounding, where features are large and repeat each other.
            A[np.diag_indices(len(A))] += penalty + 1e-9 * np.trace(A) / len(A)
            self._factor = cho_factor(A, overwrite_a=True, check_finite=False)

    def encoder(self, Y: np.ndarray) -> Encoder:
        """Return the encoder that fits the vectors Y."""
        return Encoder(self._solve(Y, _STEPS), idf=self._idf)

    def fitted(self, Y: np.ndarray) -> np.ndarray:
        """Return what features say of the rows with the vectors Y."""
        return np.asarray(self._Z @ self._solve(Y, _STEPS_OF_SWEEP))

    def _solve(self, Y: np.ndarray, steps: int) -> np.ndarray:
        right = self._workers.sum(np.asarray(self._ZT @ Y, np.float32))
        if self._factor is not None:
            return cho_solve(self._factor, right, check_finite=False).astype(np.float32)
        if self._weights is None or self._weights.shape != right.shape:
            self._weights = np.zeros_like(right)
        self._weights = self._conjugate_gradients(right, self._weights, steps)
        return self._weights

    def _conjugate_gradients(self, right: np.ndarray, W: np.ndarray, steps: int) -> np.ndarray:
        """Solve (Z'Z + penalty) W = right for all columns at once; SciPy's takes one at a time."""
        Z, ZT, penalty = self._Z, self._ZT, self._penalty
        add = self._workers.sum
        inverse = 1 / (add(np.asarray(Z.multiply(Z).sum(0)).ravel())[:, None] + penalty)
        W = W.copy()
        r = right - (add(ZT @ (Z @ W)) + penalty * W) if W.any() else right.copy()
        z = inverse * r
        p, now = z, np.einsum("ij,ij->j", r, z)
        first = np.einsum("ij,ij->j", right, inverse * right) + 1e-30
        for _ in range(steps):
            image = add(ZT @ (Z @ p)) + penalty * p
            step = now / np.maximum(np.einsum("ij,ij->j", p, image), 1e-30)
            W += step * p
            r -= step * image
            z = inverse * r
            before, now = now, np.einsum("ij,ij->j", r, z)
            if (now / first).max() < 1e-3:
                break
            p = z + (now / np.maximum(before, 1e-30)) * p
        return W


def _idf(X: sparse.csr_matrix) -> np.ndarray:
    count = np.bincount(X.indices[X.data != 0], minlength=X.shape[1])
    return np.where(count > 0, np.log((X.shape[0] + 1) / (count + 1)), 0).astype(np.float32)
