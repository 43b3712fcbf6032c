"""Ids, integers or strings, and the row numbers SimRec works with."""

import bisect
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.arrays import as_arrow, as_numpy, null_mask
from simrec.data.id_columns import (
    IdShard,
    check_ids,
    id_kind,
    is_ascending,
    number_ids,
    one_piece,
    whole_numbers,
)
from simrec.errors import InputError, listing
from simrec.storage.rows import divided, first_rows


class IdMap:
    """Distinct ids in ascending order, and the way from ids to rows and back.

    Row `r` is the id at place `r`. Ids are integers or strings of any Arrow type and come back
    as the `type` they were given in (string views as large strings). Strings are ordered by code
    point, as Python orders them. `from_values` takes ids that are not distinct and ascending.

    Examples
    --------
    >>> ids = IdMap.from_values(["tea", "mate", "tea"])
    >>> ids.rows(["tea", "milk"])
    array([ 1, -1])
    >>> ids.take([0]).to_pylist()
    ['mate']
    """

    __slots__ = ("shards", "starts", "type")

    def __init__(self, ids: pa.Array | pa.ChunkedArray) -> None:
        found: pa.Array = one_piece(check_ids(ids, "id", "IdMap"))
        if not is_ascending(found):
            raise InputError(
                "IdMap: the ids are not distinct and ascending. "
                "Use IdMap.from_values, which sorts them."
            )
        self.__setstate__(((IdShard.of(found),), found.type))

    def __getstate__(self) -> tuple[tuple[IdShard, ...], pa.DataType]:
        return self.shards, self.type

    def __setstate__(self, state: tuple[tuple[IdShard, ...], pa.DataType]) -> None:
        self.shards, self.type = state
        self.starts = first_rows([shard.rows for shard in self.shards])

    @classmethod
    def from_values(cls, values: Any, name: str = "ids") -> "IdMap":
        """Collect the distinct ids among values in any form; `name` is for error messages."""
        return encode_ids(values, name)[0]

    @property
    def ids(self) -> pa.Array:
        """The ids, one per row."""
        chunks = [shard.ids for shard in self.shards]
        return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)

    @property
    def column(self) -> pa.ChunkedArray:
        """The ids as a column, in as many chunks as they are in shards; none is copied."""
        return pa.chunked_array([shard.ids for shard in self.shards])

    @property
    def sizes(self) -> tuple[int, ...]:
        """Ids of each shard; of a map in one piece, of all."""
        return tuple(shard.rows for shard in self.shards)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IdMap):
            return NotImplemented
        return bool(self.column.equals(other.column))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(repr(v) for v in self.take(range(min(3, len(self)))).to_pylist())
        return f"IdMap({len(self):,} ids, {self.type}: {shown}{', ...' if len(self) > 3 else ''})"

    def rows(self, values: Any, name: str = "ids") -> np.ndarray:
        """Find the row of each id, int64, -1 for one that is not in the map.

        Integers may be of another width. Integers where the map has strings, or the other way
        round, are found by the number that they are; where they are none, that is an error.
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
        if len(self.shards) == 1:
            return self.shards[0].find(chunk)
        rows = np.full(len(chunk), -1, np.int64)
        values = as_numpy(chunk) if id_kind(self.type) == "integer" else None
        for shard, start in zip(self.shards, self.starts, strict=False):
            if not shard.rows:
                continue
            if values is not None:
                # Exact whatever the two integer types, with integers of Python.
                inside = np.flatnonzero((values >= shard.first) & (values <= shard.last))
            else:
                first, last = (pa.scalar(end, chunk.type) for end in (shard.first, shard.last))
                within = pc.and_(pc.greater_equal(chunk, first), pc.less_equal(chunk, last))
                inside = as_numpy(pc.indices_nonzero(within)).astype(np.int64)
            if len(inside):
                asked = chunk if len(inside) == len(chunk) else chunk.take(as_arrow(inside))
                found = shard.find(asked)
                rows[inside] = np.where(found >= 0, found + start, -1)
        return rows

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
        index = index.astype(np.int64, copy=False)
        if len(self.shards) == 1:
            return self.shards[0].ids.take(as_arrow(index))
        parts, places = [pa.array([], self.type)], [np.empty(0, np.int64)]
        for number, here, at in divided(index, self.starts):
            parts.append(self.shards[number].ids.take(as_arrow(at)))
            places.append(np.arange(len(index))[here])
        return pa.concat_arrays(parts).take(as_arrow(np.argsort(np.concatenate(places))))

    def without(self, rows: Any) -> "IdMap":
        """Return the map of the ids of all other rows."""
        shards = list(self.shards)
        for number, _, at in divided(np.unique(np.asarray(rows, np.int64)), self.starts):
            keep = np.ones(shards[number].rows, bool)
            keep[at] = False
            shards[number] = IdShard.of(shards[number].ids.filter(pa.array(keep)))
        return in_shards(shards, self.type)

    def none(self) -> "IdMap":
        """Return a map of no ids, of the same type."""
        return in_shards([IdShard.of(pa.array([], self.type))], self.type)

    def union(self, other: "IdMap") -> "IdMap":
        """Return the map of the ids that are in either.

        In shards, a new one goes to the last that begins below it, or to the first.
        """
        if not len(other) or (not len(self) and len(self.shards) == 1):
            return other if len(other) else self
        other = other.as_kind(self.type)
        shared = shared_type(self, other)
        shards, more = list(self.cast(shared).shards), other.cast(shared).ids
        filled = [i for i, shard in enumerate(shards) if shard.rows] or [0]
        firsts = [shards[i].first for i in filled[1:]]
        starts = [bisect.bisect_left(more, one, key=lambda s: s.as_py()) for one in firsts]
        for i, start, stop in zip(filled, [0, *starts], [*starts, len(more)], strict=True):
            if start < stop:
                both = pa.chunked_array([shards[i].ids, more.slice(start, stop - start)])
                shards[i] = IdShard.of(number_ids(both)[0])
        return in_shards(shards, shared)

    def cast(self, type_: pa.DataType) -> "IdMap":
        """Return the same ids in another type of the same kind."""
        try:
            if type_ == self.type:
                return self
            return in_shards([IdShard.of(one.ids.cast(type_)) for one in self.shards], type_)
        except pa.ArrowInvalid as error:  # uint64 beyond int64, and negative ids
            raise InputError(
                f"ids of type {self.type} and {type_} fit no common type: {error}. "
                "Make them strings."
            ) from error

    def as_kind(self, type_: pa.DataType) -> "IdMap":
        """Return the same ids as integers or strings, as those of a type are, if they can be."""
        if id_kind(type_) == id_kind(self.type):
            return self
        if id_kind(type_) == "string":
            return IdMap.from_values(self.column.cast(pa.string()))
        numbers = whole_numbers(self.column)
        made = self if numbers.null_count else IdMap.from_values(numbers)
        return made if len(made) == len(self) else self


def encode_ids(values: Any, name: str = "ids") -> tuple[IdMap, np.ndarray]:
    """Collect the distinct ids, and number every value by them: int32, see `number_ids`."""
    ids, rows = number_ids(check_ids(values, name))
    return in_shards([IdShard.of(ids)], ids.type), rows


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


def in_shards(shards: Sequence[IdShard], type_: pa.DataType) -> IdMap:
    """Make a map of shards, whose ranges must be ascending and have no id in common."""
    kind, before = {"integer": int, "string": str}.get(id_kind(type_) or ""), None
    for one in shards:
        if not one.rows and one.first is None and one.last is None:
            continue
        typed = one.rows > 0 and type(one.first) is kind and type(one.last) is kind
        if not (typed and one.first <= one.last and (before is None or before < one.first)):
            raise InputError("user_id: the ranges of ids are not distinct and ascending")
        before = one.last
    made = IdMap.__new__(IdMap)
    made.__setstate__((tuple(shards), type_))
    return made
