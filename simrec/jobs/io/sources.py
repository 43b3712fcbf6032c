"""Parquet and CSV input of any size, divided into units of work and read piece by piece."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from simrec.data.paths import CSV_ENDINGS
from simrec.errors import InputError
from simrec.jobs.io import partitions
from simrec.jobs.options import nearest


class BadFragment(InputError):
    """A piece of the input that cannot be read."""


class ChangedFragment(BadFragment):
    """A file of the input that is no longer what it was when the job was planned."""


@dataclass(frozen=True)
class Unit:
    """A piece of the input that gives one part of the output: row groups of one file.

    A CSV file is one row group, which is read as a stream.
    """

    index: int
    file: int
    row_groups: tuple[int, ...]
    rows: int


@dataclass(frozen=True)
class File:
    """A Parquet or CSV file of the input."""

    path: str
    size: int
    changed: str
    rows: tuple[int, ...]
    uncompressed: int
    partition: partitions.Pairs
    inode: int | None = None

    @property
    def is_csv(self) -> bool:
        """Whether it is a CSV file."""
        return self.path.lower().endswith(CSV_ENDINGS)


@dataclass(frozen=True)
class Source:
    """A table: a Parquet or CSV file, a directory (Hive-partitioned or not), a glob; or by URI.

    Attributes
    ----------
    name : str
        As the user gave it, for messages.
    filesystem : pyarrow.fs.FileSystem
    files : tuple of File
        In the order of their paths; this order is the order of the rows.
    schema : pyarrow.Schema
        Columns of the files, followed by the partition columns.
    bad : tuple of str
        Messages about files that cannot be read, if those were to be skipped.
    """

    name: str
    filesystem: fs.FileSystem
    files: tuple[File, ...]
    schema: pa.Schema
    partition_columns: tuple[str, ...] = ()
    bad: tuple[str, ...] = field(default=())

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(sum(file.rows) for file in self.files)

    @property
    def row_bytes(self) -> float:
        """Bytes of a row in memory, roughly."""
        return sum(file.uncompressed for file in self.files) / max(self.rows, 1)

    def directory(self, unit: Unit) -> str:
        """Return the Hive partition of a unit as a directory, empty for none."""
        return partitions.to_directory(self.files[unit.file].partition)

    def label(self, unit: Unit) -> str:
        """Name a unit in messages."""
        groups = unit.row_groups
        which = f"{groups[0]}-{groups[-1]}" if len(groups) > 1 else str(groups[0])
        return f"{self.files[unit.file].path} (row group {which})"

    def identity(self) -> list[list[Any]]:
        """Return what distinguishes this input from another: paths, sizes, times of change."""
        local = isinstance(self.filesystem, fs.LocalFileSystem)
        return [
            [os.path.abspath(f.path) if local else f.path, f.size, f.changed, sum(f.rows)]
            for f in self.files
        ]

    def units(self, part_rows: int) -> list[Unit]:
        """Divide the input into units of about `part_rows` rows, whole row groups each."""
        units: list[Unit] = []
        for number, file in enumerate(self.files):
            groups: list[int] = []
            rows = 0
            for group, count in enumerate(file.rows):
                if groups and rows + count > part_rows:
                    units.append(Unit(len(units), number, tuple(groups), rows))
                    groups, rows = [], 0
                groups.append(group)
                rows += count
            if groups:
                units.append(Unit(len(units), number, tuple(groups), rows))
        return units

    def batches(
        self, unit: Unit, columns: Sequence[str] | None = None, batch_rows: int = 1 << 17
    ) -> Iterator[pa.Table]:
        """Read a unit, at most `batch_rows` rows at a time.

        Raises
        ------
        BadFragment
            If the file cannot be read.
        ChangedFragment
            If it is another one than when the job was planned, at the latest after the last batch:
            whoever commits what was made of a unit reads it to its end first.
        """
        file = self.files[unit.file]
        wanted = list(columns) if columns is not None else self.schema.names
        stored = [name for name in wanted if name not in self.partition_columns]
        if file.is_csv:
            yield from self._csv_batches(file, stored, wanted, batch_rows)
            return
        try:
            with pq.ParquetFile(file.path, filesystem=self.filesystem, memory_map=False) as parquet:
                self._check_footer(parquet, file)
                for batch in parquet.iter_batches(
                    batch_size=batch_rows,
                    row_groups=list(unit.row_groups),
                    columns=stored,
                    use_threads=False,
                ):
                    yield self._complete(batch, file, wanted)
            self._check_stamp(file)
        except (pa.ArrowException, OSError) as error:
            raise BadFragment(unreadable(file.path, error)) from error

    def _csv_batches(
        self, file: File, stored: Sequence[str], wanted: Sequence[str], batch_rows: int
    ) -> Iterator[pa.Table]:
        from simrec.data.csv_files import stream

        schema = pa.schema([self.schema.field(name) for name in stored])
        try:
            for batch in stream(file.path, self.filesystem, schema, stored, batch_rows):
                yield self._complete(batch, file, wanted)
        except (pa.ArrowException, OSError) as error:
            self._check_stamp(file)
            raise BadFragment(unreadable(file.path, error)) from error
        self._check_stamp(file)

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Read the whole table into memory."""
        wanted = list(columns) if columns is not None else self.schema.names
        schema = pa.schema([self.schema.field(name) for name in wanted])
        tables = [
            batch for unit in self.units(1 << 40) for batch in self.batches(unit, wanted, 1 << 20)
        ]
        return pa.concat_tables(tables).cast(schema) if tables else schema.empty_table()

    def require(self, *columns: str) -> None:
        """Raise InputError unless the table has rows, and these columns."""
        if self.rows == 0:
            raise InputError(f"{self.name}: the table is empty, expected at least one row")
        for column in columns:
            if column not in self.schema.names:
                raise InputError(
                    f"{self.name}: no column {column!r}; {nearest(column, self.schema.names)}"
                )

    def _check_stamp(self, file: File) -> None:
        info = self.filesystem.get_file_info(file.path)
        found = (info.size, str(info.mtime_ns or ""), inode(self.filesystem, file.path))
        if found != (file.size, file.changed, file.inode):
            raise ChangedFragment(
                f"{file.path}: the file changed or was replaced while the job ran. Start the job "
                "again with --overwrite."
            )

    def _check_footer(self, parquet: pq.ParquetFile, file: File) -> None:
        stored = pa.schema([f for f in self.schema if f.name not in self.partition_columns])
        message = schema_difference(stored, parquet.schema_arrow)
        groups = (parquet.metadata.row_group(i) for i in range(parquet.metadata.num_row_groups))
        if not message and tuple(group.num_rows for group in groups) != file.rows:
            message = "other rows than before"
        if message:
            raise ChangedFragment(f"{file.path}: {message}: the file changed while the job ran")

    def _complete(self, batch: pa.RecordBatch, file: File, wanted: Sequence[str]) -> pa.Table:
        table = pa.Table.from_batches([batch])
        values = dict(file.partition)
        for name in wanted:
            if name in self.partition_columns:
                kind = self.schema.field(name).type
                value = pa.scalar(values[name], pa.string()).cast(kind)
                column = pa.repeat(value, batch.num_rows)
                table = table.append_column(name, column)
        return table.select(wanted)


def inode(filesystem: fs.FileSystem, path: str) -> int | None:
    """Return the number of a local file, which one that takes its place does not have."""
    try:
        return os.stat(path).st_ino if isinstance(filesystem, fs.LocalFileSystem) else None
    except OSError:
        return None


def unreadable(path: str, error: Exception) -> str:
    """Say that a file cannot be read, and why."""
    first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    form = "CSV" if path.lower().endswith(CSV_ENDINGS) else "Parquet"
    return f"{path}: cannot be read as {form} ({first_line}). Write the file again."


def schema_difference(expected: pa.Schema, found: pa.Schema) -> str:
    """Say how two schemas differ, empty if they do not."""
    # The order of columns may differ: they are read by name.
    if set(expected.names) != set(found.names):
        return f"columns {found.names}, expected {expected.names}"
    for one in expected:
        other = found.field(one.name)
        if one.type != other.type:
            return f"column {one.name!r} is {other.type}, expected {one.type}"
    return ""
