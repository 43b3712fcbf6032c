"""Workers that sum their arrays over the network, by XGBoost's collective.

A tracker, which the first worker starts, tells the workers of each other. From then on they are
connected in a ring: each sends about twice an array, whatever their number, and all get the same
bits. A worker that says nothing for `timeout` seconds while others wait for it is lost.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from xgboost import RabitTracker, collective
from xgboost.core import XGBoostError

from simrec.model.run.workers import ONE_WORKER, WorkerLost, Workers


class CollectiveWorkers(Workers):
    """Workers that are processes; sums are called from the thread that has joined them."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def sum(self, array: np.ndarray) -> np.ndarray:
        """Add up the arrays of all workers."""
        if not array.size:
            return array
        started = time.perf_counter()
        with _losses():
            out = collective.allreduce(array, collective.Op.SUM).reshape(array.shape)
        self.sums, self.bytes_summed = self.sums + 1, self.bytes_summed + out.nbytes
        self.seconds_in_sums += time.perf_counter() - started
        return out


@contextmanager
def joined(
    rank: int, size: int, host: str, timeout: int, broadcast: Callable[[Any], Any]
) -> Iterator[Workers]:
    """Connect the workers; each calls this with its own rank and the address of its machine.

    `broadcast` is called once by every worker, and returns what the first worker gives it.
    """
    if size == 1:
        yield ONE_WORKER
        return
    found = None
    if rank == 0:
        tracker = RabitTracker(n_workers=size, host_ip=host, sortby="task", timeout=timeout)
        tracker.start()

        def wait() -> None:
            with suppress(XGBoostError):  # the workers notice as well
                tracker.wait_for()

        threading.Thread(target=wait, daemon=True).start()
        found = tracker.worker_args()
    arguments = broadcast(found)
    with _losses():
        # The tracker numbers workers in the order of their task ids.
        collective.init(dmlc_task_id=f"{rank:08d}", dmlc_timeout=timeout, **arguments)
    yield CollectiveWorkers(rank, size)
    # Not after an error: the others would take this worker for lost before its error is read.
    with suppress(XGBoostError):  # all results are there
        collective.finalize()


@contextmanager
def _losses() -> Iterator[None]:
    """Turn errors of the collective into WorkerLost, with the innermost cause and no stack."""
    try:
        yield
    except XGBoostError as error:
        lines = [re.sub(r"^[\s-]*(\[[\d:]+\])?\s*", "", line) for line in str(error).splitlines()]
        causes = [line for line in lines if line and not line.startswith(("Stack trace", "[bt]"))]
        reason = causes[-1][:200] if causes else "unknown"
        raise WorkerLost(f"a worker is gone or no longer answers ({reason})") from error
