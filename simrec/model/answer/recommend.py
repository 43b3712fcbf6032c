"""The k best items of each user, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from scipy import sparse

from simrec.data.ids import IdMap
from simrec.data.ratings import Ratings
from simrec.data.tables import TableLike, describe, read_table
from simrec.errors import InputError
from simrec.model.answer.uncertainty import exploration
from simrec.model.tower import Found, Tower, Unknown, id_values, once
from simrec.scoring.pairs import score_pairs
from simrec.scoring.topk import top_k

if TYPE_CHECKING:
    from simrec.model.life import Life


def recommend(
    model: Life,
    users: Any,
    k: int,
    items: Any,
    exclude: Ratings | TableLike | None,
    unknown: Unknown,
    explore: float,
) -> pa.Table:
    """Rank candidates for users; see `TwoTower.recommend`."""
    user_ids, user_vectors, _ = _chosen(model.user_tower_, users, unknown)
    item_ids, item_vectors, found_items = _chosen(model.item_tower_, items, unknown)
    if not len(item_ids):
        raise InputError("items: there is no candidate to recommend.")
    seen = None if exclude is None else _excluded(exclude, user_ids, item_ids)
    bonus = exploration(model, found_items, explore)
    query, best, rank, scores = best_items(
        user_vectors, item_vectors, k, seen, bonus=with_bonus(item_vectors, bonus)
    )
    return pa.table(
        {
            "user_id": user_ids.take(pa.array(query)),
            "item_id": item_ids.take(pa.array(best)),
            "score": pa.array(model.output_(scores)),
            "rank": pa.array(rank),
        }
    )


def with_bonus(item_vectors: np.ndarray, bonus: np.ndarray | None) -> np.ndarray | None:
    """Append the bonus of each item as a coordinate: for [user, 1] it is added to the score."""
    return None if bonus is None else np.hstack([item_vectors, bonus[:, None]])


def best_items(
    user_vectors: np.ndarray,
    item_vectors: np.ndarray,
    k: int,
    exclude: sparse.csr_matrix | None = None,
    *,
    bonus: np.ndarray | None = None,
    threads: int | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Find the k best items of each user.

    Parameters
    ----------
    user_vectors, item_vectors : numpy.ndarray
        The vectors.
    k : int
        How many; no more memory is taken than the number of items asks for.
    exclude : csr_matrix, optional
        Users x items, an entry for each item a user must not get.
    bonus : numpy.ndarray, optional
        Items `with_bonus` to rank by; scores are without it.
    threads : int, optional
        As in `top_k`.

    Returns
    -------
    users, items, rank, scores : numpy.ndarray
        Rows, rank from 1, and scalar product of each pair found, best first for each user.
    """
    positive = isinstance(k, int | np.integer) and k > 0  # `top_k` says what is wrong if not
    most = min(k, max(len(item_vectors), 1)) if positive else k
    if bonus is None:
        found, z = top_k(user_vectors, item_vectors, most, exclude, threads=threads)
    else:
        one = np.ones((len(user_vectors), 1), np.float32)
        queries = np.hstack([user_vectors, one])
        found, z = top_k(queries, bonus, most, exclude, threads=threads)
    users, rank = np.nonzero(found >= 0)
    items = found[users, rank]
    scores = (
        z[users, rank] if bonus is None else score_pairs(user_vectors, item_vectors, users, items)
    )
    return users, items, (rank + 1).astype(np.int32), scores


def _chosen(
    tower: Tower, given: Any, unknown: Unknown
) -> tuple[pa.ChunkedArray, np.ndarray, Found]:
    """Give the entities a person named, by ids or by a table: ids, vectors, how they were found."""
    if given is None:
        n = len(tower.ids)
        # As they are, perhaps mapped from a file: all of them are not copied.
        found = Found(tower.vectors, np.arange(n), np.zeros(n, bool))
        return pa.chunked_array([tower.ids.ids]), tower.vectors, found
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
    found = tower.find(ids, features, unknown)
    return ids, found.vectors[found.rows], found


def _is_path(given: Any) -> bool:
    return isinstance(given, str) or hasattr(given, "__fspath__")


def _excluded(
    exclude: Ratings | TableLike, users: pa.ChunkedArray, items: pa.ChunkedArray
) -> sparse.csr_matrix:
    """Mark the pairs that are not to be recommended; pairs of others do not matter."""
    table: pa.Table | None = None
    if not isinstance(exclude, Ratings):
        table = read_table(exclude, ["user_id", "item_id"], name="exclude", allow_empty=True)
    rows = []
    for name, ids in (("user", users), ("item", items)):
        column = f"{name}_id"
        known, place = once(ids, name, f"{name}s")
        if isinstance(exclude, Ratings):
            mine, at = (
                (exclude.users, exclude.user_rows)
                if name == "user"
                else (exclude.items, exclude.item_rows)
            )
            found = known.rows(mine.ids, column)[at] if len(mine) else at
        else:
            assert table is not None
            found = known.rows(table[column], column)
        rows.append(np.where(found >= 0, place[found], -1) if len(found) else found)
    keep = (rows[0] >= 0) & (rows[1] >= 0)
    ones = np.ones(int(keep.sum()), np.float32)
    return sparse.csr_matrix((ones, (rows[0][keep], rows[1][keep])), shape=(len(users), len(items)))
