"""Reading a table from whatever holds it: pandas, Arrow, Parquet and CSV files, directories."""

import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from simrec.data.arrays import plain
from simrec.data.messages import show_row
from simrec.data.paths import (
    CSV_ENDINGS,
    NULL_PARTITION,
    find_files,
    partition_of,
    partition_type,
)
from simrec.data.sides import ID_COLUMNS
from simrec.errors import InputError, listing, nearest

if TYPE_CHECKING:
    import pandas as pd

TableLike: TypeAlias = "pd.DataFrame | pa.Table | str | os.PathLike[str]"
"""Wherever SimRec takes a table it takes any of these; a path is what `find_files` takes."""

# Names that pandas gives to an index without a name, in Parquet, in frames read from CSV, in CSV.
_UNNAMED_INDEX = re.compile(r"__index_level_\d+__|Unnamed: 0|")
_NOT_A_TABLE = (
    "not a table. Give a pandas DataFrame, an Arrow table, or the path of a Parquet or CSV file "
    "or directory."
)


def describe(source: object, name: str | None = None) -> str:
    """Name a table for error messages.

    Parameters
    ----------
    source : table-like
        A pandas DataFrame, an Arrow table, or a path.
    name : str, optional
        The table's part in the call, such as `"items"`.

    Returns
    -------
    str
        For example `ratings.parquet`, or `items (DataFrame)`.
    """
    if name and name.endswith(")"):
        return name  # it was described before
    if isinstance(source, str | os.PathLike):
        where = os.fspath(source)
    elif isinstance(source, pa.Table | pa.RecordBatch):
        where = "Arrow table"
    else:
        where = type(source).__name__
    return f"{name} ({where})" if name else str(where)


def read_table(
    source: TableLike,
    columns: Sequence[str] | None = None,
    *,
    optional: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    dictionaries: Sequence[str] = (),
    name: str | None = None,
    allow_empty: bool = False,
) -> pa.Table:
    """Read a table, or only some of its columns.

    Missing values of a pandas frame (NaN, None, NaT) become Arrow nulls; in an Arrow table or a
    Parquet file a NaN stays a NaN, which is not the same as a null. In a CSV file a field that is
    empty or reads NA, NaN or null, without quotes, is null.

    The index of a pandas frame, also as it was saved to a file, is left out unless it is a column
    of ids (`item_id`, `user_id`) or in `columns`.

    Parameters
    ----------
    source : pandas.DataFrame, pyarrow.Table, str or path
        The table, or a Parquet or CSV file (`.csv`, `.csv.gz`), a directory of them, a glob or a
        URI; see `find_files`. Hive partitions, such as `year=2024/part-0.parquet`, become
        columns. Integer widths that differ between files are widened, and a column that some file
        lacks is null there.
    columns : sequence of str, optional
        The columns to read, in this order. All of them by default.
    optional : sequence of str
        Columns to read as well where the table has them. Used together with `columns`.
    rename : mapping of str to str, optional
        New names for columns, such as `{"asin": "item_id"}`; `columns` and `optional` are new
        names. A column that the table has under its new name already needs no renaming.
    dictionaries : sequence of str
        Columns that are read as dictionaries where a Parquet file holds strings in them: quicker
        if values occur often.
    name : str, optional
        The table's part in the call (`"items"`), for error messages.
    allow_empty : bool
        Whether a table without rows is fine.

    Returns
    -------
    pyarrow.Table

    Raises
    ------
    InputError
        If the path does not exist, a file cannot be read (the message names it), a column is
        missing or occurs twice, or there are no rows.
    """
    label = describe(source, name)
    opened = _open(source, label)
    own = _rename(opened.names, rename or {}, label)
    index = {new for new, old in zip(own, opened.names, strict=True) if old in opened.index_columns}
    usual = [n for n in own if n not in index or n in ID_COLUMNS.values()]
    wanted = _choose(own, usual if columns is None else columns, optional, label)
    stored = [opened.names[own.index(n)] for n in wanted]
    table = opened.read(stored, {opened.names[own.index(n)] for n in dictionaries if n in own})
    arrays = [plain(column) for column in table.columns]
    if not table.num_rows and not allow_empty:
        raise InputError(f"{label}: the table is empty (no rows). Give one with at least one row.")
    return pa.table(arrays, names=wanted) if wanted else table


class _Opened(NamedTuple):
    """A table that was not read yet: columns, those of pandas' index, and how to read some.

    Read by `read(columns, dictionaries)`, in the order of the columns.
    """

    names: list[str]
    index_columns: set[str]
    read: Callable[[list[str], set[str]], pa.Table]


def _open(source: TableLike, label: str) -> _Opened:
    if isinstance(source, str | os.PathLike):
        return _open_files(source, label)
    if isinstance(source, pa.RecordBatch):
        source = pa.Table.from_batches([source])
    if isinstance(source, pa.Table):
        for name, ids in _range_ids(source.schema).items():
            if len(ids) == len(source):
                source = source.append_column(name, _range_array(ids))
        names = source.column_names
        return _Opened(names, _index_columns(source.schema), lambda own, _: source.select(own))
    if is_frame(source):
        return _open_frame(source, label)
    raise InputError(f"{label}: {_NOT_A_TABLE}")


def _noted_index(schema: pa.Schema) -> list[Any]:
    """Return what pandas noted of the index: names of columns, or dictionaries of ranges."""
    try:
        return list(json.loads((schema.metadata or {}).get(b"pandas", b"{}"))["index_columns"])
    except (ValueError, KeyError, TypeError):
        return []  # another program's note


def _index_columns(schema: pa.Schema) -> set[str]:
    """Return the columns that hold pandas' index, by their names and by what pandas noted."""
    found = {name for name in schema.names if _UNNAMED_INDEX.fullmatch(name)}
    return found | {name for name in _noted_index(schema) if isinstance(name, str)}


def _range_ids(schema: pa.Schema) -> dict[str, range]:
    """Return columns of ids that pandas noted as a range and did not store.

    An index of consecutive numbers is written as its start, stop and step alone.
    """
    found = {}
    for noted in _noted_index(schema):
        if isinstance(noted, dict) and noted.get("name") in ID_COLUMNS.values():
            name = noted["name"]
            limits: list[Any] = [noted.get(key) for key in ("start", "stop", "step")]
            whole = all(isinstance(n, int) and abs(n) < 1 << 62 for n in limits)
            if name not in schema.names and whole and limits[2]:
                found[name] = range(*limits)
    return found


def _range_array(ids: range) -> pa.Array:
    return pa.array(np.arange(ids.start, ids.stop, ids.step, dtype=np.int64))


def _rename(names: list[str], rename: Mapping[str, str], label: str) -> list[str]:
    for old, new in rename.items():
        if old == new or (new in names and old not in names):
            continue
        if old not in names:
            raise _no_column([old], names, label)
        if new in names:
            raise InputError(
                f"{label}: column {old!r} is to be used as {new!r}, but there is a column of that "
                "name, too. Drop one of them."
            )
        names = [new if name == old else name for name in names]
    return names


def _choose(
    present: Sequence[str], columns: Sequence[str], optional: Sequence[str], label: str
) -> list[str]:
    wanted = list(dict.fromkeys(columns))
    missing = [column for column in wanted if column not in present]
    if missing:
        raise _no_column(missing, present, label)
    wanted += [column for column in optional if column in present and column not in wanted]
    twice = [column for column in wanted if list(present).count(column) > 1]
    if twice:
        raise InputError(
            f"{label}: more than one column is called {twice[0]!r}. Rename or drop one."
        )
    return wanted


def _no_column(missing: Sequence[str], present: Sequence[str], label: str) -> InputError:
    hints = "".join(dict.fromkeys(nearest(column, present) for column in missing))
    return InputError(
        f"{label}: no column {' and no column '.join(map(repr, missing))}.{hints} "
        f"The columns are: {listing(present)}."
    )


# --- files ---


class _File(NamedTuple):
    path: str
    filesystem: fs.FileSystem
    schema: pa.Schema
    partition: dict[str, str]
    rows: pa.Table | None  # of a CSV file, whose schema is known only once it is read
    ranges: dict[str, range]  # ids that are in the schema and not in the file


def _open_files(path: str | os.PathLike[str], label: str) -> _Opened:
    where = find_files(path, label)
    one_file = len(where.files) == 1 and where.files[0].path == os.fspath(path)
    with ThreadPoolExecutor(8) as pool:
        files = list(
            pool.map(
                lambda info: _open_file(
                    info.path,
                    where.filesystem,
                    {} if one_file else partition_of(where.base, info.path),
                ),
                where.files,
            )
        )
    shared, partitions = _unify(files, label), _partition_fields(files)
    # A column stored in the files wins over a directory of the same name, as in Spark.
    schema = pa.schema(
        [*shared, *(field for field in partitions if field.name not in shared.names)]
    )
    index: set[str] = set().union(*(_index_columns(file.schema) for file in files))

    def read(own: list[str], dictionaries: set[str]) -> pa.Table:
        target = pa.schema([_read_as(schema.field(n), n in dictionaries) for n in own])
        with ThreadPoolExecutor(8 if len(files) > 1 else 1) as pool:
            tables = list(pool.map(lambda file: _read_file(file, target), files))
        return tables[0] if len(tables) == 1 else pa.concat_tables(tables)

    return _Opened(schema.names, index, read)


def _open_file(path: str, filesystem: fs.FileSystem, partition: dict[str, str]) -> _File:
    if path.lower().endswith(CSV_ENDINGS):
        from simrec.data.csv_files import read_csv

        try:
            rows = read_csv(path, filesystem)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _unreadable(path, filesystem, error, "CSV") from error
        return _File(path, filesystem, rows.schema, partition, rows, {})
    try:
        footer = pq.read_metadata(path, filesystem=filesystem)
        schema = footer.schema.to_arrow_schema()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _unreadable(path, filesystem, error) from error
    ranges = {n: ids for n, ids in _range_ids(schema).items() if len(ids) == footer.num_rows}
    for name in ranges:
        schema = schema.append(pa.field(name, pa.int64()))
    return _File(path, filesystem, schema, partition, None, ranges)


def _unify(files: list[_File], label: str) -> pa.Schema:
    shared = files[0].schema.remove_metadata()
    for file in files[1:]:
        try:
            schemas = [shared, file.schema.remove_metadata()]
            shared = pa.unify_schemas(schemas, promote_options="permissive")
        except pa.ArrowException as error:
            raise InputError(
                f"{label}: {file.path} does not fit the files before it: {error}. "
                "Write all parts with the same column types."
            ) from error
    return shared


def _partition_fields(files: list[_File]) -> list[pa.Field]:
    names = dict.fromkeys(name for file in files for name in file.partition)
    return [
        pa.field(n, partition_type([f.partition[n] for f in files if n in f.partition]))
        for n in names
    ]


def _read_as(field: pa.Field, dictionary: bool) -> pa.Field:
    if dictionary and pa.types.is_string(field.type):
        return field.with_type(pa.dictionary(pa.int32(), pa.string()))
    return field


def _read_file(file: _File, target: pa.Schema) -> pa.Table:
    """Read the columns of a schema from a file: widened, from the partition, or null."""
    stored = [n for n in target.names if n in file.schema.names and n not in file.ranges]
    try:
        if file.rows is not None:
            table = file.rows.select(stored)
        else:
            # In one piece per column, which spares NumPy a copy of every column.
            with pq.ParquetFile(
                file.path,
                filesystem=file.filesystem,
                pre_buffer=True,
                read_dictionary=[n for n in stored if pa.types.is_dictionary(target.field(n).type)],
            ) as parquet:
                table = parquet.read(columns=stored)
        arrays = [
            table.column(field.name).cast(field.type)
            if field.name in stored
            else _range_array(file.ranges[field.name]).cast(field.type)
            if field.name in file.ranges
            else _repeat(file.partition.get(field.name), field.type, table.num_rows)
            for field in target
        ]
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _unreadable(file.path, file.filesystem, error) from error
    return pa.table(arrays, schema=target) if arrays else table


def _repeat(value: str | None, type_: pa.DataType, n: int) -> pa.Array:
    if value is None or value == NULL_PARTITION:
        return pa.nulls(n, type_)
    return pa.repeat(pa.scalar(value, pa.string()).cast(type_), n)


def _unreadable(
    file: str, filesystem: fs.FileSystem, error: Exception, form: str = "Parquet"
) -> InputError:
    size = filesystem.get_file_info(file).size or 0
    return InputError(
        f"{file}: cannot be read as {form} ({size:,} bytes; {str(error).rstrip('. ')}). "
        f"The file is cut short, damaged or of another format: write it again as {form}."
    )


# --- pandas ---


def is_frame(source: object) -> bool:
    """Check for a pandas DataFrame without importing pandas, which takes long."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(source, pandas.DataFrame)


def _open_frame(frame: Any, label: str) -> _Opened:
    columns = [str(name) for name in frame.columns]
    levels = [str(n) for n in frame.index.names if n is not None and str(n) not in columns]
    index = {*levels, *(name for name in columns if _UNNAMED_INDEX.fullmatch(name))}

    def read(own: list[str], _: set[str]) -> pa.Table:
        arrays = []
        for name in own:
            if name in columns:
                series = frame.iloc[:, columns.index(name)]
            else:
                place = [str(n) for n in frame.index.names].index(name)
                series = frame.index.get_level_values(place).to_series()
            try:
                arrays.append(pa.Array.from_pandas(series))
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                raise _mixed(name, series, error, label) from error
        try:
            return pa.table(arrays, names=own) if own else pa.table({})
        except ValueError as error:
            raise InputError(f"{label}: the columns cannot be named in Arrow: {error}.") from error

    return _Opened(levels + columns, index, read)


def _mixed(name: str, series: Any, error: Exception, label: str) -> InputError:
    """Make the error for an object column of mixed types, with a row of the rarer one."""
    types = np.array([type(value).__name__ for value in series], dtype=object)
    kinds, counts = np.unique(types.astype(str), return_counts=True)
    if len(kinds) < 2:
        return InputError(f"{label}: column {name!r} cannot be converted to Arrow: {error}.")
    rare = kinds[np.argmin(counts)]
    row = int(np.argmax(types == rare))
    mix = ", ".join(f"{count:,} {kind}" for kind, count in zip(kinds, counts, strict=True))
    try:
        example = f": {show_row(pa.Table.from_pylist([{name: series.iloc[row]}]), 0)}"
    except (pa.ArrowException, ValueError, OverflowError):
        example = ""
    return InputError(
        f"{label}: column {name!r} mixes types ({mix}); the first {rare} is in row {row:,}"
        f"{example}. Give the column one type, for example "
        f"frame[{name!r}] = frame[{name!r}].astype(str)."
    )
