"""Figures of lists beyond accuracy: what of the catalogue they show, to whom, how often.

`Catalogue` has them all; the functions are arrays in, numbers out. Lists are integer arrays of
shape (n_lists, k): item rows, best first, -1 where a list ends early. Figures over no item at all
are NaN.

Examples
--------
>>> lists = np.array([[0, 1], [1, -1]])
>>> coverage(lists, n_items=4), distinct(lists, n_items=4), times_listed(lists, n_items=4)
(0.5, 2, array([1, 2, 0, 0]))
>>> gini(np.array([[0, 1], [2, 3]]), n_items=4), gini(np.array([[0], [0]]), n_items=4)
(0.0, 0.75)
>>> popularity(lists, np.array([0.1, 0.4]))
0.3
>>> novelty(np.array([[0, 1]]), np.array([1, 3]), n_users=7)
1.5
>>> diversity(np.array([[0, 1], [0, 2]]), np.array([[1, 0], [2, 0], [0, 1]]))
0.5
>>> share_new(lists, np.array([0, 5])).__round__(2)
0.33
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from simrec.data.ids import IdMap
from simrec.data.ratings import Ratings
from simrec.data.tables import TableLike
from simrec.errors import InputError
from simrec.evaluation.baselines.lists import item_features

FIGURES = (
    *("coverage", "distinct", "gini", "popularity", "popularity_rated", "novelty", "diversity"),
    "new_share",
)


@dataclass(frozen=True, eq=False)
class Catalogue:
    """What figures beyond accuracy need to know of the items, by the training ratings."""

    train: Ratings
    ids: IdMap
    vectors: sparse.csr_matrix

    @classmethod
    def of(cls, train: Ratings, items: TableLike | None) -> Catalogue:
        """Compare items by their features, or by who rated them where there are none."""
        if items is None:
            return cls(train, train.items, sparse.csr_matrix(train.to_csr().astype(bool).T))
        return cls(train, *item_features(items))

    def figures(
        self, ids: np.ndarray | None, candidates: IdMap, rated: np.ndarray
    ) -> dict[str, float]:
        """Measure lists (rows among `candidates`); `rated` are the rows of what users rated."""
        if ids is None:
            return dict.fromkeys(FIGURES, float("nan"))
        train, n = self.train, len(candidates)
        rows = train.items.rows(candidates.ids)
        per_item = np.bincount(train.item_rows, minlength=train.n_items + 1)
        counts = np.where(rows >= 0, per_item[rows], 0)
        share = counts / max(train.n_users, 1)
        rows = self.ids.rows(candidates.ids)
        known = bool((rows >= 0).any())
        # The row after the last is that of items without features.
        vectors = sparse.vstack([self.vectors, sparse.csr_matrix((1, self.vectors.shape[1]))])
        values = (
            *(coverage(ids, n), distinct(ids, n), gini(ids, n)),
            *(popularity(ids, share), popularity(rated[None], share)),
            novelty(ids, counts, train.n_users),
            diversity(ids, vectors.tocsr()[rows]) if known else float("nan"),
            share_new(ids, counts),
        )
        return dict(zip(FIGURES, values, strict=True))


def coverage(ids: np.ndarray, n_items: int) -> float:
    """Return the share of the catalogue that is in at least one list."""
    return distinct(ids, n_items) / n_items if n_items else float("nan")


def distinct(ids: np.ndarray, n_items: int) -> int:
    """Return how many different items are in the lists."""
    return int(np.count_nonzero(times_listed(ids, n_items)))


def times_listed(ids: np.ndarray, n_items: int) -> np.ndarray:
    """Return how many lists each item is in."""
    return np.bincount(_listed(ids, n_items), minlength=n_items)


def gini(ids: np.ndarray, n_items: int) -> float:
    """Return the Gini coefficient of how often items are listed.

    0 where all items of the catalogue are listed equally often, near 1 where few have it all.
    """
    counts = np.sort(times_listed(ids, n_items))
    total = counts.sum()
    if not total:
        return float("nan")
    weights = 2 * np.arange(1, n_items + 1) - n_items - 1
    return float(weights @ counts / (n_items * total))


def popularity(ids: np.ndarray, share: np.ndarray) -> float:
    """Return the mean popularity of what is listed; `share` is that of each item."""
    return _mean(np.asarray(share, np.float64)[_listed(ids, len(share))])


def novelty(ids: np.ndarray, n_ratings: np.ndarray, n_users: int) -> float:
    """Return the mean surprise of what is listed: -log2 of the share of users who rated the item.

    One rating by one further user is added, so that an item nobody rated has a finite surprise.
    """
    surprise = -np.log2((np.asarray(n_ratings) + 1) / (n_users + 1))
    return _mean(surprise[_listed(ids, len(surprise))])


def diversity(ids: np.ndarray, vectors: Any) -> float:
    """Return how unlike each other the items of a list are: the mean of 1 - cosine similarity.

    Over all pairs of a list, then over lists with at least two items. `vectors` (n_items x
    n_features, dense or sparse) are what items are compared by; one without any feature is unlike
    all others.
    """
    vectors = sparse.csr_matrix(vectors, dtype=np.float64)
    listed = _listed(ids, vectors.shape[0])
    lists = np.nonzero(np.asarray(ids) >= 0)[0]
    length = np.sqrt(np.asarray(vectors.multiply(vectors).sum(axis=1)).ravel())
    unit = sparse.diags(np.divide(1, length, out=np.zeros_like(length), where=length > 0)) @ vectors
    shape = (len(ids), vectors.shape[0])
    member = sparse.csr_matrix((np.ones(len(listed)), (lists, listed)), shape=shape)
    total = member @ unit
    n = np.bincount(lists, minlength=len(ids))
    own = member @ (length > 0).astype(np.float64)
    # The squared length of a sum of unit vectors is their number and twice all pairs' cosines.
    cosines = np.asarray(total.multiply(total).sum(axis=1)).ravel() - own
    several = n > 1
    return _mean(1 - cosines[several] / (n * (n - 1))[several])


def share_new(ids: np.ndarray, n_ratings: np.ndarray) -> float:
    """Return the share of what is listed that nobody has rated yet."""
    new = np.asarray(n_ratings) == 0
    return _mean(new[_listed(ids, len(new))])


def _listed(ids: np.ndarray, n_items: int) -> np.ndarray:
    ids = np.asarray(ids)
    if ids.size and ids.max() >= n_items:
        raise InputError(f"ids go up to {ids.max()}, but there are {n_items} items")
    return ids[ids >= 0]


def _mean(values: np.ndarray) -> float:
    return round(float(np.mean(values)), 12) if len(values) else float("nan")
