"""The k best items of each user, as a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from scipy import sparse

from simrec.data.ids import IdMap
from simrec.data.ratings import Ratings
from simrec.data.tables import TableLike, describe, read_table
from simrec.errors import InputError
from simrec.model.tower import Tower, Unknown, id_values
from simrec.scoring.output import Output
from simrec.scoring.topk import top_k


def recommend(
    user_tower: Tower,
    item_tower: Tower,
    output: Output,
    users: Any,
    k: int,
    items: Any,
    exclude: Ratings | TableLike | None,
    unknown: Unknown,
) -> pa.Table:
    """Rank candidates for users; see `TwoTower.recommend`."""
    user_ids, user_vectors = _chosen(user_tower, users, unknown)
    item_ids, item_vectors = _chosen(item_tower, items, unknown)
    if not len(item_ids):
        raise InputError("items: there is no candidate to recommend.")
    seen = None if exclude is None else _excluded(exclude, user_ids, item_ids)
    found, z = top_k(user_vectors, item_vectors, k, seen)
    query, rank = np.nonzero(found >= 0)
    return pa.table(
        {
            "user_id": user_ids.take(pa.array(query)),
            "item_id": item_ids.take(pa.array(found[query, rank])),
            "score": pa.array(output(z[query, rank])),
            "rank": pa.array((rank + 1).astype(np.int32)),
        }
    )


def _chosen(tower: Tower, given: Any, unknown: Unknown) -> tuple[pa.ChunkedArray, np.ndarray]:
    """Give ids and vectors of the entities a person named, by ids or by a table."""
    if given is None:
        return pa.chunked_array([tower.ids.ids]), tower.vectors
    name = f"{tower.name}s"
    if hasattr(given, "column_names") or hasattr(given, "columns") or _is_path(given):
        table = read_table(given, name=name)
        ids = id_values(table, tower.id_column, describe(given, name))
        features = table if len(table.column_names) > 1 and tower.encoder is not None else None
    else:
        if isinstance(given, pa.Array):
            given = pa.chunked_array([given])
        ids = given if isinstance(given, pa.ChunkedArray) else pa.chunked_array([pa.array(given)])
        features = None
    distinct = IdMap.from_values(ids, tower.id_column)
    if len(distinct) < len(ids):
        raise InputError(f"{name}: {len(ids) - len(distinct)} ids are given more than once.")
    vectors, rows = tower.find(ids, features, unknown)
    return ids, vectors[rows]


def _is_path(given: Any) -> bool:
    return isinstance(given, str) or hasattr(given, "__fspath__")


def _excluded(
    exclude: Ratings | TableLike, users: pa.ChunkedArray, items: pa.ChunkedArray
) -> sparse.csr_matrix:
    """Mark the pairs that are not to be recommended; pairs of others do not matter."""
    rows = []
    for column, ids in (("user_id", users), ("item_id", items)):
        known = IdMap.from_values(ids, column)
        place = np.empty(len(ids), np.int64)
        place[known.rows(ids)] = np.arange(len(ids))
        if isinstance(exclude, Ratings):
            mine, at = (
                (exclude.users, exclude.user_rows)
                if column == "user_id"
                else (exclude.items, exclude.item_rows)
            )
            found = known.rows(mine.ids, column)[at] if len(mine) else at
        else:
            table = read_table(exclude, ["user_id", "item_id"], name="exclude", allow_empty=True)
            found = known.rows(table[column], column)
        rows.append(np.where(found >= 0, place[found], -1) if len(found) else found)
    keep = (rows[0] >= 0) & (rows[1] >= 0)
    ones = np.ones(int(keep.sum()), np.float32)
    return sparse.csr_matrix((ones, (rows[0][keep], rows[1][keep])), shape=(len(users), len(items)))
