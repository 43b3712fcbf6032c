"""Least squares over all pairs: ones where there is a pair, zeros everywhere else.

The zeros enter through the Gram matrix of the other side, so that a sweep costs by the ones alone.
A row of few pairs is solved in the space of its pairs, any other by conjugate gradients.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from simrec.model.run.threads import in_threads
from simrec.model.uptake.encoders import Regression

# Numbers in a batch of rows: bounds memory, and fits into caches.
_CELLS = 500_000
# Pairs up to which a row is solved in their space.
_FEW = 48
# Steps of conjugate gradients, at most, and the share of the residual at which they end.
_STEPS, _LEFT = 12, 1e-3
# Pairs whose scalar products are formed at once.
_PIECE = 1 << 18


def solve_rows(
    R: sparse.csr_matrix,
    V: np.ndarray,
    ridge: np.ndarray,
    zero: np.ndarray,
    explained: np.ndarray | None = None,
    prior: np.ndarray | None = None,
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
    """
    n, d = np.diff(R.indptr), V.shape[1]
    values, Q = np.linalg.eigh((V.T @ V).astype(np.float64))
    Q = Q.astype(np.float32)
    V = np.ascontiguousarray(V @ Q)
    values = np.maximum(values, 0).astype(np.float32)
    ridge, zero = ridge.astype(np.float32), zero.astype(np.float32)
    out = np.zeros((R.shape[0], d), np.float32)
    if prior is not None:  # without pairs, only zeros move a row from its prior
        out = prior @ Q
        out *= ridge[:, None] / np.maximum(zero[:, None] * values + ridge[:, None], 1e-30)
    target = np.ones(R.nnz, np.float32) if explained is None else (1 - explained).astype(np.float32)

    # What a pair adds to each coordinate, on average over all.
    share = np.bincount(R.indices, weights=R.data, minlength=len(V))
    a_pair = ((share / max(share.sum(), 1e-30)) @ V**2).astype(np.float32)

    def work(rows: np.ndarray) -> None:
        width = n[rows].max()
        at = R.indptr[rows][:, None] + np.arange(width)
        inside = np.arange(width) < n[rows, None]
        at[~inside] = 0
        c = np.where(inside, R.data[at], np.float32(0))
        A = V.take(R.indices[at], 0)
        D = zero[rows, None] * values + ridge[rows, None]
        x = out[rows]
        y = target[at] - _matvec(A, x)
        if width <= _FEW:
            A *= np.sqrt(c)[:, :, None]
            AD = A / D[:, None, :]
            K = AD @ A.transpose(0, 2, 1)
            K[:, np.arange(width), np.arange(width)] += 1
            solved = np.linalg.solve(K, (np.sqrt(c) * y)[:, :, None])
            out[rows] += _vecmat(solved[:, :, 0], AD)
        else:
            diagonal = D + c.sum(1)[:, None] * a_pair
            out[rows] += _conjugate_gradients(A, c, D, _vecmat(c * y, A), diagonal)

    batches = _batches(n, d)[::-1]
    in_threads(lambda i: work(batches[i]), len(batches))
    return out @ Q.T


def _conjugate_gradients(
    A: np.ndarray, c: np.ndarray, D: np.ndarray, right: np.ndarray, diagonal: np.ndarray
) -> np.ndarray:
    """Solve (A' diag(c) A + diag(D)) x = right for each row of a batch.

    `diagonal` is about that of the matrix. In coordinates in which the Gram matrix is diagonal the
    rest is small, and a few steps are enough.
    """
    x, r = np.zeros_like(right), right
    p = z = r / diagonal
    now = first = np.einsum("ij,ij->i", r, z) + np.float32(1e-30)
    for _ in range(_STEPS):
        image = _vecmat(c * _matvec(A, p), A) + D * p
        step = (now / np.maximum(np.einsum("ij,ij->i", p, image), 1e-30))[:, None]
        x += step * p
        r = r - step * image
        z = r / diagonal
        before, now = now, np.einsum("ij,ij->i", r, z)
        if (now / first).max() < _LEFT**2:
            break
        p = z + (now / np.maximum(before, 1e-30))[:, None] * p
    return x


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


def start_vectors(R: sparse.csr_matrix, d: int, rng: np.random.Generator) -> np.ndarray:
    """Return item vectors to start from: a randomised SVD of R with evened-out counts."""
    rows, columns = (np.maximum(np.asarray(R.sum(k)).ravel(), 1) ** -0.25 for k in (1, 0))
    A = sparse.csr_matrix(
        sparse.diags_array(rows.astype(np.float32))
        @ R
        @ sparse.diags_array(columns.astype(np.float32))
    )
    AT = A.T.tocsr()
    k = min(d + 8, *A.shape)
    # One power iteration: the sweeps that follow are as many more.
    Q = A @ (AT @ (A @ rng.standard_normal((A.shape[1], k)).astype(np.float32)))
    B = AT @ np.linalg.qr(Q)[0]
    values, W = np.linalg.eigh(B.T @ B)
    W, values = W[:, ::-1], np.maximum(values[::-1], 1e-12)
    V = np.zeros((A.shape[1], d), np.float32)
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
) -> tuple[np.ndarray, np.ndarray]:
    """Alternate between users and items from item vectors V; end with the users.

    With `features`, items are drawn towards what these say of them instead of towards nothing.
    """
    RT = R.T.tocsr()
    by_user, by_item = ridges(R, ridge, zero), ridges(RT, ridge, zero)
    zeros_user, zeros_item = np.full(len(by_user), zero), np.full(len(by_item), zero)
    for _ in range(sweeps):
        U = solve_rows(R, V, by_user, zeros_user)
        prior = None if features is None else features.fitted(V)
        V = solve_rows(RT, U, by_item, zeros_item, prior=prior)
    return solve_rows(R, V, by_user, zeros_user), V
