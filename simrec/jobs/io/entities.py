"""The entities of a job: those the model knows and those of a table, with vectors by id."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.columns import Columns
from simrec.data.ids import IdMap
from simrec.data.sides import Side
from simrec.data.source import BadFragment, Source, Unit
from simrec.errors import InputError
from simrec.jobs.io.outputs import Scratch
from simrec.jobs.io.tables import open_table
from simrec.jobs.options import Path
from simrec.storage.rows import Array, Rows, shards_of

if TYPE_CHECKING:
    from simrec.model.head import Found, Head
    from simrec.model.tower import Tower

Unknown = Literal["error", "prior", "skip"]
BLOCK = 1 << 16  # rows embedded at once


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
        what, total = self.name.removesuffix("_id"), len(self.ids)
        ends = [(i, min(i + part_rows, total)) for i in range(0, total, part_rows)]
        labels = [f"known {what}s {start} to {stop - 1}" for start, stop in ends]
        return [
            Unit(n, 0, (start,), stop - start, label)
            for n, ((start, stop), label) in enumerate(zip(ends, labels, strict=True))
        ]

    def batches(
        self, unit: Unit, columns: Sequence[str] | None = None, batch_rows: int = 1 << 17
    ) -> Iterator[pa.Table]:
        """Yield the ids of a unit, `batch_rows` at a time."""
        mine = self.ids.slice(unit.row_groups[0], unit.rows)
        for first in range(0, unit.rows, batch_rows):
            yield pa.table([mine.slice(first, batch_rows)], names=[self.name])


def entity_source(
    tower: "Tower", path: Path | None, own: Columns, skip_bad: bool
) -> Source | KnownIds:
    """Open a table in which each id occurs once, wherever batches end; or take all known ids."""
    column = tower.id_column
    if path is None:
        return KnownIds(column, tower.ids.column)
    source = open_table(path, tower.side, own, skip_bad)
    source.require_columns(column)
    chunks: list[pa.Array] = []
    units = source.units(1 << 62)
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
    return source


def ids_of(tower: "Tower", source: Source) -> IdMap:
    """Return the ids of a table of items or users, each of which may occur once."""
    column = tower.id_column
    source.require_columns(column)
    values = source.read([column])[column]
    ids = IdMap.from_values(values, f"{source.name}: {column}")
    _check_distinct(tower, source, values, len(ids))
    return ids


def _check_distinct(tower: "Tower", source: Source, ids: pa.ChunkedArray, distinct: int) -> None:
    if distinct == len(ids):
        return
    counts = pc.value_counts(ids)
    repeated = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    raise InputError(
        f"{source.name}: {len(ids) - distinct} rows repeat a {tower.id_column}, for example "
        f"{repeated[0].as_py()!r}. Keep one row per {tower.singular}."
    )


def embed_table(
    tower: "Tower", head: "Head", source: Source, ids: IdMap, vectors: np.ndarray
) -> np.ndarray:
    """Embed those of a table that are in `ids`, block by block; fill `vectors` in their order.

    Returns for each its row in the tower; -1 where its vector comes from features.
    """
    column = tower.id_column
    known_rows = np.empty(len(ids), np.int64)
    for table in source.all_batches(None, BLOCK):
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
    """Items or users with their vectors: those the model knows, and unrated ones of a table.

    `vectors` has a row for each known id, for each of `new`, and a last one for the prior, which
    stands for ids that are neither, if `unknown` says so.
    """

    side: Side
    column: str
    known: IdMap
    vectors: Array
    unknown: Unknown
    new: IdMap | None = None
    some_known: bool = False  # whether some of `new` are known too

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
        new, some_known = None, False
        if source is not None:
            listed = ids_of(tower, source)
            rows = tower.ids.rows(listed.ids, tower.id_column)
            by_features = tower.encoder is not None and len(source.schema.names) > 1
            unrated = np.flatnonzero(tower.unrated(rows) & by_features)
            new = IdMap(listed.take(unrated)) if len(unrated) else None
            some_known = bool((rows[unrated] >= 0).any())
        if new is None and unknown != "prior":
            return cls(tower.side, tower.table_column, tower.ids, head.vectors, unknown)
        n_new = 0 if new is None else len(new)
        made = scratch.empty(f"{tower.side}_vectors", (n_new + 1, head.width), np.float32)
        made[-1] = head.prior
        if source is not None and new is not None:
            embed_table(tower, head, source, new, made)
        # Known ones stay where they are.
        vectors = Rows([*shards_of(head.vectors), made])
        names = tower.side, tower.table_column
        return cls(*names, tower.ids, vectors, unknown, new, some_known)

    def rows(self, values: pa.ChunkedArray) -> tuple[np.ndarray, int]:
        """Return the row of each id (-1 for unknown ids to skip), and how many are unknown."""
        column = f"column {self.column}"
        if values.null_count:
            first = pc.index(pc.is_null(values), True).as_py()
            raise InputError(
                f"{column}: {values.null_count} missing ids, the first in row {first} "
                "of the batch. Remove those rows."
            )
        rows = self.known.rows(values, column)
        if self.new is not None:
            asked = np.arange(len(rows)) if self.some_known else np.flatnonzero(rows < 0)
            found = self.new.rows(values.take(pa.array(asked)), column)
            rows[asked] = np.where(found >= 0, len(self.known) + found, rows[asked])
        missing = rows < 0
        n_missing = int(missing.sum())
        if n_missing and self.unknown == "error":
            example = values[int(np.argmax(missing))].as_py()
            raise InputError(
                f"{column}: {n_missing} rows with ids the model does not know, for "
                f"example {example!r}. Give their features with --{self.side}, or say --unknown "
                "prior (an average entity) or --unknown skip."
            )
        if n_missing and self.unknown == "prior":
            rows = np.where(missing, len(self.vectors) - 1, rows)
        return rows, n_missing
