"""Ratings of a table that does not fit into memory, read piece by piece into arrays in files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from simrec.data.duplicates import repeated_pairs
from simrec.data.ids import IdMap, check_ids, encode_ids
from simrec.data.rating_columns import (
    check_bounds,
    rating_values,
    timestamp_values,
    weight_values,
)
from simrec.data.ratings import Ratings, settled
from simrec.jobs.io.discover import open_source
from simrec.jobs.io.sources import Source
from simrec.mapped import release
from simrec.model.run.arrange import PIECE, pieces, places
from simrec.model.run.scratch import Scratch

if TYPE_CHECKING:
    from simrec.jobs.shared.data import DataOptions

# Rows that are read at once.
_ROWS = 1 << 20


def read_pieces(data: DataOptions, bounds: tuple[float, float] | None, scratch: Scratch) -> Ratings:
    """Read the ratings of `data` as `Ratings.from_table` does, within the memory of `scratch`.

    The files are read twice: once for the ids, once for the rest.
    """
    source = open_source(data.ratings, "ratings")
    rating, names = data.rating, source.schema.names
    needed = [c for c in (data.user_id, data.item_id, rating) if c is not None]
    timestamp, weight = (c if c in names else None for c in (data.timestamp, data.weight))
    asked = [c for c in (data.timestamp, data.weight) if c not in (None, "timestamp", "weight")]
    whole = source.rows == 0 or any(file.is_csv for file in source.files)
    if whole or not set(needed) | set(asked) <= set(names):
        return data.load_ratings(bounds)  # or says what is wrong with the table
    users, items = _ids(source, data.user_id), _ids(source, data.item_id)
    n = source.rows
    user_rows, item_rows = (scratch.empty((n,), _kind(ids)) for ids in (users, items))
    values, weights = scratch.empty((n,)), None if weight is None else scratch.empty((n,))
    times: np.ndarray | None = None
    columns = needed + [c for c in (timestamp, weight) if c is not None]
    start = 0
    for label, table in _tables(source, columns):
        at = slice(start, start + len(table))
        user_rows[at] = users.rows(table[data.user_id], data.user_id)
        item_rows[at] = items.rows(table[data.item_id], data.item_id)
        values[at] = 1 if rating is None else rating_values(table, rating, label)
        if timestamp is not None:
            some = timestamp_values(table, timestamp, label)
            times = scratch.empty((n,), some.dtype) if times is None else times
            times[at] = some
            release(times[at])
        if weight is not None and weights is not None:
            weights[at] = weight_values(table, weight, label)
            release(weights[at])
        release(user_rows[at], item_rows[at], values[at])
        start = at.stop
    ratings = Ratings(
        users, items, user_rows, item_rows, values, times, 0, weights, rating is not None
    )
    label = f"ratings {source.name}"
    if bounds is not None:
        ratings.check_bounds(*check_bounds(bounds), name=label)
    rows = _repeated(user_rows, item_rows, len(items))
    if len(rows):
        ratings = settled(ratings, rows, data.duplicates, label, _drop_in_place)
    for array in (ratings.user_rows, ratings.item_rows, ratings.values):
        release(array)
    return ratings


def _tables(source: Source, columns: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """Read some columns, piece by piece, with the name of each piece."""
    for unit in source.units(_ROWS):
        for table in source.batches(unit, columns, _ROWS):
            yield source.label(unit), table


def _ids(source: Source, column: str) -> IdMap:
    """Collect the ids of a column."""
    found: list[IdMap] = []
    for label, table in _tables(source, [column]):
        found.append(encode_ids(check_ids(table[column], column, label, table=table))[0])
        # Maps of about equal sizes are put together: each id is copied a few times only.
        while len(found) > 1 and 2 * len(found[-1]) > len(found[-2]):
            found.append(found.pop().union(found.pop()))
    while len(found) > 1:
        found.append(found.pop().union(found.pop()))
    return found[0]


def _repeated(user_rows: np.ndarray, item_rows: np.ndarray, n_items: int) -> np.ndarray:
    """Find the ratings whose pair occurs more than once, those of some users at a time."""
    n_parts = -(-len(user_rows) // PIECE)
    found = []
    for part in range(n_parts):
        some = places(user_rows, lambda users, part=part: users % n_parts == part)
        pairs = user_rows[some], item_rows[some]
        release(user_rows, item_rows)
        found.append(some[repeated_pairs(*pairs, n_items)])
    return np.sort(np.concatenate(found))


def _drop_in_place(array: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Close the gaps that some rows leave behind."""
    array.flags.writeable = True
    end = 0
    for piece in pieces(len(array)):
        low, high = np.searchsorted(rows, [piece.start, piece.stop])
        part = np.delete(array[piece], rows[low:high] - piece.start)
        array[end : end + len(part)] = part
        end += len(part)
        release(array)
    return array[:end]


def _kind(ids: IdMap) -> type:
    return np.int32 if len(ids) < 2**31 else np.int64
