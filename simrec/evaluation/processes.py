"""Calls side by side in processes, as many as memory has room for."""

import logging
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from simrec.errors import InputError
from simrec.scoring.topk import processors

logger = logging.getLogger(__name__)

Name = TypeVar("Name")
Result = TypeVar("Result")
_GROUP = Path("/sys/fs/cgroup")  # the limits of a container


def side_by_side(
    work: Callable[..., Result],
    names: Sequence[Name],
    arguments: Callable[[Name], tuple[Any, ...]],
    n_jobs: int,
) -> list[Result]:
    """Call ``work(*arguments(name))`` for each name; return the results in that order.

    With one job all is done in this process. With more, the first call has the machine to itself
    and shows how much memory a call takes; after it, as many are side by side as `n_jobs` and the
    free memory allow. Arguments are made when there is a process to take them.

    Parameters
    ----------
    work : callable
        A function of a module. It, its arguments and its result can be pickled.
    names : sequence
        What the calls are about.
    arguments : callable
        From a name to the arguments of its call.
    n_jobs : int
        Most processes; -1 for the number of processors.
    """
    if isinstance(n_jobs, bool) or not isinstance(n_jobs, int) or n_jobs < -1 or n_jobs == 0:
        raise InputError(f"n_jobs must be a whole number from 1 on, or -1; got {n_jobs!r}.")
    n_jobs = min(processors() if n_jobs == -1 else n_jobs, len(names))
    results: dict[int, Result] = {}
    if n_jobs < 2:
        for place, name in enumerate(names):
            logger.info("%s (%d of %d)", name, place + 1, len(names))
            results[place] = work(*arguments(name))
        return list(results.values())
    left = iter(enumerate(names))
    running: dict[Future[tuple[Result, int]], int] = {}
    room = 1
    # A fork of a process with threads can hang, so processes start afresh.
    pool = ProcessPoolExecutor(n_jobs, multiprocessing.get_context("spawn"))
    try:
        while len(results) < len(names):
            for place, name in islice(left, room - len(running)):
                logger.info("%s (%d of %d)", name, place + 1, len(names))
                running[pool.submit(_measured, work, *arguments(name))] = place
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                place = running.pop(future)
                results[place], peak = future.result()
                logger.info("%s done, %d left", names[place], len(names) - len(results))
                if len(results) == 1:
                    room = min(n_jobs, calls_in_memory(peak, free_memory()))
                    logger.info("%d side by side, each with up to %d MB", room, peak >> 20)
    except BrokenProcessPool:
        raise InputError(
            f"n_jobs={n_jobs}: a process ended before its work. If memory was short, give n_jobs=1;"
            " in a script, call this below `if __name__ == '__main__':`."
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)
    return [results[place] for place in range(len(names))]


def calls_in_memory(peak: int, free: int | None) -> int:
    """Return how many calls fit into what is free (None: not known), at least one.

    Examples
    --------
    >>> calls_in_memory(300, 1000), calls_in_memory(300, 100)
    (3, 1)
    """
    return processors() if free is None or not peak else max(1, free // peak)


def free_memory() -> int | None:
    """Return the bytes that can be taken without swapping; None where the system does not say."""
    free = _field("/proc/meminfo", "MemAvailable")
    try:
        limit, used = (int((_GROUP / f"memory.{n}").read_text()) for n in ("max", "current"))
    except (OSError, ValueError):  # no limit, or no such file
        return free
    return limit - used if free is None else min(free, limit - used)


def _measured(work: Callable[..., Result], *arguments: Any) -> tuple[Result, int]:
    """Call, and return the most memory this process has had with the result."""
    result = work(*arguments)
    return result, _field("/proc/self/status", "VmHWM") or 0


def _field(path: str, name: str) -> int | None:
    """Read a field in kB from a file of the system, as bytes."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(name)), None)
