"""Training on a Ray cluster: one model, fitted by workers that divide the users.

Ray Train starts the workers and tells each of them where the others are; from there on they are
the workers of a `tf.distribute.MultiWorkerMirroredStrategy`, and what they run is the training of
one machine. Tables, output and checkpoint must be on storage that all nodes see.
"""

import logging
import os
import tempfile
from typing import Any

from simrec.errors import InputError
from simrec.jobs.engine.ray import connected
from simrec.jobs.train import Training

logger = logging.getLogger(__name__)

# How often a training that has lost a worker goes on from its checkpoint.
_RESTARTS = 3
# TensorFlow Recommenders needs Keras 2, also where TensorFlow is imported before SimRec.
_ENVIRONMENT = {
    "TF_USE_LEGACY_KERAS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "RAY_TRAIN_V2_ENABLED": "1",
}


def run(
    work: Training, workers: int | None = None, address: str | None = None, resume: bool = False
) -> dict[str, Any]:
    """Train on a cluster, and once more from the last checkpoint if a worker is lost.

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
    from simrec.model.run.checkpoint import clear

    if workers is not None and workers < 1:
        raise InputError(f"workers: expected a number from 1 on, got {workers}")
    _check_workers(work, workers or 1)
    if not resume:
        clear(work.checkpoint)
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    with connected(workers, address, _ENVIRONMENT) as ray:
        n = workers or max(1, sum(node["Alive"] for node in ray.nodes()))
        _check_workers(work, n)
        processors = ray.cluster_resources().get("CPU", 0)
        logger.info("ray: training with %d workers on %d processors", n, processors)
        if processors < n:
            logger.warning("ray: waiting for more processors, one for each worker")
        for attempt in range(_RESTARTS + 1):
            try:
                return _attempt(ray, work, n, resume or attempt > 0)
            except InputError:
                raise
            except Exception as error:
                if attempt == _RESTARTS:
                    raise RuntimeError(
                        f"ray: the training has failed {_RESTARTS + 1} times, at last with: "
                        f"{_shortened(error)}. --resume goes on from its last checkpoint."
                    ) from error
                logger.warning(
                    "ray: the training has lost a worker; going on from its last checkpoint (%s)",
                    _shortened(error),
                )
    raise AssertionError("not reached")


def _check_workers(work: Training, n: int) -> None:
    """Refuse what cannot be divided between workers, before anything is read."""
    if n > 1 and tuple(work.model.hidden_layers):
        raise InputError(
            "workers: encoders with hidden_layers are trained by one worker, not by "
            f"{n}. Train with --engine local."
        )


def _attempt(ray: Any, work: Training, workers: int, resume: bool) -> dict[str, Any]:
    # First of all: Ray imports TensorFlow too, and not as TensorFlow Recommenders needs it.
    import simrec.simec.keras  # noqa: F401, I001
    from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
    from ray.train.tensorflow import TensorflowTrainer

    box = ray.remote(num_cpus=0)(_Box).remote()
    # Ray Train keeps a few notes there; the model and its checkpoints go elsewhere.
    with tempfile.TemporaryDirectory(prefix="simrec-ray-") as notes:
        trainer = TensorflowTrainer(
            _train,
            train_loop_config={"work": work, "resume": resume, "box": box},
            scaling_config=ScalingConfig(num_workers=workers, placement_strategy="SPREAD"),
            run_config=RunConfig(
                name="train", storage_path=notes, failure_config=FailureConfig(max_failures=0)
            ),
        )
        try:
            trainer.fit()
        except TrainingFailedError as error:
            for cause in getattr(error, "worker_failures", {}).values():
                if isinstance(cause, InputError):
                    # The error as one machine raises it, so that the message is the same.
                    raise cause from None
            raise
        return ray.get(box.get.remote())


class _Box:
    """Where the first worker leaves its result."""

    def __init__(self) -> None:
        self._result: dict[str, Any] = {}

    def put(self, result: dict[str, Any]) -> None:
        self._result = result

    def get(self) -> dict[str, Any]:
        return self._result


def _train(config: dict[str, Any]) -> None:
    """Run on each worker."""
    from simrec.simec.keras import tf  # noqa: I001
    import ray
    from ray.train import get_context

    logging.getLogger("simrec").setLevel(logging.INFO)
    first = get_context().get_world_rank() == 0
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    result = config["work"].run(strategy, first, config["resume"])
    if first:
        ray.get(config["box"].put.remote(result))


def _shortened(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    causes = getattr(error, "worker_failures", {}).values()
    text = "; ".join(str(cause).partition("\n")[0] for cause in causes) or " ".join(lines[:1])
    return text[:300] or type(error).__name__
