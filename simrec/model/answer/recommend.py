"""The k best items of each user."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from scipy import sparse

from simrec.data.ids import IdMap, one_or_several
from simrec.data.ratings import Ratings
from simrec.data.sides import SIDES, Sides
from simrec.data.tables import TableLike, read_table
from simrec.errors import InputError
from simrec.model.head import Found, Head
from simrec.model.tower import Tower, Unknown, unique_ids
from simrec.rows import Sparse
from simrec.scoring.pairs import score_pairs
from simrec.scoring.topk import top_k


def recommend(
    chosen: Sides[tuple[pa.ChunkedArray, Found]],
    heads: Sides[Head],
    k: int,
    exclude: sparse.csr_matrix | None,
    bonus: np.ndarray | None,
    shift: float,
) -> pa.Table:
    """Rank candidates for users.

    Parameters
    ----------
    chosen : Sides of (ids, Found)
        The candidates and the users.
    heads : Sides of Head
        Their vectors.
    k : int
        Items for each user.
    exclude : csr_matrix or None
        Users x candidates: what is not to be recommended.
    bonus : numpy.ndarray or None
        What ranks a candidate higher than its score.
    shift : float
        Added to all scores.
    """
    (item_ids, items), (user_ids, users) = chosen
    vectors = Sides(heads.items.of(items), heads.users.of(users))
    if bonus is None:
        found, z = top_k(vectors.users, vectors.items, k, exclude)
    else:
        # One more coordinate: score + bonus is a scalar product as the score is.
        one = np.ones((len(vectors.users), 1), np.float32)
        found, z = top_k(
            np.hstack([vectors.users, one]),
            np.hstack([vectors.items, bonus[:, None]]),
            k,
            exclude,
        )
    query, rank = np.nonzero(found >= 0)
    best = found[query, rank]
    if bonus is None:
        scores = z[query, rank]
    else:
        scores = score_pairs(vectors.users, vectors.items, query, best)
    return pa.table(
        {
            "user_id": user_ids.take(pa.array(query)),
            "item_id": item_ids.take(pa.array(best)),
            "score": pa.array(scores + np.float32(shift)),
            "rank": pa.array((rank + 1).astype(np.int32)),
        }
    )


def choose(tower: Tower, given: Any, unknown: Unknown) -> tuple[pa.ChunkedArray, Found]:
    """Find the entities that a person named: one id, several, or a table with features."""
    if given is None:
        return tower.ids.column, tower.everyone()
    features = None
    if hasattr(given, "column_names") or hasattr(given, "columns") or _is_table_path(given):
        features, ids = tower.read(given)
    else:
        ids = one_or_several(given, tower.id_column)
        if not len(ids):
            ids = ids.cast(tower.ids.type)
    distinct = IdMap.from_values(ids, tower.id_column)
    if len(distinct) < len(ids):
        raise InputError(f"{tower.side}: {len(ids) - len(distinct)} ids are given more than once.")
    return ids, tower.find(ids, features, unknown)


def without_ratings(
    ids: pa.ChunkedArray, found: Found, tower: Tower
) -> tuple[pa.ChunkedArray, Found]:
    """Keep the entities that have no ratings."""
    known = found.rows < found.n_known
    rated = np.zeros(len(found.rows), bool)
    rated[known] = tower.counts[found.rows[known]] > 0
    keep = np.flatnonzero(~rated)
    return ids.take(pa.array(keep)), found._replace(
        rows=found.rows[keep], average=found.average[keep]
    )


def _is_table_path(given: Any) -> bool:
    if hasattr(given, "__fspath__"):
        return True
    return isinstance(given, str) and given.endswith((".parquet", ".csv", ".csv.gz", "/"))


def exclusions(
    chosen: Sides[tuple[pa.ChunkedArray, Found]],
    rated: Sparse,
    more: Ratings | TableLike | None,
) -> sparse.csr_matrix:
    """Mark what is not to be recommended: users x candidates.

    Parameters
    ----------
    chosen : Sides of (ids, Found)
        The candidates and the users.
    rated : Sparse
        Users x items of the model: what each user has rated.
    more : Ratings, table or path, optional
        Further pairs (user_id, item_id); those of others do not matter.
    """
    items, users = (found for _, found in chosen)
    place = np.full(items.n_known, -1, np.int64)
    known = np.flatnonzero(items.rows < items.n_known)
    place[items.rows[known]] = known
    who = np.flatnonzero(users.rows < users.n_known)
    theirs = rated[users.rows[who]]
    rows = np.repeat(who, np.diff(theirs.indptr))
    columns = place[theirs.indices]
    pairs = [(rows[columns >= 0], columns[columns >= 0])]
    if more is not None:
        pairs.append(_pairs(more, chosen))
    rows, columns = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    shape = (len(users.rows), len(items.rows))
    return sparse.csr_matrix((np.ones(len(rows), np.float32), (rows, columns)), shape=shape)


def _pairs(
    given: Ratings | TableLike, chosen: Sides[tuple[pa.ChunkedArray, Found]]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of pairs among the users and the candidates."""
    table: pa.Table
    if isinstance(given, Ratings):
        table = given.to_arrow()
    else:
        table = read_table(given, ["user_id", "item_id"], name="exclude", allow_empty=True)
    places = []
    for side, (ids, _) in zip(SIDES, chosen, strict=True):
        column = "item_id" if side == "items" else "user_id"
        known, place = unique_ids(ids, side, side)
        found = known.rows(table[column], column) if len(table) else np.empty(0, np.int64)
        at = np.full(len(found), -1, np.int64)
        at[found >= 0] = place[found[found >= 0]]
        places.append(at)
    keep = (places[0] >= 0) & (places[1] >= 0)
    return places[1][keep], places[0][keep]
