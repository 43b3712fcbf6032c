"""Parquet input of any size: found, checked and divided into units of work."""

import fnmatch
import os
import re
import urllib.parse
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from simrec.errors import InputError
from simrec.jobs.options import Path, nearest

_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_URI = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+://")
_GLOB = re.compile(r"[*?\[]")


class BadFragment(InputError):
    """A piece of the input that cannot be read."""


@dataclass(frozen=True)
class Unit:
    """A piece of the input that gives one part of the output: row groups of one file."""

    index: int
    file: int
    row_groups: tuple[int, ...]
    rows: int


@dataclass(frozen=True)
class File:
    """A Parquet file of the input."""

    path: str
    size: int
    changed: str
    rows: tuple[int, ...]
    uncompressed: int
    partition: tuple[tuple[str, str], ...]

    @property
    def directory(self) -> str:
        """The Hive partition as a directory, empty for none."""
        return "/".join(f"{k}={urllib.parse.quote(v)}" for k, v in self.partition)


@dataclass(frozen=True)
class Source:
    """A Parquet table: a file, a directory (Hive-partitioned or not), a glob; local or by URI.

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
        return self.files[unit.file].directory

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
        InputError
            If the file cannot be read or changed since the job was planned.
        """
        file = self.files[unit.file]
        wanted = list(columns) if columns is not None else self.schema.names
        stored = [name for name in wanted if name not in self.partition_columns]
        try:
            with pq.ParquetFile(file.path, filesystem=self.filesystem, memory_map=False) as parquet:
                self._check_unchanged(parquet, file)
                for batch in parquet.iter_batches(
                    batch_size=batch_rows,
                    row_groups=list(unit.row_groups),
                    columns=stored,
                    use_threads=False,
                ):
                    yield self._complete(batch, file, wanted)
        except (pa.ArrowException, OSError) as error:
            raise BadFragment(_unreadable(file.path, error)) from error

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

    def _check_unchanged(self, parquet: pq.ParquetFile, file: File) -> None:
        stored = pa.schema([f for f in self.schema if f.name not in self.partition_columns])
        message = _schema_difference(stored, parquet.schema_arrow)
        groups = (parquet.metadata.row_group(i) for i in range(parquet.metadata.num_row_groups))
        if not message and tuple(group.num_rows for group in groups) != file.rows:
            message = "other rows than before"
        if message:
            raise BadFragment(f"{file.path}: {message}: the file changed while the job ran")

    def _complete(self, batch: pa.RecordBatch, file: File, wanted: Sequence[str]) -> pa.Table:
        table = pa.Table.from_batches([batch])
        values = dict(file.partition)
        for name in wanted:
            if name in self.partition_columns:
                kind = self.schema.field(name).type
                text = None if values[name] == _NULL_PARTITION else values[name]
                column = pa.repeat(pa.scalar(text, pa.string()).cast(kind), batch.num_rows)
                table = table.append_column(name, column)
        return table.select(wanted)


def open_source(path: Path, name: str = "input", skip_bad: bool = False) -> Source:
    """Find the files of a table and read their footers.

    Parameters
    ----------
    path : path
        A file, a directory, a glob, or a URI of one of these.
    name : str
        What the table is for, for messages.
    skip_bad : bool
        Leave out files that are no readable Parquet instead of raising.

    Raises
    ------
    InputError
        If nothing is found, a file is corrupt, or schemas differ.
    """
    text = str(path)
    filesystem, where = _filesystem(text)
    base, infos = _find(filesystem, where, f"{name} {text}")
    opened: list[tuple[fs.FileInfo, pq.FileMetaData]] = []
    bad: list[str] = []
    with ThreadPoolExecutor(8) as pool:
        footers = pool.map(lambda info: _footer(filesystem, info), infos)
        for info, footer in zip(infos, footers, strict=True):
            if isinstance(footer, str):
                if not skip_bad:
                    raise InputError(f"{footer} Or leave it out with --on-bad-fragment skip.")
                bad.append(footer)
            else:
                opened.append((info, footer))
    if not opened:
        raise InputError(
            f"{name} {text}: no readable Parquet file" + "".join(f"\n  {b}" for b in bad)
        )
    partitions = [_partition(base, info.path) for info, _ in opened]
    columns = tuple(key for key, _ in partitions[0])
    first = opened[0][1].schema.to_arrow_schema()
    files = []
    for (info, footer), partition in zip(opened, partitions, strict=True):
        if tuple(key for key, _ in partition) != columns:
            raise InputError(
                f"{info.path}: not partitioned by {list(columns)} like the other files"
            )
        message = _schema_difference(first, footer.schema.to_arrow_schema())
        if message:
            message = f"{info.path}: {message} ({opened[0][0].path}). Give all files one schema."
            if not skip_bad:
                raise InputError(message)
            bad.append(message)
            continue
        groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
        files.append(
            File(
                info.path,
                info.size,
                str(info.mtime_ns or ""),
                tuple(group.num_rows for group in groups),
                sum(group.total_byte_size for group in groups),
                partition,
            )
        )
    # A column stored in the files wins over a directory of the same name, as in Spark.
    columns = tuple(name for name in columns if name not in first.names)
    kinds = [_partition_type([dict(p)[name] for p in partitions]) for name in columns]
    schema = pa.schema([*first.remove_metadata(), *map(pa.field, columns, kinds)])
    return Source(text, filesystem, tuple(files), schema, columns, tuple(bad))


def is_remote_or_glob(path: Path) -> bool:
    """Whether a path is a URI or a pattern, which only `open_source` understands."""
    return bool(_URI.match(str(path)) or _GLOB.search(str(path)))


def _filesystem(text: str) -> tuple[fs.FileSystem, str]:
    if not _URI.match(text):
        return fs.LocalFileSystem(), text
    scheme, _, rest = text.partition("://")
    # The part before a pattern is what the filesystem is asked for.
    stem = _GLOB.split(text, maxsplit=1)[0]
    try:
        filesystem, _ = fs.FileSystem.from_uri(stem)
        return filesystem, "/" + rest.lstrip("/") if scheme == "file" else rest
    except (pa.ArrowException, OSError) as error:
        reason = error
    try:
        import fsspec
    except ImportError:
        raise InputError(
            f"{text}: {reason}. Other schemes need fsspec: pip install fsspec and the package "
            f"for {scheme}://"
        ) from None
    try:
        found, where = fsspec.core.url_to_fs(text)
    except (ValueError, ImportError) as error:
        raise InputError(f"{text}: {error}") from None
    return fs.PyFileSystem(fs.FSSpecHandler(found)), where


def _find(filesystem: fs.FileSystem, where: str, label: str) -> tuple[str, list[fs.FileInfo]]:
    """Return the base directory and the Parquet files under it, in the order of their paths."""
    pattern = _GLOB.search(where)
    base = where
    if pattern:
        base = where[: pattern.start()].rpartition("/")[0] or ("/" if where[0] == "/" else ".")
    info = filesystem.get_file_info(base)
    if info.type == fs.FileType.NotFound:
        raise InputError(f"{label}: no such file or directory")
    if info.type == fs.FileType.File:
        return base.rpartition("/")[0], [info]
    found = filesystem.get_file_info(fs.FileSelector(base, recursive=True))
    start = len(base.rstrip("/")) + 1
    files = [
        f
        for f in found
        if f.type == fs.FileType.File and not re.search(r"(^|/)[_.]", f.path[start:])
    ]
    if pattern:
        files = [f for f in files if _matches(f.path, where)]
    named = [f for f in files if re.search(r"\.(parquet|pq|parq)$", f.path)]
    if not (named or files):
        raise InputError(f"{label}: no Parquet files there")
    return base, sorted(named or files, key=lambda f: f.path)


def _matches(path: str, pattern: str) -> bool:
    """Whether a path, or a directory it lies in, matches a glob; ``**`` stands for any depth."""
    while pattern.startswith("./") and not path.startswith("./"):
        pattern = pattern[2:]
    if "**" in pattern:
        return fnmatch.fnmatchcase(path, pattern.replace("**/", "*")) or fnmatch.fnmatchcase(
            path, pattern
        )
    steps = pattern.rstrip("/").split("/")
    have = path.split("/")
    return len(have) >= len(steps) and all(map(fnmatch.fnmatchcase, have, steps))


def _footer(filesystem: fs.FileSystem, info: fs.FileInfo) -> pq.FileMetaData | str:
    try:
        return pq.read_metadata(info.path, filesystem=filesystem)
    except (pa.ArrowException, OSError) as error:
        return _unreadable(info.path, error)


def _unreadable(path: str, error: Exception) -> str:
    first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return f"{path}: cannot be read as Parquet ({first_line}). Write the file again."


def _partition(base: str, path: str) -> tuple[tuple[str, str], ...]:
    steps = path[len(base) :].strip("/").split("/")[:-1]
    pairs = [step.partition("=") for step in steps if "=" in step]
    return tuple((key, urllib.parse.unquote(value)) for key, _, value in pairs)


def _partition_type(values: Sequence[str]) -> pa.DataType:
    numbers = all(re.fullmatch(r"-?(0|[1-9]\d{0,8})", v) for v in values if v != _NULL_PARTITION)
    return pa.int32() if numbers else pa.string()


def _schema_difference(expected: pa.Schema, found: pa.Schema) -> str:
    # The order of columns may differ: they are read by name.
    if set(expected.names) != set(found.names):
        return f"columns {found.names}, expected {expected.names}"
    for one in expected:
        other = found.field(one.name)
        if one.type != other.type:
            return f"column {one.name!r} is {other.type}, expected {one.type}"
    return ""
