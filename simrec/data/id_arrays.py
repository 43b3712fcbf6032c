"""Checking that values can be ids, and numbering them."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.memory import empty
from simrec.data.problems import bad_rows, null_mask
from simrec.errors import InputError

_BLOCK = 1 << 17
_LONG, _PIECES = 1 << 20, 2


def id_kind(type_: pa.DataType) -> str | None:
    """Say what sort of ids an Arrow type holds: "integer", "string", or None for neither."""
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    if pa.types.is_integer(type_):
        return "integer"
    if (
        pa.types.is_string(type_)
        or pa.types.is_large_string(type_)
        or pa.types.is_string_view(type_)
    ):
        return "string"
    return None


def check_ids(
    values: Any,
    column: str,
    label: str | None = None,
    *,
    table: pa.Table | None = None,
    unique: bool = False,
) -> pa.ChunkedArray:
    """Take ids in any form and refuse those that cannot be ids.

    Parameters
    ----------
    values : pyarrow.Array, pyarrow.ChunkedArray, pandas.Series, numpy.ndarray or list
        The ids.
    column, label : str
        The column's name and the table's, for error messages.
    table : pyarrow.Table, optional
        Where the error takes its example row from.
    unique : bool
        Whether each id may occur only once, as in a table of items.

    Returns
    -------
    pyarrow.ChunkedArray
        Integers or strings, or a dictionary of them; no nulls.
    """
    array = as_chunked(values, column)
    where = label or "ids"
    if not len(array) and pa.types.is_null(array.type):
        return array.cast(pa.int64())
    if pa.types.is_string_view(array.type):
        array = array.cast(pa.large_string())  # Arrow can neither sort nor take views
    if table is None:
        table = pa.table({column: array})
    if array.null_count or (pa.types.is_floating(array.type) and pc.any(pc.is_nan(array)).as_py()):
        bad = null_mask(array)
        if pa.types.is_floating(array.type):
            bad |= np.isnan(array.to_numpy())
        raise bad_rows(where, column, bad, "have no id (null or NaN)", "Drop these rows.", table)
    if id_kind(array.type) is None:
        hint = (
            "pandas turns integer columns with missing values into floats: "
            "convert with .astype('int64')."
            if pa.types.is_floating(array.type)
            else "Convert the column."
        )
        example = f", such as {array[0].as_py()!r}" if len(array) else ""
        raise InputError(
            f"{where}: column {column!r} holds {array.type} values{example}; "
            f"ids must be integers or strings. {hint}"
        )
    if pa.types.is_dictionary(array.type) and any(c.dictionary.null_count for c in array.chunks):
        # Null by way of the dictionary: seen only once the values are spelled out.
        plain = array.cast(array.type.value_type)
        return check_ids(plain, column, label, table=table, unique=unique)
    if unique:
        ids, rows = number_ids(array)
        repeated = (np.bincount(rows, minlength=len(ids)) > 1)[rows]
        if repeated.any():
            raise bad_rows(
                where,
                column,
                repeated,
                f"share their {column} with another row",
                f"Keep one row for each {column}.",
                table,
            )
    return array


def number_ids(array: pa.ChunkedArray) -> tuple[pa.Array, np.ndarray]:
    """Collect the distinct ids, ascending, and the place of every id among them.

    Parameters
    ----------
    array : pyarrow.ChunkedArray
        Ids as `check_ids` gives them.

    Returns
    -------
    ids : pyarrow.Array
        The distinct ids.
    rows : numpy.ndarray
        The place of each, int32 (int64 beyond 2**31 distinct ids).
    """
    if pa.types.is_integer(array.type) and len(array):
        span = pc.min_max(array)
        low, high = span["min"].as_py(), span["max"].as_py()
        if high - low < dense_span(len(array)):
            return _number_dense(array, low, high)
    return _number_hashed(array)


def _number_dense(array: pa.ChunkedArray, low: int, high: int) -> tuple[pa.Array, np.ndarray]:
    # Block by block: the offsets of a whole column would be its size again, twice.
    blocks = [
        chunk.slice(start, _BLOCK).to_numpy()
        for chunk in array.chunks
        for start in range(0, len(chunk), _BLOCK)
    ]
    seen = np.zeros(high - low + 1, dtype=bool)
    gaps = True
    for number, block in enumerate(blocks):
        # `take` lets other threads run meanwhile, which indexing does not; and soon there is
        # hardly an id left that was not seen before.
        offsets = id_offsets(block, low)
        new = ~seen.take(offsets)
        if new.any():
            seen[offsets[new]] = True
        if number & (number - 1) == 0 and seen.all():
            gaps = False  # an id's row is its offset
            break
    places = np.cumsum(seen, dtype=np.int32)
    places -= 1
    rows = empty(len(array), np.int32)
    start = 0
    for block in blocks:
        out = rows[start : start + len(block)]
        if gaps:
            np.take(places, id_offsets(block, low), out=out, mode="clip")
        else:
            out[:] = id_offsets(block, low)
        start += len(block)
    known = np.flatnonzero(seen).astype(blocks[0].dtype) + blocks[0].dtype.type(low)
    return pa.array(known, type=array.type), rows


def _number_hashed(array: pa.ChunkedArray) -> tuple[pa.Array, np.ndarray]:
    if not pa.types.is_dictionary(array.type):
        array = _hashed(array)
    array = array.unify_dictionaries()
    if not array.num_chunks:
        return pa.array([], type=array.type.value_type), np.empty(0, dtype=np.int32)
    # After unification the dictionary of the last chunk is that of all.
    words = array.chunk(array.num_chunks - 1).dictionary
    if pc.count_distinct(words).as_py() < len(words):  # Arrow does not forbid it
        return _number_hashed(array.cast(array.type.value_type))
    dtype = np.int32 if len(words) <= np.iinfo(np.int32).max else np.int64
    codes = [chunk.indices.to_numpy() for chunk in array.chunks]
    used = np.zeros(len(words), dtype=bool)
    for some in codes:
        used[some] = True
    order = pc.sort_indices(words).to_numpy()
    order = order[used[order]]  # a pandas category may list values that no row has
    places = np.empty(len(words), dtype=dtype)
    places[order] = np.arange(len(order), dtype=dtype)
    rows = empty(len(array), dtype)
    start = 0
    for some in codes:
        np.take(places, some, out=rows[start : start + len(some)], mode="clip")
        start += len(some)
    return words.take(pa.array(order)), rows


def _hashed(array: pa.ChunkedArray) -> pa.ChunkedArray:
    """Encode as a dictionary, in a few pieces side by side: putting together few is cheap."""
    if len(array) < _LONG:
        return array.dictionary_encode()
    step = -(-len(array) // _PIECES)
    pieces = [array.slice(start, step) for start in range(0, len(array), step)]
    with ThreadPoolExecutor(_PIECES) as pool:
        chunks = [c for part in pool.map(pc.dictionary_encode, pieces) for c in part.chunks]
    return pa.chunked_array(chunks)


def dense_span(n: int) -> int:
    """Bound the tables addressed by the id itself, so that memory stays in proportion."""
    return max(4 * n, 1 << 16)


def id_offsets(values: np.ndarray, low: int) -> np.ndarray:
    """Subtract the lowest id, to address a table by what is left."""
    if low == 0:
        return values.view(np.int64) if values.dtype == np.uint64 else values
    # In 64 bits, where what overflows (uint64) comes round to the right offset again.
    wrapped = (low + 2**63) % 2**64 - 2**63
    return np.subtract(values.astype(np.int64, copy=False), np.int64(wrapped))


def as_chunked(values: Any, name: str) -> pa.ChunkedArray:
    """Take values in any form as an Arrow column; `name` says what they are in errors."""
    if isinstance(values, pa.ChunkedArray):
        return values
    if isinstance(values, str | bytes):
        raise InputError(f"{name}: expected several ids, got the single value {values!r}.")
    if not isinstance(values, pa.Array):
        if isinstance(values, Iterable) and not hasattr(values, "__array__"):
            values = list(values)
        try:
            values = pa.array(values, from_pandas=True)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise InputError(
                f"{name}: ids must all be integers or all be strings: {error}."
            ) from error
        if isinstance(values, pa.ChunkedArray):
            return values
    return pa.chunked_array([values])
