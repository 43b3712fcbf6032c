"""Training by processes of this machine: one model, fitted by workers that divide the users.

Each worker has its own part of the data, of the time and of the memory. What they tell each other
goes through sockets of this machine; tables, output and checkpoint are files that all of them see.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import secrets
import threading
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

from simrec.jobs.engine.restarts import WorkerLost, is_final, shortened, with_restarts

if TYPE_CHECKING:
    from simrec.jobs.train import Training

logger = logging.getLogger(__name__)

_HOST = "127.0.0.1"


def run(work: Training, workers: int, resume: bool = False) -> dict[str, Any]:
    """Train with several processes, and again from the last checkpoint if one is lost.

    Parameters
    ----------
    work : Training
        What each worker does.
    workers : int
        How many.
    resume : bool
        Whether to go on from the checkpoint of an earlier training.

    Returns
    -------
    dict
        What was trained, as the first worker tells.
    """
    return with_restarts(lambda again: _attempt(work, workers, again), resume)


def _attempt(work: Training, n: int, resume: bool) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    key, level = secrets.token_bytes(32), logging.getLogger("simrec").getEffectiveLevel()
    ends, processes = [], []
    try:
        for rank in range(n):
            end, theirs = context.Pipe()
            arguments = (work, rank, n, key, theirs, resume, level)
            process = context.Process(target=_work, args=arguments, daemon=True)
            process.start()
            theirs.close()
            ends.append(end)
            processes.append(process)
        addresses = _collected(ends)
        for end in ends:
            end.send(addresses)
        return _collected(ends)[0]
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


def _collected(ends: list[Connection]) -> list[Any]:
    """Receive one message from each worker; what one of them raises is raised here."""
    found: dict[int, Any] = {}
    failed: list[BaseException] = []
    while len(found) < len(ends):
        left = [end for i, end in enumerate(ends) if i not in found]
        for end in wait(left):
            place = ends.index(end)  # type: ignore[arg-type]
            try:
                found[place] = ends[place].recv()
            except (EOFError, OSError):
                found[place] = WorkerLost(f"worker {place} was killed")
            if isinstance(found[place], BaseException):
                if is_final(found[place]):
                    raise found[place]
                failed.append(found[place])
    if failed:
        # One that was killed says more than those that miss it.
        killed = [error for error in failed if isinstance(error, WorkerLost)]
        raise WorkerLost(shortened((killed or failed)[0]))
    return [found[i] for i in range(len(ends))]


def _work(
    work: Training, rank: int, n: int, key: bytes, end: Connection, resume: bool, level: int
) -> None:
    """Run in each process."""
    from simrec.console import log_to_terminal
    from simrec.model.run.sockets import connect

    log_to_terminal(level if rank == 0 or level == logging.DEBUG else logging.WARNING)

    def exchange(address: str) -> list[str]:
        end.send(address)
        return end.recv()

    try:
        workers = connect(rank, n, _HOST, key, exchange)
        # Nothing else comes from the parent: when its end is closed, it is gone.
        threading.Thread(target=_end_with, args=(end,), daemon=True).start()
        end.send(work.run(workers, resume))
    except BaseException as error:
        logger.debug("worker %d", rank, exc_info=True)
        end.send(error if is_final(error) else RuntimeError(shortened(error)))


def _end_with(end: Connection) -> None:
    try:
        end.recv()
    except (EOFError, OSError):
        os._exit(1)
