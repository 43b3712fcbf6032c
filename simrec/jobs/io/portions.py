"""Tables divided between workers by ranges of user ids; each reads its own fragments only.

Files are read once, each fragment by one worker, and written to scratch files by range; then each
worker reads its range.
"""

import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from simrec.data.id_columns import check_ids
from simrec.data.ids import encode_ids
from simrec.data.ratings import Ratings
from simrec.data.source import Source, Unit, open_source
from simrec.data.tables import TableLike
from simrec.errors import InputError
from simrec.jobs.io.inputs import DataOptions
from simrec.model.run.workers import Workers, equal_parts
from simrec.storage import files

logger = logging.getLogger(__name__)

# Rows that are read, and written to a range, as one.
_ROWS = 1 << 20
# What workers exchange in one attempt must not be read by the next, which may have fewer workers.
_ATTEMPT = "attempt-"
# Ids from which a worker proposes where ranges end, at most.
_SAMPLE = 1 << 16


@dataclass(frozen=True)
class Divided:
    """A table ("ratings" or "users") that workers divide by the ids in one of its columns."""

    name: str
    source: Source
    column: str
    columns: tuple[str, ...]
    units: tuple[Unit, ...]  # fragments of its files

    @classmethod
    def of(
        cls, name: str, source: Source, column: str, columns: Sequence[str] | None = None
    ) -> Self:
        """Look at the fragments of a table's files."""
        source.require(column)
        names = tuple(source.schema.names if columns is None else columns)
        return cls(name, source, column, names, tuple(source.units(_ROWS)))

    def starts(self, workers: Workers) -> list[Any]:
        """Agree on ranges of about equal numbers of rows: the lowest ids of all but the first."""
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
        tables = self._exchange(starts, workers, scratch)
        schema = pa.schema([self.source.schema.field(name) for name in self.columns])
        table = pa.concat_tables([schema.empty_table(), *tables], promote_options="permissive")
        # What the files say of themselves, such as which column is an index of pandas.
        return table.replace_schema_metadata(self.source.files[0].schema.metadata)

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
        logger.debug("process %d reads %s", os.getpid(), unit.label)
        for batch in self.source.batches(unit, columns):
            place = batch.column_names.index(self.column)
            ids = check_ids(batch[self.column], self.column, unit.label, table=batch)
            yield batch.set_column(place, self.column, ids)


@dataclass(frozen=True)
class Portions:
    """How the tables of a training are divided between workers; all of them see `scratch`."""

    data: DataOptions
    ratings: Divided
    users: Divided | None
    scratch: Path

    @classmethod
    def of(cls, data: DataOptions, scratch: Path) -> Self:
        """Look at the footers of the tables' files."""
        ratings = open_source(data.ratings, "ratings")
        ratings.require(data.user_id, data.item_id)
        wanted = (data.user_id, data.item_id, data.rating, data.timestamp)
        columns = [name for name in ratings.schema.names if name in wanted]
        users = None
        if data.users is not None:
            source = open_source(data.users, "users").renamed({data.user_id: "user_id"})
            users = Divided.of("users", source, "user_id")
        return cls(data, Divided.of("ratings", ratings, data.user_id, columns), users, scratch)

    def attempt(self, workers: Workers) -> int:
        """Count the attempts before this one, and make a directory for the files of this one."""
        number = 0
        if workers.rank == 0:
            number = len(list(self.scratch.glob(f"{_ATTEMPT}*")))
            (self.scratch / f"{_ATTEMPT}{number}").mkdir(parents=True)
        return workers.agreed(number)

    def read(
        self, bounds: tuple[float, float] | None, workers: Workers, attempt: int
    ) -> tuple[Ratings, TableLike | None]:
        """Read the ratings and the features of this worker's users."""
        data, scratch = self.data, self.scratch / f"{_ATTEMPT}{attempt}"
        starts = self.ratings.starts(workers)
        ratings = data.as_ratings(self.ratings.portion(starts, workers, scratch), bounds)
        users = None if self.users is None else self.users.portion(starts, workers, scratch)
        # What reading took is kept by Arrow's pool otherwise, beside all that a fit takes.
        pa.default_memory_pool().release_unused()
        return ratings, users


def ranges(ids: Any, starts: Sequence[Any]) -> np.ndarray:
    """Return the range of each id; all but the first range are given by their lowest ids.

    >>> ranges(pa.chunked_array([["a", "m", "z"]]), ["b", "n"])
    array([0, 1, 2])
    """
    if pa.types.is_dictionary(ids.type):
        ids = ids.cast(ids.type.value_type)
    found = np.zeros(len(ids), np.int64)
    for start in starts:
        found += pc.greater_equal(ids, start).to_numpy(zero_copy_only=False)
    return found
