"""Train a model from tables and save it."""

import logging
import os
import resource
import time
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Literal

from simrec.errors import InputError
from simrec.jobs.io.claim import check_apart, claim
from simrec.jobs.io.tables import DataOptions, absolute
from simrec.jobs.options import Path
from simrec.storage import files

if TYPE_CHECKING:
    from simrec.data.ratings import Ratings
    from simrec.data.tables import TableLike
    from simrec.jobs.io.portions import Portions
    from simrec.model.run.workers import Workers
    from simrec.model.two_tower import TwoTower

__all__ = ["DataOptions", "Training", "train"]

logger = logging.getLogger(__name__)


def train(
    model: "TwoTower",
    data: DataOptions,
    out: Path,
    *,
    shards: int | None = None,
    log_dir: Path | None = None,
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
    shards : int, optional
        Into how many ranges of users to divide the files of the model; one by default.
    log_dir : path, optional
        Directory for TensorBoard logs.
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
    from simrec.model.files import check_shards
    from simrec.model.params import check_params
    from simrec.storage.artifacts import check_replaceable

    # Found out now rather than after the training.
    check_params(model.get_params())
    check_replaceable(out)
    if shards is not None:
        check_shards(shards)
    started = time.perf_counter()
    if checkpoint is None:
        checkpoint = f"{os.fspath(out).rstrip('/')}.checkpoint"
    inputs = {"ratings": data.ratings, "items": data.items, "users": data.users}
    check_apart(checkpoint, out=out, **inputs)
    if workers is not None and workers < 1:
        raise InputError(f"workers: expected a number from 1 on, got {workers}")
    if (workers or 1) > 1 and shards not in (None, workers):
        raise InputError(f"shards: {workers} workers write one each, not {shards} in all.")
    if timeout < 1:
        raise InputError(f"timeout: expected seconds from 1 on, got {timeout}")
    if address is not None and engine != "ray":
        raise InputError("address: of a Ray cluster; add --engine ray")
    work = Training(model, data, out, log_dir, checkpoint, shards)
    with claim(out, **inputs):
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
    return {**result, "out": os.fspath(out), "seconds": round(time.perf_counter() - started, 3)}


def _with_workers(
    work: "Training", workers: int | None, address: str | None, resume: bool, timeout: int
) -> dict[str, Any]:
    from simrec.jobs.engine import ray_train
    from simrec.jobs.io.portions import Portions

    work = work.absolute()
    target = FilePath(os.path.realpath(work.out))
    files.remove_leftovers(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with files.own_directory(target, ".shuffle") as scratch:
            work = replace(work, portions=Portions.of(work.data, scratch))
            return ray_train.run(work, workers, address, scratch, resume, timeout)
    finally:  # of workers that were ended
        files.remove_leftovers(target)
        files.remove_leftovers(os.path.realpath(work.checkpoint))


@dataclass(frozen=True)
class Training:
    """What each worker of a training does: read its users, fit, and save them."""

    model: "TwoTower"
    data: DataOptions
    out: Path
    log_dir: Path | None
    checkpoint: Path
    shards: int | None = None
    portions: "Portions | None" = None

    def absolute(self) -> "Training":
        """Return the same with paths that do not depend on the working directory."""
        return replace(
            self,
            data=self.data.absolute(),
            out=absolute(self.out),
            log_dir=absolute(self.log_dir),
            checkpoint=absolute(self.checkpoint),
        )

    def run(self, workers: "Workers | None" = None, resume: bool = False) -> dict[str, Any]:
        """Train as one of the workers, or alone; after a first attempt, from the checkpoint."""
        from simrec.data.sides import Sides
        from simrec.model.checkpoint import Run
        from simrec.model.files import save
        from simrec.model.fit import fit_model
        from simrec.model.run.workers import ONE_WORKER
        from simrec.storage.artifacts import read_manifest

        workers, at_start = workers or ONE_WORKER, _peak_bytes()
        attempt = 0 if self.portions is None else self.portions.attempt(workers)
        ratings, users = self._read(workers, attempt)
        fit_model(
            self.model,
            ratings,
            Sides(self.data.load_items(), users),
            Run(workers, self.checkpoint, resume or attempt > 0),
            log_dir=None if self.log_dir is None else os.fspath(self.log_dir),
        )
        # Several write one each, and may have become fewer.
        shards = self.shards if workers.size == 1 else None
        self.model.model_id_ = save(self.model, self.out, shards, workers)
        return {
            "job": "train",
            "out": os.fspath(self.out),
            "model_id": read_manifest(self.out)["model_id"],
            "ratings": int(workers.total(len(ratings))),
            "users": int(workers.total(ratings.n_users)),
            "items": len(self.model.items_),
            "duplicates": int(workers.total(ratings.n_duplicates)),
            "workers": workers.documents(_cost(workers, at_start)),
            "features": self.model.describe(output="arrow").to_pylist(),
        }

    def _read(self, workers: "Workers", attempt: int) -> "tuple[Ratings, TableLike | None]":
        """Read the ratings and features of this worker's users."""
        if workers.size == 1 or self.portions is None:
            return _load(self.data, self.model), self.data.load_users()
        return self.portions.read(self.model.bounds, workers, attempt)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _cost(workers: "Workers", at_start: int) -> dict[str, Any]:
    """Return what a worker has used: memory, time, and what it has told the others."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "bytes_at_start": at_start,
        "peak_bytes": _peak_bytes(),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "sums": workers.sums,
        "bytes_summed": workers.bytes_summed,
        "seconds_in_sums": round(workers.seconds_in_sums, 3),
    }


def _load(data: DataOptions, model: "TwoTower") -> "Ratings":
    ratings = data.load_ratings(model.bounds)
    if len(ratings) == 0:
        raise InputError(f"{data.ratings}: no ratings to train on")
    logger.info(
        "training on %d ratings of %d users and %d items",
        len(ratings),
        ratings.n_users,
        ratings.n_items,
    )
    return ratings
