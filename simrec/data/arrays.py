"""Arrow columns, NumPy arrays and pandas frames: views, plain types, and pandas' index."""

import contextlib
import json
import re
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from simrec.data.messages import show_row
from simrec.errors import InputError

# Names that pandas gives to an index without a name, in Parquet, in frames read from CSV, in CSV.
_UNNAMED_INDEX = re.compile(r"__index_level_\d+__|Unnamed: 0|")


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


def is_frame(source: object) -> bool:
    """Check for a pandas DataFrame without importing pandas, which takes long."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(source, pandas.DataFrame)


def frame_columns(frame: Any) -> tuple[list[str], list[str]]:
    """Return the columns of a frame, those of its index first, and which of them are index."""
    columns = [str(name) for name in frame.columns]
    levels = [str(n) for n in frame.index.names if n is not None and str(n) not in columns]
    return levels + columns, levels + [n for n in columns if _UNNAMED_INDEX.fullmatch(n)]


def read_frame(frame: Any, names: Sequence[str], label: str) -> pa.Table:
    """Take some columns of a frame, or levels of its index; missing values become nulls."""
    columns = [str(name) for name in frame.columns]
    arrays = []
    for name in names:
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
        return pa.table(arrays, names=list(names)) if arrays else pa.table({})
    except ValueError as error:
        raise InputError(f"{label}: the columns cannot be named in Arrow: {error}.") from error


def _mixed(name: str, series: Any, error: Exception, label: str) -> InputError:
    """Make the error for an object column of mixed types, with a row of the rarer one."""
    types = np.array([type(value).__name__ for value in series])
    kinds, counts = np.unique(types, return_counts=True)
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


def index_columns(schema: pa.Schema) -> set[str]:
    """Return the columns that hold pandas' index, by their names and by pandas' metadata."""
    found = {name for name in schema.names if _UNNAMED_INDEX.fullmatch(name)}
    try:
        index = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))["index_columns"]
        return found | {name for name in index if isinstance(name, str)}
    except (ValueError, KeyError, TypeError):
        return found  # another program's metadata
