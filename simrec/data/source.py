"""A table in Parquet or CSV files, of any size: one schema, read whole or piece by piece."""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyarrow import fs

from simrec.data import partitions
from simrec.data.arrays import index_columns
from simrec.data.messages import describe, no_column
from simrec.data.paths import find_files, reading_options
from simrec.data.sides import ID_COLUMNS
from simrec.data.table_file import BadFragment, TableFile
from simrec.errors import InputError


@dataclass(frozen=True)
class Unit:
    """A piece of the input that gives one part of the output: row groups of one file."""

    index: int
    file: int
    row_groups: tuple[int, ...]
    rows: int


@dataclass(frozen=True)
class Source:
    """A table in files; see `open_source`. Small, and travels to workers.

    The schema has the columns of the files, followed by the partition columns. A column that a file
    lacks is null there; numbers are as wide as the widest.
    """

    name: str
    files: tuple[TableFile, ...]  # in the order of their paths, which is the order of the rows
    schema: pa.Schema
    partition_columns: tuple[str, ...] = ()  # in the names of directories only
    index: frozenset[str] = frozenset()  # of a pandas frame
    bad: tuple[str, ...] = ()  # messages about files that are skipped
    # Names in the files, and names that were expected, by the names here; see `renamed`.
    stored: Mapping[str, str] = field(default_factory=dict)
    wanted: Mapping[str, str] = field(default_factory=dict)

    @property
    def filesystem(self) -> fs.FileSystem:
        """Where the files are."""
        return self.files[0].filesystem

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
            [os.path.abspath(f.path) if local else f.path, *f.stamp[:2], sum(f.rows)]
            for f in self.files
        ]

    def require(self, *columns: str) -> None:
        """Raise InputError unless the table has rows, and these columns."""
        if self.rows == 0:
            raise InputError(f"{self.name}: the table is empty, expected at least one row")
        missing = [self.wanted.get(c, c) for c in columns if c not in self.schema.names]
        if missing:
            raise no_column(missing, self.schema.names, self.name)

    def renamed(self, rename: Mapping[str, str]) -> "Source":
        """Call columns otherwise, `{"asin": "item_id"}`, where there is none of that name."""
        schema, stored = self.schema, {}
        for old, new in rename.items():
            if old in schema.names and new not in schema.names:
                at = schema.get_field_index(old)
                schema = schema.set(at, schema.field(at).with_name(new))
                stored[new] = old
        back = {old: new for new, old in stored.items()}
        keys = tuple(back.get(key, key) for key in self.partition_columns)
        wanted = {new: old for old, new in rename.items()}
        return replace(self, schema=schema, partition_columns=keys, stored=stored, wanted=wanted)

    def units(self, part_rows: int) -> list[Unit]:
        """Divide the input into units of about `part_rows` rows, whole row groups each.

        They depend on the files alone: a job that was killed finds the same ones again.
        """
        units: list[Unit] = []
        for number, file in enumerate(self.files):
            first, rows = 0, 0
            for group, count in enumerate(file.rows):
                rows += count
                if group + 1 == len(file.rows) or rows + file.rows[group + 1] > part_rows:
                    groups = tuple(range(first, group + 1))
                    units.append(Unit(len(units), number, groups, rows))
                    first, rows = group + 1, 0
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

    def read(
        self, columns: Sequence[str] | None = None, dictionaries: Sequence[str] = ()
    ) -> pa.Table:
        """Read the whole table, or some columns, into memory; strings in some as dictionaries."""
        names, target = self._target(columns)
        for place, name in enumerate(names):
            if name in dictionaries and pa.types.is_string(target.field(place).type):
                kind = pa.dictionary(pa.int32(), pa.string())
                target = target.set(place, target.field(place).with_type(kind))
        with ThreadPoolExecutor(8 if len(self.files) > 1 else 1) as pool:
            tables = list(pool.map(lambda file: file.read(target), self.files))
        whole = tables[0] if len(tables) == 1 else pa.concat_tables(tables)
        return whole.rename_columns(names) if names else whole

    def _target(self, columns: Sequence[str] | None) -> tuple[list[str], pa.Schema]:
        """Return columns, all by default, and the schema with their names in the files."""
        names = list(self.schema.names if columns is None else columns)
        fields = [self.schema.field(n).with_name(self.stored.get(n, n)) for n in names]
        return names, pa.schema(fields)


def open_source(
    path: str | os.PathLike[str], name: str | None = None, skip_bad: bool | None = None
) -> Source:
    """Find the files of a table and read their footers.

    A path is a Parquet or CSV file, a directory, a glob, or a URI of one of these; see `find_files`
    and `reading_options`. With `skip_bad`, files that cannot be read or do not fit the others are
    left out; None where nobody can choose that.
    """
    label = describe(path, name)
    found, options = reading_options(path)
    where = find_files(found, label)
    files: list[TableFile] = []
    schema, bad = pa.schema([]), []
    with ThreadPoolExecutor(8) as pool:
        waiting = [
            pool.submit(TableFile.open, where.filesystem, where.base, info.path, options)
            for info in where.files
        ]
        for opening in waiting:
            try:
                file = opening.result()
                schema = _shared(schema, file) if files else file.schema.remove_metadata()
                files.append(file)
            except BadFragment as error:
                if not skip_bad:
                    hint = " Or leave it out with --on-bad-fragment skip."
                    raise InputError(f"{error}{hint if skip_bad is False else ''}") from error
                bad.append(str(error))
    if not files:
        raise InputError("\n  ".join([f"{label}: no readable Parquet or CSV file", *bad]))
    index = frozenset().union(*(index_columns(file.schema) for file in files))
    # A column stored in the files wins over a directory of the same name, as in Spark.
    pairs = [(key, value) for file in files for key, value in file.partition]
    keys = tuple(dict.fromkeys(key for key, _ in pairs if key not in schema.names))
    for key in keys:
        kind = partitions.value_type(value for own, value in pairs if own == key)
        schema = schema.append(pa.field(key, kind))
    return Source(os.fspath(path), tuple(files), schema, keys, index, tuple(bad))


def _shared(schema: pa.Schema, file: TableFile) -> pa.Schema:
    """Add the columns of a file to those of the files before it."""
    if schema.equals(file.schema):
        return schema
    remedy = "unlike the files before it. Write all files with the same column types."
    ids = [n for n in ID_COLUMNS.values() if (n in schema.names) != (n in file.schema.names)]
    if ids:  # other columns may be null in some files, ids may not
        found = file.schema.names
        raise BadFragment(f"{file.path}: columns {found}, expected {schema.names}, {remedy}")
    for own in file.schema.remove_metadata():
        place = schema.get_field_index(own.name)
        if place < 0:
            schema = schema.append(own)
            continue
        before = schema.field(place).type
        kinds = [t.value_type if pa.types.is_dictionary(t) else t for t in (before, own.type)]
        both = [pa.schema([(own.name, kind)]) for kind in kinds]
        try:
            kind = before
            if before != own.type:
                kind = pa.unify_schemas(both, promote_options="permissive").field(0).type
        except pa.ArrowException:
            if not file.is_csv:
                raise BadFragment(
                    f"{file.path}: column {own.name!r} is {own.type}, expected {before}, {remedy}"
                ) from None
            kind = pa.string()
        schema = schema.set(place, pa.field(own.name, kind))
    return schema
