"""Work on many rows, side by side on the processors of this machine."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from simrec.scoring.topk import processors

# Rows of small matrices that a thread takes at once.
_ROWS = 1024


def in_threads(work: Callable[[int], None], n: int) -> None:
    """Call ``work(0) ... work(n - 1)``, side by side where there are cores."""
    if n == 1 or processors() == 1:
        for i in range(n):
            work(i)
        return
    with ThreadPoolExecutor(processors()) as pool:
        list(pool.map(work, range(n)))


def by_rows(work: Callable[[slice], None], n: int) -> None:
    """Call ``work`` with slices of n rows, side by side; few rows are not worth the hand-over."""
    if n <= 16 * _ROWS:
        work(slice(0, n))
    else:
        in_threads(lambda i: work(slice(i * _ROWS, (i + 1) * _ROWS)), -(-n // _ROWS))
