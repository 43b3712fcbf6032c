"""A part of an output: Parquet files written aside and renamed, their record, room for arrays."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from simrec.data import paths
from simrec.storage import files


@dataclass(frozen=True)
class Scratch:
    """Room for arrays of a job: those of more than `limit` bytes in files, removed with the job."""

    directory: Path
    limit: int

    def empty(self, name: str, shape: tuple[int, ...], dtype: type) -> np.ndarray:
        """Return an array to be filled."""
        if int(np.prod(shape)) * np.dtype(dtype).itemsize <= self.limit:
            return np.empty(shape, dtype)
        path = self.directory / f"{name}.npy"
        with files.naming_full_disk(path):
            array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
            # Room is taken now: a full disk would end the process where the array is written to.
            with open(path, "rb+") as file:
                os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
        return array


@dataclass(frozen=True)
class Part:
    """What one unit of work wrote: files relative to the output, with their records.

    `counts` has what was counted on the way, such as unknown ids; `skipped` says why there is no
    output, empty if there is.
    """

    unit: int
    rows_in: int
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    skipped: str = ""

    @property
    def rows_out(self) -> int:
        """Rows written."""
        return sum(record["rows"] for record in self.files.values())


@dataclass(frozen=True)
class PartWriter:
    """Writes the files of a part; small and picklable, so that it travels to workers."""

    directory: str
    metadata: dict[str, str]
    row_group_rows: int = 1 << 17

    def write(self, name: str, tables: Iterable[pa.Table], schema: pa.Schema) -> dict[str, Any]:
        """Write tables as one Parquet file, aside, then rename it to `name`; return its record."""
        root = os.path.realpath(self.directory)
        target = Path(root) / name
        if os.path.commonpath([root, os.path.realpath(target)]) != root:
            raise ValueError(f"{name!r} is not inside of {self.directory}")
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.with_name(f".{target.name}.{os.uname().nodename}-{os.getpid()}-{id(tables)}")
        schema = schema.with_metadata({**(schema.metadata or {}), **self.metadata})
        rows = 0
        try:
            with files.naming_full_disk(target):
                with open_writer(aside, schema) as writer:
                    # Row groups of one size, however many rows come at a time.
                    for table in _regroup(tables, self.row_group_rows):
                        rows += table.num_rows
                        writer.write_table(table, row_group_size=table.num_rows)
                files.flush(aside)
                record = {"rows": rows, **files.checksum(aside)}
                os.replace(aside, target)
        finally:
            aside.unlink(missing_ok=True)
        return record

    def write_divided(
        self, name: str, tables: Iterable[pa.Table], schema: pa.Schema, keys: Sequence[str]
    ) -> dict[str, dict[str, Any]]:
        """Write tables as one file for each value of some columns; return the records by name."""
        whole = pa.concat_tables([schema.empty_table(), *tables])
        kept = pa.schema([field for field in schema if field.name not in keys])
        return {
            (path := f"{directory}/{name}"): self.write(path, [rows.select(kept.names)], kept)
            for directory, rows in paths.divide(whole, keys)
        }


def open_writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """Open a Parquet file for writing, compressed and encoded as suits ids and scores."""
    # Dictionaries of ids and scores, mostly distinct, cost more than they save.
    kinds = (pa.string(), pa.large_string())
    texts = [field.name for field in schema if field.type in kinds]
    return pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=texts or False)


def _regroup(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Give the same rows in tables of `rows` rows each, but for the last."""
    waiting: list[pa.Table] = []
    count = 0
    for table in tables:
        waiting.append(table)
        count += table.num_rows
        while count >= rows:
            whole = pa.concat_tables(waiting)
            yield whole.slice(0, rows)
            waiting, count = [whole.slice(rows)], count - rows
    if count:
        yield pa.concat_tables(waiting)
