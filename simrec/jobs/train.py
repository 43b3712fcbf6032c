"""Train a model from tables and save it."""

import logging
import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from simrec.errors import InputError
from simrec.jobs.io.claim import check_apart, claim
from simrec.jobs.io.discover import is_remote_or_glob, open_source
from simrec.jobs.options import Path

if TYPE_CHECKING:
    from simrec.data.ratings import Ratings
    from simrec.data.tables import TableLike
    from simrec.model.two_tower import TwoTower

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DataOptions:
    """The tables a model learns from.

    Parameters
    ----------
    ratings : path
        Table of user_id, item_id, rating: a Parquet file, a directory, a glob or a URI.
    items : path, optional
        Features of the items, by item_id.
    users : path, optional
        Features of the users, by user_id.
    user_id : str
        Name of the users' column in the ratings.
    item_id : str
        Name of the items' column in the ratings.
    rating : str, optional
        Name of the ratings' column; none for interactions without ratings.
    timestamp : str
        Name of the column that says which of two ratings of a pair is the later one.
    duplicates : str
        Pairs rated twice: resolve (the latest, else the mean) or error.
    """

    ratings: Path
    items: Path | None = None
    users: Path | None = None
    user_id: str = "user_id"
    item_id: str = "item_id"
    rating: str | None = "rating"
    timestamp: str = "timestamp"
    duplicates: Literal["resolve", "error"] = "resolve"

    def load_ratings(self, bounds: tuple[float, float] | None) -> "Ratings":
        """Read the ratings."""
        from simrec.data.ratings import Ratings

        return Ratings.from_table(
            self._table(self.ratings, "ratings"),
            user_id=self.user_id,
            item_id=self.item_id,
            rating=self.rating,
            timestamp=self.timestamp,
            duplicates=self.duplicates,
            bounds=bounds,
        )

    def load_items(self) -> "TableLike | None":
        """Return the items' features as something `fit` takes."""
        return None if self.items is None else self._table(self.items, "items")

    def load_users(self) -> "TableLike | None":
        """Return the users' features as something `fit` takes."""
        return None if self.users is None else self._table(self.users, "users")

    def absolute(self) -> "DataOptions":
        """Give the same with paths that do not depend on the working directory."""
        items = None if self.items is None else absolute(self.items)
        users = None if self.users is None else absolute(self.users)
        return replace(self, ratings=absolute(self.ratings), items=items, users=users)

    def _table(self, path: Path, name: str) -> "TableLike":
        return open_source(path, name).read() if is_remote_or_glob(path) else os.fspath(path)


def train(
    data: DataOptions,
    out: Path,
    model: "TwoTower | None" = None,
    log_dir: Path | None = None,
    engine: Literal["local", "ray"] = "local",
    workers: int | None = None,
    address: str | None = None,
    checkpoint: Path | None = None,
    resume: bool = False,
) -> dict[str, Any]:
    """Train a model on all ratings and save it.

    Parameters
    ----------
    data : DataOptions
        The tables.
    out : path
        The model directory to write; an earlier model there is replaced.
    model : TwoTower, optional
        The model to fit, with its settings.
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

    Returns
    -------
    dict
        What was trained: counts, model id, time.
    """
    from simrec.artifacts import check_replaceable
    from simrec.model.run.checkpoint import clear
    from simrec.model.two_tower import TwoTower

    # Found out now rather than after the training.
    check_replaceable(out)
    started = time.perf_counter()
    if checkpoint is None:
        checkpoint = f"{os.fspath(out).rstrip('/')}.checkpoint"
    inputs = {"ratings": data.ratings, "items": data.items, "users": data.users}
    check_apart(checkpoint, out=out, **inputs)
    work = Training(data, out, model if model is not None else TwoTower(), log_dir, checkpoint)
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


def absolute(path: Path) -> str:
    """Make a local path absolute."""
    text = os.fspath(path)
    return text if "://" in text else os.path.abspath(text)


@dataclass(frozen=True)
class Training:
    """What each worker of a training does: read, fit, and, if it is the first one, save."""

    data: DataOptions
    out: Path
    model: "TwoTower"
    log_dir: Path | None
    checkpoint: Path

    def absolute(self) -> "Training":
        """Give the same with paths that do not depend on the working directory."""
        return replace(
            self,
            data=self.data.absolute(),
            out=absolute(self.out),
            log_dir=None if self.log_dir is None else absolute(self.log_dir),
            checkpoint=absolute(self.checkpoint),
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
