"""Linear encoders of uptake vectors: ridge regressions on features."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from simrec.model.head import Encoder

# Features up to which the normal equations are solved whole; with more, conjugate gradients.
_DENSE = 3000
_STEPS = 12


def fit_encoder(X: sparse.csr_matrix, Y: np.ndarray, by_rarity: bool, penalty: float) -> Encoder:
    """Regress vectors on features.

    Parameters
    ----------
    X : csr_matrix
        Feature rows.
    Y : numpy.ndarray
        Their vectors.
    by_rarity : bool
        Whether to weigh features by their rarity (idf) and bring rows to unit length.
    penalty : float
        Ridge penalty.
    """
    encoder = Encoder(np.empty((0, 0)), idf=_idf(X) if by_rarity else None)
    constant = sparse.csr_matrix(np.ones((X.shape[0], 1), np.float32))
    Z = sparse.hstack([encoder.inputs(X), constant], format="csr", dtype=np.float32)
    ZT = Z.T.tocsr()
    right = np.asarray(ZT @ Y, np.float32)
    if Z.shape[1] <= _DENSE:
        A = (ZT @ Z).toarray()
        A[np.diag_indices(len(A))] += penalty
        encoder.weights = np.linalg.solve(A, right).astype(np.float32)
    else:
        diagonal = np.asarray(Z.multiply(Z).sum(0)).ravel()[:, None] + np.float32(penalty)
        encoder.weights = _conjugate_gradients(Z, ZT, right, 1 / diagonal, penalty)
    return encoder


def _idf(X: sparse.csr_matrix) -> np.ndarray:
    count = np.bincount(X.indices[X.data != 0], minlength=X.shape[1])
    return np.where(count > 0, np.log((X.shape[0] + 1) / (count + 1)), 0).astype(np.float32)


def _conjugate_gradients(
    Z: sparse.csr_matrix,
    ZT: sparse.csr_matrix,
    right: np.ndarray,
    inverse: np.ndarray,
    penalty: float,
) -> np.ndarray:
    """Solve (Z'Z + penalty) W = right for all columns at once; SciPy's takes one at a time."""
    W, r = np.zeros_like(right), right.copy()
    z = inverse * r
    p, now = z, np.einsum("ij,ij->j", r, z)
    first = now + 1e-30
    for _ in range(_STEPS):
        image = ZT @ (Z @ p) + np.float32(penalty) * p
        step = now / np.maximum(np.einsum("ij,ij->j", p, image), 1e-30)
        W += step * p
        r -= step * image
        z = inverse * r
        before, now = now, np.einsum("ij,ij->j", r, z)
        if (now / first).max() < 1e-3:
            break
        p = z + (now / np.maximum(before, 1e-30)) * p
    return W
