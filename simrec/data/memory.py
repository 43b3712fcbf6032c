"""Large arrays out of memory that Arrow's pool already holds."""

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
