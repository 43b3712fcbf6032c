"""Sweeps over users and items, where the users may be divided between workers.

The users of a worker are solved for by it alone. For an item, each worker adds up what its own
users say, a small matrix and a vector, and the sums over all workers are solved on each of them.
Items go through in batches, so that memory is bounded.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from simrec.model.run.scratch import IN_MEMORY, Scratch
from simrec.model.run.threads import in_threads
from simrec.model.run.workers import ONE_WORKER, Workers
from simrec.model.uptake.encoders import Regression
from simrec.model.uptake.least_squares import (
    batches_by_length,
    gram_matrix,
    ridges,
    solve_rows,
    turned,
)

# Numbers in the matrices of a batch of items.
_CELLS = 1 << 24


def factorize(
    R: sparse.csr_matrix,
    V: np.ndarray,
    ridge: float,
    zero: float,
    sweeps: int,
    features: Regression | None = None,
    workers: Workers = ONE_WORKER,
    scratch: Scratch = IN_MEMORY,
) -> tuple[np.ndarray, np.ndarray]:
    """Alternate between users and items from item vectors V; end with the users.

    With `features`, items are drawn towards what these say of them instead of towards nothing.
    """
    RT, n_users = R.T.tocsr(), workers.total(R.shape[0])
    by_user = ridges(R, ridge, zero)
    by_item = ridge * (workers.sum(np.asarray(RT.sum(1)).ravel()) + zero * n_users)
    zeros_user, zeros_item = np.full(len(by_user), zero), np.full(len(by_item), zero)
    for _ in range(sweeps):
        U = solve_rows(R, V, by_user, zeros_user, scratch=scratch)
        prior = None if features is None else features.fitted(V)
        V = solve_columns(RT, U, by_item, zeros_item, prior, workers, scratch)
        del U
    del RT
    return solve_rows(R, V, by_user, zeros_user, scratch=scratch), V


def solve_columns(
    RT: sparse.csr_matrix,
    U: np.ndarray,
    ridge: np.ndarray,
    zero: np.ndarray,
    prior: np.ndarray | None,
    workers: Workers,
    scratch: Scratch = IN_MEMORY,
) -> np.ndarray:
    """Return the vectors of items; see `solve_rows`, of which this is the divided form.

    Parameters
    ----------
    RT : csr_matrix
        Items x this worker's users.
    U : numpy.ndarray
        Vectors of this worker's users.
    ridge, zero, prior : numpy.ndarray
        As in `solve_rows`.
    workers : Workers
        The workers between whom the users are divided.
    """
    if workers.size == 1:
        return solve_rows(RT, U, ridge, zero, prior=prior, scratch=scratch)
    d = U.shape[1]
    values, Q = np.linalg.eigh(workers.sum(gram_matrix(U)))
    Q, values = workers.first(Q).astype(np.float32), np.maximum(workers.first(values), 0)
    U = turned(U, Q, scratch.empty(U.shape))
    D = (zero[:, None] * values + ridge[:, None]).astype(np.float32)
    out = np.zeros((RT.shape[0], d), np.float32)
    if prior is not None:
        out = (prior @ Q) * (ridge[:, None] / np.maximum(D, 1e-30)).astype(np.float32)
    upper = np.triu_indices(d)
    step = max(1, _CELLS // (d * d))
    for a in range(0, len(out), step):
        H, b = _moments(RT[a : a + step], U)
        sums = workers.sum(np.hstack([H[:, upper[0], upper[1]], b]))
        H[:, upper[0], upper[1]] = H[:, upper[1], upper[0]] = sums[:, :-d]
        b = sums[:, -d:] - (H @ out[a : a + step, :, None])[:, :, 0]
        H[:, np.arange(d), np.arange(d)] += D[a : a + step]
        _solve(H, b, out[a : a + step])
    return out @ Q.T


def _moments(RT: sparse.csr_matrix, U: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return sum c u u^T and sum c u over the users of each item."""
    n, d = np.diff(RT.indptr), U.shape[1]
    H, b = np.zeros((RT.shape[0], d, d), np.float32), np.asarray(RT @ U)

    def work(rows: np.ndarray) -> None:
        width = n[rows].max()
        inside = np.arange(width)[None] < n[rows, None]
        at = np.where(inside, RT.indptr[rows][:, None] + np.arange(width)[None], 0)
        A = U[RT.indices[at]]
        A *= np.sqrt(np.where(inside, RT.data[at], 0)).astype(np.float32)[:, :, None]
        H[rows] = A.transpose(0, 2, 1) @ A

    batches = batches_by_length(n, d)[::-1]
    in_threads(lambda i: work(batches[i]), len(batches))
    return H, b


def _solve(H: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    """Add the solutions of small systems, a few at a time."""
    step = 64

    def work(i: int) -> None:
        part = slice(i * step, (i + 1) * step)
        out[part] += np.linalg.solve(H[part], b[part, :, None])[:, :, 0]

    in_threads(work, -(-len(b) // step))
