"""Reading a table from whatever holds it: pandas, Arrow, Parquet and CSV files, directories.

And views of Arrow columns as NumPy arrays and back, in plain types.
"""

import contextlib
import importlib
import os
import re
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeGuard, get_args

import numpy as np
import pyarrow as pa

from simrec.data.files import CSV_ENDINGS, PARQUET_ENDINGS, reading_options
from simrec.data.messages import describe, no_column
from simrec.data.sides import ID_COLUMNS, Columns, Side
from simrec.data.source import open_source
from simrec.errors import InputError

Row: TypeAlias = Mapping[str, Any]
"""One row, such as that of one new item: `{"item_id": 7, "year": 1999, "genres": ["War"]}`."""


class ArrowStream(Protocol):
    """Any frame with Arrow's PyCapsule interface: pandas, Polars, DuckDB and others."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export the frame as a stream of record batches."""
        ...


TableLike: TypeAlias = pa.Table | ArrowStream | Row | Sequence[Row] | str | os.PathLike[str]
"""Wherever SimRec takes a table it takes any of these; a path is what `open_source` takes."""

TableKind: TypeAlias = Literal["pandas", "arrow", "polars", "duckdb"]
"""What a table can be returned as."""

NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
"""A number in a string, as a regular expression."""

Read: TypeAlias = Callable[[Sequence[str]], pa.Table]
"""Reads columns."""

# Names that pandas gives to an index without a name, in Parquet, in frames read from CSV, in CSV.
_UNNAMED_INDEX = re.compile(r"__index_level_\d+__|Unnamed: 0|")
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
    name: str | None = None,
    allow_empty: bool = False,
) -> pa.Table:
    """Read a table, or only some of its columns.

    Missing values of a pandas frame become nulls; in an Arrow table or a Parquet file a NaN stays a
    NaN, which is not the same as a null. In a CSV file a field that is empty or reads NA, NaN or
    null, without quotes, is null. The index of a pandas frame is a column if it has a name; without
    one, also as it was saved to a file, it is left out.

    `columns` are read in this order, all by default, and `optional` ones where the table has them.
    `rename` gives new names, which the others are: `{"asin": "item_id"}`. `name` is the table's
    part in the call (`"items"`), for error messages.
    """
    label = describe(source, name)
    names, read = _open(source, name, label)
    own = _rename(names, rename or {}, optional, label)
    usual = [n for n in own if not _UNNAMED_INDEX.fullmatch(n)]
    wanted = _choose(own, usual if columns is None else columns, optional, label)
    stored = [names[own.index(n)] for n in wanted]
    table = read(stored)
    arrays = [plain(column) for column in table.columns]
    if not table.num_rows and not allow_empty:
        raise InputError(f"{label}: the table is empty (no rows). Give one with at least one row.")
    return pa.table(arrays, names=wanted) if wanted else table


def with_usual_ids(source: "TableLike | None", columns: Columns, side: Side) -> "TableLike | None":
    """Call the ids of a table of features as usual; it stays as it is if they are."""
    rename = columns.renaming(ID_COLUMNS[side])
    return read_table(source, name=side, rename=rename) if rename and source is not None else source


def _open(source: TableLike, name: str | None, label: str) -> tuple[list[str], Read]:
    """Return the columns of a table, and what reads some of them."""
    if isinstance(source, str | os.PathLike):
        files = open_source(source, name)
        return files.schema.names, files.read
    pandas = sys.modules.get("pandas")  # importing it takes long
    if pandas is not None and isinstance(source, pandas.DataFrame):
        return _open_frame(source, label)
    table = source if isinstance(source, pa.Table) else _as_arrow(source, label)
    return table.column_names, table.select


def _open_frame(frame: Any, label: str) -> tuple[list[str], Read]:
    levels = [n for n in frame.index.names if n is not None and n not in frame.columns]
    frame = frame.reset_index(levels) if levels else frame
    names = [str(name) for name in frame.columns]

    def read(own: Sequence[str]) -> pa.Table:
        arrays = [_from_pandas(frame.iloc[:, names.index(n)], n, label) for n in own]
        try:
            return pa.table(arrays, names=list(own)) if arrays else pa.table({})
        except ValueError as error:
            raise InputError(f"{label}: the columns cannot be named in Arrow: {error}.") from error

    return names, read


def _from_pandas(series: Any, name: str, label: str) -> pa.Array:
    """Take a column of a frame; missing values become nulls."""
    try:
        return pa.Array.from_pandas(series)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        types = np.array([type(value).__name__ for value in series])
        kinds, counts = np.unique(types, return_counts=True)
        row = int(np.argmax(types == kinds[np.argmin(counts)]))
        mix = ", ".join(f"{count:,} {kind}" for kind, count in zip(kinds, counts, strict=True))
        raise InputError(
            f"{label}: column {name!r} mixes types ({mix}), or holds what Arrow has no type for; "
            f"row {row:,}: {name}={series.iloc[row]!r:.60}. Give the column one type, for example "
            f"frame[{name!r}] = frame[{name!r}].astype(str)."
        ) from error


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


def as_numpy(array: pa.Array) -> np.ndarray:
    """View numbers without nulls as a NumPy array.

    Does what `to_numpy` does, which would import pandas: a third of a second in a small job.
    """
    return np.from_dlpack(array)


def as_arrow(array: np.ndarray) -> pa.Array:
    """View numbers as an Arrow array; `pa.array` would import pandas as well."""
    array = np.ascontiguousarray(array)
    type_ = pa.from_numpy_dtype(array.dtype)
    return pa.Array.from_buffers(type_, len(array), [None, pa.py_buffer(array)])


def null_mask(values: pa.ChunkedArray) -> np.ndarray:
    """Check for each row whether it is null."""
    return np.asarray(values.is_null().to_numpy(), dtype=bool)


def is_list(type_: pa.DataType) -> bool:
    """Check for list types, of fixed and of varying length."""
    types = pa.types
    return types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_)


def plain(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Decode the types that most of Arrow's functions do not take.

    Run-end encoded values are spelled out, views of strings and of lists become strings and
    lists, extension types their storage. Other columns come back as they are.
    """
    target = _plain_type(values.type)
    if target == values.type:
        return values
    if isinstance(values.type, pa.BaseExtensionType):
        storage = [chunk.storage for chunk in values.chunks]
        return plain(pa.chunked_array(storage, values.type.storage_type))
    views = pa.types.is_list_view(values.type) or pa.types.is_large_list_view(values.type)
    if not views:  # which would be cast to wrong offsets where they are null
        with contextlib.suppress(pa.ArrowNotImplementedError, pa.ArrowTypeError):
            return values.cast(target)
    return pa.chunked_array([pa.array(c.to_pylist(), target) for c in values.chunks], target)


def _plain_type(type_: pa.DataType) -> pa.DataType:
    types = pa.types
    if isinstance(type_, pa.BaseExtensionType):
        return _plain_type(type_.storage_type)
    if types.is_string_view(type_) or types.is_binary_view(type_):
        return pa.large_string() if types.is_string_view(type_) else pa.large_binary()
    if types.is_run_end_encoded(type_):
        return _plain_type(type_.value_type)
    views = types.is_list_view(type_) or types.is_large_list_view(type_)
    if not (views or types.is_dictionary(type_) or is_list(type_)):
        return type_
    inner = _plain_type(type_.value_type)
    if inner == type_.value_type and not views:
        return type_
    if types.is_dictionary(type_):
        return inner
    fixed = types.is_fixed_size_list(type_)
    return pa.list_(inner, type_.list_size) if fixed else pa.large_list(inner)
