"""The only module that knows Ray: batch jobs and trainings on a cluster.

Outputs, model directory, tables, checkpoint and scratch files must be on storage that all nodes
see. The work of a batch job (task, vectors, input description) is put into Ray's object store once:
the workers of a node share one copy of its arrays. A unit whose worker or node dies is run again
elsewhere; parts are renamed into place whole, so that a second attempt does no harm. Ray Train
starts and restarts the workers of a training, which divide the users and sum by `collective`.
"""

from __future__ import annotations

import importlib.util
import logging
import logging.handlers
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simrec.errors import InputError
from simrec.model.run.workers import WorkerLost

if TYPE_CHECKING:
    from simrec.data.source import Unit
    from simrec.jobs.engine.batch import Work
    from simrec.jobs.io.parts import Part
    from simrec.jobs.train import Training

logger = logging.getLogger(__name__)

# How often a training that has lost a worker goes on from its checkpoint.
RESTARTS = 3
_ENVIRONMENT = {
    # TensorFlow Recommenders needs Keras 2, also where TensorFlow is imported before SimRec.
    "TF_USE_LEGACY_KERAS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    # Workers share the processors of a machine.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # Arrays go back to the system as soon as they are freed: the peak of a worker is lower.
    "MALLOC_MMAP_THRESHOLD_": str(1 << 22),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 22),
}
# The object store holds results of workers only, which are small.
_OBJECT_STORE = 100 << 20


def run(
    work: Work, units: Sequence[Unit], workers: int | None = None, address: str | None = None
) -> Iterator[Part]:
    """Map `work` over units on a Ray cluster; yield parts as they are done."""
    with connected(workers, address) as ray:
        shared = ray.put(work)
        # Retried without end where a worker dies; an error of the work itself is raised here.
        remote = ray.remote(num_cpus=1, max_retries=-1, retry_exceptions=False)(
            lambda work, unit: work.run(unit)
        )
        at_once = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        queue = iter(units)
        running: list[Any] = []
        try:
            while True:
                while len(running) < at_once and (unit := next(queue, None)) is not None:
                    running.append(remote.remote(shared, unit))
                if not running:
                    return
                (done,), running = ray.wait(running, num_returns=1)
                try:
                    part = ray.get(done)
                except ray.exceptions.RayTaskError as error:
                    # The error as the local engine raises it, so that the message is the same.
                    raise error.cause if isinstance(error.cause, Exception) else error from None
                yield part
        finally:
            for reference in running:
                ray.cancel(reference)


@contextmanager
def connected(
    workers: int | None = None, address: str | None = None, object_store: int | None = None
) -> Iterator[Any]:
    """Give Ray, connected to a cluster.

    The address "local" is a new one that nothing but this machine reaches, with an object store of
    so many bytes. None is the one this process is connected to, or a new one on this machine. A
    cluster that is started here has as many processors as `workers`.
    """
    # Ray reports usage and uploads nothing else; a batch job should do neither by itself.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise InputError(
            "engine: Ray is not installed; pip install 'simrec[ray]', or use --engine local (and "
            "train with one worker)"
        ) from None
    started = not ray.is_initialized()
    if started:
        new: dict[str, Any] = {"num_cpus": workers} if address in (None, "local") else {}
        if address == "local":
            new |= {"object_store_memory": object_store, "_node_ip_address": "127.0.0.1"}
            # Its workers are this job, and no guests on the machine.
            new["_system_config"] = {"worker_niceness": 0}
        try:
            _check_address(address)
            ray.init(
                address=address,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                **new,
            )
        except (ConnectionError, ValueError) as error:
            raise InputError(f"ray: cannot reach a cluster at {address!r}: {error}") from error
    try:
        yield ray
    finally:
        if started:
            ray.shutdown()


def _check_address(address: str | None) -> None:
    """Raise ConnectionError at once for an address that Ray would wait for during minutes."""
    host, colon, port = (address or "").rpartition(":")
    if not (colon and port.isdigit()) or "://" in host:
        return
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        raise ConnectionError(error) from None


def train(
    work: Training,
    workers: int | None,
    address: str | None,
    scratch: Path,
    resume: bool = False,
    timeout: int = 300,
) -> dict[str, Any]:
    """Train with several workers, and again from the last checkpoint if one is lost.

    Each does `work`; what the first one returns is returned. By default there are as many workers
    as the cluster has nodes, and fewer while it has not as many processors. A worker that is silent
    for `timeout` seconds is lost.
    """
    if importlib.util.find_spec("xgboost") is None:
        raise InputError(
            "workers: XGBoost, whose collective sums, is not installed; pip install 'simrec[ray]', "
            "or train with one worker"
        )
    os.environ |= {
        "RAY_TRAIN_V2_ENABLED": "1",
        "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": str(timeout),
        "RAY_TRAIN_COLLECTIVE_TIMEOUT_S": str(timeout),
        # Nobody takes away the machine that this process is on without it.
        "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0" if address == "local" else "1",
    }
    with connected(workers, address, _OBJECT_STORE) as ray, _relayed_log(ray) as log:
        from ray.train.v2.api.config import FailureConfig, RunConfig, ScalingConfig
        from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

        here, nodes = address == "local", [node for node in ray.nodes() if node["Alive"]]
        n = workers or max(1, sum(node["Resources"].get("CPU", 0) >= 1 for node in nodes))
        processors = int(ray.cluster_resources().get("CPU", 0))
        logger.info("ray: training with %d workers on %d processors", n, processors)
        host = "127.0.0.1" if here and len(nodes) == 1 else None
        # Ray's types are those of Ray Train v1.
        scaling: Any = ScalingConfig(num_workers=n if here else (1, n), placement_strategy="SPREAD")
        running: Any = RunConfig(
            name="ray",
            storage_path=os.fspath(scratch),
            failure_config=FailureConfig(max_failures=RESTARTS),
            callbacks=[_failures(log)],
            worker_runtime_env={"env_vars": _ENVIRONMENT},
        )
        one = partial(_work, work, resume, timeout, log, host)
        trainer = DataParallelTrainer(one, scaling_config=scaling, run_config=running)
        return _fitted(ray, trainer)


def _fitted(ray: Any, trainer: Any) -> dict[str, Any]:
    """Train; raise the error that one machine would raise."""
    # In a thread: in the main one, Ray takes Ctrl-C and ends with exit code 0.
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(trainer.fit).result().return_value
    except ray.train.ControllerError as error:
        if is_lost(error.controller_failure):  # Ray itself has failed
            raise RuntimeError(f"ray: {shortened(error.controller_failure)}") from error
        raise error.controller_failure from None
    except ray.train.WorkerGroupError as error:
        reason = shortened(next(iter(error.worker_failures.values())))
        raise RuntimeError(
            f"the training has failed {RESTARTS + 1} times, at last with: {reason}. "
            "--resume goes on from its last checkpoint."
        ) from error
    finally:
        pool.shutdown(wait=False)


def is_lost(error: BaseException) -> bool:
    """Tell whether an error says that a worker is gone; other errors would come again."""
    return isinstance(error, WorkerLost) or type(error).__module__.split(".")[0] == "ray"


def shortened(error: BaseException) -> str:
    """Return the first line of an error."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]


def _failures(log: _Log) -> Any:
    from ray.train import UserCallback

    class Failures(UserCallback):
        """Ends a training with an error that would come again; runs beside the workers."""

        lost = 0

        def after_exception(
            self, run_context: Any, worker_exceptions: Mapping[int, BaseException]
        ) -> None:
            for error in worker_exceptions.values():
                if not is_lost(error):
                    raise error
            self.lost += 1
            if self.lost <= RESTARTS:
                log.use()
                found = sorted(worker_exceptions.items())
                reason = "; ".join(f"worker {rank}: {shortened(e)}" for rank, e in found)
                logger.warning(
                    "the training has lost a worker; going on from its last checkpoint (%s)", reason
                )

    return Failures()


def _work(
    work: Training, resume: bool, timeout: int, log: _Log, host: str | None
) -> dict[str, Any]:
    """Run on each worker; without `host` they find each other by the addresses of Ray's nodes."""
    import ray
    from ray.train.collective import broadcast_from_rank_zero

    from simrec.jobs.engine.collective import joined

    context = ray.train.get_context()
    rank, size = context.get_world_rank(), context.get_world_size()
    host = host or ray.util.get_node_ip_address()
    log.use(first=rank == 0)
    with joined(rank, size, host, timeout, broadcast_from_rank_zero) as workers:
        return work.run(workers, resume)


@dataclass(frozen=True)
class _Log:
    """Takes what workers log to the process that has started the training."""

    queue: Any
    level: int

    def use(self, first: bool = True) -> None:
        """Log what the first worker says, and warnings of the others."""
        root = logging.getLogger("simrec")
        detailed = self.level <= logging.DEBUG
        root.setLevel(self.level if first or detailed else logging.WARNING)
        root.handlers, root.propagate = [logging.handlers.QueueHandler(self.queue)], False


class _Relay(logging.Handler):
    """Logs records of other processes as if they were of this one."""

    def emit(self, record: logging.LogRecord) -> None:
        logging.getLogger(record.name).handle(record)


@contextmanager
def _relayed_log(ray: Any) -> Iterator[_Log]:
    from ray.util.queue import Queue
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    queue = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here})
    listener = logging.handlers.QueueListener(queue, _Relay())
    listener.start()
    try:
        yield _Log(queue, logging.getLogger("simrec").getEffectiveLevel())
    finally:
        listener.stop()
        queue.shutdown()
