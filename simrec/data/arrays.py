"""Arrow columns and NumPy arrays: new memory, views, and types that all of SimRec understands."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


def empty(n: int, dtype: npt.DTypeLike) -> np.ndarray:
    """Make an uninitialised array in memory of Arrow's pool.

    `numpy.empty` asks the system for fresh pages, and on virtual machines the first access to
    those costs several times what filling them does. Arrow's pool hands out the pages that
    reading a file has just freed.

    Parameters
    ----------
    n : int
        Number of elements.
    dtype : numpy.dtype
        Their type.
    """
    return np.frombuffer(pa.allocate_buffer(n * np.dtype(dtype).itemsize), dtype=dtype)


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


def plain(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Decode the types that most of Arrow's functions do not take.

    Run-end encoded values are spelled out, views of strings and of lists become strings and
    lists, extension types their storage. Other columns come back as they are.
    """
    target = _plain_type(values.type)
    if target == values.type:
        return values
    chunks = [_decode(chunk, target) for chunk in values.chunks]
    return pa.chunked_array(chunks, type=target)


def _plain_type(type_: pa.DataType) -> pa.DataType:
    types = pa.types
    if isinstance(type_, pa.BaseExtensionType):
        return _plain_type(type_.storage_type)
    if types.is_run_end_encoded(type_):
        return _plain_type(type_.value_type)
    if types.is_string_view(type_):
        return pa.large_string()
    if types.is_binary_view(type_):
        return pa.large_binary()
    if types.is_list_view(type_) or types.is_large_list_view(type_):
        return pa.large_list(_plain_type(type_.value_type))
    if types.is_dictionary(type_):
        inner = _plain_type(type_.value_type)
        return type_ if inner == type_.value_type else inner
    if is_list(type_):
        inner = _plain_type(type_.value_type)
        if inner == type_.value_type:
            return type_
        if types.is_fixed_size_list(type_):
            return pa.list_(inner, type_.list_size)
        return pa.large_list(inner)
    return type_


def _decode(chunk: Any, target: pa.DataType) -> pa.Array:
    if isinstance(chunk, pa.ExtensionArray):
        chunk = chunk.storage
    if pa.types.is_run_end_encoded(chunk.type):
        chunk = pc.run_end_decode(chunk)
    if chunk.type == target:
        return chunk
    views = (pa.types.is_list_view, pa.types.is_large_list_view)
    if not any(is_view(chunk.type) for is_view in views):  # cast to wrong offsets where null
        try:
            return chunk.cast(target)
        except (pa.ArrowNotImplementedError, pa.ArrowTypeError):
            pass
    return pa.array(chunk.to_pylist(), target)


def is_list(type_: pa.DataType) -> bool:
    """Check for list types, of fixed and of varying length."""
    types = pa.types
    return types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_)
