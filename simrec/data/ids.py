"""Ids, integers or strings: columns of them in any form, checked, and their row numbers."""

import bisect
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.id_columns import check_ids, id_kind, number_ids, one_piece, whole_numbers
from simrec.data.tables import as_arrow, as_numpy, null_mask
from simrec.errors import InputError, listing

# Below this many values, a binary search each beats building a hash table of all known ids.
_FEW = 64


def _places(values: pa.Array, known: pa.Array) -> np.ndarray:
    """Find each value among the known ones, -1 where it is not."""
    found = pc.index_in(values, value_set=known)
    # Where a number would be made a scalar of Arrow's, pandas would be imported.
    return as_numpy(found.fill_null(as_arrow(np.array([-1], np.int32))[0])).astype(np.int64)


class IdMap:
    """Distinct ids in ascending order, and the way from ids to rows and back.

    Row `r` is the id at place `r`. Ids are integers or strings of any Arrow type and come back
    as the `type` they were given in (string views as large strings). Strings are ordered by code
    point, as Python orders them. `from_values` takes ids that are not distinct and ascending.

    >>> ids = IdMap.from_values(["tea", "mate", "tea"])
    >>> ids.rows(["tea", "milk"])
    array([ 1, -1])
    >>> ids.take([0]).to_pylist()
    ['mate']
    """

    __slots__ = ("_direct", "ids")

    def __init__(self, ids: pa.Array | pa.ChunkedArray, trusted: bool = False) -> None:
        if not trusted:  # to be distinct and ascending
            ids = one_piece(check_ids(ids, "id", "IdMap"))
            if not pc.all(pc.less(ids[:-1], ids[1:]), min_count=0).as_py():
                raise InputError(
                    "IdMap: the ids are not distinct and ascending. "
                    "Use IdMap.from_values, which sorts them."
                )
        self.ids: pa.Array = ids
        self._direct: np.ndarray | None = None  # row by offset from the first id

    @classmethod
    def from_values(cls, values: Any, name: str = "ids") -> "IdMap":
        """Collect the distinct ids among values in any form; `name` is for error messages."""
        return encode_ids(values, name)[0]

    @property
    def type(self) -> pa.DataType:
        """The Arrow type of the ids."""
        return self.ids.type

    @property
    def column(self) -> pa.ChunkedArray:
        """The ids as a column; none is copied."""
        return pa.chunked_array([self.ids])

    def __len__(self) -> int:
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IdMap):
            return NotImplemented
        return bool(self.ids.equals(other.ids))

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return IdMap, (self.ids, True)

    def __repr__(self) -> str:
        shown = ", ".join(repr(v) for v in self.take(range(min(3, len(self)))).to_pylist())
        return f"IdMap({len(self):,} ids, {self.type}: {shown}{', ...' if len(self) > 3 else ''})"

    def rows(self, values: Any, name: str = "ids") -> np.ndarray:
        """Find the row of each id, int64, -1 for one that is not in the map.

        Integers may be of another width. Integers and strings match by their numeric value
        (7 and "007"); strings that are no numbers are then an error.
        """
        array = check_ids(values, name)
        if not len(array) or not len(self):
            return np.full(len(array), -1, dtype=np.int64)
        if id_kind(array.type) != id_kind(self.type):
            return self._rows_by_number(array, name)
        return np.concatenate([self._find(chunk) for chunk in array.chunks])

    def _find(self, chunk: pa.Array) -> np.ndarray:
        if isinstance(chunk, pa.DictionaryArray):
            return self._find(chunk.dictionary)[as_numpy(chunk.indices)]
        if pa.types.is_integer(self.type):
            return self._find_integers(as_numpy(chunk))
        if len(chunk) < _FEW < len(self):
            return np.array([self._bisect(value) for value in chunk.to_pylist()], dtype=np.int64)
        known = self.ids
        if chunk.type != known.type:
            chunk, known = chunk.cast(pa.large_string()), known.cast(pa.large_string())
        return _places(chunk, known)

    def _bisect(self, value: str) -> int:
        row = bisect.bisect_left(self.ids, value, key=lambda scalar: scalar.as_py())
        return row if row < len(self) and self.ids[row].as_py() == value else -1

    def _find_integers(self, values: np.ndarray) -> np.ndarray:
        known = as_numpy(self.ids)
        low, high = int(known[0]), int(known[-1])
        inside = (values >= low) & (values <= high)  # exact whatever the two integer types
        if not inside.all():
            rows = np.full(len(values), -1, dtype=np.int64)
            rows[inside] = self._find_integers(values[inside])
            return rows
        if high - low >= max(4 * len(known), 1 << 16):  # memory stays in proportion
            values = values.astype(known.dtype, copy=False)
            rows = np.searchsorted(known, values)
            return np.where(known[rows] == values, rows, -1)
        direct = self._direct
        if direct is None:
            direct = np.full(high - low + 1, -1, dtype=np.int64)
            direct[_offsets(known, low)] = np.arange(len(known))
            self._direct = direct  # once it is whole: other threads look up too
        return direct[_offsets(values, low)]

    def _rows_by_number(self, array: pa.ChunkedArray, name: str) -> np.ndarray:
        """Find integers among strings such as "7" or "007", or such strings among integers."""
        own = id_kind(self.type)
        numbers = whole_numbers(self.column if own == "string" else array)
        if (numbers.null_count if own == "integer" else numbers.null_count == len(numbers)) > 0:
            odd = array.filter(numbers.is_null())[0] if own == "integer" else array[0]
            raise InputError(
                f"{name}: {id_kind(array.type)} ids were given (such as {odd.as_py()!r}) where the "
                f"known ids are {own}s (such as {self.take([0])[0].as_py()!r}), and cannot be "
                f"matched as numbers. Give ids as they were in training; or train again with a "
                f"{name} of strings, which can be any ids."
            )
        if own == "integer":
            return self.rows(numbers, name)
        known, places = encode_ids(numbers.drop_null())
        at = known.rows(array, name)
        twice = (np.bincount(places) > 1)[at] & (at >= 0)
        if twice.any():
            number = array[int(np.argmax(twice))].as_py()
            alike = [v for v in self.column.to_pylist() if v.isdecimal() and int(v) == number]
            raise InputError(
                f"{name}: {number} could be any of {listing([repr(v) for v in alike])}, which the "
                "model knows. Give the ids as text, as they were in training."
            )
        rows = np.empty(len(known), np.int64)
        rows[places] = np.flatnonzero(~null_mask(numbers))
        return np.where(at >= 0, rows[at], -1)

    def contains(self, values: Any, name: str = "ids") -> np.ndarray:
        """Check for each id whether it is in the map."""
        return self.rows(values, name) >= 0

    def take(self, rows: Any) -> pa.Array:
        """Return the ids of some rows, in the Arrow type they came in."""
        index = np.asarray(rows)
        if index.size and (index.min() < 0 or index.max() >= len(self)):
            raise IndexError(f"rows must be between 0 and {len(self) - 1}")
        return self.ids.take(as_arrow(index.astype(np.int64, copy=False)))

    def read(self, given: Any, name: str) -> int | str:
        """Return one id as these are: numbers may come as text."""
        if id_kind(self.type) == "string":
            return str(given)
        try:
            return int(given) if isinstance(given, str) else given
        except ValueError:
            raise InputError(
                f"{name}: the ids of the model are whole numbers, got {given!r:.80}."
            ) from None

    def none(self) -> "IdMap":
        """Return a map of no ids, of the same type."""
        return IdMap(pa.array([], self.type), trusted=True)

    def union(self, other: "IdMap") -> "IdMap":
        """Return the map of the ids that are in either."""
        if not len(other) or not len(self):
            return other if len(other) else self
        other = other.as_kind(self.type)
        if id_kind(other.type) != id_kind(self.type):
            raise InputError(
                f"ids of two kinds cannot share a map: {self.type} and {other.type}. "
                "Convert one of the columns."
            )
        types = [pa.schema([("id", one.type)]) for one in (self, other)]
        shared = pa.unify_schemas(types, promote_options="permissive").field(0).type
        try:
            both = pa.chunked_array([self.ids.cast(shared), other.ids.cast(shared)])
        except pa.ArrowInvalid as error:  # uint64 beyond int64, and negative ids
            raise InputError(
                f"ids of type {self.type} and {other.type} fit no common type: {error}. "
                "Make them strings."
            ) from error
        return IdMap(number_ids(both)[0], trusted=True)

    def as_kind(self, type_: pa.DataType) -> "IdMap":
        """Return the same ids as integers or strings, as those of a type are, if they can be."""
        if id_kind(type_) == id_kind(self.type):
            return self
        if id_kind(type_) == "string":
            return IdMap.from_values(self.column.cast(pa.string()))
        numbers = whole_numbers(self.column)
        made = self if numbers.null_count else IdMap.from_values(numbers)
        return made if len(made) == len(self) else self


def _offsets(values: np.ndarray, low: int) -> np.ndarray:
    """Subtract the lowest id, to address a table by what is left."""
    # In 64 bits, where what overflows (uint64) comes round to the right offset again.
    wrapped = (low + 2**63) % 2**64 - 2**63
    return np.subtract(values.astype(np.int64, copy=False), np.int64(wrapped))


def encode_ids(values: Any, name: str = "ids") -> tuple[IdMap, np.ndarray]:
    """Collect the distinct ids, and number every value by them: int32, see `number_ids`."""
    ids, rows = number_ids(check_ids(values, name))
    return IdMap(ids, trusted=True), rows


def used_ids(ids: IdMap, rows: np.ndarray) -> tuple[IdMap, np.ndarray]:
    """Leave out the ids that no row is of; return the others, and the rows among them."""
    used = np.zeros(len(ids), dtype=bool)
    used[rows] = True
    if used.all():
        return ids, rows
    places = np.cumsum(used, dtype=rows.dtype)
    places -= 1
    return IdMap(ids.take(np.flatnonzero(used))), places[rows]
