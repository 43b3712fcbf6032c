"""The two sides of a rating, items and users, one value for each, and the names of columns."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Generic, Literal, TypeVar, cast

import pyarrow as pa

from simrec.errors import InputError

T = TypeVar("T")
S = TypeVar("S")

Side = Literal["items", "users"]
"""Name of a side, as in the keyword arguments `items=` and `users=`."""

SIDES: tuple[Side, Side] = ("items", "users")
"""Both sides, in the order used everywhere."""

ID_COLUMNS: dict[Side, str] = {"items": "item_id", "users": "user_id"}
"""Name of the column of ids of each side."""

SINGULAR: dict[Side, str] = {"items": "item", "users": "user"}
"""What one entity of each side is called."""


def other(side: Side) -> Side:
    """Return the opposite side."""
    return "users" if side == "items" else "items"


@dataclass(frozen=True)
class Sides(Generic[T]):
    """One value for the items and one for the users. Iterates over the values, items first.

    >>> counts = Sides(items=3, users=5)
    >>> counts.items, counts["users"], counts.other("items")
    (3, 5, 5)
    >>> list(counts), counts.map(str)
    ([3, 5], Sides(items='3', users='5'))
    >>> Sides.of(lambda side: side.upper())
    Sides(items='ITEMS', users='USERS')
    >>> Sides(1, 2).map(lambda a, b: a + b, Sides(10, 20)).with_side("users", 3)
    Sides(items=11, users=3)
    """

    items: T
    users: T

    @classmethod
    def of(cls, make: Callable[[Side], S]) -> "Sides[S]":
        """Make the value of each side from the side's name, items first."""
        return cast("type[Sides[S]]", cls)(make("items"), make("users"))

    def __getitem__(self, side: Side) -> T:
        """Return the value of a side."""
        return self.items if side == "items" else self.users

    def __iter__(self) -> Iterator[T]:
        """Iterate over the values, items first."""
        return iter((self.items, self.users))

    def other(self, side: Side) -> T:
        """Return the value of the opposite side."""
        return self[other(side)]

    def named(self) -> "tuple[tuple[Side, T], tuple[Side, T]]":
        """Return (side, value) pairs, items first."""
        return ("items", self.items), ("users", self.users)

    def map(self, function: "Callable[..., S]", *more: "Sides[Any]") -> "Sides[S]":
        """Apply a function to the value of each side, and to those of `more`, items first."""
        return Sides(
            function(self.items, *(sides.items for sides in more)),
            function(self.users, *(sides.users for sides in more)),
        )

    def with_side(self, side: Side, value: T) -> "Sides[T]":
        """Return the same with another value of one side."""
        return Sides(value, self.users) if side == "items" else Sides(self.items, value)

    def swap(self) -> "Sides[T]":
        """Exchange the two values."""
        return Sides(self.users, self.items)


@dataclass(frozen=True)
class Columns:
    """Names of the columns in the tables that a model was trained with.

    Ids are columns of ratings and of features; None is a column of ratings that is not used.

    >>> names = Columns(user_id="userId", rating="stars")
    >>> names.renaming()
    {'userId': 'user_id', 'stars': 'rating'}
    """

    user_id: str = "user_id"
    item_id: str = "item_id"
    rating: str | None = "rating"
    timestamp: str | None = "timestamp"

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> "Columns":
        """Check the names that a model directory has."""
        known = {field.name for field in fields(cls)}
        optional = known - set(ID_COLUMNS.values())
        for name, value in document.items():
            if name not in known or not (
                isinstance(value, str) or (value is None and name in optional)
            ):
                raise InputError(f"manifest.json: columns are {dict(document)!r}")
        return cls(**document)

    def renaming(self, *usual: str) -> dict[str, str]:
        """Return the usual name of each column that is called otherwise; of some, if given."""
        return {
            own: name
            for name, own in asdict(self).items()
            if own not in (None, name) and (not usual or name in usual)
        }

    def of(self, side: Side) -> str:
        """Return the name of the column of ids of a side."""
        return self.item_id if side == "items" else self.user_id

    def named(self, table: pa.Table) -> pa.Table:
        """Give the ids of a result their own names."""
        own = {ID_COLUMNS[side]: self.of(side) for side in SIDES}
        own |= {f"for_{usual}": f"for_{name}" for usual, name in own.items()}
        return table.rename_columns([own.get(name, name) for name in table.column_names])


USUAL = Columns()
"""The names that SimRec uses itself."""
