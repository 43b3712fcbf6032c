"""The tables a model learns from, and tables that are given to a job by their paths."""

import os
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from simrec.data.columns import USUAL, Columns
from simrec.data.sides import ID_COLUMNS, Side
from simrec.errors import InputError
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
        Table of user_id, item_id, rating: a Parquet or CSV file, a directory, a glob or a URI.
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

    def load_ratings(
        self, bounds: tuple[float, float] | None, columns: Columns = USUAL
    ) -> "Ratings":
        """Read the ratings; columns that are not given are called as in the training of a model."""
        own = self._names(columns)
        if columns == USUAL:
            return self.as_ratings(os.fspath(self.ratings), bounds)
        from simrec.data.tables import read_table

        ids = ["user_id", "item_id"]
        needed = ids if own.rating is None else [*ids, "rating"]
        table = read_table(
            self.ratings,
            needed,
            optional=("timestamp", "weight"),
            rename=own.renaming(),
            dictionaries=ids,
            name="ratings",
        )
        usual = {name: name for name, given in asdict(own).items() if given is not None}
        found = replace(self, **{**asdict(own), **usual}).as_ratings(table, bounds)
        return replace(found, columns=own)

    def _names(self, columns: Columns) -> Columns:
        given = {name: getattr(self, name) for name in asdict(columns)}
        return replace(columns, **{n: own for n, own in given.items() if own != getattr(USUAL, n)})

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

    def load_items(self, columns: Columns = USUAL) -> "TableLike | None":
        """Return the features of the items as something `fit` takes."""
        return self._features(self.items, "items", columns)

    def load_users(self, columns: Columns = USUAL) -> "TableLike | None":
        """Return the features of the users as something `fit` takes."""
        return self._features(self.users, "users", columns)

    def absolute(self) -> "DataOptions":
        """Return the same with paths that do not depend on the working directory."""
        names = ("ratings", "items", "users")
        return replace(self, **{name: absolute(getattr(self, name)) for name in names})

    def _features(self, path: Path | None, side: Side, columns: Columns) -> "TableLike | None":
        given = self._names(columns).of(side)
        if path is None or columns == USUAL or given == columns.of(side):
            return path  # the ratings or the model know what its ids are called
        from simrec.data.tables import read_table

        return read_table(path, name=side, rename={given: ID_COLUMNS[side]})

    @staticmethod
    def renamed(table: pa.Table, given: str, column: str) -> pa.Table:
        """Give the column of ids of a table of features its usual name."""
        names = table.column_names
        if given not in names or column in names:
            return table  # named as usual, or what is wrong with it is said later
        return table.rename_columns([column if n == given else n for n in names])


@dataclass(frozen=True)
class NameOptions:
    """Names of columns, where they are not those that the model was trained with.

    Parameters
    ----------
    user_id : str, optional
        Name of the users' column; by default as in training, or user_id.
    item_id : str, optional
        Name of the items' column; by default as in training, or item_id.
    rating : str, optional
        Name of the ratings' column in feedback; by default as in training, or rating.
    timestamp : str, optional
        Name of the column of times in feedback, likewise.
    weight : str, optional
        Name of the column of weights in feedback, likewise.
    """

    user_id: str | None = None
    item_id: str | None = None
    rating: str | None = None
    timestamp: str | None = None
    weight: str | None = None

    def over(self, columns: Columns) -> Columns:
        """Return the names in training, but for those that are given."""
        given = {name: own for name, own in asdict(self).items() if own is not None}
        return replace(columns, **given)


def absolute(path: Path | None) -> Any:
    """Make a local path absolute, if there is one."""
    local = path is not None and "://" not in os.fspath(path)
    return os.path.abspath(path) if local else path  # type: ignore[arg-type]


def read_id(text: str, ids: "IdMap", column: str) -> int | str:
    """Read an id from the command line, of the kind that the model knows."""
    if not pa.types.is_integer(ids.type):
        row = -1 if ids.contains([text])[0] or not text.isdecimal() else _number_row(ids, text)
        return text if row < 0 else ids.take([row])[0].as_py()
    try:
        return int(text)
    except ValueError:
        raise InputError(
            f"{column}: the ids of the model are whole numbers, got {text!r}"
        ) from None


def _number_row(ids: "IdMap", text: str) -> int:
    """Find the id that is this number, such as 000050 for 50; -1 if there is none."""
    try:
        return int(ids.rows([int(text)])[0])
    except (InputError, OverflowError):
        return -1


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
