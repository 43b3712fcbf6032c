"""Train a model from tables, or update one with new ratings, and save it."""

import logging
import os
import resource
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Literal

from simrec.errors import InputError
from simrec.jobs.io.inputs import DataOptions, absolute, unless_empty
from simrec.jobs.io.outputs import check_apart, claim
from simrec.jobs.options import Path, job
from simrec.storage import files

if TYPE_CHECKING:
    from simrec.jobs.io.portions import Portions
    from simrec.model.run.workers import Workers
    from simrec.model.two_tower import TwoTower

logger = logging.getLogger(__name__)


@job
def train(
    model: "TwoTower",
    data: DataOptions,
    out: Path,
    *,
    engine: Literal["local", "ray"] = "local",
    workers: int | None = None,
    address: str | None = None,
    checkpoint: Path | None = None,
    resume: bool = False,
    timeout: int = 300,
) -> dict[str, Any]:
    """Train a model on all ratings and save it.

    Parameters
    ----------
    out : path
        The model directory to write; an earlier model there is replaced.
    engine : str
        Where to train: local, on this machine, or ray, on a cluster.
    workers : int, optional
        Processes that divide the users between them, each with its own part of the memory; Ray
        starts them. One by default; on ray as many as the cluster has nodes.
    address : str, optional
        The Ray cluster (host:port); a new one on this machine by default.
    checkpoint : path, optional
        Directory for the state of the training, deleted once the model is saved; OUT.checkpoint by
        default.
    resume : bool
        Whether to go on from the checkpoint of a training that was killed.
    timeout : int
        Seconds that a worker may keep the others waiting; then it is lost, and all start again
        from the last checkpoint.
    """
    from simrec.model.checkpoint import clear
    from simrec.model.params import check_params
    from simrec.storage.artifacts import check_replaceable

    # Found out now rather than after the training.
    check_params(model.get_params())
    check_replaceable(out)
    if os.path.exists(out):
        logger.warning("%s: the model there is replaced once this one is complete", out)
    if checkpoint is None:
        checkpoint = f"{os.fspath(out).rstrip('/')}.checkpoint"
    check_apart(checkpoint, out=out, **data.paths)
    if workers is not None and workers < 1:
        raise InputError(f"workers: expected a number from 1 on, got {workers}")
    if timeout < 1:
        raise InputError(f"timeout: expected seconds from 1 on, got {timeout}")
    if address is not None and engine != "ray":
        raise InputError("address: of a Ray cluster; add --engine ray")
    # Workers may have other working directories.
    work = Training(model, data.absolute(), absolute(out), absolute(checkpoint))
    with claim(out, **data.paths):
        try:
            if engine == "local" and workers in (None, 1):
                result = work.run(resume=resume)
            else:
                where = address if engine == "ray" else "local"
                result = _with_workers(work, workers, where, resume, timeout)
        except OSError as error:
            if not (files.is_full_disk(error) and os.path.isdir(checkpoint)):
                raise
            how = f"{error.strerror}, with --resume to go on from {os.fspath(checkpoint)}"
            raise OSError(error.errno, how, error.filename) from error
        clear(checkpoint)
    return {"out": os.fspath(out), **result}


def _with_workers(
    work: "Training", workers: int | None, address: str | None, resume: bool, timeout: int
) -> dict[str, Any]:
    from simrec.jobs.engine import ray
    from simrec.jobs.io.portions import Portions

    target = FilePath(os.path.realpath(work.out))
    files.remove_leftovers(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with files.own_directory(target, ".shuffle") as scratch:
            work = replace(work, portions=Portions.of(work.data, scratch))
            return ray.train(work, workers, address, scratch, resume, timeout)
    finally:  # of workers that were ended
        files.remove_leftovers(target)
        files.remove_leftovers(os.path.realpath(work.checkpoint))


@dataclass(frozen=True)
class Training:
    """What each worker of a training does: read its users, fit, and save them."""

    model: "TwoTower"
    data: DataOptions
    out: Path
    checkpoint: Path
    portions: "Portions | None" = None

    def run(self, workers: "Workers | None" = None, resume: bool = False) -> dict[str, Any]:
        """Train as one of the workers, or as the only one; a second attempt resumes."""
        from simrec.data.sides import Sides
        from simrec.model.checkpoint import Run
        from simrec.model.files import save
        from simrec.model.fit import fit_model
        from simrec.model.run.workers import ONE_WORKER
        from simrec.storage.artifacts import read_manifest

        workers = workers or ONE_WORKER
        at_start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        attempt = 0 if self.portions is None else self.portions.attempt(workers)
        features: Any = self.data.features()
        if workers.size == 1 or self.portions is None:
            ratings = self.data.load_ratings(self.model.bounds)
            if len(ratings) == 0:
                raise InputError(f"{self.data.ratings}: no ratings to train on")
            counts = len(ratings), ratings.n_users, ratings.n_items
            logger.info("training on %d ratings of %d users and %d items", *counts)
        else:
            ratings, features["users"] = self.portions.read(self.model.bounds, workers, attempt)
        run = Run(workers, self.checkpoint, resume or attempt > 0)
        fit_model(self.model, ratings, Sides(**features), run)
        self.model.model_id_ = save(self.model, self.out, workers)
        used = resource.getrusage(resource.RUSAGE_SELF)
        cost = {  # what this worker has used: memory, time, and what it has sent to the others
            "bytes_at_start": at_start,
            "peak_bytes": used.ru_maxrss * 1024,
            "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
            "sums": workers.sums,
            "bytes_summed": workers.bytes_summed,
            "seconds_in_sums": round(workers.seconds_in_sums, 3),
        }
        return {
            "model_id": read_manifest(self.out)["model_id"],
            "ratings": int(workers.total(len(ratings))),
            "users": int(workers.total(ratings.n_users)),
            "items": len(self.model.items_),
            "duplicates": int(workers.total(ratings.n_duplicates)),
            "workers": workers.documents(cost),
            "features": self.model.describe(output="arrow").to_pylist(),
        }


@job
def update(model: Path, data: DataOptions, out: Path) -> dict[str, Any]:
    """Learn new ratings, items and users into a trained model, without training again.

    Parameters
    ----------
    model : path
        The model directory to start from; it is left as it is.
    data : DataOptions
        The new ratings only, and features of new items and users. A directory of items or users
        without any file, as a service makes it, holds nobody new.
    out : path
        The model directory to write; the new version names the old one as its parent.
    """
    from simrec.model.two_tower import TwoTower
    from simrec.storage.artifacts import check_replaceable

    check_replaceable(out)
    data = replace(data, items=unless_empty(data.items), users=unless_empty(data.users))
    with claim(out, model=model, **data.paths):
        loaded = TwoTower.load(model)
        own = loaded.columns_
        ratings = data.load_ratings(loaded.rating_bounds(), own)
        loaded.update(ratings, **data.features(own)).save(out)
    learned = dict(loaded.updates_[-1])
    for name, columns in learned.pop("unknown_values").items():
        for column, count in columns.items():
            message = "%s: %d have a value of %r that the model does not know"
            logger.warning(message, name, count, column)
    return {"out": str(out), "model_id": loaded.model_id_, **learned}
