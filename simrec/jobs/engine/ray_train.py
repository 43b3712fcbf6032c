"""Training on a Ray cluster: one model, fitted by workers that divide the users.

Ray starts the workers and tells each of them where the others are; from there on they are connected
with each other, and what they run is the training of one machine. Tables, output and checkpoint
must be on storage that all nodes see.
"""

import logging
import secrets
import time
from typing import TYPE_CHECKING, Any

from simrec.jobs.engine.ray import connected
from simrec.jobs.engine.restarts import WorkerLost, is_final, shortened, with_restarts

if TYPE_CHECKING:
    from simrec.jobs.train import Training

logger = logging.getLogger(__name__)

# TensorFlow Recommenders needs Keras 2, also where TensorFlow is imported before SimRec.
_ENVIRONMENT = {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
# Seconds between two looks at who is there, and until all must be.
_LOOK, _PATIENCE = 0.05, 300.0


def run(
    work: "Training", workers: int | None = None, address: str | None = None, resume: bool = False
) -> dict[str, Any]:
    """Train on a cluster, and again from the last checkpoint if a worker is lost.

    Parameters
    ----------
    work : Training
        What each worker does, with absolute paths.
    workers : int, optional
        How many; by default as many as the cluster has nodes.
    address : str, optional
        The cluster; by default the one this process is connected to, or a new one on this machine.
    resume : bool
        Whether to go on from the checkpoint of an earlier training.

    Returns
    -------
    dict
        What was trained, as the first worker tells.
    """
    with connected(workers, address, _ENVIRONMENT) as ray:

        def attempt(again: bool) -> dict[str, Any]:
            processors = int(ray.cluster_resources().get("CPU", 0))
            n = workers or max(1, sum(node["Alive"] for node in ray.nodes()))
            if again and 0 < processors < n:
                logger.warning("ray: %d processors are left, for as many workers", processors)
                n = processors
            logger.info("ray: training with %d workers on %d processors", n, processors)
            if processors < n:
                logger.warning("ray: waiting for more processors, one for each worker")
            return _attempt(ray, work, n, again)

        return with_restarts(attempt, resume)


def _attempt(ray: Any, work: "Training", n: int, resume: bool) -> dict[str, Any]:
    meeting = ray.remote(num_cpus=0)(_Meeting).remote()
    remote = ray.remote(num_cpus=1, max_retries=0, scheduling_strategy="SPREAD")(_work)
    shared, key = ray.put(work), secrets.token_bytes(32)
    running = [remote.remote(shared, rank, n, key, meeting, resume) for rank in range(n)]
    try:
        left, results = list(running), {}
        while left:
            done, left = ray.wait(left, num_returns=1)
            results[done[0]] = ray.get(done[0])
        return results[running[0]]
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, Exception) and is_final(error.cause):
            # The error as one machine raises it, so that the message is the same.
            raise error.cause from None
        raise WorkerLost(shortened(error.cause or error)) from error
    except ray.exceptions.RayError as error:
        raise WorkerLost(shortened(error)) from error
    finally:
        for reference in running:
            ray.cancel(reference, force=True)
        ray.kill(meeting)


class _Meeting:
    """Where workers tell each other their addresses."""

    def __init__(self) -> None:
        self._addresses: dict[int, str] = {}

    def put(self, rank: int, address: str) -> None:
        self._addresses[rank] = address

    def get(self) -> dict[int, str]:
        return self._addresses


def _work(
    work: "Training", rank: int, n: int, key: bytes, meeting: Any, resume: bool
) -> dict[str, Any]:
    """Run on each worker."""
    import ray

    from simrec.model.run.sockets import connect

    logging.getLogger("simrec").setLevel(logging.INFO)

    def exchange(address: str) -> list[str]:
        ray.get(meeting.put.remote(rank, address))
        started = time.monotonic()
        while len(found := ray.get(meeting.get.remote())) < n:
            if time.monotonic() - started > _PATIENCE:
                raise RuntimeError(f"only {len(found)} of {n} workers have come")
            time.sleep(_LOOK)
        return [found[i] for i in range(n)]

    return work.run(connect(rank, n, ray.util.get_node_ip_address(), key, exchange), resume)
