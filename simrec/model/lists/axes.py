"""Item embeddings of implicit feedback: leading eigenvectors of who took up what.

Of a small side all eigenvectors are found; elsewhere the leading ones come from products with the
sparse histories: no items x items matrix is formed, so the number of items is not limited.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import numpy as np
from scipy import linalg, sparse

from simrec.model.run.workers import ONE_WORKER, Workers
from simrec.scoring.threads import row_blocks

# Eigenvectors beyond those wanted, and passes over the histories, of the randomised range finder.
_MORE, _PASSES = 16, 3
# Power of an item's count by which its column is divided: items with few pairs are not lost among
# others.
POWER = 0.25


@dataclass(frozen=True, eq=False)
class Axes:
    """Leading eigenvectors of the Gram matrix of rows whose columns are scaled by popularity.

    Attributes
    ----------
    V : numpy.ndarray
        Items x eigenvectors.
    e : numpy.ndarray
        Eigenvalues, descending.
    scale : numpy.ndarray
        Factor of each item's column.
    """

    V: np.ndarray
    e: np.ndarray
    scale: np.ndarray

    @property
    def inputs(self) -> np.ndarray:
        """What each item of a history adds to the coordinates of the user."""
        return self.V * self.scale[:, None]

    @property
    def items(self) -> np.ndarray:
        """The vectors of the items: a last layer for what is learned in these coordinates."""
        return self.V / self.scale[:, None]


def item_scale(counts: np.ndarray, power: float = POWER) -> np.ndarray:
    """Return the factor of the columns of items with so many pairs."""
    return (np.maximum(counts, 1.0) ** -power).astype(np.float32)


def find_axes(
    rows: sparse.csr_matrix,
    counts: np.ndarray,
    embedding_dim: int,
    rng: np.random.Generator,
    workers: Workers = ONE_WORKER,
    power: float = POWER,
) -> Axes:
    """Find the leading eigenvectors: exactly where one side is small, else by power iteration.

    Parameters
    ----------
    rows : csr_matrix
        This worker's rows x items.
    counts : numpy.ndarray
        Pairs of each item, of all workers.
    embedding_dim : int
        How many; fewer where there are fewer rows or items.
    rng : numpy.random.Generator
        Source of the start; the same on all workers.
    workers : Workers
        The workers between whom the rows are divided.
    power : float
        Power of its count by which an item's column is divided.
    """
    n_rows, n_items = int(workers.total(rows.shape[0])), rows.shape[1]
    scale = item_scale(counts, power)
    Y = sparse.csr_matrix(rows @ sparse.diags_array(scale), dtype=np.float32)
    d = max(min(embedding_dim, n_rows - 1, n_items - 1), 1)
    if n_items <= 2 * d:
        e, V = (workers.first(one) for one in _eigh(workers.sum((Y.T.tocsr() @ Y).toarray())))
    elif n_rows <= 2 * d and workers.size == 1:
        YT = Y.T.tocsr()
        e, U = _eigh((Y @ YT).toarray())
        V = np.asarray(YT @ (U / np.sqrt(np.maximum(e, 1e-9 * max(e[-1], 1e-30)))))
    else:
        # One worker draws nothing for so few rows: what is drawn next is to be the same.
        own = deepcopy(rng) if n_rows <= 2 * d else rng
        e, V = _leading(Y, d, own, workers)
    order = np.argsort(-e)[:d]
    e, V = e[order], V[:, order]
    e = np.maximum(e, 1e-9 * max(float(e[0]), 1e-30))
    V = V.astype(np.float32, copy=False)
    V *= np.where(np.einsum("ij,ij,ij->j", V, V, V) < 0, -1, 1)  # rounding would choose the sign
    return Axes(V, e.astype(np.float32), scale)


def _eigh(gram: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.linalg.eigh(gram.astype(np.float64))


def _leading(
    Y: sparse.csr_matrix,
    d: int,
    rng: np.random.Generator,
    workers: Workers,
) -> tuple[np.ndarray, np.ndarray]:
    """Return about d + 16 eigenvalues and eigenvectors, by block power iteration."""
    V = rng.standard_normal((Y.shape[1], min(d + _MORE, Y.shape[1]))).astype(np.float32)
    for step in range(_PASSES):  # the columns of the start are nearly orthogonal
        V = workers.sum(_squared(Y, workers.first(_orthonormal(V) if step else V)))
    V = workers.first(_orthonormal(_orthonormal(V)))
    gram = np.zeros((V.shape[1], V.shape[1]))
    for rows in row_blocks(Y.shape[0], V.shape[1]):
        image = np.asarray(Y[rows] @ V, np.float64)
        gram += image.T @ image
    # The last bits turn eigenvectors of nearly equal eigenvalues: the first worker decides.
    e, W = (workers.first(one) for one in np.linalg.eigh(workers.sum(gram)))
    return e, V @ W.astype(np.float32)


def _squared(Y: sparse.csr_matrix, V: np.ndarray) -> np.ndarray:
    """Return Y' (Y V), some rows at a time."""
    out = np.zeros_like(V)
    for rows in row_blocks(Y.shape[0], V.shape[1]):
        some = Y[rows]
        out += some.T @ (some @ V)
    return out


def _orthonormal(V: np.ndarray) -> np.ndarray:
    """Return an orthonormal basis of the columns, by Cholesky's method: a sixth of QR's time.

    It leaves rounding errors where columns are nearly dependent; a second time removes them. Where
    the Gram matrix is singular to rounding, QR does it.
    """
    try:
        L = np.linalg.cholesky((V.T @ V).astype(np.float64))
    except np.linalg.LinAlgError:
        return np.linalg.qr(V)[0]
    return linalg.blas.strsm(1.0, L.astype(np.float32), V.T, lower=1).T
