"""The users of one worker: a range of ascending ids, with their ratings and features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.ids import id_kind
from simrec.data.ratings import Ratings
from simrec.data.tables import TableLike, describe, read_table
from simrec.errors import InputError
from simrec.model.run.workers import Workers, equal_parts
from simrec.model.tower import id_values


def own_users(
    ratings: Ratings, users: TableLike | None, workers: Workers
) -> tuple[Ratings, TableLike | None]:
    """Take the ratings and features of this worker's users, where each worker has those of all.

    The ranges have about equal numbers of ratings.
    """
    if workers.size == 1:
        return ratings, users
    if ratings.n_users < workers.size:
        raise InputError(
            f"strategy: {workers.size} workers for {ratings.n_users} users; give each at least one."
        )
    edges = equal_parts(np.bincount(ratings.user_rows, minlength=ratings.n_users), workers.size)
    low, high = edges[workers.rank : workers.rank + 2]
    mine = ratings.select((ratings.user_rows >= low) & (ratings.user_rows < high))
    if users is None:
        return mine, None
    table = read_table(users, name="users")
    ids = id_values(table, "user_id", describe(users, "users"))
    if id_kind(ids.type) != id_kind(ratings.users.type):
        return mine, table  # what is wrong with them is said later
    starts = ratings.users.take(edges[1:-1]).to_pylist()
    return mine, table.filter(pa.array(ranges(ids, starts) == workers.rank))


def ranges(ids: Any, starts: Sequence[Any]) -> np.ndarray:
    """Return the range of each id; all but the first range are given by their lowest ids.

    Examples
    --------
    >>> ranges(pa.chunked_array([["a", "m", "z"]]), ["b", "n"])
    array([0, 1, 2])
    """
    if pa.types.is_dictionary(ids.type):
        ids = ids.cast(ids.type.value_type)
    found = np.zeros(len(ids), np.int64)
    for start in starts:
        found += pc.greater_equal(ids, start).to_numpy(zero_copy_only=False)
    return found
