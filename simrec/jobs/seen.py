"""Lists of items per user, from a table of pairs of any size."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse as sp

from simrec.data.ids import IdMap
from simrec.jobs.io.scratch import Scratch
from simrec.jobs.io.sources import Source

_BLOCK = 1 << 20


@dataclass(frozen=True)
class ItemLists:
    """For each user of a pairs table, the rows of the candidate items listed with them."""

    users: IdMap
    starts: np.ndarray
    items: np.ndarray
    n_items: int

    @classmethod
    def read(cls, source: Source, name: str, candidates: IdMap, scratch: Scratch) -> "ItemLists":
        """Read the table twice, to count and to fill: memory grows with users, not with rows."""
        source.require("user_id", "item_id")
        users = IdMap.from_values(_distinct(source, "user_id"))
        counts = np.zeros(len(users) + 1, np.int64)
        for user_rows, _ in _rows(source, users, candidates):
            counts[1:] += np.bincount(user_rows, minlength=len(users))
        starts = np.cumsum(counts)
        n = int(starts[-1])
        items = scratch.empty(name, (n,), np.int32)
        filled = starts[:-1].copy()
        for user_rows, item_rows in _rows(source, users, candidates):
            order = np.argsort(user_rows, kind="stable")
            user_rows, item_rows = user_rows[order], item_rows[order]
            distinct, first, count = np.unique(user_rows, return_index=True, return_counts=True)
            offset = np.arange(len(user_rows)) - np.repeat(first, count)
            items[filled[user_rows] + offset] = item_rows
            filled[distinct] += count
        return cls(users, starts, items, len(candidates))

    def matrix(self, user_ids: pa.ChunkedArray) -> sp.csr_matrix:
        """Return users x candidates, a stored one for each listed item."""
        rows = self.users.rows(user_ids)
        known = rows >= 0
        safe = np.where(known, rows, 0)
        starts = self.starts[safe] if len(self.users) else np.zeros(len(rows), np.int64)
        ends = self.starts[safe + 1] if len(self.users) else starts
        counts = np.where(known, ends - starts, 0)
        indptr = np.concatenate([[0], np.cumsum(counts)])
        positions = np.arange(indptr[-1]) + np.repeat(starts - indptr[:-1], counts)
        indices = np.asarray(self.items[positions])
        matrix = sp.csr_matrix(
            (np.ones(len(indices), np.float32), indices, indptr), shape=(len(rows), self.n_items)
        )
        matrix.sum_duplicates()
        return matrix


def _distinct(source: Source, column: str) -> pa.Array:
    """Return the distinct values of a column, in bounded memory."""
    found: list[pa.Array] = []
    for unit in source.units(1 << 62):
        for table in source.batches(unit, [column], _BLOCK):
            found.append(pc.unique(table[column]))
            if len(found) > 16:
                found = [pc.unique(pa.chunked_array(found))]
    if not found:
        return pa.array([], source.schema.field(column).type)
    return pc.unique(pa.chunked_array(found))


def _rows(
    source: Source, users: IdMap, candidates: IdMap
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for unit in source.units(1 << 62):
        for table in source.batches(unit, ["user_id", "item_id"], _BLOCK):
            item_rows = candidates.rows(table["item_id"])
            listed = item_rows >= 0
            user_rows = users.rows(table["user_id"])
            yield user_rows[listed], item_rows[listed].astype(np.int32)
