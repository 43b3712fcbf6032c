"""A table in Parquet or CSV files, of any size: one schema, read whole or piece by piece."""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from simrec.data import files as table_files
from simrec.data.messages import describe, no_column
from simrec.data.sides import ID_COLUMNS
from simrec.errors import InputError


@dataclass(frozen=True)
class Unit:
    """A piece of the input that gives one part of the output: row groups of one file."""

    index: int
    file: int
    row_groups: tuple[int, ...]
    rows: int
    label: str  # in messages
    start: int = 0  # rows of the file before it


@dataclass(frozen=True)
class TableFile:
    """A Parquet or CSV file as it was when it was opened. Small, and travels to workers."""

    filesystem: fs.FileSystem
    path: str
    stamp: tuple[int, str, int | None]  # size, time of change, inode: of no other file
    rows: tuple[int, ...]  # of each row group; a CSV file is one, which is read as a stream
    uncompressed: int  # bytes in memory, roughly
    schema: pa.Schema
    partition: table_files.Pairs  # columns and values in the names of its directories
    dialect: table_files.Dialect | None = None  # how a CSV file is written; None for Parquet

    @classmethod
    def open(
        cls, filesystem: fs.FileSystem, base: str, path: str, options: Mapping[str, str]
    ) -> "TableFile":
        """Read the footer of a file; partitions are the directories below `base`."""
        dialect, stamp = None, _stamp(filesystem, path)
        rows: tuple[int, ...]
        is_csv = bool(options) or path.lower().endswith(table_files.CSV_ENDINGS)
        try:
            if not is_csv and not path.lower().endswith(table_files.PARQUET_ENDINGS):
                with filesystem.open_input_stream(path) as stream:
                    is_csv = stream.read(4) not in (b"PAR1", b"")
            if is_csv:
                dialect = table_files.find_dialect(path, filesystem, options)
                schema, n_rows = table_files.infer_schema(path, filesystem, dialect)
                rows, uncompressed = (n_rows,) if n_rows else (), stamp[0]
            else:
                footer = pq.read_metadata(path, filesystem=filesystem)
                groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
                schema, rows = footer.schema.to_arrow_schema(), tuple(g.num_rows for g in groups)
                uncompressed = sum(group.total_byte_size for group in groups)
        except InputError:
            raise
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _unreadable(path, is_csv, stamp[0], error) from error
        twice = [name for name in schema.names if schema.names.count(name) > 1]
        if twice:
            raise InputError(
                f"{path}: more than one column is called {twice[0]!r}. Rename or drop one."
            )
        partition = table_files.partition_of(base, path)
        return cls(filesystem, path, stamp, rows, uncompressed, schema, partition, dialect)

    def read(self, target: pa.Schema) -> pa.Table:
        """Read all rows in the columns of a schema."""
        tables = self.batches(range(len(self.rows)), target, 1 << 30)
        return pa.concat_tables([target.empty_table(), *tables])

    def batches(
        self, row_groups: Sequence[int], target: pa.Schema, batch_rows: int
    ) -> Iterator[pa.Table]:
        """Read some row groups in the columns of a schema, at most `batch_rows` rows at a time.

        Raises InputError if the file cannot be read, or, at the latest after the last batch, if it
        is another one than when it was opened.
        """
        try:
            for batch in self._stream(row_groups, target, batch_rows):
                yield self._complete(pa.Table.from_batches([batch]), target)
        except (pa.ArrowException, OSError, KeyError) as error:
            if self.dialect or isinstance(error, KeyError):  # other columns than there were
                self._check_stamp()
            is_csv = self.dialect is not None
            raise _unreadable(self.path, is_csv, self.stamp[0], error) from error
        self._check_stamp()

    def _stream(
        self, row_groups: Sequence[int], target: pa.Schema, batch_rows: int
    ) -> Iterator[pa.RecordBatch]:
        stored = [name for name in target.names if name in self.schema.names]
        if self.dialect is not None:
            own = pa.schema([target.field(name) for name in stored])
            where = self.path, self.filesystem, self.dialect
            yield from table_files.stream(*where, own, batch_rows)
            return
        with pq.ParquetFile(self.path, filesystem=self.filesystem) as parquet:
            # Decoded as it goes: `pyarrow.dataset` holds whole row groups, and imports pandas.
            yield from parquet.iter_batches(
                batch_rows, row_groups=list(row_groups), columns=stored, use_threads=False
            )

    def _complete(self, table: pa.Table, target: pa.Schema) -> pa.Table:
        """Give rows the columns of a schema: widened, of the partition, or null."""
        partition, n, arrays = dict(self.partition), table.num_rows, []
        for name, kind in zip(target.names, target.types, strict=True):
            if name in self.schema.names:
                column = table.column(name)
                arrays.append(column if column.type == kind else column.cast(kind))
            elif partition.get(name) is None:
                arrays.append(pa.nulls(n, kind))
            else:
                arrays.append(pa.repeat(pa.scalar(partition[name], pa.string()).cast(kind), n))
        return pa.table(arrays, schema=target) if arrays else table

    def _check_stamp(self) -> None:
        if _stamp(self.filesystem, self.path) != self.stamp:
            raise InputError(
                f"{self.path}: the file changed or was replaced while the job ran. "
                "Start the job again with --overwrite."
            )


@dataclass(frozen=True)
class Source:
    """A table in files; see `open_source`. Small, and travels to workers.

    The schema has the columns of the files, followed by the partition columns. A column that a file
    lacks is null there; numbers are as wide as the widest.
    """

    name: str
    files: tuple[TableFile, ...]  # in the order of their paths, which is the order of the rows
    schema: pa.Schema
    # Names in the files, and names that were expected, by the names here; see `renamed`.
    stored: Mapping[str, str] = field(default_factory=dict)
    wanted: Mapping[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(sum(file.rows) for file in self.files)

    @property
    def row_bytes(self) -> float:
        """Bytes of a row in memory, roughly."""
        return sum(file.uncompressed for file in self.files) / max(self.rows, 1)

    def identity(self) -> list[list[Any]]:
        """Return what distinguishes this input from another: paths, sizes, times of change."""
        local = isinstance(self.files[0].filesystem, fs.LocalFileSystem)
        return [
            [os.path.abspath(f.path) if local else f.path, *f.stamp[:2], sum(f.rows)]
            for f in self.files
        ]

    def require(self, *columns: str) -> None:
        """Raise InputError unless the table has rows, and these columns."""
        if self.rows == 0:
            raise InputError(f"{self.name}: the table is empty, expected at least one row")
        self.require_columns(*columns)

    def require_columns(self, *columns: str) -> None:
        """Raise InputError unless the table, which may be empty, has these columns."""
        missing = [self.wanted.get(c, c) for c in columns if c not in self.schema.names]
        if missing:
            raise no_column(missing, self.schema.names, self.name)

    def renamed(self, rename: Mapping[str, str]) -> "Source":
        """Call columns otherwise, `{"asin": "item_id"}`, where there is none of that name."""
        names = self.schema.names
        found = {old: new for old, new in rename.items() if old in names and new not in names}
        fields = [own.with_name(found.get(own.name, own.name)) for own in self.schema]
        return replace(
            self,
            schema=pa.schema(fields),
            stored={new: old for old, new in found.items()},
            wanted={new: old for old, new in rename.items()},
        )

    def units(self, part_rows: int) -> list[Unit]:
        """Divide the input into units of about `part_rows` rows, whole row groups each.

        They depend on nothing but the files: a job that was killed finds the same ones again.
        """
        units: list[Unit] = []
        for number, file in enumerate(self.files):
            start, first, rows = 0, 0, 0
            for group, count in enumerate(file.rows):
                rows += count
                if group + 1 == len(file.rows) or rows + file.rows[group + 1] > part_rows:
                    groups = tuple(range(first, group + 1))
                    which = f"{first}-{group}" if group > first else str(group)
                    label = file.path if file.dialect else f"{file.path} (row group {which})"
                    units.append(Unit(len(units), number, groups, rows, label, start))
                    start, first, rows = start + rows, group + 1, 0
        return units

    def batches(
        self, unit: Unit, columns: Sequence[str] | None = None, batch_rows: int = 1 << 17
    ) -> Iterator[pa.Table]:
        """Read a unit, at most `batch_rows` rows at a time; see `TableFile.batches`.

        Only after the last batch is it certain that the file has not changed.
        """
        names, target = self._target(columns)
        for table in self.files[unit.file].batches(unit.row_groups, target, batch_rows):
            yield table.rename_columns(names)

    def all_batches(
        self, columns: Sequence[str] | None = None, batch_rows: int = 1 << 17
    ) -> Iterator[pa.Table]:
        """Read the whole table, at most `batch_rows` rows at a time."""
        for unit in self.units(1 << 62):
            yield from self.batches(unit, columns, batch_rows)

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Read the whole table, or some columns, into memory."""
        names, target = self._target(columns)
        with ThreadPoolExecutor(8 if len(self.files) > 1 else 1) as pool:
            tables = list(pool.map(lambda file: file.read(target), self.files))
        whole = tables[0] if len(tables) == 1 else pa.concat_tables(tables)
        return whole.rename_columns(names) if names else whole

    def _target(self, columns: Sequence[str] | None) -> tuple[list[str], pa.Schema]:
        """Return columns, all by default, and the schema with their names in the files."""
        names = list(self.schema.names if columns is None else columns)
        fields = [self.schema.field(n).with_name(self.stored.get(n, n)) for n in names]
        return names, pa.schema(fields)


def open_source(path: str | os.PathLike[str], name: str | None = None) -> Source:
    """Find the files of a table and read their footers.

    A path is a Parquet or CSV file, a directory, or a URI of one of these; see `find_files`.
    """
    label = describe(path, name)
    found, options = table_files.reading_options(path)
    filesystem, base, infos = table_files.find_files(found, label)
    with ThreadPoolExecutor(8) as pool:
        opened = [pool.submit(TableFile.open, filesystem, base, i.path, options) for i in infos]
        files = [opening.result() for opening in opened]
    schema = files[0].schema.remove_metadata()
    for file in files[1:]:
        schema = _shared(schema, file)
    # A column stored in the files wins over a directory of the same name, as in Spark.
    pairs = [(key, value) for file in files for key, value in file.partition]
    for key in dict.fromkeys(key for key, _ in pairs if key not in schema.names):
        kind = table_files.partition_type(value for own, value in pairs if own == key)
        schema = schema.append(pa.field(key, kind))
    return Source(os.fspath(path), tuple(files), schema)


def _shared(schema: pa.Schema, file: TableFile) -> pa.Schema:
    """Add the columns of a file to those of the files before it."""
    if schema.equals(file.schema):
        return schema
    remedy = "unlike the files before it. Write all files with the same column types."
    found = file.schema.names
    if any((name in schema.names) != (name in found) for name in ID_COLUMNS.values()):
        # Other columns may be null in some files, ids may not.
        raise InputError(f"{file.path}: columns {found}, expected {schema.names}, {remedy}")
    for own in file.schema.remove_metadata():
        place = schema.get_field_index(own.name)
        if place < 0:
            schema = schema.append(own)
            continue
        kind = before = schema.field(place).type
        if before != own.type:
            both = [pa.schema([(own.name, _value_type(t))]) for t in (before, own.type)]
            try:
                kind = pa.unify_schemas(both, promote_options="permissive").field(0).type
            except pa.ArrowException:
                if file.dialect is None:
                    raise InputError(
                        f"{file.path}: column {own.name!r} is {own.type}, expected {before}, "
                        f"{remedy}"
                    ) from None
                kind = pa.string()
        schema = schema.set(place, pa.field(own.name, kind))
    return schema


def _value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _stamp(filesystem: fs.FileSystem, path: str) -> tuple[int, str, int | None]:
    info, number = filesystem.get_file_info(path), None
    if isinstance(filesystem, fs.LocalFileSystem) and info.type != fs.FileType.NotFound:
        number = os.stat(path).st_ino  # one that takes its place has another
    return info.size or 0, str(info.mtime_ns or ""), number


def _unreadable(path: str, is_csv: bool, size: int, error: Exception) -> InputError:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    form = "CSV" if is_csv else "Parquet"
    return InputError(
        f"{path}: cannot be read as {form} ({lines[0].rstrip('. ')}; {size:,} bytes). "
        f"The file is cut short, damaged or of another format: write it again as {form}."
    )
