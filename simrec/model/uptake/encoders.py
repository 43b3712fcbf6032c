"""Linear encoders of uptake vectors: ridge regressions on features."""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve

from simrec.model.head import Encoder
from simrec.model.run.progress import Step, no_step
from simrec.model.run.workers import ONE_WORKER, Workers, own_places
from simrec.model.sample import gathered_matrix
from simrec.model.uptake.held_out import between, climb, list_quality

# Features up to which the normal equations are solved whole; with more, conjugate gradients.
_DENSE = 500
# Their steps for an encoder, and for what features say in a sweep: that is only a prior, and goes
# on from the sweep before.
_STEPS, _STEPS_OF_SWEEP = 12, 3
_PENALTIES = tuple(0.1 * 3**k for k in range(8))
# Items and users on which encoders of items are compared, coordinates they are compared in, and
# parts of the items.
_ITEMS, _USERS, _COORDINATES, _FOLDS = 20_000, 1_500, 64, 5


class Regression:
    """Ridge regression of vectors on features; what does not depend on the vectors is kept.

    Parameters
    ----------
    X : csr_matrix
        Feature rows.
    by_rarity : bool
        Whether to weigh features by their rarity (idf) and bring rows to unit length.
    penalty : float
        Ridge penalty.
    workers : Workers
        The workers between whom the rows are divided.
    idf : numpy.ndarray, optional
        Rarity of the features, where it is not that in X.
    """

    def __init__(
        self,
        X: sparse.csr_matrix,
        by_rarity: bool,
        penalty: float,
        workers: Workers = ONE_WORKER,
        idf: np.ndarray | None = None,
    ) -> None:
        self._workers = workers
        self._idf = _idf(X) if by_rarity and idf is None else idf
        inputs = Encoder(np.empty((0, 0)), idf=self._idf).inputs(X)
        constant = sparse.csr_matrix(np.ones((X.shape[0], 1), np.float32))
        self._Z = sparse.hstack([inputs, constant], format="csr", dtype=np.float32)
        self._ZT = self._Z.T.tocsr()
        self._penalty = np.float32(penalty)
        # With fewer rows than features, a combination of rows for each coordinate.
        self._by_rows = workers.size == 1 and self._Z.shape[0] < self._Z.shape[1]
        self._solved: np.ndarray | None = None
        self._factor = None
        if self._Z.shape[1] <= _DENSE:
            A = (self._ZT.astype(np.float64) @ self._Z.astype(np.float64)).toarray()
            A = workers.sum(A)
            # Against rounding, where features are large and repeat each other.
            A[np.diag_indices(len(A))] += penalty + 1e-9 * np.trace(A) / len(A)
            self._factor = cho_factor(A, overwrite_a=True, check_finite=False)

    def encoder(self, Y: np.ndarray) -> Encoder:
        """Return the encoder that fits the vectors Y."""
        return Encoder(self._weights(Y, _STEPS), idf=self._idf)

    def fitted(self, Y: np.ndarray) -> np.ndarray:
        """Return what features say of the rows with the vectors Y."""
        return np.asarray(self._Z @ self._weights(Y, _STEPS_OF_SWEEP))

    def _weights(self, Y: np.ndarray, steps: int) -> np.ndarray:
        if self._factor is not None:
            right = self._workers.sum(np.asarray(self._ZT @ Y, np.float32))
            return cho_solve(self._factor, right, check_finite=False).astype(np.float32)
        if self._by_rows:
            return np.asarray(self._ZT @ self._conjugate_gradients(self._Z, self._ZT, Y, steps))
        right = self._workers.sum(np.asarray(self._ZT @ Y))
        return self._conjugate_gradients(self._ZT, self._Z, right, steps)

    def _conjugate_gradients(
        self, A: sparse.csr_matrix, AT: sparse.csr_matrix, right: np.ndarray, steps: int
    ) -> np.ndarray:
        """Solve (A A' + penalty) W = right for all columns at once; SciPy's takes one at a time.

        They go on from the last solution.
        """
        add = self._workers.sum
        inverse = 1 / (add(np.asarray(A.multiply(A).sum(1)).ravel())[:, None] + self._penalty)
        r = right.astype(np.float32)
        first = np.einsum("ij,ij->j", r, inverse * r) + 1e-30
        W = self._solved
        if W is None or W.shape != r.shape:
            W = np.zeros_like(r)
        else:
            W = W.copy()
            r -= add(A @ (AT @ W)) + self._penalty * W
        z = inverse * r
        p, now = z, np.einsum("ij,ij->j", r, z)
        for _ in range(steps):
            image = add(A @ (AT @ p))
            image += self._penalty * p
            step = now / np.maximum(np.einsum("ij,ij->j", p, image), 1e-30)
            W += step * p
            r -= step * image
            z = inverse * r
            before, now = now, np.einsum("ij,ij->j", r, z)
            if (now / first).max() < 1e-3:
                break
            p = z + (now / np.maximum(before, 1e-30)) * p
        self._solved = W
        return W


def popularity_encoder(
    X: sparse.csr_matrix, by_rarity: bool, popularity: np.ndarray, n_users: int
) -> np.ndarray:
    """Return weights, a constant last, that tell the popularity of an item from its features.

    The logarithm is regressed, with a penalty that every fifth item chooses; counts of a few
    very popular items would drown all others. What it says is put on the scale of popularity by a
    line.
    """
    logs = np.log(popularity * n_users + 1.0)
    off = (logs - logs.mean()).astype(np.float32)[:, None]
    spread = float(off.astype(np.float64).ravel() @ off.ravel())
    held_out = np.arange(len(off)) % 5 == 0
    if spread == 0 or held_out.all():
        return np.zeros(X.shape[1] + 1, np.float32)
    idf = _idf(X) if by_rarity else None
    errors = []
    for penalty in _PENALTIES:
        encoder = Regression(X[~held_out], by_rarity, penalty, idf=idf).encoder(off[~held_out])
        left = off[held_out] - encoder(X[held_out])
        errors.append(float(np.square(left, dtype=np.float64).sum()))
    best = _PENALTIES[int(np.argmin(errors))]
    weights = Regression(X, by_rarity, best).encoder(off).weights[:, 0]
    slope = float((popularity - popularity.mean()) @ off.ravel()) / spread
    weights = weights * np.float32(slope)
    weights[-1] += popularity.mean()
    return weights


def _idf(X: sparse.csr_matrix) -> np.ndarray:
    count = np.bincount(X.indices[X.data != 0], minlength=X.shape[1])
    return np.where(count > 0, np.log((X.shape[0] + 1) / (count + 1)), 0).astype(np.float32)


def choose_regression(
    R: sparse.csr_matrix,
    X: sparse.csr_matrix,
    U: np.ndarray,
    V: np.ndarray,
    rng: np.random.Generator,
    step: Step = no_step,
    workers: Workers = ONE_WORKER,
) -> tuple[float, bool, float]:
    """Choose the encoder of new items, each item being held out once.

    Vectors are cut to their leading coordinates: it is encoders that are compared.

    Parameters
    ----------
    R : csr_matrix
        Users x items: confidence in each pair.
    X : csr_matrix
        Feature rows of the items.
    U, V : numpy.ndarray
        Vectors of users and items.
    rng : numpy.random.Generator
        Source of the parts of the items.
    step : callable
        Called after each point that was tried.
    workers : Workers
        The workers between whom the users are divided.

    Returns
    -------
    (float, bool, float)
        NDCG@20 among held-out items, whether to weigh features by rarity, and the penalty.
    """
    folds = np.array_split(rng.permutation(len(V))[:_ITEMS], min(_FOLDS, len(V)))
    mine, n_users = workers.places(len(U)), int(workers.total(len(U)))
    drawn = np.sort(rng.choice(n_users, min(_USERS, n_users), replace=False))
    users = own_places(drawn, mine)
    axes = np.linalg.eigh((V.T @ V).astype(np.float64))[1][:, ::-1][:, :_COORDINATES]
    axes = axes.astype(np.float32)
    U, V = np.concatenate(workers.gather(U[users] @ axes)), V @ axes
    columns = sparse.csc_matrix(gathered_matrix(R[users], workers))
    parts = []
    for k, new in enumerate(folds):
        known = np.concatenate([*folds[:k], *folds[k + 1 :], new[:0]])
        # What only one of the known items has would be no feature, were these all.
        usual = np.bincount(X[known].indices, minlength=X.shape[1]) > 1
        X_known, X_new = (sparse.csr_matrix(X[rows][:, usual]) for rows in (known, new))
        parts.append((X_known, X_new, V[known], sparse.csr_matrix(columns[:, new])))
    options = []
    for by_rarity, start in ((False, _PENALTIES[4]), (True, _PENALTIES[1])):

        @cache
        def quality(penalty: float, by_rarity: bool = by_rarity) -> float:
            total = 0.0
            for X_known, X_new, Y, hits in parts:
                encoder = Regression(X_known, by_rarity, penalty).encoder(Y)
                total += list_quality(U, encoder(X_new), hits, None)
            return total / len(parts)

        found, reached = climb(quality, {"penalty": (_PENALTIES, start)}, step)
        options.append((reached, by_rarity, between(quality, _PENALTIES, found["penalty"])))
    reached, by_rarity, penalty = workers.agreed(max(options))
    return reached, by_rarity, penalty
