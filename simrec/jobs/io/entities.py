"""The entities of a job, with vectors by id: whom it answers for, and what it may recommend."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse as sp

from simrec.data.id_columns import check_ids
from simrec.data.ids import IdMap
from simrec.data.sides import Columns, Side
from simrec.data.source import Source, Unit
from simrec.errors import InputError
from simrec.jobs.io.inputs import open_table
from simrec.jobs.io.outputs import Scratch
from simrec.jobs.options import Path
from simrec.model.head import Found, Head, StoredHead
from simrec.model.tower import Tower, unique_ids
from simrec.storage.arrays import blocks

Unknown = Literal["error", "prior", "skip"]
_EMBEDDED, _PAIRS = 1 << 16, 1 << 20  # rows that are embedded, and pairs that are read, at once


@dataclass(frozen=True)
class KnownIds:
    """All ids a model knows of a side, as the input of a job."""

    name: str
    ids: pa.ChunkedArray
    row_bytes: float = 16.0

    @property
    def schema(self) -> pa.Schema:
        """The one column of ids."""
        return pa.schema([(self.name, self.ids.type)])

    def identity(self) -> str:
        """Return nothing that distinguishes this input: the model is part of the job."""
        return "all the model knows"

    def units(self, part_rows: int) -> list[Unit]:
        """Divide the ids into units."""
        what, units = self.name.removesuffix("_id"), []
        for number, start in enumerate(range(0, len(self.ids), part_rows)):
            rows = min(part_rows, len(self.ids) - start)
            label = f"known {what}s {start} to {start + rows - 1}"
            units.append(Unit(number, 0, (start,), rows, label))
        return units

    def batches(
        self, unit: Unit, columns: Sequence[str] | None = None, batch_rows: int = 1 << 17
    ) -> Iterator[pa.Table]:
        """Yield the ids of a unit, `batch_rows` at a time."""
        mine = self.ids.slice(unit.row_groups[0], unit.rows)
        for first in range(0, unit.rows, batch_rows):
            yield pa.table([mine.slice(first, batch_rows)], names=[self.name])


def entity_source(tower: Tower, path: Path | None, own: Columns) -> Source | KnownIds:
    """Open a table in which each id occurs once, wherever batches end; or take all known ids."""
    if path is None:
        return KnownIds(tower.id_column, tower.ids.column)
    source = open_table(path, tower.side, own)
    _ids_of(tower, source)
    return source


def _ids_of(tower: Tower, source: Source) -> IdMap:
    """Return the ids of a table of items or users, each of which may occur once."""
    column = tower.id_column
    source.require_columns(column)
    values = check_ids(source.read([column])[column], column, source.name)
    return unique_ids(values, tower.side, source.name)[0]


def _embed_table(
    tower: Tower, head: Head, source: Source, ids: IdMap, vectors: np.ndarray
) -> np.ndarray:
    """Fill `vectors` with those of a table that are in `ids`; return their rows in the tower."""
    column = tower.id_column
    known_rows = np.empty(len(ids), np.int64)
    for table in source.all_batches(None, _EMBEDDED):
        place = ids.rows(table[column], column)
        if (place < 0).any():
            table = table.filter(pa.array(place >= 0))
            place = place[place >= 0]
        try:
            found = tower.find(table[column], table)
        except InputError as error:
            raise InputError(f"{source.name}: {error}") from error
        vectors[place] = head.of(found)
        known_rows[place] = found.known_rows
    return known_rows


@dataclass(frozen=True)
class Entities:
    """Items or users with their vectors: those the model knows, and unrated ones of a table.

    `vectors` has a row for each known id, for each of `new`, and a last one for the prior, which
    stands for ids that are neither, if `unknown` says so.
    """

    side: Side
    column: str
    known: IdMap
    vectors: np.ndarray
    unknown: Unknown
    new: IdMap | None = None
    some_known: bool = False  # whether some of `new` are known, without ratings

    @classmethod
    def collect(
        cls, tower: Tower, head: Head, source: Source | None, unknown: Unknown, scratch: Scratch
    ) -> "Entities":
        """Gather the vectors of all entities a job may meet; a table is embedded once."""
        new, some_known = None, False
        if source is not None:
            listed = _ids_of(tower, source)
            rows = tower.ids.rows(listed.ids, tower.id_column)
            by_features = tower.encoder is not None and len(source.schema.names) > 1
            unrated = np.flatnonzero(tower.unrated(rows) & by_features)
            new = IdMap(listed.take(unrated)) if len(unrated) else None
            some_known = bool((rows[unrated] >= 0).any())
        names = tower.side, tower.table_column
        if new is None and unknown != "prior":
            return cls(*names, tower.ids, head.vectors, unknown)
        n, n_new = len(tower.ids), 0 if new is None else len(new)
        vectors = scratch.empty(f"{tower.side}_vectors", (n + n_new + 1, head.width), np.float32)
        vectors[:n], vectors[-1] = head.vectors, head.prior
        if source is not None and new is not None:
            _embed_table(tower, head, source, new, vectors[n:-1])
        return cls(*names, tower.ids, vectors, unknown, new, some_known)

    def rows(self, values: pa.ChunkedArray) -> tuple[np.ndarray, int]:
        """Return the row of each id (-1 for unknown ids to skip), and how many are unknown."""
        rows = self.known.rows(values, self.column)
        if self.new is not None:
            asked = np.arange(len(rows)) if self.some_known else np.flatnonzero(rows < 0)
            found = self.new.rows(values.take(pa.array(asked)), self.column)
            rows[asked] = np.where(found >= 0, len(self.known) + found, rows[asked])
        missing = rows < 0
        n_missing = int(missing.sum())
        if n_missing and self.unknown == "error":
            example = values[int(np.argmax(missing))].as_py()
            raise InputError(
                f"column {self.column}: {n_missing} rows with ids the model does not know, for "
                f"example {example!r}. Give their features with --{self.side}, or say --unknown "
                "prior (an average entity) or --unknown skip."
            )
        if n_missing and self.unknown == "prior":
            rows = np.where(missing, len(self.vectors) - 1, rows)
        return rows, n_missing


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
        new_items_only: bool,
        scratch: Scratch,
    ) -> "Candidates":
        """Gather all items the model knows, or those of a catalogue, with features of new ones."""
        listed = tower.ids if catalogue is None else _ids_of(tower, catalogue)
        kept = np.arange(len(listed))
        if new_items_only:
            kept = np.flatnonzero(tower.unrated(tower.ids.rows(listed.ids, "item_id")))
        ids = listed if len(kept) == len(listed) else IdMap(listed.take(kept))
        if catalogue is None and ids is listed and isinstance(head, StoredHead):
            return cls(ids, np.asarray(head.vectors), tower.everyone())
        vectors = scratch.empty("candidates", (len(ids), head.width), np.float32)
        if catalogue is None:
            for here, rows in blocks(kept, _EMBEDDED):
                vectors[here] = head.of(tower.known(rows))
            return cls(ids, vectors, tower.known(kept))
        rows = _embed_table(tower, head, catalogue, ids, vectors)
        return cls(ids, vectors, tower.known(np.where(rows < 0, len(tower.ids), rows)))


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
    for table in source.all_batches([column], _PAIRS):
        found.append(pc.unique(table[column]))
        if len(found) > 16:
            found = [pc.unique(pa.chunked_array(found))]
    return pc.unique(pa.chunked_array(found))


def _rows(
    source: Source, users: IdMap, candidates: IdMap
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the rows of users and of candidates in blocks; pairs of other items are left out."""
    for table in source.all_batches(["user_id", "item_id"], _PAIRS):
        item_rows = candidates.rows(table["item_id"], "item_id")
        listed = item_rows >= 0
        user_rows = users.rows(table["user_id"], "user_id")
        yield user_rows[listed], item_rows[listed].astype(np.int32)
