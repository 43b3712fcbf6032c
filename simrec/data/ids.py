"""Ids, integers or strings, and the row numbers SimRec works with."""

import bisect
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.arrays import as_arrow, as_numpy, null_mask
from simrec.data.id_columns import (
    check_ids,
    dense_span,
    id_kind,
    id_offsets,
    is_ascending,
    number_ids,
    one_piece,
    whole_numbers,
)
from simrec.errors import InputError, listing

# Below this many values, a binary search each beats building a hash table of all known ids.
_FEW = 64
# From this share of the known ids on (one in so many), a hash table beats binary searches.
_MANY = 16


class IdMap:
    """Distinct ids in ascending order, and the way from ids to rows and back.

    Row `r` is the id at place `r`. Ids are integers or strings of any Arrow type and come back
    as the type they were given in (string views as large strings). Strings are ordered by code
    point, as Python orders them.

    Parameters
    ----------
    ids : pyarrow.Array or pyarrow.ChunkedArray
        The ids, already distinct and ascending. For any others there is `IdMap.from_values`.

    Examples
    --------
    Those of the methods go on from this one.

    >>> import pyarrow as pa
    >>> ids = IdMap.from_values(["tea", "mate", "tea"])
    >>> ids.rows(["tea", "milk"])
    array([ 1, -1])
    >>> ids.take([0]).to_pylist()
    ['mate']
    """

    __slots__ = ("_direct", "_ids")

    def __init__(self, ids: pa.Array | pa.ChunkedArray) -> None:
        self._ids: pa.Array = one_piece(check_ids(ids, "id", "IdMap"))
        self._direct: np.ndarray | None = None  # row by offset from the first id
        if not is_ascending(self._ids):
            raise InputError(
                "IdMap: the ids are not distinct and ascending. "
                "Use IdMap.from_values, which sorts them."
            )

    @classmethod
    def from_values(cls, values: Any, name: str = "ids") -> "IdMap":
        """Collect the distinct ids among some values.

        Parameters
        ----------
        values : pyarrow.Array, pyarrow.ChunkedArray, pandas.Series, numpy.ndarray or list
            Ids in any order, repeated or not.
        name : str
            What the ids are, for error messages.

        Examples
        --------
        >>> IdMap.from_values([7, 3, 7]).ids.to_pylist()
        [3, 7]
        """
        return encode_ids(values, name)[0]

    @property
    def ids(self) -> pa.Array:
        """The ids, one per row.

        >>> ids.ids.to_pylist()
        ['mate', 'tea']
        """
        return self._ids

    @property
    def column(self) -> pa.ChunkedArray:
        """The ids as a column, in as many chunks as they are in shards; none is copied.

        >>> ids.column.num_chunks
        1
        """
        return pa.chunked_array([self._ids])

    @property
    def sizes(self) -> tuple[int, ...]:
        """Ids of each shard; of a map in one piece, of all.

        >>> ids.sizes
        (2,)
        """
        return (len(self),)

    @property
    def type(self) -> pa.DataType:
        """The Arrow type of the ids.

        >>> ids.type
        DataType(string)
        """
        return self._ids.type

    def __len__(self) -> int:
        return len(self._ids)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IdMap):
            return NotImplemented
        return bool(self.column.equals(other.column))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(repr(v) for v in self.take(range(min(3, len(self)))).to_pylist())
        return f"IdMap({len(self):,} ids, {self.type}: {shown}{', ...' if len(self) > 3 else ''})"

    def __getstate__(self) -> dict[str, Any]:
        return {"ids": self._ids}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._ids, self._direct = state["ids"], None

    def rows(self, values: Any, name: str = "ids") -> np.ndarray:
        """Find the row of each id.

        Parameters
        ----------
        values : pyarrow.Array, pyarrow.ChunkedArray, pandas.Series, numpy.ndarray or list
            Ids, integers or strings. Integers may be of another width, and integers where the map
            has strings, or the other way round, are found by the number that they are.
        name : str
            What the ids are, for error messages.

        Returns
        -------
        numpy.ndarray
            Row numbers, int64, and -1 for an id that is not in the map.

        Raises
        ------
        InputError
            If ids are null, or are strings where the map has integers or the other way round, and
            are not the same numbers either.

        Examples
        --------
        >>> ids.rows(["milk", "tea", "mate"])
        array([-1,  1,  0])
        """
        array = check_ids(values, name)
        if not len(array) or not len(self):
            return np.full(len(array), -1, dtype=np.int64)
        if id_kind(array.type) != id_kind(self.type):
            return self._rows_by_number(array, name)
        return np.concatenate([self._chunk_rows(chunk) for chunk in array.chunks])

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
        """Check for each id whether it is in the map.

        >>> ids.contains(["tea", "milk"])
        array([ True, False])
        """
        return self.rows(values, name) >= 0

    def take(self, rows: Any) -> pa.Array:
        """Return the ids of some rows, in the Arrow type they came in.

        >>> ids.take([1, 0]).to_pylist()
        ['tea', 'mate']
        """
        return self._ids.take(pa.array(self._checked(rows)))

    def _checked(self, rows: Any) -> np.ndarray:
        index = np.asarray(rows)
        if index.size and (index.min() < 0 or index.max() >= len(self)):
            raise IndexError(f"rows must be between 0 and {len(self) - 1}")
        return index.astype(np.int64, copy=False)

    def without(self, rows: Any) -> "IdMap":
        """Return the map of the ids of all other rows.

        >>> ids.without([0]).ids.to_pylist()
        ['tea']
        """
        keep = np.ones(len(self), bool)
        keep[rows] = False
        return _trusted(self._ids.filter(pa.array(keep)))

    def none(self) -> "IdMap":
        """Return a map of no ids, of the same type.

        >>> len(ids.none())
        0
        """
        return _trusted(pa.array([], self.type))

    def union(self, other: "IdMap") -> "IdMap":
        """Return the map of the ids that are in either.

        >>> ids.union(IdMap.from_values(["milk"])).ids.to_pylist()
        ['mate', 'milk', 'tea']
        """
        if not len(other) or not len(self):
            return other if len(other) else self
        other = other.as_kind(self.type)
        shared = shared_type(self, other)
        return IdMap.from_values(pa.chunked_array([m.cast(shared).ids for m in (self, other)]))

    def cast(self, type_: pa.DataType) -> "IdMap":
        """Return the same ids in another type of the same kind.

        >>> ids.cast(pa.large_string()).type
        DataType(large_string)
        """
        try:
            return self if type_ == self.type else _trusted(self._ids.cast(type_))
        except pa.ArrowInvalid as error:  # uint64 beyond int64, and negative ids
            raise InputError(
                f"ids of type {self.type} and {type_} fit no common type: {error}. "
                "Make them strings."
            ) from error

    def as_kind(self, type_: pa.DataType) -> "IdMap":
        """Return the same ids as integers or strings, as those of a type are, if they can be.

        >>> IdMap.from_values([7, 10]).as_kind(pa.string()).ids.to_pylist()
        ['10', '7']
        """
        if id_kind(type_) == id_kind(self.type):
            return self
        if id_kind(type_) == "string":
            return IdMap.from_values(self.column.cast(pa.string()))
        numbers = whole_numbers(self.column)
        made = self if numbers.null_count else IdMap.from_values(numbers)
        return made if len(made) == len(self) else self

    def _chunk_rows(self, chunk: pa.Array) -> np.ndarray:
        if isinstance(chunk, pa.DictionaryArray):
            return self._chunk_rows(chunk.dictionary)[as_numpy(chunk.indices)]
        if id_kind(self.type) == "integer":
            return self._integer_rows(as_numpy(chunk))
        if len(chunk) < _FEW < len(self):
            return np.array([self._bisect(value) for value in chunk.to_pylist()], dtype=np.int64)
        known = self._ids
        if chunk.type != known.type:
            chunk, known = chunk.cast(pa.large_string()), known.cast(pa.large_string())
        return _places(chunk, known)

    def _bisect(self, value: str) -> int:
        row = bisect.bisect_left(self._ids, value, key=lambda scalar: scalar.as_py())
        return row if row < len(self) and self._ids[row].as_py() == value else -1

    def _integer_rows(self, values: np.ndarray) -> np.ndarray:
        known = as_numpy(self._ids)
        low, high = int(known[0]), int(known[-1])
        inside = (values >= low) & (values <= high)  # exact whatever the two integer types
        if not inside.all():
            rows = np.full(len(values), -1, dtype=np.int64)
            rows[inside] = self._integer_rows(values[inside])
            return rows
        if high - low >= dense_span(len(known)):
            values = values.astype(known.dtype, copy=False)
            if _MANY * len(values) > len(known):
                return _places(as_arrow(values), as_arrow(known))
            rows = np.searchsorted(known, values)
            return np.where(known[rows] == values, rows, -1)
        if self._direct is None:
            self._direct = np.full(high - low + 1, -1, dtype=np.int64)
            self._direct[id_offsets(known, low)] = np.arange(len(known))
        return self._direct[id_offsets(values, low)]


def _places(values: pa.Array, known: pa.Array) -> np.ndarray:
    """Find each value among the known ones, -1 where it is not."""
    found = pc.index_in(values, value_set=known)
    # Where a number would be made a scalar of Arrow's, pandas would be imported.
    return as_numpy(found.fill_null(as_arrow(np.array([-1], np.int32))[0])).astype(np.int64)


def encode_ids(values: Any, name: str = "ids") -> tuple[IdMap, np.ndarray]:
    """Collect the distinct ids, and number every value by them: int32, see `number_ids`."""
    ids, rows = number_ids(check_ids(values, name))
    return _trusted(ids), rows


def used_ids(ids: IdMap, rows: np.ndarray) -> tuple[IdMap, np.ndarray]:
    """Leave out the ids that no row is of; return the others, and the rows among them."""
    used = np.zeros(len(ids), dtype=bool)
    used[rows] = True
    if used.all():
        return ids, rows
    places = np.cumsum(used, dtype=rows.dtype)
    places -= 1
    return IdMap(ids.take(np.flatnonzero(used))), places[rows]


def shared_type(one: IdMap, other: IdMap) -> pa.DataType:
    """Return the type that holds the ids of both maps."""
    if id_kind(one.type) != id_kind(other.type):
        raise InputError(
            f"ids of two kinds cannot share a map: {one.type} and {other.type}. "
            "Convert one of the columns."
        )
    schemas = [pa.schema([("id", m.type)]) for m in (one, other)]
    return pa.unify_schemas(schemas, promote_options="permissive").field(0).type


def _trusted(ids: pa.Array) -> IdMap:
    """Wrap ids that are known to be distinct and ascending, without checking again."""
    made = IdMap.__new__(IdMap)
    made.__setstate__({"ids": ids})
    return made
