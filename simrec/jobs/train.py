"""Train a model from tables and save it."""

import logging
import os
import resource
import time
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Literal

from simrec import files
from simrec.errors import InputError
from simrec.jobs.io.claim import check_apart, claim
from simrec.jobs.options import Path
from simrec.jobs.shared.data import DataOptions, absolute

if TYPE_CHECKING:
    from simrec.data.ratings import Ratings
    from simrec.data.tables import TableLike
    from simrec.jobs.shared.portion import Portions
    from simrec.model.run.scratch import Scratch
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
    memory: str | None = None,
    scratch: Path | None = None,
) -> dict[str, Any]:
    """Train a model on all ratings and save it.

    Parameters
    ----------
    model : TwoTower
        The model to fit, with its settings.
    data : DataOptions
        The tables.
    out : path
        The model directory to write; an earlier model there is replaced.
    shards : int, optional
        Into how many ranges of users to divide the files of the model; one by default.
    log_dir : path, optional
        Directory for TensorBoard logs.
    engine : str
        Where to train: local, on this machine, or ray, on a cluster.
    workers : int, optional
        Processes that divide the users between them, each with its own part of the memory. One by
        default; on ray as many as the cluster has nodes.
    address : str, optional
        The Ray cluster (host:port); a new one on this machine by default.
    checkpoint : path, optional
        Directory for the state of the training, deleted once the model is saved; OUT.checkpoint by
        default.
    resume : bool
        Whether to go on from the checkpoint of a training that was killed.
    memory : str, optional
        Memory to work in, such as 4GB; what is as long as the users then lives in files.
    scratch : path, optional
        Directory for these files; that of temporary files by default.

    Returns
    -------
    dict
        What was trained: counts, model id, time.
    """
    from simrec.artifacts import check_replaceable
    from simrec.model.files import check_shards
    from simrec.model.run.checkpoint import clear
    from simrec.model.run.scratch import Scratch

    # Found out now rather than after the training.
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
    if address is not None and engine != "ray":
        raise InputError("address: of a Ray cluster; add --engine ray")
    Scratch.of(memory, scratch)  # found out now, too
    work = Training(model, data, out, log_dir, checkpoint, shards, memory, scratch)
    with claim(out, **inputs):
        try:
            if engine == "local" and workers in (None, 1):
                result = work.run(resume=resume)
            else:
                result = _with_workers(work, engine, workers, address, resume)
        except OSError as error:
            if not (files.is_full_disk(error) and os.path.isdir(checkpoint)):
                raise
            how = f"{error.strerror}, with --resume to go on from {os.fspath(checkpoint)}"
            raise OSError(error.errno, how, error.filename) from error
        clear(checkpoint)
    return {**result, "out": os.fspath(out), "seconds": round(time.perf_counter() - started, 3)}


def _with_workers(
    work: "Training", engine: str, workers: int | None, address: str | None, resume: bool
) -> dict[str, Any]:
    from simrec.jobs.shared.portion import Portions

    work = work.absolute()
    target = FilePath(os.path.realpath(work.out))
    files.remove_leftovers(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with files.own_directory(target, ".shuffle") as scratch:
            work = replace(work, portions=Portions.of(work.data, scratch))
            if engine == "ray":
                from simrec.jobs.engine import ray_train

                return ray_train.run(work, workers, address, resume)
            from simrec.jobs.engine import processes

            return processes.run(work, workers or 1, resume)
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
    memory: str | None = None
    scratch: Path | None = None
    portions: "Portions | None" = None

    def absolute(self) -> "Training":
        """Return the same with paths that do not depend on the working directory."""
        return replace(
            self,
            data=self.data.absolute(),
            out=absolute(self.out),
            log_dir=absolute(self.log_dir),
            checkpoint=absolute(self.checkpoint),
            scratch=absolute(self.scratch),
        )

    def run(self, workers: "Workers | None" = None, resume: bool = False) -> dict[str, Any]:
        """Train as one of the workers, or alone."""
        from simrec.artifacts import read_manifest
        from simrec.model.divided import save_divided
        from simrec.model.run.workers import ONE_WORKER

        workers = workers or ONE_WORKER
        ratings, users = self._read(workers)
        self.model.fit(
            ratings,
            items=self.data.load_items(),
            users=users,
            log_dir=None if self.log_dir is None else os.fspath(self.log_dir),
            strategy=workers,
            divided=True,
            checkpoint=self.checkpoint,
            resume=resume,
            memory=self.memory,
            scratch=self.scratch,
        )
        save_divided(self.model, self.out, workers, self.shards)
        return {
            "job": "train",
            "out": os.fspath(self.out),
            "model_id": read_manifest(self.out)["model_id"],
            "ratings": int(workers.total(len(ratings))),
            "users": int(workers.total(ratings.n_users)),
            "items": len(self.model.items_),
            "duplicates": int(workers.total(ratings.n_duplicates)),
            "workers": workers.documents(_cost(workers)),
        }

    def _read(self, workers: "Workers") -> "tuple[Ratings, TableLike | None]":
        """Read the ratings and features of this worker's users."""
        from simrec.model.run.scratch import Scratch

        if workers.size == 1 or self.portions is None:
            room = Scratch.of(self.memory, self.scratch)
            return _load(self.data, self.model, room), self.data.load_users()
        return self.portions.read(self.model.bounds, workers)


def _cost(workers: "Workers") -> dict[str, Any]:
    """Return what a worker has used: memory, time, and what it has told the others."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "peak_bytes": used.ru_maxrss * 1024,
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "sums": workers.sums,
        "bytes_summed": workers.bytes_summed,
        "seconds_in_sums": round(workers.seconds_in_sums, 3),
    }


def _load(data: DataOptions, model: "TwoTower", room: "Scratch") -> "Ratings":
    if room.limited:
        from simrec.jobs.io.pieces import read_pieces

        ratings = read_pieces(data, model.bounds, room)
    else:
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
