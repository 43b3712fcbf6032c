"""Vectors of known and new entities, looked up by id."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.ids import IdMap
from simrec.data.sides import ID_COLUMNS, Side
from simrec.data.source import Source, Unit
from simrec.data.table_file import BadFragment
from simrec.errors import InputError
from simrec.jobs.io.scratch import Scratch
from simrec.storage.rows import Array, Rows, shards_of

if TYPE_CHECKING:
    from simrec.model.head import Found, Head
    from simrec.model.tower import Tower

Unknown = Literal["error", "prior", "skip"]
BLOCK = 1 << 16  # rows embedded at once


def check_columns(source: Source, *columns: str) -> None:
    """Raise InputError unless a table has these columns; it may be empty."""
    if not set(columns) <= set(source.schema.names):
        source.require(*columns)


def ids_of(tower: "Tower", source: Source) -> IdMap:
    """Return the ids of a table of items or users, each of which may occur once."""
    column = tower.id_column
    check_columns(source, column)
    values = source.read([column])[column]
    ids = IdMap.from_values(values, f"{source.name}: {column}")
    _check_distinct(tower, source, values, len(ids))
    return ids


def check_once(tower: "Tower", source: Source, skip_bad: bool) -> None:
    """Refuse a table in which an id occurs twice, wherever batches end."""
    column, units = tower.id_column, source.units(1 << 62)
    chunks: list[pa.Array] = []
    for number, unit in enumerate(units, start=1):
        try:
            for batch in source.batches(unit, [column]):
                chunks += batch[column].drop_null().chunks
        except BadFragment:
            if not skip_bad:
                raise
        if chunks and (number % 16 == 0 or number == len(units)):
            ids = pa.chunked_array(chunks)
            chunks = [pc.unique(ids)]
            _check_distinct(tower, source, ids, len(chunks[0]))


def gives_features(tower: "Tower", source: Source) -> bool:
    """Tell whether a table has features that the model can use, and not ids only."""
    return tower.encoder is not None and len(source.schema.names) > 1


def embed_table(
    tower: "Tower", head: "Head", source: Source, ids: IdMap, vectors: np.ndarray
) -> np.ndarray:
    """Embed those of a table that are in `ids`, block by block; fill `vectors` in their order.

    Returns for each its row in the tower; -1 where its vector comes from features.
    """
    column = tower.id_column
    known_rows = np.empty(len(ids), np.int64)
    for unit in source.units(1 << 62):
        for table in source.batches(unit, None, BLOCK):
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


def copy_known(head: "Head", found: "Found", vectors: np.ndarray) -> None:
    """Fill an array with the vectors of known entities, some rows at a time."""
    for start in range(0, len(found.rows), BLOCK):
        some = slice(start, min(start + BLOCK, len(found.rows)))
        vectors[some] = head.of(found.take(some))


@dataclass(frozen=True)
class Entities:
    """Items or users with their vectors: those the model knows, and those of a table.

    `vectors` has a row for each known id, for each of `new` in the table, and a last one for the
    prior where `unknown`, which is about ids that are neither, asks for it. `place` is the row of
    each known id: its own, or that of the table if it is there too.
    """

    side: Side
    known: IdMap
    vectors: Array
    unknown: Unknown
    new: IdMap | None = None
    place: np.ndarray | None = None

    @classmethod
    def collect(
        cls,
        tower: "Tower",
        head: "Head",
        source: Source | None,
        unknown: Unknown,
        scratch: Scratch,
    ) -> "Entities":
        """Gather the vectors of all entities a job may meet; a table is embedded once."""
        side = tower.side
        new = None if source is None else ids_of(tower, source)
        if source is None or new is None or not len(new) or not gives_features(tower, source):
            source = new = None
        n_known, n_new = len(tower.ids), 0 if new is None else len(new)
        if not n_new and unknown != "prior":
            return cls(side, tower.ids, head.vectors, unknown)
        # Those known stay where they are where they are in shards.
        n_copied = 0 if isinstance(head.vectors, Rows) else n_known
        shape = (n_copied + n_new + (unknown == "prior"), head.width)
        made = scratch.empty(f"{side}_vectors", shape, np.float32)
        copy_known(head, tower.known(np.arange(n_copied)), made[:n_copied])
        if unknown == "prior":
            made[-1] = head.prior
        if source is not None and new is not None:
            embed_table(tower, head, source, new, made[n_copied : n_copied + n_new])
        in_shards = isinstance(head.vectors, Rows)
        vectors: Array = Rows([*shards_of(head.vectors), made]) if in_shards else made
        if source is None or new is None:
            return cls(side, tower.ids, vectors, unknown)
        place = scratch.empty(f"{side}_place", (n_known,), np.int64)
        place[:] = np.arange(n_known)
        rows = tower.ids.rows(new.ids, tower.id_column)
        place[rows[rows >= 0]] = n_known + np.flatnonzero(rows >= 0)
        return cls(side, tower.ids, vectors, unknown, new, place)

    def rows(self, values: pa.ChunkedArray) -> tuple[np.ndarray, int]:
        """Return the row of each id (-1 for unknown ids to skip), and how many are unknown."""
        column = ID_COLUMNS[self.side]
        if values.null_count:
            first = pc.index(pc.is_null(values), True).as_py()
            raise InputError(
                f"column {column}: {values.null_count} missing ids, the first in row {first} "
                "of the batch. Remove those rows."
            )
        rows = self.known.rows(values, f"column {column}")
        missing = rows < 0
        if self.new is not None and self.place is not None:
            if len(self.known):
                rows = np.where(missing, -1, self.place[rows])
            places = np.flatnonzero(missing)
            found = self.new.rows(values.take(pa.array(places)), f"column {column}")
            rows[places] = np.where(found >= 0, len(self.known) + found, -1)
            missing = rows < 0
        n_missing = int(missing.sum())
        if n_missing and self.unknown == "error":
            example = values[int(np.argmax(missing))].as_py()
            raise InputError(
                f"column {column}: {n_missing} rows with ids the model does not know, for "
                f"example {example!r}. Give their features with --{self.side}, or say --unknown "
                "prior (an average entity) or --unknown skip."
            )
        if n_missing and self.unknown == "prior":
            rows = np.where(missing, len(self.vectors) - 1, rows)
        return rows, n_missing


@dataclass(frozen=True)
class KnownIds:
    """All ids a model knows of a side, as the input of a job."""

    name: str
    ids: pa.ChunkedArray
    bad: tuple[str, ...] = ()
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
        starts = range(0, len(self.ids), part_rows)
        return [Unit(i, 0, (s,), min(part_rows, len(self.ids) - s)) for i, s in enumerate(starts)]

    def batches(
        self, unit: Unit, columns: Sequence[str] | None = None, batch_rows: int = 1 << 17
    ) -> Iterator[pa.Table]:
        """Yield the ids of a unit, `batch_rows` at a time."""
        (start,) = unit.row_groups
        for first in range(start, start + unit.rows, batch_rows):
            n = min(batch_rows, start + unit.rows - first)
            yield pa.table([self.ids.slice(first, n)], names=[self.name])

    def directory(self, unit: Unit) -> str:
        """Return the Hive partition: none."""
        return ""

    def label(self, unit: Unit) -> str:
        """Name a unit in messages."""
        side = self.name.removesuffix("_id")
        return f"known {side}s {unit.row_groups[0]} to {unit.row_groups[0] + unit.rows - 1}"


def _check_distinct(tower: "Tower", source: Source, ids: pa.ChunkedArray, distinct: int) -> None:
    if distinct == len(ids):
        return
    counts = pc.value_counts(ids)
    repeated = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    raise InputError(
        f"{source.name}: {len(ids) - distinct} rows repeat a {tower.id_column}, for example "
        f"{repeated[0].as_py()!r}. Keep one row per {tower.singular}."
    )
