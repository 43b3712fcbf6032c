"""NumPy arrays in memory of Arrow's: new ones, and views of what is there."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def empty(n: int, dtype: npt.DTypeLike) -> np.ndarray:
    """Make an uninitialised array in memory of Arrow's pool.

    `numpy.empty` asks the system for fresh pages, and on virtual machines touching those for the
    first time costs several times what filling them does. Arrow's pool hands out the pages that
    reading a file has just left behind.

    Parameters
    ----------
    n : int
        Number of elements.
    dtype : numpy.dtype
        Their type.
    """
    return np.frombuffer(pa.allocate_buffer(n * np.dtype(dtype).itemsize), dtype=dtype)


def as_numpy(array: pa.Array) -> np.ndarray:
    """View numbers without nulls as NumPy does.

    As `to_numpy`, which would import pandas: a third of a second that a small job would notice.
    """
    return np.from_dlpack(array)


def as_arrow(array: np.ndarray) -> pa.Array:
    """View numbers as Arrow does; `pa.array` would import pandas as well."""
    array = np.ascontiguousarray(array)
    type_ = pa.from_numpy_dtype(array.dtype)
    return pa.Array.from_buffers(type_, len(array), [None, pa.py_buffer(array)])
