"""The ratings and the features of one worker's users."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simrec.data.ratings import Ratings
from simrec.jobs.io.discover import open_source
from simrec.jobs.io.portions import Divided
from simrec.jobs.shared.data import DataOptions

if TYPE_CHECKING:
    from simrec.data.tables import TableLike
    from simrec.model.run.workers import Workers


@dataclass(frozen=True)
class Portions:
    """How the tables of a training are divided between workers.

    Attributes
    ----------
    data : DataOptions
        The tables.
    ratings, users : Divided
        The tables of which each worker reads its own fragments; no users where there is no table.
    scratch : Path
        A directory that all workers see.
    """

    data: DataOptions
    ratings: Divided
    users: Divided | None
    scratch: Path

    @classmethod
    def of(cls, data: DataOptions, scratch: Path) -> Portions:
        """Look at the footers of the tables' files."""
        ratings = open_source(data.ratings, "ratings")
        ratings.require(data.user_id, data.item_id)
        wanted = (data.user_id, data.item_id, data.rating, data.timestamp, data.weight)
        columns = [name for name in ratings.schema.names if name in wanted]
        users = None
        if data.users is not None:
            source = open_source(data.users, "users")
            usual = "user_id" if data.user_id not in source.schema.names else data.user_id
            users = Divided.of("users", source, usual)
        return cls(data, Divided.of("ratings", ratings, data.user_id, columns), users, scratch)

    def read(
        self, bounds: tuple[float, float] | None, workers: Workers
    ) -> tuple[Ratings, TableLike | None]:
        """Read the ratings and the features of this worker's users."""
        data = self.data
        starts = self.ratings.starts(workers)
        ratings = data.as_ratings(self.ratings.portion(starts, workers, self.scratch), bounds)
        users: Any = None
        if self.users is not None:
            users = self.users.portion(starts, workers, self.scratch)
            users = data.renamed(users, data.user_id, "user_id")
        return ratings, users
