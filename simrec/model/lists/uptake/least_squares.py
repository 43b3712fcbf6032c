"""Least squares over all pairs: ones where there is a pair, zeros everywhere else.

The zeros enter through the Gram matrix of the other side, so that a sweep costs by the ones alone.
A row of few pairs is solved in the space of its pairs, any other by conjugate gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
from scipy import sparse

from simrec.model.run.workers import ONE_WORKER, Workers
from simrec.scoring.threads import in_threads, row_blocks
from simrec.simec.linear_algebra import by_row, conjugate_gradients

# Eigenvalues and eigenvectors, in columns, of a Gram matrix.
Spectrum: TypeAlias = tuple[np.ndarray, np.ndarray]
# Numbers in a batch of rows: bounds memory, and fits into caches.
_CELLS = 500_000
# Pairs up to which a row is solved in their space.
_FEW = 48
# Steps of conjugate gradients, at most, and the share of the residual at which they end.
_STEPS, _LEFT = 12, 1e-3
# Pairs whose scalar products are formed at once.
_PIECE = 1 << 14


def solve_rows(
    R: sparse.csr_matrix,
    V: np.ndarray,
    ridge: np.ndarray,
    zero: np.ndarray,
    explained: np.ndarray | None = None,
    prior: np.ndarray | None = None,
    spectrum: Spectrum | None = None,
) -> np.ndarray:
    """Return the vectors of rows that fit ones at their pairs and zeros everywhere.

    Row r minimises sum_j c_rj (1 - explained_rj - u . v_j)^2 over its pairs, plus
    zero_r sum_j (u . v_j)^2 over all j, plus ridge_r |u - prior_r|^2.

    Parameters
    ----------
    R : csr_matrix
        Rows x columns; the values are confidences c.
    V : numpy.ndarray
        Vectors of the columns.
    ridge, zero : numpy.ndarray
        Penalty, and weight of a zero, of each row.
    explained : numpy.ndarray, optional
        What something else explains of each pair, in the order of `R.data`.
    prior : numpy.ndarray, optional
        What each vector is drawn towards; nothing without it.
    spectrum : optional
        That of all columns, where V are those with pairs only.
    """
    n, d = np.diff(R.indptr), V.shape[1]
    values, Q = spectrum_of(V) if spectrum is None else spectrum
    V = np.asarray(V @ Q, np.float32)
    ridge, zero = ridge.astype(np.float32), zero.astype(np.float32)
    if prior is None:
        out = np.zeros((R.shape[0], d), np.float32)
    else:  # without pairs, only zeros move a row from its prior
        out = np.asarray(prior @ Q, np.float32)
        out *= ridge[:, None] / np.maximum(zero[:, None] * values + ridge[:, None], 1e-30)
    target = None if explained is None else (1 - explained).astype(np.float32)

    total, squares = pair_squares(R, V)
    a_pair = (squares / max(total, 1e-30)).astype(np.float32)

    def work(rows: np.ndarray) -> None:
        width = n[rows].max()
        at = R.indptr[rows][:, None] + np.arange(width)
        inside = np.arange(width) < n[rows, None]
        at[~inside] = 0
        c = np.where(inside, R.data[at], np.float32(0))
        A = V.take(R.indices[at], 0)
        D = zero[rows, None] * values + ridge[rows, None]
        x = out[rows]
        y = (1 if target is None else target[at]) - _matvec(A, x)
        if width <= _FEW:
            A *= np.sqrt(c)[:, :, None]
            AD = A / D[:, None, :]
            K = AD @ A.transpose(0, 2, 1)
            K[:, np.arange(width), np.arange(width)] += 1
            solved = np.linalg.solve(K, (np.sqrt(c) * y)[:, :, None])
            out[rows] += _vecmat(solved[:, :, 0], AD)
        else:
            diagonal = D + c.sum(1)[:, None] * a_pair

            def normal(p: np.ndarray) -> np.ndarray:
                return _vecmat(c * _matvec(A, p), A) + D * p

            out[rows] += solve_by_rows(normal, _vecmat(c * y, A), diagonal)

    batches = _batches(n, d)[::-1]
    in_threads(lambda i: work(batches[i]), len(batches))
    for rows in row_blocks(len(out)):  # in place: vectors of many users are long
        out[rows] = out[rows] @ Q.T
    return out


def spectrum_of(V: np.ndarray) -> Spectrum:
    """Return the eigenvalues and eigenvectors of V'V."""
    values, Q = np.linalg.eigh(gram_matrix(V))
    return np.maximum(values, 0).astype(np.float32), Q.astype(np.float32)


def gram_matrix(V: np.ndarray) -> np.ndarray:
    """Return V'V in double precision."""
    gram = np.zeros((V.shape[1], V.shape[1]))
    for rows in row_blocks(len(V)):
        gram += V[rows].T @ V[rows]
    return gram


def pair_squares(R: sparse.csr_matrix, V: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the weight of all pairs, and what they add to the square of each coordinate."""
    weights, squares = np.bincount(R.indices, R.data, minlength=len(V)), np.zeros(V.shape[1])
    for rows in row_blocks(len(V)):
        squares += weights[rows] @ V[rows] ** 2
    return float(weights.sum()), squares


def solve_by_rows(
    normal: Callable[[np.ndarray], np.ndarray],
    right: np.ndarray,
    diagonal: np.ndarray,
    workers: Workers = ONE_WORKER,
) -> np.ndarray:
    """Solve H x = right for each row, with a matrix H of its own and about this diagonal.

    In coordinates in which the Gram matrix is diagonal, the rest of H is small, and a few steps are
    enough. Workers that solve the same rows together take the same number of steps.
    """

    def inner(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return workers.first(by_row(a, b))

    return conjugate_gradients(normal, right, lambda r: r / diagonal, None, _STEPS, _LEFT, inner)


def _matvec(A: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.asarray((A @ x[:, :, None])[:, :, 0])


def _vecmat(x: np.ndarray, A: np.ndarray) -> np.ndarray:
    return np.asarray((x[:, None] @ A)[:, 0])


def _batches(n: np.ndarray, d: int) -> list[np.ndarray]:
    """Cut rows into batches of about as many pairs each, small enough for memory."""
    order = np.argsort(n, kind="stable")
    order = order[n[order] > 0]
    counts, batches, first = n[order], [], 0
    while first < len(order):
        most = max(int(counts[first] * 1.15) + 2, 8)
        if counts[first] <= _FEW:  # how a row is solved does not depend on others
            most = min(most, _FEW)
        last = int(np.searchsorted(counts, most, "right"))
        last = min(last, first + max(1, _CELLS // (int(counts[last - 1]) * d)))
        batches.append(order[first:last])
        first = last
    return batches


def products(A: np.ndarray, B: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the scalar products of rows of A with rows of B, pair by pair."""
    out = np.empty(len(rows), np.float32)
    for a in range(0, len(rows), _PIECE):
        at = slice(a, a + _PIECE)
        out[at] = np.einsum("ij,ij->i", A[rows[at]], B[columns[at]])
    return out


def start_vectors(
    R: sparse.csr_matrix, d: int, rng: np.random.Generator, workers: Workers = ONE_WORKER
) -> np.ndarray:
    """Return item vectors to start from: a randomised SVD of R with evened-out counts."""
    sums = np.asarray(R.sum(1)).ravel(), workers.sum(np.asarray(R.sum(0)).ravel())
    by_row, by_column = ((np.maximum(one, 1) ** -0.25).astype(np.float32) for one in sums)
    k = min(d + 8, int(workers.total(R.shape[0])), R.shape[1])

    def parts() -> Iterator[sparse.csr_matrix]:
        for rows in row_blocks(R.shape[0]):
            part = R[rows]
            part.data = part.data * np.repeat(by_row[rows], np.diff(part.indptr))
            part.data *= by_column[part.indices]
            yield part

    # One power iteration: the sweeps that follow are as many more. With Q = A X, what is needed of
    # the orthonormal basis of Q's columns follows from Q'Q: nothing is as long as the rows.
    X = rng.standard_normal((R.shape[1], k)).astype(np.float32)
    X = np.linalg.qr(workers.sum(sum(part.T @ (part @ X) for part in parts())))[0]
    gram, B = np.zeros((k, k)), np.zeros_like(X)
    for part in parts():
        Q = part @ X
        gram += Q.T.astype(np.float64) @ Q
        B += part.T @ Q
    gram, B = workers.sum(gram), workers.sum(B)
    values, W = np.linalg.eigh(gram)
    there = values > 1e-12 * values[-1]
    root = np.where(there, 1 / np.sqrt(np.where(there, values, 1)), 0)
    B = B @ (W * root).astype(np.float32)
    values, W = np.linalg.eigh(B.T @ B)
    values, W = workers.first(values), workers.first(W)
    W, values = W[:, ::-1], np.maximum(values[::-1], 1e-12)
    V = np.zeros((R.shape[1], d), np.float32)
    k = min(k, d)
    V[:, :k] = (B @ W[:, :k]) / values[:k] ** 0.25
    if k < d:
        V[:, k:] = rng.standard_normal((len(V), d - k)) * 1e-3
    return V


def ridges(R: sparse.csr_matrix, ridge: float, zero: float, n: int | None = None) -> np.ndarray:
    """Return the penalty of each row, in proportion to the weight of all its entries."""
    return ridge * (row_sums(R) + zero * (R.shape[1] if n is None else n))


def row_sums(R: sparse.csr_matrix) -> np.ndarray:
    """Return the sum of each row; that of SciPy makes matrices, which takes long for a few rows."""
    rows = np.repeat(np.arange(R.shape[0]), np.diff(R.indptr))
    return np.bincount(rows, R.data, R.shape[0]).astype(np.float32)
