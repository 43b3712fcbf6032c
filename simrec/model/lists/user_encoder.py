"""The user encoder of implicit feedback: a SimEc in closed form, from a history and features.

Its inputs are a part of a user's history, the user's features and a constant; its targets are the
user's *other* pairs; its last layer is frozen to the item embeddings (`axes`). Which part of the
history is given is drawn at random, each pair on its own, and the least squares solution over all
draws has a closed form: only sums of squares and products of what is given with what is not enter.
So an encoder for few pairs has learned from few pairs, and no pair is explained by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np
from scipy import linalg, sparse

from simrec.model.lists.axes import Axes
from simrec.model.run.workers import ONE_WORKER, Workers
from simrec.scoring.threads import row_blocks

# What is known of a user: features alone, few pairs, a whole history.
Known = Literal["nothing", "few", "known"]
KNOWN: tuple[Known, ...] = ("nothing", "few", "known")
# Pairs of a history that are given: a number, and at most a share of them.
GIVEN = 5
_SHARE = 0.5
_MOST = {"nothing": 0.0, "few": float(GIVEN), "known": np.inf}
# Ridge of what a pair says, in pairs, and the power of the number of pairs by which a user counts
# less. Quality is flat around them; `benchmarks/README.md` has the figures.
RIDGE = {"nothing": 1.0, "few": 1.0, "known": 5.0}
_POWER = {"nothing": 0.5, "few": 0.0, "known": 0.5}
# Ridge of what features say, in users.
_FEATURE_RIDGE = 100.0
# Maps that only shrink coordinates, by these ridges relative to the mean eigenvalue: more where
# few pairs are known.
_SHRINKAGE: dict[Known, dict[str, float]] = {
    "nothing": {},
    "few": {"alike": 0.0, "smooth": 1.0, "smoother": 10.0},
    "known": {"alike": 0.0, "smooth": 1.0},
}


class _Sums(NamedTuple):
    """Sums over users: of squares and products of inputs, and of inputs with targets.

    Inputs are features alone where nothing is given of histories.
    """

    inputs: np.ndarray
    targets: dict[str, np.ndarray]


class UserRegression:
    """Sums over users from which encoders follow, whatever is known of a user.

    The map of each target predicts the pairs that are not given, and `every` all that are taken:
    with fewer coordinates than items, to predict that a given pair is not there harms others.

    Parameters
    ----------
    histories : csr_matrix
        This worker's users x items: what each pair counts in a history.
    targets : dict of str to csr_matrix
        Users x items: what is to be predicted, at the pairs of the histories.
    features : numpy.ndarray
        A row of features for each user, a constant at last.
    axes : Axes
        Coordinates of items.
    extra : csr_matrix, optional
        Rows over items beside those of users, which have no features.
    workers : Workers
        The workers between whom the users are divided.
    """

    def __init__(
        self,
        histories: sparse.csr_matrix,
        targets: Mapping[str, sparse.csr_matrix],
        features: np.ndarray,
        axes: Axes,
        extra: sparse.csr_matrix | None = None,
        workers: Workers = ONE_WORKER,
    ) -> None:
        self._workers, self._inputs, self._e = workers, axes.inputs, axes.e
        self._features, self.targets = features, tuple(targets)
        self._counts = np.maximum(np.diff(histories.indptr), 1).astype(np.float64)
        self._histories, self._targets = histories, dict(targets)
        self._extra = extra if extra is not None and extra.shape[0] and workers.rank == 0 else None
        self._ridge = self._inputs.T @ self._inputs
        self._found: dict[Known, dict[str, np.ndarray]] = {}

    def maps(self, known: Known) -> dict[str, np.ndarray]:
        """Return maps from coordinates, features and constant to vectors, by name."""
        if known not in self._found:
            found = self._solved(known)
            none = np.zeros((self._features.shape[1], len(self._e)), np.float32)
            for name, ridge in _SHRINKAGE[known].items():
                shrunk = self._e / (self._e + ridge * self._e.mean())
                found[name] = np.vstack([np.diag(shrunk), none])
            if known == "few":  # where items have few pairs, a map learned from more tells more
                found["whole"] = self.maps("known")["taken"]
            self._found[known] = found
        return self._found[known]

    def _solved(self, known: Known) -> dict[str, np.ndarray]:
        sums = self._summed(known)
        A, f = sums.inputs, self._features.shape[1]
        d = len(A) - f
        A[:d, :d] += RIDGE[known] * self._ridge[:d, :d]
        at = np.arange(d, d + f - 1)
        A[at, at] += _FEATURE_RIDGE
        # Against rounding, and coordinates that no input has.
        A[np.diag_indices(len(A))] += 1e-7 * np.trace(A) / len(A)
        factor = linalg.cho_factor(A, overwrite_a=True, check_finite=False)
        found = {}
        for name, right in sums.targets.items():
            solved = linalg.cho_solve(factor, right, check_finite=False).astype(np.float32)
            none = np.zeros((self._inputs.shape[1] - d, solved.shape[1]), np.float32)
            found[name] = np.vstack([none, solved])
        return found

    def _summed(self, known: Known) -> _Sums:
        weights = self._counts ** -_POWER[known]
        mean = self._workers.total(float(weights.sum())) / self._workers.total(len(weights))
        share = np.minimum(_MOST[known] / self._counts, _SHARE)
        found = self._of(self._histories, self._targets, self._features, share, weights / mean)
        if known == "known" and self._extra is not None:
            n = self._extra.shape[0]
            none = np.zeros((n, self._features.shape[1]), np.float32)
            targets = dict.fromkeys(self.targets, self._extra)
            more = self._of(self._extra, targets, none, np.full(n, _SHARE), np.ones(n))
            both = {name: one + more.targets[name] for name, one in found.targets.items()}
            found = _Sums(found.inputs + more.inputs, both)
        add = self._workers.sum
        return _Sums(add(found.inputs), {name: add(one) for name, one in found.targets.items()})

    def _of(
        self,
        H: sparse.csr_matrix,
        targets: Mapping[str, sparse.csr_matrix],
        features: np.ndarray,
        share: np.ndarray,
        weights: np.ndarray,
    ) -> _Sums:
        """Sum over rows, of whose entries a share is given; the others are to be predicted."""
        P, given = self._inputs, bool(share.any())
        d = P.shape[1]
        width = d * given + features.shape[1]
        A = np.zeros((width, width))
        B = {name: np.zeros((width, d)) for name in targets}
        for rows in row_blocks(H.shape[0], d + features.shape[1]):
            C = np.asarray(H[rows] @ P)
            q, w = (one[rows, None].astype(np.float32) for one in (share, np.sqrt(weights)))
            Z = w * (np.hstack([q * C, features[rows]]) if given else features[rows])
            A += Z.T @ Z
            for name, T in targets.items():
                B[name] += Z.T @ (w * (C if T is H else np.asarray(T[rows] @ P)))
        if not given:
            return _Sums(A, B)
        B["every"] = B["taken"].copy()
        # Elsewhere a pair that is given is not predicted; its square counts by the share.
        q, w = (np.repeat(one, np.diff(H.indptr)) for one in (share, weights))

        def by_item(of_pairs: np.ndarray) -> np.ndarray:
            of_items = np.bincount(H.indices, of_pairs, len(P)).astype(np.float32)[:, None]
            if (of_items < 0).any():
                return P.T @ (of_items * P)
            Z = np.sqrt(of_items) * P
            return Z.T @ Z  # symmetric: in less time

        A[:d, :d] += by_item(w * q * (1 - q) * H.data**2)
        for name, T in targets.items():
            B[name][:d] -= by_item(w * q * H.data * T.data)
        return _Sums(A, B)
