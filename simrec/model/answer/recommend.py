"""The k best items of each user."""

from __future__ import annotations

import os
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
from simrec.scoring.topk import top_k
from simrec.storage.rows import Sparse


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
