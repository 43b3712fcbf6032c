"""Least squares over all pairs: ones where there is a pair, zeros everywhere else.

The zeros enter through the Gram matrix of the other side, so that a sweep costs by the ones alone.
Each row is solved exactly, in the smaller of two spaces: its pairs or its coordinates.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy import sparse

from simrec.model.run.scratch import IN_MEMORY, Scratch, release, slices
from simrec.model.run.threads import in_threads
from simrec.model.uptake.encoders import Regression

# Numbers in a batch of rows: bounds memory.
_CELLS = 3_000_000
# Batches after which the pages of long arrays in files are given back.
_RELEASE = 8
# Pairs whose scalar products are formed at once.
_PIECE = 1 << 14


def solve_rows(
    R: sparse.csr_matrix,
    V: np.ndarray,
    ridge: np.ndarray,
    zero: np.ndarray,
    explained: np.ndarray | None = None,
    prior: np.ndarray | None = None,
    scratch: Scratch = IN_MEMORY,
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
    scratch : Scratch
        Where arrays as long as the rows or the columns go.
    """
    n, d = np.diff(R.indptr), V.shape[1]
    values, Q = np.linalg.eigh(gram_matrix(V))
    Q = Q.astype(np.float32)
    V = _turned(V, Q, scratch.empty(V.shape))
    values = np.maximum(values, 0).astype(np.float32)
    ridge, zero = ridge.astype(np.float32), zero.astype(np.float32)
    out = scratch.empty((R.shape[0], d))
    for part in slices(len(out)):
        out[part] = 0
        if prior is not None:  # without pairs, only zeros move a row from its prior
            weight = ridge[part, None]
            out[part] = prior[part] @ Q
            out[part] *= weight / np.maximum(zero[part, None] * values + weight, 1e-30)
        release(out[part])
    target = None if explained is None else (1 - explained).astype(np.float32)

    def work(rows: np.ndarray) -> None:
        width = n[rows].max()
        inside = np.arange(width)[None] < n[rows, None]
        at = np.where(inside, R.indptr[rows][:, None] + np.arange(width)[None], 0)
        c = np.sqrt(np.where(inside, R.data[at], 0)).astype(np.float32)
        A = V[R.indices[at]]
        A *= c[:, :, None]
        y = (c if target is None else c * target[at])[:, :, None] - A @ out[rows, :, None]
        D = zero[rows, None] * values[None] + ridge[rows, None]
        if width <= d:
            AD = A / D[:, None, :]
            K = AD @ A.transpose(0, 2, 1)
            K[:, np.arange(width), np.arange(width)] += 1
            out[rows] += (np.linalg.solve(K, y).transpose(0, 2, 1) @ AD)[:, 0]
        else:
            H = A.transpose(0, 2, 1) @ A
            H[:, np.arange(d), np.arange(d)] += D
            out[rows] += np.linalg.solve(H, A.transpose(0, 2, 1) @ y)[:, :, 0]

    batches = _batches(n, d)[::-1]

    def work_on(i: int) -> None:
        work(batches[i])
        if i % _RELEASE == 0:
            release(out, V)

    in_threads(work_on, len(batches))
    return _turned(out, Q.T, out)


def gram_matrix(V: np.ndarray) -> np.ndarray:
    """Return V'V in double precision."""
    gram = np.zeros((V.shape[1], V.shape[1]))
    for rows in slices(len(V)):
        gram += V[rows].T @ V[rows]
        release(V[rows])
    return gram


def _turned(V: np.ndarray, Q: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Fill `out`, which may be V, with V Q."""
    for rows in slices(len(V)):
        out[rows] = V[rows] @ Q
        release(V[rows], out[rows])
    return out


def _batches(n: np.ndarray, d: int) -> list[np.ndarray]:
    """Cut rows into batches of about as many pairs each, small enough for memory."""
    order = np.argsort(n, kind="stable")
    order = order[n[order] > 0]
    counts, batches, first = n[order], [], 0
    while first < len(order):
        most = max(int(counts[first] * 1.15) + 2, 8)
        last = int(np.searchsorted(counts, most, "right"))
        width = int(counts[last - 1])
        cells = width * d + width * width + (d * d if width > d else 0)
        last = min(last, first + max(1, _CELLS // cells))
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


def start_vectors(R: sparse.csr_matrix, d: int, rng: np.random.Generator) -> np.ndarray:
    """Return item vectors to start from: a randomised SVD of R with evened-out counts."""
    by_row, by_column = (
        (np.maximum(np.asarray(R.sum(k)).ravel(), 1) ** -0.25).astype(np.float32) for k in (1, 0)
    )
    k = min(d + 8, *R.shape)

    def parts() -> Iterator[sparse.csr_matrix]:
        for rows in slices(R.shape[0]):
            part = R[rows]
            part.data = part.data * np.repeat(by_row[rows], np.diff(part.indptr))
            part.data *= by_column[part.indices]
            yield part

    # One power iteration: the sweeps that follow are as many more. With Q = A X, what is needed of
    # the orthonormal basis of Q's columns follows from Q'Q: nothing is as long as the rows.
    X = rng.standard_normal((R.shape[1], k)).astype(np.float32)
    X = sum(part.T @ (part @ X) for part in parts())
    gram, B = np.zeros((k, k)), np.zeros_like(X)
    for part in parts():
        Q = part @ X
        gram += Q.T.astype(np.float64) @ Q
        B += part.T @ Q
    values, W = np.linalg.eigh(gram)
    there = values > 1e-12 * values[-1]
    root = np.where(there, 1 / np.sqrt(np.where(there, values, 1)), 0)
    B = B @ (W * root).astype(np.float32)
    values, W = np.linalg.eigh(B.T @ B)
    W, values = W[:, ::-1], np.maximum(values[::-1], 1e-12)
    V = np.zeros((R.shape[1], d), np.float32)
    k = min(k, d)
    V[:, :k] = (B @ W[:, :k]) / values[:k] ** 0.25
    if k < d:
        V[:, k:] = rng.standard_normal((len(V), d - k)) * 1e-3
    return V


def ridges(R: sparse.csr_matrix, ridge: float, zero: float) -> np.ndarray:
    """Return the penalty of each row, in proportion to the weight of all its entries."""
    return ridge * (np.asarray(R.sum(1)).ravel() + zero * R.shape[1])


def factorize(
    R: sparse.csr_matrix,
    V: np.ndarray,
    ridge: float,
    zero: float,
    sweeps: int,
    features: Regression | None = None,
    scratch: Scratch = IN_MEMORY,
) -> tuple[np.ndarray, np.ndarray]:
    """Alternate between users and items from item vectors V; end with the users.

    With `features`, items are drawn towards what these say of them instead of towards nothing.
    """
    RT = R.T.tocsr()
    by_user, by_item = ridges(R, ridge, zero), ridges(RT, ridge, zero)
    zeros_user, zeros_item = np.full(len(by_user), zero), np.full(len(by_item), zero)
    for _ in range(sweeps):
        U = solve_rows(R, V, by_user, zeros_user, scratch=scratch)
        prior = None if features is None else features.fitted(V)
        V = solve_rows(RT, U, by_item, zeros_item, prior=prior, scratch=scratch)
        del U
    del RT
    return solve_rows(R, V, by_user, zeros_user, scratch=scratch), V
