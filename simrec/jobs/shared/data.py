"""The tables a model learns from, and tables that are given to a job by their paths."""

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from simrec.errors import InputError
from simrec.jobs.io.discover import open_source
from simrec.jobs.options import Path

if TYPE_CHECKING:
    from simrec.data.ids import IdMap
    from simrec.data.ratings import Ratings
    from simrec.data.tables import TableLike


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
        Name of the users' column in the ratings and in the features of users.
    item_id : str
        Name of the items' column in the ratings and in the features of items.
    rating : str, optional
        Name of the ratings' column; none for interactions without ratings.
    timestamp : str, optional
        Name of the column that says which of two ratings of a pair is the later one.
    weight : str, optional
        Name of the column that says how much each interaction counts, such as how often it was.
    duplicates : str
        Pairs rated twice: resolve (the latest, else the mean) or error.
    """

    ratings: Path
    items: Path | None = None
    users: Path | None = None
    user_id: str = "user_id"
    item_id: str = "item_id"
    rating: str | None = "rating"
    timestamp: str | None = "timestamp"
    weight: str | None = "weight"
    duplicates: Literal["resolve", "error"] = "resolve"

    def load_ratings(self, bounds: tuple[float, float] | None) -> "Ratings":
        """Read the ratings."""
        return self.as_ratings(table_at(self.ratings, "ratings"), bounds)

    def as_ratings(self, table: "TableLike", bounds: tuple[float, float] | None) -> "Ratings":
        """Take ratings from the table, or from a part of it."""
        from simrec.data.ratings import Ratings

        return Ratings.from_table(
            table,
            user_id=self.user_id,
            item_id=self.item_id,
            rating=self.rating,
            timestamp=self.timestamp,
            weight=self.weight,
            duplicates=self.duplicates,
            bounds=bounds,
            name=None if isinstance(table, str) else f"ratings {os.fspath(self.ratings)}",
        )

    def load_items(self) -> "TableLike | None":
        """Return the features of the items as something `fit` takes."""
        return self._features(self.items, "items", self.item_id, "item_id")

    def load_users(self) -> "TableLike | None":
        """Return the features of the users as something `fit` takes."""
        return self._features(self.users, "users", self.user_id, "user_id")

    def absolute(self) -> "DataOptions":
        """Return the same with paths that do not depend on the working directory."""
        names = ("ratings", "items", "users")
        return replace(self, **{name: absolute(getattr(self, name)) for name in names})

    def _features(
        self, path: Path | None, name: str, given: str, column: str
    ) -> "TableLike | None":
        if path is None or given == column:
            return table_at(path, name)
        from simrec.data.tables import read_table

        return self.renamed(read_table(table_at(path, name), name=name), given, column)

    @staticmethod
    def renamed(table: pa.Table, given: str, column: str) -> pa.Table:
        """Give the column of ids of a table of features its usual name."""
        names = table.column_names
        if given not in names or column in names:
            return table  # named as usual, or what is wrong with it is said later
        return table.rename_columns([column if n == given else n for n in names])


def absolute(path: Path | None) -> Any:
    """Make a local path absolute, if there is one."""
    local = path is not None and "://" not in os.fspath(path)
    return os.path.abspath(path) if local else path  # type: ignore[arg-type]


def table_at(path: Path | None, name: str) -> Any:
    """Return a table by its path, if there is one, as something that `read_table` takes.

    Local paths are left to `read_table`, so that a directory and a glob of its files are read
    alike; a URI is read here.
    """
    text = "" if path is None else os.fspath(path)
    return open_source(text, name).read() if "://" in text else text or None


def read_id(text: str, ids: "IdMap", column: str) -> int | str:
    """Read an id from the command line, of the kind that the model knows."""
    if not pa.types.is_integer(ids.type):
        return text
    try:
        return int(text)
    except ValueError:
        raise InputError(
            f"{column}: the ids of the model are whole numbers, got {text!r}"
        ) from None


def records(table: Any) -> list[dict[str, Any]]:
    """Return the rows of an Arrow table or a pandas frame; figures as far as float32 means them."""
    rows = table.to_pylist() if isinstance(table, pa.Table) else table.to_dict("records")
    return [
        {
            name: round(value, 7) if isinstance(value, float) else value
            for name, value in row.items()
        }
        for row in rows
    ]
