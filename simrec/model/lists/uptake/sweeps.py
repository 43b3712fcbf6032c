"""Sweeps over users and items, where the users may be divided between workers.

The users of a worker are solved for by it alone. Items are solved for together: in each step of
conjugate gradients a worker adds up what its own users say, and the sums over all workers are the
same on each of them.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from simrec.model.lists.uptake.encoders import Regression
from simrec.model.lists.uptake.least_squares import (
    gram_matrix,
    pair_squares,
    products,
    ridges,
    solve_by_rows,
    solve_rows,
)
from simrec.model.run.workers import ONE_WORKER, Workers


def factorize(
    R: sparse.csr_matrix,
    V: np.ndarray,
    ridge: float,
    zero: float,
    sweeps: int,
    features: Regression | None = None,
    workers: Workers = ONE_WORKER,
) -> tuple[np.ndarray, np.ndarray]:
    """Alternate between users and items from item vectors V; end with the users.

    With `features`, items are drawn towards what these say of them instead of towards nothing.
    """
    by_user = ridges(R, ridge, zero)
    zeros = np.full(len(by_user), zero)
    RT = R.T.tocsr()
    for _ in range(sweeps):
        U = solve_rows(R, V, by_user, zeros)
        prior = None if features is None else features.fitted(V)
        V = solve_items(RT, U, ridge, zero, prior, workers)
        del U
    del RT
    return solve_rows(R, V, by_user, zeros), V


def solve_items(
    RT: sparse.csr_matrix,
    U: np.ndarray,
    ridge: float,
    zero: float,
    prior: np.ndarray | None,
    workers: Workers,
) -> np.ndarray:
    """Return the vectors of items, whose pairs with this worker's users are the rows of RT."""
    weights = workers.sum(np.asarray(RT.sum(1)).ravel())
    by_item = ridge * (weights + zero * workers.total(RT.shape[1]))
    if workers.size == 1:
        zeros = np.full(len(by_item), zero)
        return solve_rows(RT, U, by_item, zeros, prior=prior)
    values, Q = np.linalg.eigh(workers.sum(gram_matrix(U)))
    Q, values = workers.first(Q).astype(np.float32), np.maximum(workers.first(values), 0)
    U = U @ Q
    D = (zero * values + by_item[:, None]).astype(np.float32)
    x = np.zeros((len(by_item), U.shape[1]), np.float32)
    if prior is not None:
        x = (prior @ Q) * (by_item[:, None] / np.maximum(D, 1e-30)).astype(np.float32)
    weight, squares = pair_squares(RT, U)
    a_pair = workers.sum(squares) / max(workers.total(weight), 1e-30)
    diagonal = D + (weights[:, None] * a_pair).astype(np.float32)
    rows = np.repeat(np.arange(RT.shape[0], dtype=np.int32), np.diff(RT.indptr))

    def summed(V: np.ndarray) -> np.ndarray:
        """Return sum c (v . u) u over the users of each item."""
        found = RT.data * products(V, U, rows, RT.indices)
        made = sparse.csr_matrix((found, RT.indices, RT.indptr), shape=RT.shape)
        return workers.sum(np.asarray(made @ U, np.float32))

    right = workers.sum(np.asarray(RT @ U, np.float32)) - summed(x)
    x += solve_by_rows(lambda p: summed(p) + D * p, right, diagonal, workers)
    return np.asarray(x @ Q.T)
