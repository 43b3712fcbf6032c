"""Tables divided between workers by ranges of user ids; each reads its own fragments only.

Files that are sorted or partitioned by user are recognised by the statistics in their footers and
are used as they are. Others are read once, each fragment by one worker, and written to scratch
files by range; then each worker reads its range.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from simrec import files
from simrec.data.ids import check_ids, encode_ids
from simrec.errors import InputError
from simrec.jobs.io.sources import Source, Unit
from simrec.model.run.divide import ranges
from simrec.model.run.workers import Workers, equal_parts

logger = logging.getLogger(__name__)

# Rows that are read, and written to a range, as one.
_ROWS = 1 << 20
# Ids from which a worker proposes where ranges end, at most.
_SAMPLE = 1 << 16


@dataclass(frozen=True)
class Divided:
    """A table that workers divide by the ids in one of its columns.

    Attributes
    ----------
    name : str
        What it is: "ratings" or "users".
    source : Source
        Its files.
    column : str
        The column of ids.
    columns : tuple of str
        The columns to read.
    units : tuple of Unit
        Fragments of the files.
    spans : tuple of (id, id), or None
        Lowest and highest id of each unit, where the files tell.
    metadata : dict
        What the files' schema says of itself, such as which column is an index of pandas.
    """

    name: str
    source: Source
    column: str
    columns: tuple[str, ...]
    units: tuple[Unit, ...]
    spans: tuple[tuple[Any, Any], ...] | None
    metadata: dict[bytes, bytes]

    @classmethod
    def of(
        cls, name: str, source: Source, column: str, columns: Sequence[str] | None = None
    ) -> Divided:
        """Look at the footers of a table's files."""
        source.require(column)
        units = tuple(source.units(_ROWS))
        spans: list[tuple[Any, Any] | None] = []
        metadata: dict[bytes, bytes] = {}
        for number, file in enumerate(source.files):
            if file.is_csv:
                spans.append(None)
                continue
            footer = pq.read_metadata(file.path, filesystem=source.filesystem)
            metadata = metadata or dict(footer.schema.to_arrow_schema().metadata or {})
            spans += [_span(footer, u, column) for u in units if u.file == number]
        told = None if None in spans else tuple(s for s in spans if s is not None)
        names = source.schema.names if columns is None else columns
        return cls(name, source, column, tuple(names), units, told, metadata)

    def starts(self, workers: Workers) -> list[Any]:
        """Agree on ranges of about equal numbers of rows: the lowest ids of all but the first."""
        ready = self._sorted_starts(workers.size)
        if ready is not None:
            logger.info("%s: sorted by %s, read as it is", self.source.name, self.column)
            return ready
        rows = sum(unit.rows for unit in self.units)
        step = max(rows // (workers.size * _SAMPLE), 1)
        some = [
            batch[self.column].take(pa.array(np.arange(0, len(batch), step)))
            for unit in self._mine(workers)
            for batch in self._batches(unit, [self.column])
        ]
        kind = self.source.schema.field(self.column).type
        chosen = pa.table({"id": pa.chunked_array([c for one in some for c in one.chunks], kind)})
        ids, where = encode_ids(pa.concat_tables(workers.gather_tables(chosen))["id"])
        if len(ids) < workers.size:
            raise InputError(
                f"workers: {workers.size} workers for {len(ids)} users; give each at least one."
            )
        cuts = equal_parts(np.bincount(where, minlength=len(ids)), workers.size)[1:-1]
        return ids.take(cuts).to_pylist()

    def portion(self, starts: Sequence[Any], workers: Workers, scratch: Path) -> pa.Table:
        """Read this worker's range; `scratch` is a directory that all workers see."""
        edges = [None, *starts, None]
        low, high = edges[workers.rank], edges[workers.rank + 1]
        if self.spans is not None and all(_within_one(span, starts) for span in self.spans):
            mine = [
                unit
                for unit, (first, _) in zip(self.units, self.spans, strict=True)
                if (low is None or first >= low) and (high is None or first < high)
            ]
            tables = [t for unit in mine for t in self._batches(unit, self.columns)]
        else:
            tables = self._exchange(starts, workers, scratch)
        schema = pa.schema([self.source.schema.field(name) for name in self.columns])
        table = pa.concat_tables([schema.empty_table(), *tables], promote_options="permissive")
        return table.replace_schema_metadata(self.metadata)

    def _sorted_starts(self, n: int) -> list[Any] | None:
        """Return where ranges begin if the units are ranges already, and enough of them."""
        if self.spans is None or len(self.units) < n:
            return None
        order = sorted(range(len(self.units)), key=lambda i: self.spans[i])  # type: ignore[index]
        rows, firsts, last = [], [], None
        for i in order:
            first, highest = self.spans[i]
            if last is None or first > last:
                firsts.append(first)
                rows.append(0)
            rows[-1] += self.units[i].rows
            last = highest if last is None else max(last, highest)
        if len(rows) < n:
            return None
        edges = equal_parts(np.array(rows), n)
        if np.add.reduceat(rows, edges[:-1]).max() > 2 * sum(rows) / n:
            return None  # too uneven: better divided anew
        return [firsts[i] for i in edges[1:-1]]

    def _mine(self, workers: Workers) -> Sequence[Unit]:
        """Return the fragments that this worker reads to divide them."""
        n = min(workers.size, len(self.units))
        if workers.rank >= n:
            return ()
        edges = equal_parts(np.array([unit.rows for unit in self.units]), n)
        return self.units[edges[workers.rank] : edges[workers.rank + 1]]

    def _exchange(self, starts: Sequence[Any], workers: Workers, scratch: Path) -> list[pa.Table]:
        """Write this worker's fragments by range, and read its range from all workers."""
        folders = [scratch / f"{self.name}-{rank:05d}" for rank in range(workers.size)]
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        name = f"from-{workers.rank:05d}.parquet"
        writers: dict[int, pq.ParquetWriter] = {}
        with files.naming_full_disk(scratch):
            try:
                for unit in self._mine(workers):
                    for batch in self._batches(unit, self.columns):
                        found = ranges(batch[self.column], starts)
                        for rank in np.unique(found).tolist():
                            if rank not in writers:
                                path = folders[rank] / name
                                writers[rank] = pq.ParquetWriter(path, batch.schema)
                            writers[rank].write_table(batch.filter(pa.array(found == rank)))
            finally:
                for writer in writers.values():
                    writer.close()
        workers.total(0.0)  # until all have written
        mine = folders[workers.rank]
        tables = [pq.read_table(path) for path in sorted(mine.glob("*.parquet"))]
        shutil.rmtree(mine, ignore_errors=True)
        return tables

    def _batches(self, unit: Unit, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Read a unit, and check its ids."""
        label = self.source.label(unit)
        logger.debug("process %d reads %s", os.getpid(), label)
        for batch in self.source.batches(unit, columns):
            place = batch.column_names.index(self.column)
            ids = check_ids(batch[self.column], self.column, label, table=batch)
            yield batch.set_column(place, self.column, ids)


def _span(footer: pq.FileMetaData, unit: Unit, column: str) -> tuple[Any, Any] | None:
    """Return the lowest and highest id of some row groups, None where the footer does not tell."""
    names = [footer.schema.column(i).path for i in range(footer.num_columns)]
    if column not in names:
        return None
    place, low, high = names.index(column), [], []
    for group in unit.row_groups:
        told = footer.row_group(group).column(place).statistics
        if told is None or not told.has_min_max or told.null_count:
            return None
        if not isinstance(told.min, int | str):
            return None
        low.append(told.min)
        high.append(told.max)
    return min(low), max(high)


def _within_one(span: tuple[Any, Any], starts: Sequence[Any]) -> bool:
    return not any(span[0] < start <= span[1] for start in starts)
