"""The best users for an item: what it adds for each of them, and how many it reaches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from scipy import sparse

from simrec.data.sides import Sides
from simrec.model.head import Found, Head
from simrec.model.tower import Tower
from simrec.scoring.pairs import score_pairs
from simrec.scoring.topk import top_k, top_k_of_blocks
from simrec.storage.rows import BLOCK, Sparse


@dataclass(frozen=True, eq=False)
class Level:
    """What a user gives to items anyway: mean and covariance of the vectors of all items."""

    mean: np.ndarray  # its product with a user's vector is the user's level
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

    def users(self, vectors: np.ndarray) -> np.ndarray:
        """Return users in units of the spread of their scores."""
        if self.root is None:
            return vectors
        spread = np.linalg.norm(vectors @ self.root, axis=1, keepdims=True)
        return np.asarray(vectors / np.maximum(spread, 1e-12), np.float32)


@dataclass(frozen=True, eq=False)
class Thresholds:
    """The k-th best score of some users, by which it is seen whose k best an item is among."""

    vectors: np.ndarray  # of the users
    scores: np.ndarray  # of the k-th best item that they have not rated
    seen: sparse.csr_matrix
    times: float  # how many users each stands for

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


def thresholds(heads: Sides[Head], tower: Tower, rated: Sparse, k: int, most: int) -> Thresholds:
    """Find the k-th best score among all known items of every n-th user, `most` at most."""
    rows = np.arange(0, len(tower.ids), max(-(-len(tower.ids) // most), 1))
    seen, items = rated[rows].tocsr(), np.asarray(heads.items.vectors)
    vectors = heads.users.of(tower.known(rows))
    _, z = top_k(vectors, items, min(k, len(items)), seen)
    # A rounding error is no reason not to be among the k best.
    slack = 1e-6 * np.abs(z[:, -1]) if z.size else 0
    return Thresholds(vectors, z[:, -1] - slack, seen, len(tower.ids) / max(len(rows), 1))


def audience(
    chosen: Sides[tuple[pa.ChunkedArray, Found]],
    heads: Sides[Head],
    shift: float,
    level: Level,
    k: int,
    rated: Sparse | None,
    reach: np.ndarray | None,
) -> pa.Table:
    """Return the k users for whom each item adds most."""
    (item_ids, items), (user_ids, users) = chosen
    vectors = heads.items.of(items)
    k = most = max(min(k, len(users.rows)), 1)
    starts = range(0, len(users.rows), BLOCK)
    while True:
        blocks = (heads.users.of(users.take(slice(a, a + BLOCK))) for a in starts)
        found, lift = top_k_of_blocks(vectors - level.mean, map(level.users, blocks), most)
        keep = found >= 0
        if rated is not None:
            keep &= ~_rated(rated, items, users, found)
        if most >= len(users.rows) or (keep.sum(1) >= k).all():
            break
        most = min(len(users.rows), 4 * most + 64)  # who has rated it is passed over: look further
    keep &= np.cumsum(keep, axis=1) <= k
    item, place = np.nonzero(keep)
    best, rank = found[item, place], np.cumsum(keep, axis=1)[item, place]
    theirs = heads.users.of(users.take(best))
    table = {
        "item_id": item_ids.take(pa.array(item)),
        "user_id": user_ids.take(pa.array(best)),
        "lift": lift[item, place],
        "score": score_pairs(theirs, vectors, np.arange(len(best)), item) + np.float32(shift),
        "rank": rank.astype(np.int32),
    }
    return pa.table(table if reach is None else {**table, "reach": reach[item]})


def _rated(rated: Sparse, items: Found, users: Found, found: np.ndarray) -> np.ndarray:
    """Tell for items x candidates which of them have rated the item."""
    out = np.zeros(found.shape, bool)
    rows = users.known_rows[found]
    for item in np.flatnonzero(items.known):
        known = np.flatnonzero((rows[item] >= 0) & (found[item] >= 0))
        theirs = rated[rows[item][known]].tocsr()
        who = np.repeat(np.arange(len(known)), np.diff(theirs.indptr))
        out[item, known[who[theirs.indices == items.rows[item]]]] = True
    return out
