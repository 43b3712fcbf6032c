"""Train a model from tables and save it."""

import logging
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from simrec.errors import InputError
from simrec.jobs.discover import is_remote_or_glob, open_source
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

    def _table(self, path: Path, name: str) -> "TableLike":
        return open_source(path, name).read() if is_remote_or_glob(path) else os.fspath(path)


def train(
    data: DataOptions,
    out: Path,
    model: "TwoTower | None" = None,
    log_dir: Path | None = None,
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

    Returns
    -------
    dict
        What was trained: counts, model id, time.
    """
    from simrec.artifacts import check_replaceable, read_manifest
    from simrec.model.two_tower import TwoTower

    # Found out now rather than after the training.
    check_replaceable(out)
    model = model if model is not None else TwoTower()
    started = time.perf_counter()
    ratings = data.load_ratings(model.bounds)
    if len(ratings) == 0:
        raise InputError(f"{data.ratings}: no ratings to train on")
    logger.info(
        "training on %d ratings of %d users and %d items",
        len(ratings),
        ratings.n_users,
        ratings.n_items,
    )
    model.fit(
        ratings,
        items=data.load_items(),
        users=data.load_users(),
        log_dir=None if log_dir is None else os.fspath(log_dir),
    )
    model.save(os.fspath(out))
    return {
        "job": "train",
        "out": os.fspath(out),
        "model_id": read_manifest(out)["model_id"],
        "ratings": len(ratings),
        "users": ratings.n_users,
        "items": ratings.n_items,
        "duplicates": ratings.n_duplicates,
        "seconds": round(time.perf_counter() - started, 3),
    }
