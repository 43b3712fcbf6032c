"""Train a model from tables and save it."""

import logging
import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from simrec.errors import InputError
from simrec.jobs.io.claim import check_apart, claim
from simrec.jobs.options import Path
from simrec.jobs.shared.data import DataOptions, absolute

if TYPE_CHECKING:
    from simrec.data.ratings import Ratings
    from simrec.model.two_tower import TwoTower

__all__ = ["DataOptions", "Training", "train"]

logger = logging.getLogger(__name__)


def train(
    model: "TwoTower",
    data: DataOptions,
    out: Path,
    *,
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
    log_dir : path, optional
        Directory for TensorBoard logs.
    engine : str
        Where to train: local, in this process, or ray, with workers that divide the users.
    workers : int, optional
        Workers of the ray engine; as many as the cluster has nodes by default.
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
    from simrec.model.run.checkpoint import clear
    from simrec.model.run.scratch import Scratch

    # Found out now rather than after the training.
    check_replaceable(out)
    started = time.perf_counter()
    if checkpoint is None:
        checkpoint = f"{os.fspath(out).rstrip('/')}.checkpoint"
    inputs = {"ratings": data.ratings, "items": data.items, "users": data.users}
    check_apart(checkpoint, out=out, **inputs)
    Scratch.of(memory, scratch)  # found out now, too
    work = Training(model, data, out, log_dir, checkpoint, memory, scratch)
    with claim(out, **inputs):
        if engine == "ray":
            from simrec.jobs.engine.ray_train import run

            result = run(work.absolute(), workers, address, resume)
        elif workers not in (None, 1) or address is not None:
            raise InputError("workers, address: the local engine is one process; add --engine ray")
        else:
            result = work.run(resume=resume)
        clear(checkpoint)
    return {**result, "out": os.fspath(out), "seconds": round(time.perf_counter() - started, 3)}


@dataclass(frozen=True)
class Training:
    """What each worker of a training does: read, fit, and, if it is the first one, save."""

    model: "TwoTower"
    data: DataOptions
    out: Path
    log_dir: Path | None
    checkpoint: Path
    memory: str | None = None
    scratch: Path | None = None

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

    def run(self, strategy: Any = None, first: bool = True, resume: bool = False) -> dict[str, Any]:
        """Train; `first` says whether this worker saves the model."""
        from simrec.artifacts import read_manifest

        ratings = _load(self.data, self.model)
        self.model.fit(
            ratings,
            items=self.data.load_items(),
            users=self.data.load_users(),
            log_dir=None if self.log_dir is None else os.fspath(self.log_dir),
            strategy=strategy,
            checkpoint=self.checkpoint,
            resume=resume,
            memory=self.memory,
            scratch=self.scratch,
        )
        if not first:
            return {}
        self.model.save(os.fspath(self.out))
        return {
            "job": "train",
            "out": os.fspath(self.out),
            "model_id": read_manifest(self.out)["model_id"],
            "ratings": len(ratings),
            "users": ratings.n_users,
            "items": ratings.n_items,
            "duplicates": ratings.n_duplicates,
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
