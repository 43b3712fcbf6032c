"""Ratings as sparse matrices, made in pieces where memory is limited.

What is as long as the ratings then lives in files, and only a piece of it is in memory at a time.
Pieces change no bit of a result.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
from scipy import sparse

from simrec.mapped import release
from simrec.model.run.scratch import IN_MEMORY, Scratch

# Ratings that are worked on at once.
PIECE = 1 << 21


def pieces(n: int) -> Iterator[slice]:
    """Cut n ratings into pieces."""
    for start in range(0, n, PIECE):
        yield slice(start, min(start + PIECE, n))


def counted(rows: np.ndarray, n: int, weights: np.ndarray | None = None) -> np.ndarray:
    """Count how often each of n rows occurs, or add up the weights that it occurs with."""
    total = np.zeros(n, np.int64 if weights is None else np.float64)
    for at in pieces(len(rows)):
        part = None if weights is None else weights[at]
        total += np.bincount(rows[at], part, minlength=n)
        release(rows[at], *([] if weights is None else [weights[at]]))
    return total


def places(rows: np.ndarray, holds: Callable[..., np.ndarray]) -> np.ndarray:
    """Return the positions of the rows for which something holds, ascending."""
    found = [np.empty(0, np.int64)]
    for at in pieces(len(rows)):
        found.append(at.start + np.flatnonzero(holds(rows[at])))
        release(rows[at])
    return np.concatenate(found)


def arranged(
    rows: np.ndarray,
    columns: np.ndarray,
    values: Callable[[slice | np.ndarray], np.ndarray],
    shape: tuple[int, int],
    scratch: Scratch = IN_MEMORY,
) -> sparse.csr_matrix:
    """Arrange entries by rows, each with its columns in ascending order.

    Parameters
    ----------
    rows, columns : numpy.ndarray
        Where each entry stands; no place occurs twice.
    values : callable
        Returns the float32 values of some entries.
    shape : (int, int)
        Rows and columns of the matrix.
    scratch : Scratch
        Where the matrix goes.
    """
    n = len(rows)
    if not scratch.limited or n <= PIECE:
        return _sorted(values(slice(None)), rows, columns, shape)
    matrix = _empty(counted(rows, shape[0]), shape, scratch)
    for a, b in itertools.pairwise(_cuts(matrix.indptr)):
        at = places(rows, lambda some, a=a, b=b: (some >= a) & (some < b))
        part = _sorted(values(at), rows[at] - a, columns[at], (b - a, shape[1]))
        place = slice(matrix.indptr[a], matrix.indptr[b])
        matrix.data[place], matrix.indices[place] = part.data, part.indices
        release(matrix.data[place], matrix.indices[place], rows, columns)
    return matrix


def transposed(matrix: sparse.csr_matrix, scratch: Scratch = IN_MEMORY) -> sparse.csr_matrix:
    """Arrange a matrix by its columns."""
    if not scratch.limited or matrix.nnz <= PIECE:
        return matrix.T.tocsr()
    n, m = matrix.shape
    out = _empty(counted(matrix.indices, m), (m, n), scratch)
    free = out.indptr[:-1].astype(np.int64)
    for a, b in itertools.pairwise(_cuts(matrix.indptr)):
        part = matrix[a:b].T.tocsr()
        lengths = np.diff(part.indptr)
        at = np.repeat(free - part.indptr[:-1], lengths) + np.arange(part.nnz)
        out.data[at], out.indices[at] = part.data, part.indices + a
        free += lengths
        release(out.data, out.indices, matrix.data, matrix.indices)
    return out


def _sorted(
    values: np.ndarray, rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]
) -> sparse.csr_matrix:
    matrix = sparse.csr_matrix(sparse.coo_matrix((values, (rows, columns)), shape=shape))
    matrix.sort_indices()
    return matrix


def _empty(counts: np.ndarray, shape: tuple[int, int], scratch: Scratch) -> sparse.csr_matrix:
    """Make a matrix with rows of given lengths, to be filled."""
    indptr = np.concatenate([[0], np.cumsum(counts)])
    n = int(indptr[-1])
    # scipy wants one type for both, and would copy the longer array.
    index = np.int32 if max(n, shape[1]) < 2**31 else np.int64
    arrays = scratch.empty((n,)), scratch.empty((n,), index), indptr.astype(index)
    out = sparse.csr_matrix(shape, dtype=np.float32)
    out.data, out.indices, out.indptr = arrays
    return out


def _cuts(indptr: np.ndarray) -> np.ndarray:
    """Return edges between rows such that about a piece of entries lies between two of them."""
    cuts = np.searchsorted(indptr, np.arange(PIECE, indptr[-1], PIECE))
    return np.unique(np.concatenate([[0], cuts, [len(indptr) - 1]])).astype(np.int64)
