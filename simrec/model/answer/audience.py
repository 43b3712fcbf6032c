"""The best users for an item: what it adds for each of them, and how many it reaches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from scipy import sparse

from simrec.data.sides import Sides
from simrec.model.head import Found, Head
from simrec.scoring.pairs import score_pairs
from simrec.scoring.topk import top_k
from simrec.storage.rows import BLOCK, Sparse


@dataclass(frozen=True, eq=False)
class Level:
    """What a user gives to items anyway: mean and covariance of the vectors of all items."""

    # Mean vector: its product with a user's is the user's level
    mean: np.ndarray
    root: np.ndarray | None

    @classmethod
    def of(cls, vectors: np.ndarray, in_units: bool) -> Level:
        """Measure the vectors of all items."""
        mean = vectors.mean(0, dtype=np.float64)
        if in_units:
            return cls(mean.astype(np.float32), None)
        moments = np.zeros((len(mean), len(mean)))
        for start in range(0, len(vectors), BLOCK):
            off = vectors[start : start + BLOCK] - mean
            moments += off.T @ off
        values, axes = np.linalg.eigh(moments / max(len(vectors), 1))
        root = axes * np.sqrt(np.maximum(values, 0))
        return cls(mean.astype(np.float32), root.astype(np.float32))

    def queries(self, items: np.ndarray) -> np.ndarray:
        """Return items without the level of those who score them."""
        return items - self.mean

    def users(self, vectors: np.ndarray) -> np.ndarray:
        """Return users in units of the spread of their scores."""
        if self.root is None:
            return vectors
        spread = np.linalg.norm(vectors @ self.root, axis=1, keepdims=True)
        return np.asarray(vectors / np.maximum(spread, 1e-12), np.float32)


@dataclass(frozen=True, eq=False)
class Thresholds:
    """The k-th best score of some users, by which it is seen whose k best an item is among."""

    # Vectors of the users, and the score of the k-th best item that they have not rated
    vectors: np.ndarray
    scores: np.ndarray
    seen: sparse.csr_matrix
    # How many users each stands for
    times: float

    def reach(self, items: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return how many users have each item among their k best; rows are -1 for new items."""
        counts = np.zeros(len(items))
        for start in range(0, len(items), 256):
            some = slice(start, start + 256)
            above = self.vectors @ items[some].T >= self.scores[:, None]
            known = np.flatnonzero(rows[some] >= 0)
            if len(known):
                rated = self.seen[:, rows[some][known]].tocoo()
                above[rated.row, known[rated.col]] = False
            counts[some] = above.sum(0)
        return counts * self.times


def thresholds(
    head: Sides[Head], users: Found, seen: sparse.csr_matrix, k: int, times: float
) -> Thresholds:
    """Find the k-th best score of some users among all known items."""
    items = np.asarray(head.items.vectors)
    vectors = head.users.of(users)
    _, z = top_k(vectors, items, min(k, len(items)), seen)
    # A rounding error is no reason not to be among the k best.
    slack = 1e-6 * np.abs(z[:, -1]) if z.size else 0
    return Thresholds(vectors, z[:, -1] - slack, seen, times)


def audience(
    chosen: Sides[tuple[pa.ChunkedArray, Found]],
    heads: Sides[Head],
    level: Level,
    k: int,
    rated: Sparse | None,
    reach: np.ndarray | None,
) -> pa.Table:
    """Return the k users for whom each item adds most."""
    (item_ids, items), (user_ids, users) = chosen
    vectors = heads.items.of(items)
    k = most = max(min(k, len(users.rows)), 1)
    while True:
        found, lift = _best(level.queries(vectors), heads.users, users, level, most)
        keep = found >= 0
        if rated is not None:
            keep &= ~_rated(rated, items, users, found)
        if most >= len(users.rows) or (keep.sum(1) >= k).all():
            break
        most = min(len(users.rows), 4 * most + 64)  # who has rated it is passed over: look further
    keep &= np.cumsum(keep, axis=1) <= k
    item, place = np.nonzero(keep)
    best, rank = found[item, place], np.cumsum(keep, axis=1)[item, place]
    theirs = heads.users.of(_some(users, best))
    table = {
        "item_id": item_ids.take(pa.array(item)),
        "user_id": user_ids.take(pa.array(best)),
        "lift": lift[item, place],
        "score": score_pairs(theirs, vectors, np.arange(len(best)), item),
        "rank": rank.astype(np.int32),
    }
    return pa.table(table if reach is None else {**table, "reach": reach[item]})


def _some(found: Found, places: np.ndarray | slice) -> Found:
    return found._replace(rows=found.rows[places], average=found.average[places])


def _best(
    queries: np.ndarray, head: Head, users: Found, level: Level, most: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the best users for each query and their lifts, from blocks of users."""
    places = np.empty((len(queries), 0), np.int64)
    lifts = np.empty((len(queries), 0), np.float32)
    for start in range(0, len(users.rows), BLOCK):
        block = level.users(head.of(_some(users, slice(start, start + BLOCK))))
        at, z = top_k(queries, block, most)
        places = np.hstack([places, np.where(at >= 0, at + start, -1)])
        lifts = np.hstack([lifts, z])
        # Of equals the first comes first, as in one search.
        best = np.argsort(-lifts, axis=1, kind="stable")[:, :most]
        places = np.take_along_axis(places, best, 1)
        lifts = np.take_along_axis(lifts, best, 1)
    return places, lifts


def _rated(rated: Sparse, items: Found, users: Found, found: np.ndarray) -> np.ndarray:
    """Tell for items x candidates which of them have rated the item."""
    out = np.zeros(found.shape, bool)
    rows = np.where(users.rows < users.n_known, users.rows, -1)[found]
    for item in np.flatnonzero(items.rows < items.n_known):
        known = np.flatnonzero((rows[item] >= 0) & (found[item] >= 0))
        theirs = rated[rows[item][known]].tocsr()
        who = np.repeat(np.arange(len(known)), np.diff(theirs.indptr))
        out[item, known[who[theirs.indices == items.rows[item]]]] = True
    return out
