"""The processors of this process, work on many rows side by side, and the threads of the BLAS."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

# Rows of small matrices that a thread takes at once.
ROWS = 1024
# Rows that are worked on at a time, and numbers where rows are wide: bounds the memory of
# intermediate results.
BLOCK, _NUMBERS = 16 * ROWS, 1 << 20
_NAME = "simrec-rows"
_LOCK = threading.Lock()
_inside: list[Any] = []


def processors() -> int:
    """Return the number of processors this process may use."""
    return len(os.sched_getaffinity(0))


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


def row_blocks(n: int, width: int = 1) -> Iterator[slice]:
    """Cut n rows of so many numbers into blocks."""
    size = min(BLOCK, max(_NUMBERS // max(width, 1), 64))
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))


def by_blocks(work: Callable[[slice], None], n: int) -> None:
    """Call ``work`` with slices of n rows, side by side; few rows are not worth the hand-over."""
    if n <= BLOCK:
        work(slice(0, n))
        return
    in_threads(lambda i: work(slice(i * ROWS, min((i + 1) * ROWS, n))), -(-n // ROWS))


def filled(out: np.ndarray, rows_of: Callable[[slice], np.ndarray]) -> np.ndarray:
    """Fill the rows of an array with what ``rows_of`` gives for slices of them, side by side."""

    def fill(rows: slice) -> None:
        out[rows] = rows_of(rows)

    by_blocks(fill, len(out))
    return out


def in_threads(work: Callable[[int], None], n: int) -> None:
    """Call ``work(0) ... work(n - 1)``, side by side where there are cores."""
    inside = threading.current_thread().name.startswith(_NAME)  # would wait for itself
    if n == 1 or processors() == 1 or inside:
        for i in range(n):
            work(i)
        return
    pool = _pool(os.getpid(), processors())
    waiting = [pool.submit(work, i) for i in range(n)]
    if wait(waiting, return_when=FIRST_EXCEPTION).not_done:
        wait([one for one in waiting if not one.cancel()])  # what has begun goes on
    for one in waiting:
        if not one.cancelled():
            one.result()


@cache
def _pool(process: int, n: int) -> ThreadPoolExecutor:
    """Return the threads of a process: starting them anew each time takes longer than small work.

    A fork has none of its parent's threads, so it gets its own.
    """
    return ThreadPoolExecutor(n, _NAME)
