"""Filters as data: predicates over columns of the items table, compiled to Arrow compute.

::

    {"year": {">=": 1990, "<": 2000}, "genres": {"contains": "Comedy"}}
    {"or": [{"studio": "Aurora"}, {"not": {"studio": ["Borealis", "Cirrus"]}}]}

A predicate is a mapping. Of a column: a value (equal), a list (one of them), None (missing), or a
mapping of operators, which all must hold. `and` and `or` take a list of predicates, `not` one. All
entries of a mapping must hold. A comparison with a missing value does not hold, so that its `not`
does. Nothing is evaluated: operators are looked up in a table.
"""

import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.features.column import family
from simrec.errors import InputError, as_json, is_number, nearest

Where: TypeAlias = Mapping[str, Any]
"""A predicate over columns of the items table; see `simrec.model.answer.where`."""

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_OPERATORS = (*_COMPARE, "in", "contains")
# A filter is a few lines; more than this is a mistake, or meant to do harm.
_MOST_PARTS, _MOST_DEPTH = 10_000, 20


def matches(where: Where, table: pa.Table) -> np.ndarray:
    """Tell which rows of a table a predicate holds for.

    >>> films = pa.table({"year": [1990, None, 2000], "genres": [["War"], ["War", "Noir"], []]})
    >>> matches({"year": {">": 1995}}, films).tolist()
    [False, False, True]
    >>> matches({"genres": {"contains": "War"}, "not": {"year": None}}, films).tolist()
    [True, False, False]
    """
    return _Filter(table).rows(where, 0)


class _Filter:
    """One evaluation of a predicate; counts its parts."""

    def __init__(self, table: pa.Table) -> None:
        self.table, self.parts = table, 0

    def rows(self, where: Any, depth: int) -> np.ndarray:
        """Return the rows for which all entries of a predicate hold."""
        if not isinstance(where, Mapping):
            example = '{"year": {">=": 1990}}'
            raise InputError(f"where: expected conditions as in {example}, got {as_json(where)}.")
        if depth > _MOST_DEPTH:
            raise InputError(f"where: more than {_MOST_DEPTH} levels.")
        keep = np.ones(len(self.table), bool)
        for key, value in where.items():
            self._count(1)
            if key in ("and", "or"):
                if not isinstance(value, Sequence) or isinstance(value, str):
                    raise InputError(
                        f"where: {key!r} takes a list of predicates, got {as_json(value)}."
                    )
                some = [self.rows(one, depth + 1) for one in value]
                all_of = np.logical_and if key == "and" else np.logical_or
                keep &= all_of.reduce(some) if some else key == "and"
            elif key == "not":
                keep &= ~self.rows(value, depth + 1)
            else:
                keep &= self._column(str(key), value)
        return keep

    def _count(self, n: int) -> None:
        self.parts += n
        if self.parts > _MOST_PARTS:
            raise InputError(f"where: more than {_MOST_PARTS:,} values.")

    def _column(self, name: str, value: Any) -> np.ndarray:
        if name not in self.table.column_names:
            known = ", ".join(self.table.column_names) or "none"
            hint = nearest(name, self.table.column_names)
            raise InputError(f"where: the items have no column {name!r}.{hint} Columns: {known}.")
        column = self.table[name]
        if isinstance(column.type, pa.DictionaryType):
            column = column.cast(column.type.value_type)
        if not isinstance(value, Mapping):
            value = {"in" if isinstance(value, list | tuple) else "=": value}
        keep = np.ones(len(column), bool)
        for operator, given in value.items():
            self._count(len(given) if isinstance(given, list | tuple) else 1)
            keep &= self._holds(name, column, str(operator), given)
        return keep

    def _holds(self, name: str, column: Any, operator: str, given: Any) -> np.ndarray:
        if operator not in _OPERATORS:
            known = " ".join(_OPERATORS)
            raise InputError(f"where: {name!r} has no operator {operator!r}; there are {known}.")
        is_list = family(column.type).startswith("list")
        if given is None and operator in ("=", "!="):
            return _mask(column.is_null() if operator == "=" else column.is_valid())
        try:
            if operator == "contains":
                return _contains(name, column, given, is_list)
            if is_list:
                raise InputError(
                    f"where: {name!r} holds lists; {operator!r} compares single values. Say "
                    f'{{"{name}": {{"contains": ...}}}}.'
                )
            if operator == "in":
                if not isinstance(given, list | tuple):
                    raise InputError(f"where: 'in' of {name!r} takes a list, got {as_json(given)}.")
                there = [
                    _scalar(name, one, column.type).as_py() for one in given if one is not None
                ]
                found = _mask(_is_in(column, there))
                return found | _mask(column.is_null()) if None in given else found
            return _mask(_COMPARE[operator](column, _scalar(name, given, column.type)))
        except pa.ArrowNotImplementedError as error:
            which = f"{name!r}, which holds {family(column.type)}s"
            raise InputError(f"where: {operator!r} cannot be applied to {which}.") from error


def _is_in(column: Any, values: list[Any]) -> Any:
    if family(column.type) == "number":  # 1990.5 is in no column of integers, and no mistake
        values = [float(one) for one in values]
        column = column.cast(pa.float64())
    # Missing values are asked for by None.
    return pc.and_(pc.is_in(column, value_set=pa.array(values, column.type)), column.is_valid())


def _contains(name: str, column: Any, given: Any, is_list: bool) -> np.ndarray:
    """Tell which lists have a value among their elements, or which texts have it in them."""
    if not is_list:
        if not isinstance(given, str):
            raise InputError(f"where: 'contains' of {name!r} takes text, got {as_json(given)}.")
        return _mask(pc.match_substring(column, given))
    inside = np.zeros(len(column), bool)
    one_piece = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    flat, parents = pc.list_flatten(one_piece), pc.list_parent_indices(one_piece)
    if isinstance(flat.type, pa.DictionaryType):
        flat = flat.cast(flat.type.value_type)
    found = _mask(pc.equal(flat, _scalar(name, given, flat.type)))
    inside[np.asarray(parents)[found]] = True
    return inside


def _scalar(name: str, given: Any, kind: pa.DataType) -> pa.Scalar:
    """Return a value as the type of its column; dates may be given as text."""
    held = family(kind)
    fits = {
        "number": is_number(given),
        "boolean": isinstance(given, bool),
        "string": isinstance(given, str),
        "time": isinstance(given, str | datetime.date),
    }
    try:
        if fits.get(held, False):
            if held == "number":
                # A year may be compared with 1990.5: as numbers, not as the column's integers.
                return pa.scalar(given if isinstance(given, int) else float(given))
            if held == "time" and isinstance(given, str):
                return pa.scalar(given).cast(kind)
            return pa.scalar(given, kind)
    except (pa.ArrowException, OverflowError, ValueError):
        pass
    raise InputError(
        f"where: {name!r} holds {held}s, and cannot be compared with {as_json(given)}."
    )


def _mask(found: Any) -> np.ndarray:
    """Return Arrow's booleans as NumPy's; missing ones do not hold."""
    return np.asarray(pc.fill_null(found, False).to_numpy(zero_copy_only=False), bool)
