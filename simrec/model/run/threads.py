"""Work on many rows, side by side on the processors of this machine."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from simrec.scoring.threads import processors

# Rows of small matrices that a thread takes at once.
_ROWS = 1024
# Rows that are worked on at a time: bounds the memory of intermediate results.
BLOCK = 16 * _ROWS


def row_blocks(n: int) -> Iterator[slice]:
    """Cut n rows into blocks."""
    for start in range(0, n, BLOCK):
        yield slice(start, min(start + BLOCK, n))


def by_blocks(work: Callable[[slice], None], n: int) -> None:
    """Call ``work`` with slices of n rows, side by side; few rows are not worth the hand-over."""
    if n <= BLOCK:
        work(slice(0, n))
        return
    in_threads(lambda i: work(slice(i * _ROWS, min((i + 1) * _ROWS, n))), -(-n // _ROWS))


def in_threads(work: Callable[[int], None], n: int) -> None:
    """Call ``work(0) ... work(n - 1)``, side by side where there are cores."""
    if n == 1 or processors() == 1:
        for i in range(n):
            work(i)
        return
    with ThreadPoolExecutor(processors()) as pool:
        list(pool.map(work, range(n)))
