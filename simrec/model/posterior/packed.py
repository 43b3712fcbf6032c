"""Symmetric matrices, one for each entity, as upper triangles: 153 numbers for 17 x 17."""

from functools import lru_cache

import numpy as np

from simrec.scoring.threads import filled, row_blocks


def size(packed: np.ndarray) -> int:
    """Return the number of rows of the matrices."""
    return int((np.sqrt(8 * packed.shape[1] + 1) - 1) / 2)


@lru_cache(maxsize=8)
def upper(D: int) -> tuple[np.ndarray, np.ndarray]:
    """Return row and column of each number of an upper triangle."""
    return np.triu_indices(D)


@lru_cache(maxsize=8)
def _places(D: int) -> np.ndarray:
    """Return where each entry of a matrix stands in its upper triangle."""
    places = np.empty((D, D), np.int64)
    places[upper(D)] = places[upper(D)[::-1]] = np.arange(D * (D + 1) // 2)
    return places


def pack(matrices: np.ndarray) -> np.ndarray:
    """Keep the upper triangles of symmetric matrices."""
    D = matrices.shape[-1]
    places = np.ravel_multi_index(upper(D), (D, D))
    packed = np.take(matrices.reshape(-1, D * D), places, axis=1)
    return packed.astype(np.float32, copy=False)


def outer(Y: np.ndarray) -> np.ndarray:
    """Return y y' of each row y."""
    rows, columns = upper(Y.shape[1])
    return np.take(Y, rows, axis=1) * np.take(Y, columns, axis=1)


def unpack(packed: np.ndarray) -> np.ndarray:
    """Make symmetric matrices of their upper triangles."""
    D = size(packed)
    return np.take(packed, _places(D).ravel(), axis=1).reshape(-1, D, D)


def to_factors(packed: np.ndarray) -> np.ndarray:
    """Return the Cholesky factors of covariances in half precision: half the bytes.

    Rounding a factor leaves a covariance; rounding the covariance itself may not.
    """
    D, whole = size(packed), unpack(packed).astype(np.float64)
    try:
        lower = np.linalg.cholesky(whole)
    except np.linalg.LinAlgError:  # one that rounding has made indefinite
        values, vectors = np.linalg.eigh(whole)
        values = np.maximum(values, 1e-7 * np.abs(values).max(1, keepdims=True) + 1e-12)
        lower = np.linalg.cholesky((vectors * values[:, None]) @ vectors.transpose(0, 2, 1))
    return np.take(lower.reshape(-1, D * D), _lower(D), axis=1).astype(np.float16)


def factors(halves: np.ndarray) -> np.ndarray:
    """Return what `to_factors` made as matrices: F of each covariance F F'."""
    D = size(halves)
    out = np.zeros((len(halves), D * D), np.float32)
    out[:, _lower(D)] = halves
    return out.reshape(-1, D, D)


def of_factors(halves: np.ndarray) -> np.ndarray:
    """Return the covariances that factors are of."""
    lower = factors(halves)
    return pack(lower @ lower.transpose(0, 2, 1))


@lru_cache(maxsize=8)
def _lower(D: int) -> np.ndarray:
    """Return where the numbers of a lower triangle stand in a matrix, row by row."""
    return np.ravel_multi_index(np.tril_indices(D), (D, D))


def diagonals(packed: np.ndarray) -> np.ndarray:
    """Return the diagonal of each matrix."""
    return packed[:, np.diag(_places(size(packed)))]


def trace_weights(D: int) -> np.ndarray:
    """Return the weight of each number in the trace of a product: 2 off the diagonal."""
    rows, columns = upper(D)
    return np.where(rows == columns, 1, 2).astype(np.float32)


def products(packed: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """Multiply each matrix with its row of Y."""
    if packed.ndim == 3:  # whole matrices
        return (packed @ Y[:, :, None])[:, :, 0]
    return filled(np.empty_like(Y), lambda rows: (unpack(packed[rows]) @ Y[rows, :, None])[:, :, 0])


def unpacked(packed: np.ndarray) -> np.ndarray:
    """Make all matrices, for whoever multiplies with them many times."""
    D = size(packed)
    return filled(np.empty((len(packed), D, D), np.float32), lambda rows: unpack(packed[rows]))


def weighted_sum(packed: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Return the sum of the matrices, each times its weight: one matrix, in double precision."""
    total = np.zeros(packed.shape[1])
    for rows in row_blocks(len(packed)):
        part = packed[rows].astype(np.float64)
        total += part.sum(0) if weights is None else weights[rows] @ part
    return unpack(total[None])[0]


def packed_weights(moments: np.ndarray) -> np.ndarray:
    """Return the weights of packed entries in the trace of a product with `moments`."""
    return trace_weights(len(moments)) * pack(moments[None])[0]
