"""The processors of this process, and the threads of its BLAS."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from threadpoolctl import threadpool_limits

_LOCK = threading.Lock()
_inside: list[Any] = []


def processors() -> int:
    """Return the number of processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Keep the BLAS to one thread while any thread of this process is in such a block.

    The limit is the process's: threads that set and restored it on their own would undo each
    other's, and the last one could leave it behind.
    """
    with _LOCK:
        _inside.append(_inside[0] if _inside else threadpool_limits(1, "blas"))
    try:
        yield
    finally:
        with _LOCK:
            limit = _inside.pop()
            if not _inside:
                limit.restore_original_limits()
