"""Arrays that live in mapped files: their pages can be given back, and are read when needed."""

import mmap
from typing import Any

import numpy as np


def is_mapped(array: np.ndarray) -> bool:
    """Whether an array lives in a file that `Scratch` has made."""
    return _file_of(array) is not None


def release(*arrays: np.ndarray) -> None:
    """Give back the pages of arrays, or parts of them, that live in files; they stay readable."""
    for array in arrays:
        mapped = _file_of(array)
        if mapped is None or not array.size:
            continue
        start = np.frombuffer(mapped, np.uint8).__array_interface__["data"][0]
        low, high = np.lib.array_utils.byte_bounds(array)
        # Whole pages; one that is shared with neighbours is read again when it is needed.
        first = (low - start) // mmap.PAGESIZE * mmap.PAGESIZE
        mapped.madvise(mmap.MADV_DONTNEED, first, high - start - first)


def _file_of(array: np.ndarray) -> mmap.mmap | None:
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return base if isinstance(base, mmap.mmap) else None
