"""Sides: values of items and users, by name and in one order."""

from dataclasses import FrozenInstanceError

import pytest

from simrec.data.sides import ID_COLUMNS, SIDES, SINGULAR, Sides, other


def test_a_value_is_found_by_attribute_and_by_name() -> None:
    sides = Sides(items="i", users="u")
    assert (sides.items, sides.users) == (sides["items"], sides["users"]) == ("i", "u")
    assert (sides.other("items"), sides.other("users")) == ("u", "i")


def test_the_order_is_items_users_everywhere() -> None:
    items, users = Sides(items=1, users=2)
    assert (items, users) == (1, 2)
    assert tuple(Sides(1, 2).named()) == (("items", 1), ("users", 2))
    assert SIDES == tuple(ID_COLUMNS) == tuple(SINGULAR) == ("items", "users")
    calls: list[str] = []
    Sides.of(lambda side: calls.append(side))
    assert calls == ["items", "users"]


def test_map_applies_a_function_side_by_side() -> None:
    assert Sides(1, 2).map(lambda x: x * 10) == Sides(10, 20)
    assert Sides(1, 2).map(lambda x, y: x - y, Sides(5, 7)) == Sides(-4, -5)
    assert Sides(1, 2).swap() == Sides(2, 1)


def test_each_side_has_an_opposite_a_column_and_a_singular() -> None:
    for side in SIDES:
        assert other(other(side)) == side != other(side)
        assert ID_COLUMNS[side] == f"{SINGULAR[side]}_id"


def test_sides_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Sides(1, 2).items = 3  # type: ignore[misc]
