"""Work on many rows, side by side on the processors of this machine."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from simrec.scoring.topk import processors


def in_threads(work: Callable[[int], None], n: int) -> None:
    """Call ``work(0) ... work(n - 1)``, side by side where there are cores."""
    if n == 1 or processors() == 1:
        for i in range(n):
            work(i)
        return
    with ThreadPoolExecutor(processors()) as pool:
        list(pool.map(work, range(n)))
