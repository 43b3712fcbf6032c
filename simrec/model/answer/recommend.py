"""Rankings: items for users, users for an item, and questions to a newcomer."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from scipy import sparse

from simrec.data.id_columns import id_kind, one_or_several
from simrec.data.ids import IdMap
from simrec.data.ratings import Ratings
from simrec.data.sides import SIDES, USUAL, Columns, Sides
from simrec.data.tables import TableLike, is_table, read_table
from simrec.errors import InputError
from simrec.model.answer.rerank import Rerank
from simrec.model.head import Found, Head
from simrec.model.tower import Tower, Unknown, unique_ids
from simrec.scoring.pairs import score_pairs
from simrec.scoring.topk import top_k, top_k_of_blocks
from simrec.storage.arrays import BLOCK, Sparse


def recommend(
    chosen: Sides[tuple[pa.ChunkedArray, Found]],
    heads: Sides[Head],
    k: int,
    exclude: sparse.csr_matrix | None,
    bonus: np.ndarray | None,
    shift: float,
    rerank: Rerank | None = None,
) -> pa.Table:
    """Rank candidates for users."""
    (item_ids, items), (user_ids, users) = chosen
    vectors = Sides(heads.items.of(items), heads.users.of(users))
    ranked = vectors
    if bonus is not None:
        # One more coordinate: score + bonus is a scalar product as the score is.
        one = np.ones((len(vectors.users), 1), np.float32)
        ranked = Sides(np.hstack([vectors.items, bonus[:, None]]), np.hstack([vectors.users, one]))
    propensity = None
    if rerank is None:
        found, z = top_k(ranked.users, ranked.items, k, exclude)
        query, rank = np.nonzero(found >= 0)
        best = found[query, rank]
    else:
        lists = rerank.lists(ranked, bonus, k, exclude)
        query = np.repeat(np.arange(len(lists)), [len(one.items) for one in lists])
        best = np.concatenate([np.empty(0, np.int64), *(one.items for one in lists)])
        rank = np.concatenate([np.empty(0, np.int64), *(np.arange(len(x.items)) for x in lists)])
        if rerank.seed is not None:
            propensity = np.concatenate([np.empty(0), *(one.propensity for one in lists)])
    if bonus is None and rerank is None:
        scores = z[query, rank]
    else:
        scores = score_pairs(vectors.users, vectors.items, query, best)
    table = {
        "user_id": user_ids.take(pa.array(query)),
        "item_id": item_ids.take(pa.array(best)),
        "score": pa.array(scores + np.float32(shift)),
        "rank": pa.array((rank + 1).astype(np.int32)),
    }
    return pa.table(table if propensity is None else {**table, "propensity": propensity})


def choose(tower: Tower, given: Any, unknown: Unknown) -> tuple[pa.ChunkedArray, Found]:
    """Find the entities that a person named: one id, several, or a table with features."""
    if given is None:
        return tower.ids.column, tower.everyone()
    features = None
    if is_table(given) or (isinstance(given, str) and _is_path(given, tower)):
        features, ids = tower.read(given)
    else:
        ids = one_or_several(given, tower.id_column)
        if not len(ids):
            ids = ids.cast(tower.ids.type)
    distinct = IdMap.from_values(ids, tower.id_column)
    if len(distinct) < len(ids):
        raise InputError(f"{tower.side}: {len(ids) - len(distinct)} ids are given more than once.")
    return ids, tower.find(ids, features, unknown)


def _is_path(given: str, tower: Tower) -> bool:
    """Tell whether text is the path of a table, such as a directory, and not the id of anybody."""
    texts = id_kind(tower.ids.type) == "string"
    return os.path.exists(given) and not (texts and tower.ids.contains([given])[0])


def only(ids: pa.ChunkedArray, found: Found, keep: np.ndarray) -> tuple[pa.ChunkedArray, Found]:
    """Keep some of the entities that were found."""
    return ids.filter(pa.array(keep)), found.take(keep)


def attributes(tower: Tower, found: Found, given: pa.Table | None) -> pa.Table:
    """Return the columns of candidates: those of the table given, then those of the catalogue."""
    columns = {}
    if tower.table is not None:
        rows = pa.array(found.known_rows, mask=~found.known)
        columns = {name: tower.table[name].take(rows) for name in tower.table.column_names}
    if given is not None:
        columns |= {name: given[name] for name in given.column_names}
    return pa.table(columns)


def exclusions(
    chosen: Sides[tuple[pa.ChunkedArray, Found]],
    rated: Sparse,
    more: Ratings | TableLike | None,
    columns: Columns = USUAL,
) -> sparse.csr_matrix:
    """Mark what is not to be recommended: users x candidates."""
    items, users = (found for _, found in chosen)
    place = np.full(items.n_known, -1, np.int64)
    known = np.flatnonzero(items.known)
    place[items.rows[known]] = known
    who = np.flatnonzero(users.known)
    theirs = rated[users.rows[who]]
    rows = np.repeat(who, np.diff(theirs.indptr))
    at = place[theirs.indices]
    pairs = [(rows[at >= 0], at[at >= 0])]
    if more is not None:
        pairs.append(_pairs(more, chosen, columns))
    who, what = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    shape = (len(users.rows), len(items.rows))
    return sparse.csr_matrix((np.ones(len(who), np.float32), (who, what)), shape=shape)


def _pairs(
    given: Ratings | TableLike, chosen: Sides[tuple[pa.ChunkedArray, Found]], columns: Columns
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of pairs among the users and the candidates."""
    table: pa.Table
    if isinstance(given, Ratings):
        table = given.to_arrow()
    else:
        ids = ["user_id", "item_id"]
        own = columns.renaming(*ids)
        table = read_table(given, ids, rename=own, name="exclude", allow_empty=True)
    places = []
    for side, (chosen_ids, _) in zip(SIDES, chosen, strict=True):
        column = "item_id" if side == "items" else "user_id"
        known, place = unique_ids(chosen_ids, side, side)
        found = known.rows(table[column], column) if len(table) else np.empty(0, np.int64)
        at = np.full(len(found), -1, np.int64)
        at[found >= 0] = place[found[found >= 0]]
        places.append(at)
    keep = (places[0] >= 0) & (places[1] >= 0)
    return places[1][keep], places[0][keep]


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


def questions(
    unit: np.ndarray, rated: np.ndarray, chances: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Choose items one by one; return their places, and the share of variance each takes away.

    `unit` are unit vectors of the items, whose products are correlations of scores: of predicted
    ratings and of uptake, side by side; in these coordinates users have unit covariance. `rated`
    are those of the items that the user has rated, `chances` those that the user knows an item.

    A rating with as much noise as signal takes ``C v v' C / (1 + v' C v)`` from the posterior
    covariance C of the user. It counts by what that takes from the variance of the scores of all
    these items, times the chance that the user can answer.
    """
    unit, rated = unit.astype(np.float64), rated.astype(np.float64)
    C = np.linalg.inv(np.eye(unit.shape[1]) + rated.T @ rated)
    moments = unit.T @ unit / max(len(unit), 1)
    before = max(float(np.sum(C * moments)), 1e-12)
    chosen: list[int] = []
    shares: list[float] = []
    free = np.ones(len(unit), bool)
    for _ in range(min(k, len(unit))):
        CV = unit @ C
        gains = np.einsum("ij,ij->i", CV @ moments, CV) / (1 + np.einsum("ij,ij->i", CV, unit))
        best = int(np.argmax(np.where(free, gains * chances, -np.inf)))
        chosen.append(best)
        shares.append(float(gains[best]) / before)
        free[best] = False
        C = C - np.outer(CV[best], CV[best]) / (1 + CV[best] @ unit[best])
    return np.array(chosen, np.int64), np.array(shares)
