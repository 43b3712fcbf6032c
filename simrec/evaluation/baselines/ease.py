"""EASE: item to item weights in closed form. One Cholesky factor of items x items."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
from scipy import sparse

from simrec.data.ratings import Ratings
from simrec.evaluation.baselines.lists import ListBaseline, best_places, pair_matrix
from simrec.scoring.metrics import hits, ndcg_at_k

logger = logging.getLogger(__name__)

MOST_ITEMS = 20_000
"""Items up to which EASE is fitted: its weights are a dense matrix, 1.6 GB for so many."""

_PENALTIES = (10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
# The penalty is chosen on the most rated items and on some users; lists are this long there.
_CHOICE_ITEMS, _CHOICE_USERS, _CHOICE_K = 2000, 2000, 10
_BLOCK = 1024  # columns of the matrix at once


@dataclass(frozen=True, eq=False)
class EaseBaseline(ListBaseline):
    """EASE (Steck 2019): item to item weights in closed form, no item explained by itself.

    Its penalty is chosen on held-out pairs of `train`.
    """

    tasks: ClassVar[tuple[str, ...]] = ("warm",)
    train: Ratings
    weights: np.ndarray
    l2: float

    @classmethod
    def fit(cls, train: Ratings, threshold: float | None = None) -> EaseBaseline | None:
        """Choose the penalty, then invert n_items x n_items once; None if they are too many."""
        n = train.n_items
        if n > MOST_ITEMS:
            logger.warning(
                "EASE is left out: %d items, and its dense weights are for at most %d",
                n,
                MOST_ITEMS,
            )
            return None
        started = time.process_time()
        liked = train.values >= (-np.inf if threshold is None else threshold)
        l2 = _choose_l2(train, liked)
        weights = _ease(pair_matrix(train, train.users.ids, train.items.ids), l2)
        logger.info(
            "EASE of %d items: penalty %g by held-out pairs, %.1f CPU s, weights of %d MB",
            *(n, l2, time.process_time() - started, weights.nbytes >> 20),
        )
        return cls(train, weights, l2)

    def scores(self, users: pa.Array, items: pa.Array) -> np.ndarray:
        """Return the sum of the weights from what a user has; 0 of an item without ratings."""
        rows = self.train.items.rows(items)
        found = pair_matrix(self.train, users, self.train.items.ids) @ self.weights
        return np.where(rows >= 0, found[:, rows], 0)


def _choose_l2(train: Ratings, liked: np.ndarray) -> float:
    """Choose EASE's penalty: the best NDCG on a tenth of the pairs, fitted on the others."""
    counts = np.bincount(train.item_rows, minlength=train.n_items)
    items = np.argsort(-counts, kind="stable")[:_CHOICE_ITEMS]
    place = np.full(train.n_items, -1)
    place[items] = np.arange(len(items))
    rng = np.random.default_rng(0)
    held_out = rng.random(len(train)) < 0.1
    use, shape = place[train.item_rows] >= 0, (train.n_users, len(items))

    def matrix(which: np.ndarray) -> sparse.csr_matrix:
        entries = (train.user_rows[which], place[train.item_rows[which]])
        return sparse.csr_matrix((np.ones(len(entries[0]), np.float32), entries), shape=shape)

    known, liked_later = matrix(use & ~held_out), matrix(use & held_out & liked)
    users = np.flatnonzero(np.diff(liked_later.indptr))
    if not len(users):
        return _PENALTIES[2]
    users = rng.permutation(users)[:_CHOICE_USERS]
    found, have, wanted = [], known[users], liked_later[users]
    for l2 in _PENALTIES:
        scores = have @ _ease(known, l2)
        scores[have.nonzero()] = -np.inf
        lists = np.full((len(users), _CHOICE_K), -1)
        for row, places in zip(lists, (best_places(s, _CHOICE_K) for s in scores), strict=True):
            row[: len(places)] = places
        found.append(ndcg_at_k(hits(lists, wanted), np.diff(wanted.indptr)).mean())
    return _PENALTIES[int(np.argmax(found))]


def _ease(pairs: sparse.csr_matrix, l2: float) -> np.ndarray:
    """Solve for the weights of EASE in place of the Gram matrix, in float32."""
    from scipy.linalg import lapack

    n, columns = pairs.shape[1], sparse.csc_matrix(pairs)
    gram = np.empty((n, n), np.float32, order="F")
    for start in range(0, n, _BLOCK):
        part = columns[:, start : start + _BLOCK]
        gram[:, start : start + _BLOCK] = (columns.T @ part).toarray()
    gram[np.diag_indices(n)] += l2
    # The inverse of a symmetric matrix by its Cholesky factor takes half of the operations.
    factor, _ = lapack.spotrf(gram, lower=1, overwrite_a=1)
    inverse, _ = lapack.spotri(factor, lower=1, overwrite_c=1)
    for start in range(0, n, _BLOCK):
        stop = start + _BLOCK
        square = inverse[start:stop, start:stop]
        square[:] = np.tril(square) + np.tril(square, -1).T
        inverse[start:stop, stop:] = inverse[stop:, start:stop].T
    inverse /= -np.diag(inverse).copy()
    np.fill_diagonal(inverse, 0)
    return inverse
