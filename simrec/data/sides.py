"""The two sides of a rating, items and users, and one value for each of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, cast

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

    Examples
    --------
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
