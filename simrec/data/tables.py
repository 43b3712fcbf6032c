"""Reading a table from whatever holds it: pandas, Arrow, Parquet and CSV files, directories."""

import importlib
import os
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeGuard, get_args

import pyarrow as pa

from simrec.data.arrays import (
    frame_columns,
    index_columns,
    is_frame,
    plain,
    read_frame,
)
from simrec.data.files import CSV_ENDINGS, PARQUET_ENDINGS, reading_options
from simrec.data.messages import describe, no_column
from simrec.data.sides import ID_COLUMNS, Columns, Side
from simrec.data.source import open_source
from simrec.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


class ArrowStream(Protocol):
    """Any frame with Arrow's PyCapsule interface: Polars, DuckDB, Arrow streams and others."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export the frame as a stream of record batches."""
        ...


TableLike: TypeAlias = "pd.DataFrame | pa.Table | ArrowStream | Row | Sequence[Row] | Path"
"""Wherever SimRec takes a table it takes any of these; a path is what `open_source` takes."""

Row: TypeAlias = Mapping[str, Any]
"""One row, such as that of one new item: `{"item_id": 7, "year": 1999, "genres": ["War"]}`."""

Path: TypeAlias = "str | os.PathLike[str]"

TableKind: TypeAlias = Literal["pandas", "arrow", "polars", "duckdb"]
"""What a table can be returned as."""

Read: TypeAlias = Callable[[Sequence[str], Sequence[str]], pa.Table]
"""Reads columns, some of them as dictionaries."""

# Streams that give no rows any more, and do not say so.
_CONSUMED: weakref.WeakSet[pa.RecordBatchReader] = weakref.WeakSet()
_NOT_A_TABLE = (
    "not a table. Give a pandas DataFrame, an Arrow table, any frame that exports Arrow streams "
    "(Polars, DuckDB), one row as a dict, or the path of a Parquet or CSV file or directory."
)


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

    Missing values of a pandas frame become nulls; in an Arrow table or a Parquet file a NaN stays a
    NaN, which is not the same as a null. In a CSV file a field that is empty or reads NA, NaN or
    null, without quotes, is null. The index of a pandas frame, also as it was saved to a file, is
    left out unless it is a column of ids (`item_id`, `user_id`) or in `columns`.

    `columns` are read in this order, all by default, and `optional` ones where the table has them.
    `rename` gives new names, which the others are: `{"asin": "item_id"}`. Strings of `dictionaries`
    in Parquet files are read as dictionaries: quicker if values occur often. `name` is the table's
    part in the call (`"items"`), for error messages.
    """
    label = describe(source, name)
    names, index, read = _open(source, name, label)
    own = _rename(names, rename or {}, optional, label)
    usual = [
        new
        for new, old in zip(own, names, strict=True)
        if old not in index or new in ID_COLUMNS.values()
    ]
    wanted = _choose(own, usual if columns is None else columns, optional, label)
    stored = [names[own.index(n)] for n in wanted]
    table = read(stored, [names[own.index(n)] for n in dictionaries if n in own])
    arrays = [plain(column) for column in table.columns]
    if not table.num_rows and not allow_empty:
        raise InputError(f"{label}: the table is empty (no rows). Give one with at least one row.")
    return pa.table(arrays, names=wanted) if wanted else table


def with_usual_ids(source: "TableLike | None", columns: Columns, side: Side) -> "TableLike | None":
    """Call the ids of a table of features as usual; it stays as it is if they are."""
    rename = columns.renaming(ID_COLUMNS[side])
    return read_table(source, name=side, rename=rename) if rename and source is not None else source


def _open(
    source: TableLike, name: str | None, label: str
) -> tuple[list[str], Collection[str], Read]:
    """Return the columns of a table, those of pandas' index, and what reads some of them."""
    if isinstance(source, str | os.PathLike):
        files = open_source(source, name)
        return files.schema.names, files.index, files.read
    if not isinstance(source, pa.Table) and not is_frame(source):
        source = _as_arrow(source, label)
    if isinstance(source, pa.Table):
        return source.column_names, index_columns(source.schema), lambda own, _: source.select(own)
    return *frame_columns(source), lambda own, _: read_frame(source, own, label)


def _as_arrow(source: Any, label: str) -> pa.Table:
    """Take record batches, streams and rows as an Arrow table."""
    rows = [source] if is_row(source) else source
    try:
        if isinstance(source, pa.RecordBatchReader):
            if source in _CONSUMED:
                raise ValueError("the stream was read before; give reader.read_all() instead")
            _CONSUMED.add(source)
        if hasattr(source, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(source).read_all()
        if hasattr(source, "__arrow_c_array__"):
            return pa.Table.from_batches([pa.record_batch(source)])
        if isinstance(rows, Sequence) and len(rows) and all(map(is_row, rows)):
            return pa.Table.from_pylist([dict(row) for row in rows])
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{label}: cannot be read as an Arrow table: {error}.") from error
    raise InputError(f"{label}: {_NOT_A_TABLE}")


def is_row(source: object) -> TypeGuard[Row]:
    """Tell whether something is one row: a mapping with a value that is no list."""
    if not isinstance(source, Mapping):
        return False
    return any(isinstance(v, str) or not hasattr(v, "__len__") for v in source.values())


def is_table(source: object) -> bool:
    """Tell whether something is a table, and not an id or several; text is a path if it ends so."""
    if isinstance(source, str):
        name = reading_options(source)[0].lower()
        return name.endswith((*PARQUET_ENDINGS, *CSV_ENDINGS, "/"))
    if isinstance(source, pa.Array | pa.ChunkedArray) or hasattr(source, "to_frame"):
        return False  # a column, which exports Arrow streams too
    if isinstance(source, Sequence) and len(source):
        return is_row(source[0])
    interfaces = ("__fspath__", "__arrow_c_stream__", "__arrow_c_array__", "columns")
    return is_row(source) or any(hasattr(source, name) for name in interfaces)


def returned(table: pa.Table, output: TableKind) -> Any:
    """Return a result as the kind of table that was asked for."""
    if output == "arrow":
        return table
    if output == "pandas":
        return table.to_pandas()
    if output not in get_args(TableKind):
        kinds = ", ".join(map(repr, get_args(TableKind)))
        raise InputError(f"output must be one of {kinds}, got {output!r}.")
    try:
        library = importlib.import_module(output)
    except ImportError as error:
        raise InputError(f"output={output!r} needs the package: pip install {output}") from error
    return library.from_arrow(table)


def _rename(
    names: list[str], rename: Mapping[str, str], optional: Sequence[str], label: str
) -> list[str]:
    for old, new in rename.items():
        if old == new or (old not in names and (new in names or new in optional)):
            continue
        if old not in names:
            raise no_column([old], names, label)
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
        raise no_column(missing, present, label)
    wanted += [column for column in optional if column in present and column not in wanted]
    twice = [column for column in wanted if list(present).count(column) > 1]
    if twice:
        raise InputError(
            f"{label}: more than one column is called {twice[0]!r}. Rename or drop one."
        )
    return wanted
