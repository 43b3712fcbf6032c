"""The items a job may recommend, to all users and to each."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse as sp

from simrec.data.ids import IdMap
from simrec.data.source import Source
from simrec.errors import InputError
from simrec.jobs.io.entities import copy_known, embed_table, ids_of
from simrec.jobs.io.outputs import Scratch
from simrec.model.head import Found, Head, StoredHead
from simrec.model.tower import Tower

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Candidates:
    """Items to choose from, in the order of their ids, by which ties are broken.

    `found` says where they are in the item tower; past its end where the vector is from features.
    """

    ids: IdMap
    vectors: np.ndarray
    found: Found

    @classmethod
    def collect(
        cls,
        tower: Tower,
        head: Head,
        catalogue: Source | None,
        eligible: Source | None,
        new_items_only: bool,
        scratch: Scratch,
    ) -> "Candidates":
        """Gather the candidates of a job: all the model knows, or those of a catalogue.

        The catalogue has features for new ones. A table of `eligible` item_id restricts the choice,
        as does leaving out items that were rated in training.
        """
        listed = tower.ids if catalogue is None else ids_of(tower, catalogue)
        kept = _kept(tower, listed, eligible, new_items_only)
        ids = listed if len(kept) == len(listed) else IdMap(listed.take(kept))
        if catalogue is None and ids is listed and isinstance(head, StoredHead):
            return cls(ids, np.asarray(head.vectors), tower.everyone())
        vectors = scratch.empty("candidates", (len(ids), head.width), np.float32)
        n_known, average = len(tower.ids), np.zeros(len(ids), bool)
        if catalogue is None:
            found = Found(kept, n_known, None, average)
            copy_known(head, found, vectors)
            return cls(ids, vectors, found)
        rows = embed_table(tower, head, catalogue, ids, vectors)
        return cls(ids, vectors, Found(np.where(rows < 0, n_known, rows), n_known, None, average))


def _kept(tower: Tower, listed: IdMap, eligible: Source | None, new_items_only: bool) -> np.ndarray:
    """Return the rows of those who may be recommended."""
    keep = np.ones(len(listed), bool)
    if new_items_only:
        known = tower.ids.rows(listed.ids, "item_id")
        keep &= (known < 0) | (np.asarray(tower.counts)[known] == 0)
    if eligible is not None and keep.any():
        eligible.require("item_id")
        allowed = IdMap.from_values(eligible.read(["item_id"])["item_id"], "item_id")
        keep &= allowed.contains(listed.ids, "item_id")
        if not keep.any():
            raise InputError(
                f"no candidate items are left: none of those in {eligible.name} is among "
                "--items (by default what the model knows) and what --new-items-only leaves"
            )
    return np.flatnonzero(keep)


@dataclass(frozen=True)
class ItemLists:
    """The candidates listed for each user of a table of pairs, such as those already seen."""

    users: IdMap
    starts: np.ndarray
    items: np.ndarray
    n_items: int

    @classmethod
    def read(cls, source: Source, name: str, candidates: IdMap, scratch: Scratch) -> "ItemLists":
        """Read the table twice, to count and to fill: memory grows with users, not with rows."""
        source.require_columns("user_id", "item_id")
        users = IdMap.from_values(_distinct(source, "user_id"), "user_id")
        counts = np.zeros(len(users) + 1, np.int64)
        for user_rows, _ in _rows(source, users, candidates):
            counts[1:] += np.bincount(user_rows, minlength=len(users))
        starts = np.cumsum(counts)
        items = scratch.empty(name, (int(starts[-1]),), np.int32)
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
        rows = self.users.rows(user_ids, "user_id")
        # An unknown user has row -1: from the last start to itself, an empty list.
        starts = self.starts[rows]
        counts = np.where(rows >= 0, self.starts[rows + 1] - starts, 0)
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
    found: list[pa.Array] = [pa.array([], source.schema.field(column).type)]
    for table in source.all_batches([column], _BLOCK):
        found.append(pc.unique(table[column]))
        if len(found) > 16:
            found = [pc.unique(pa.chunked_array(found))]
    return pc.unique(pa.chunked_array(found))


def _rows(
    source: Source, users: IdMap, candidates: IdMap
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the rows of users and of candidates in blocks; pairs of other items are left out."""
    for table in source.all_batches(["user_id", "item_id"], _BLOCK):
        item_rows = candidates.rows(table["item_id"], "item_id")
        listed = item_rows >= 0
        user_rows = users.rows(table["user_id"], "user_id")
        yield user_rows[listed], item_rows[listed].astype(np.int32)
