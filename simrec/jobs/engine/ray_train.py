"""Training by several workers: one model, fitted by processes that divide the users.

Ray Train starts the workers, numbers them, looks after them and starts them again; what each of
them runs is `Training.run`, and they sum by `collective`. Tables, output and checkpoint must be on
storage that all of them see.
"""

from __future__ import annotations

import importlib.util
import logging
import logging.handlers
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simrec.errors import InputError
from simrec.jobs.engine.ray import connected
from simrec.model.run.workers import WorkerLost

if TYPE_CHECKING:
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
}
# Ray keeps in memory only what workers tell it, which is little.
_OBJECT_STORE = 100 << 20


def run(
    work: Training,
    workers: int | None,
    address: str | None,
    scratch: Path,
    resume: bool = False,
    timeout: int = 300,
) -> dict[str, Any]:
    """Train with several workers, and again from the last checkpoint if one is lost.

    Each does `work`, whose paths are absolute; what the first one returns is returned. By default
    there are as many workers as the cluster has nodes. A cluster that has not as many processors
    trains with fewer, and with more as soon as they are there. The address "local" is a cluster of
    this machine, for this training alone. Ray Train writes to `scratch`, which all workers see. A
    worker that is silent for `timeout` seconds is lost.
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
