"""Columns of ids, integers or strings, in any form: checked and as Arrow."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.messages import bad_rows
from simrec.data.tables import null_mask, plain
from simrec.errors import InputError


def id_kind(type_: pa.DataType) -> str | None:
    """Return what ids an Arrow type holds: "integer", "string", or None for neither."""
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    if pa.types.is_integer(type_):
        return "integer"
    strings = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return "string" if any(is_string(type_) for is_string in strings) else None


def whole_numbers(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Read strings such as "7" or "007" as int64; null where they are no whole numbers."""
    if pa.types.is_dictionary(texts.type):
        texts = texts.cast(texts.type.value_type)
    number = pc.match_substring_regex(texts, "^-?[0-9]{1,18}$")
    return pc.if_else(number, texts, pa.scalar(None, texts.type)).cast(pa.int64())


def check_ids(
    values: Any, column: str, label: str | None = None, *, table: pa.Table | None = None
) -> pa.ChunkedArray:
    """Take ids in any form and refuse those that cannot be ids.

    Returns integers or strings, or a dictionary of them. `column`, `label` (of the table) and
    `table` (for an example row) are for error messages.
    """
    array = plain(as_chunked(values, column))
    where = label or "ids"
    if not len(array) and pa.types.is_null(array.type):
        return array.cast(pa.int64())
    if table is None:
        table = pa.table({column: array})
    floats = pa.types.is_floating(array.type)
    bad = null_mask(array) if array.null_count else np.zeros(0, bool)
    if floats and len(array):
        bad = np.isnan(array.to_numpy())  # null is NaN there, too
    if bad.any():
        raise bad_rows(where, column, bad, "have no id (null or NaN)", "Drop these rows.", table)
    if id_kind(array.type) is None:
        hint = "Convert the column."
        if floats:
            hint = "pandas turns integer columns with missing values into floats: "
            hint += "convert with .astype('int64')."
        example = f", such as {array[0].as_py()!r}" if len(array) else ""
        raise InputError(
            f"{where}: column {column!r} holds {array.type} values{example}; "
            f"ids must be integers or strings. {hint}"
        )
    if pa.types.is_dictionary(array.type) and any(c.dictionary.null_count for c in array.chunks):
        # Null by way of the dictionary: seen only once the values are spelled out.
        spelled = array.cast(array.type.value_type)
        return check_ids(spelled, column, label, table=table)
    return array


def one_or_several(given: Any, name: str) -> pa.ChunkedArray:
    """Take one id, or several in any form, as an Arrow column."""
    one = isinstance(given, str | bytes | pa.Scalar) or not isinstance(given, Iterable)
    values = as_chunked([given] if one else given, name)
    if not len(values) or not pa.types.is_null(values.type):
        return values
    raise InputError(f"{name}: expected an id or several, got {given!r}.")


def as_chunked(values: Any, name: str) -> pa.ChunkedArray:
    """Take values in any form as an Arrow column; `name` says what they are in errors."""
    if isinstance(values, str | bytes):
        raise InputError(f"{name}: expected several ids, got the single value {values!r}.")
    if not isinstance(values, pa.Array | pa.ChunkedArray):
        if isinstance(values, Iterable) and not hasattr(values, "__array__"):
            values = list(values)
        if isinstance(values, np.ndarray) and values.ndim != 1:
            raise InputError(f"{name}: expected one row of ids, got an array of {values.shape}.")
        try:
            try:
                values = pa.array(values, from_pandas=True)
            except OverflowError:  # integers beyond int64
                values = pa.array(values, pa.uint64())
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise InputError(
                f"{name}: ids must all be integers or all be strings: {error}."
            ) from error
    return values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])


def one_piece(values: pa.ChunkedArray) -> pa.Array:
    """Put ids together in one array, dictionaries spelled out."""
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if pa.types.is_string(values.type) and values.nbytes > np.iinfo(np.int32).max:
        values = values.cast(pa.large_string())  # 32-bit offsets cannot hold them in one piece
    flat = values.combine_chunks()
    return flat.combine_chunks() if isinstance(flat, pa.ChunkedArray) else flat


def number_ids(array: pa.ChunkedArray) -> tuple[pa.Array, np.ndarray]:
    """Collect the distinct ids of `check_ids`, ascending, and the place of each value among them.

    Places are int32 (int64 beyond 2**31 distinct ids).
    """
    if not pa.types.is_dictionary(array.type):
        array = array.dictionary_encode()
    array = array.unify_dictionaries()
    if not array.num_chunks:
        return pa.array([], type=array.type.value_type), np.empty(0, dtype=np.int32)
    # After unification the dictionary of the last chunk is that of all.
    words = array.chunk(array.num_chunks - 1).dictionary
    if pc.count_distinct(words).as_py() < len(words):  # Arrow does not forbid it
        return number_ids(array.cast(array.type.value_type))
    dtype = np.int32 if len(words) <= np.iinfo(np.int32).max else np.int64
    codes = [chunk.indices.to_numpy() for chunk in array.chunks]
    used = np.zeros(len(words), dtype=bool)
    for some in codes:
        used[some] = True
    order = pc.sort_indices(words).to_numpy()
    order = order[used[order]]  # a pandas category may list values that no row has
    places = np.empty(len(words), dtype=dtype)
    places[order] = np.arange(len(order), dtype=dtype)
    return words.take(pa.array(order)), np.concatenate([places.take(some) for some in codes])
