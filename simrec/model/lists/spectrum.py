"""EASE as a scalar product: the leading eigenvectors of the item-item Gram matrix, shrunken.

EASE scores item j for a user with history x by ``-(x P)_j / P_jj``, ``P = (G + l2)^-1``. With
``G = V diag(e) V'`` that is ``(x V * e / (e + l2)) . V_j / (1 - leverage_j)`` for items outside the
history: a vector of the user, linear in the history, times a vector of the item. Of a small
side all eigenvectors are found; elsewhere the leading ones come from products with the sparse
histories: no items x items matrix is formed, so the number of items is not limited.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from simrec.model.run.workers import ONE_WORKER, Workers
from simrec.scoring.threads import row_blocks

# Eigenvectors beyond those wanted, and passes over the histories, of the randomised range finder.
_MORE, _PASSES = 16, 4
# Power of an item's count by which its column is divided: between 0 (EASE) and .25, which is better
# for known users of some data sets and for few pairs of others (benchmarks/README.md).
EXPONENT = 0.15
# The largest leverage: an item that a few users alone took up would be divided by nearly 0.
_MOST_LEVERAGE = 0.95


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Leading eigenvectors of the Gram matrix of histories whose columns are scaled by popularity.

    Attributes
    ----------
    V : numpy.ndarray
        Items x eigenvectors.
    e : numpy.ndarray
        Eigenvalues, descending.
    scale : numpy.ndarray
        Factor of each item's column: count ** -exponent, 0 for items without pairs.
    unit : float
        Mean of the diagonal of the Gram matrix: ridges are given in this unit.
    """

    V: np.ndarray
    e: np.ndarray
    scale: np.ndarray
    unit: float

    def first(self, n: int) -> Spectrum:
        """Keep the first n eigenvectors."""
        return replace(self, V=self.V[:, :n], e=self.e[:n])

    def filter(self, ridge: float) -> np.ndarray:
        """Return what a ridge leaves of each coordinate."""
        return (self.e / (self.e + ridge * self.unit)).astype(np.float32)

    def inputs(self) -> np.ndarray:
        """Return what each item of a history adds to the user's vector."""
        return self.V * self.scale[:, None]

    def items(self, ridge: float) -> np.ndarray:
        """Return the vectors of the items."""
        leverage = np.minimum(np.square(self.V) @ self.filter(ridge), _MOST_LEVERAGE)
        inverse = np.divide(1, self.scale, out=np.zeros_like(self.scale), where=self.scale > 0)
        return self.V * (inverse / (1 - leverage))[:, None]


def spectrum(
    X: sparse.csr_matrix,
    embedding_dim: int,
    rng: np.random.Generator,
    workers: Workers = ONE_WORKER,
    exponent: float = EXPONENT,
) -> Spectrum:
    """Find the leading eigenvectors: exactly where one side is small, else by power iteration.

    Parameters
    ----------
    X : csr_matrix
        This worker's users x items, a one for each pair.
    embedding_dim : int
        How many; fewer where there are fewer users or items.
    rng : numpy.random.Generator
        Source of the start; the same on all workers.
    workers : Workers
        The workers between whom the users are divided.
    exponent : float
        By which power of its count an item's column is divided.
    """
    counts = workers.sum(np.bincount(X.indices, minlength=X.shape[1]).astype(np.float64))
    n_users, n_items = int(workers.total(X.shape[0])), X.shape[1]
    scale = np.where(counts > 0, np.maximum(counts, 1.0) ** -exponent, 0).astype(np.float32)
    Y = sparse.csr_matrix(X @ sparse.diags_array(scale), dtype=np.float32)
    YT = Y.T.tocsr()
    d = max(min(embedding_dim, n_users - 1, n_items - 1), 1)
    if n_items <= 2 * d:
        e, V = (workers.first(one) for one in _eigh(workers.sum((YT @ Y).toarray())))
    elif n_users <= 2 * d and workers.size == 1:
        e, U = _eigh((Y @ YT).toarray())
        V = np.asarray(YT @ (U / np.sqrt(np.maximum(e, 1e-9 * max(e[-1], 1e-30)))))
    else:
        # One worker draws nothing for so few users: what is drawn next is to be the same.
        own = deepcopy(rng) if n_users <= 2 * d else rng
        e, V = _leading(Y, YT, d, own, workers)
    order = np.argsort(-e)[:d]
    unit = float(np.average(counts * scale.astype(np.float64) ** 2))
    e = np.maximum(e[order], 1e-9 * max(unit, 1e-30))
    V = V[:, order]
    V *= np.where((V**3).sum(0) < 0, -1, 1)  # rounding would choose the sign
    return Spectrum(V.astype(np.float32), e.astype(np.float32), scale, unit)


def _eigh(gram: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.linalg.eigh(gram.astype(np.float64))


def _leading(
    Y: sparse.csr_matrix,
    YT: sparse.csr_matrix,
    d: int,
    rng: np.random.Generator,
    workers: Workers,
) -> tuple[np.ndarray, np.ndarray]:
    """Return about d + 16 eigenvalues and eigenvectors, by block power iteration."""
    V = rng.standard_normal((Y.shape[1], min(d + _MORE, Y.shape[1]))).astype(np.float32)
    for _ in range(_PASSES):
        V = workers.sum(np.asarray(YT @ (Y @ workers.first(_orthonormal(V)))))
    V = workers.first(_orthonormal(V))
    gram = np.zeros((V.shape[1], V.shape[1]))
    for rows in row_blocks(Y.shape[0]):
        image = np.asarray(Y[rows] @ V, np.float64)
        gram += image.T @ image
    # The last bits turn eigenvectors of nearly equal eigenvalues: the first worker decides.
    e, W = (workers.first(one) for one in np.linalg.eigh(workers.sum(gram)))
    return e, V @ W


def _orthonormal(V: np.ndarray) -> np.ndarray:
    """Return an orthonormal basis of the columns, by Cholesky's method twice: a third of QR's time.

    The first pass leaves rounding errors where columns are nearly dependent, the second removes
    them. Where the Gram matrix is singular to rounding, QR does it.
    """
    try:
        for _ in range(2):
            gram = (V.T @ V).astype(np.float64)
            L = np.linalg.cholesky(gram)
            V = V @ np.linalg.inv(L).T.astype(np.float32)
    except np.linalg.LinAlgError:
        return np.linalg.qr(V)[0]
    return V
