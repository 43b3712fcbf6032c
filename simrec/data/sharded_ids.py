"""Ids in shards: ranges of ascending ids, each read when an id in its range is asked for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.arrays import as_arrow, as_numpy
from simrec.data.ids import IdMap, id_kind, shared_type
from simrec.errors import InputError
from simrec.rows import divided, first_rows


@dataclass(frozen=True)
class IdShard:
    """A range of ids.

    Attributes
    ----------
    rows : int
        How many there are.
    first, last : int, str or None
        The lowest and the highest; None where there are none.
    read : callable
        Returns them as an IdMap.
    source : object
        The file they are in, unchanged; None where there is none.
    """

    rows: int
    first: Any
    last: Any
    read: Callable[[], IdMap]
    source: Any = None

    @classmethod
    def of(cls, ids: IdMap) -> "IdShard":
        """Take ids that are in memory."""
        ends = ids.take([0, len(ids) - 1]).to_pylist() if len(ids) else [None, None]
        return cls(len(ids), ends[0], ends[1], lambda: ids)


class ShardedIds(IdMap):
    """Distinct ids in ascending order, in shards; see `IdMap`.

    Parameters
    ----------
    shards : sequence of IdShard
        Ranges in ascending order that have no id in common.
    type_ : pyarrow.DataType
        The type of the ids.
    """

    __slots__ = ("_type", "shards", "starts")

    def __init__(self, shards: Sequence[IdShard], type_: pa.DataType) -> None:
        check_ranges([(shard.rows, shard.first, shard.last) for shard in shards], type_)
        self.shards, self._type = tuple(shards), type_
        self.starts = first_rows([shard.rows for shard in shards])

    @classmethod
    def of(cls, maps: Sequence[IdMap]) -> "ShardedIds":
        """Make shards of maps, in ascending order."""
        return cls([IdShard.of(ids) for ids in maps], maps[0].type)

    @property
    def ids(self) -> pa.Array:
        """The ids, one per row, in one piece."""
        return pa.concat_arrays(self.column.chunks)

    @property
    def column(self) -> pa.ChunkedArray:
        """The ids as a column, in as many chunks as they are in shards; none is copied."""
        return pa.chunked_array([shard.read().ids for shard in self.shards])

    @property
    def sizes(self) -> tuple[int, ...]:
        """Ids of each shard."""
        return tuple(shard.rows for shard in self.shards)

    @property
    def type(self) -> pa.DataType:
        """The Arrow type of the ids."""
        return self._type

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getstate__(self) -> dict[str, Any]:
        return {"maps": [shard.read() for shard in self.shards]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__([IdShard.of(ids) for ids in state["maps"]], state["maps"][0].type)  # type: ignore[misc]

    def take(self, rows: Any) -> pa.Array:
        """Return the ids of some rows, in the Arrow type they came in."""
        rows = self._checked(rows)
        parts, places = [pa.array([], self.type)], [np.empty(0, np.int64)]
        for number, here, at in divided(rows, self.starts):
            parts.append(self.shards[number].read().take(at))
            places.append(np.arange(len(rows))[here])
        joined = pa.concat_arrays(parts)
        return joined.take(as_arrow(np.argsort(np.concatenate(places))))

    def without(self, rows: Any) -> IdMap:
        """Return the map of the ids of all other rows."""
        shards = list(self.shards)
        for number, _, at in divided(np.unique(rows), self.starts):
            shards[number] = IdShard.of(shards[number].read().without(at))
        return ShardedIds(shards, self.type)

    def union(self, other: IdMap) -> IdMap:
        """Return the map of the ids that are in either; a new id goes to the range it is next to.

        That is the last range which begins before it, or the first of all.
        """
        if not len(other):
            return self
        shared = shared_type(self, other)
        shards, more = list(self.cast(shared).shards), other.cast(shared)
        begun = [i for i, shard in enumerate(shards) if shard.rows] or [0]
        firsts = [shards[i].first for i in begun[1:]]
        bounds = [0, *(_count_below(more.ids, first) for first in firsts), len(more)]
        for place, i in enumerate(begun):
            mine = more.ids.slice(bounds[place], bounds[place + 1] - bounds[place])
            if len(mine):
                shards[i] = IdShard.of(shards[i].read().union(IdMap(mine)))
        return ShardedIds(shards, shared)

    def cast(self, type_: pa.DataType) -> "ShardedIds":
        """Return the same ids in another type of the same kind."""
        if type_ == self.type:
            return self
        return ShardedIds.of([shard.read().cast(type_) for shard in self.shards])

    def _chunk_rows(self, chunk: pa.Array) -> np.ndarray:
        if isinstance(chunk, pa.DictionaryArray):
            return self._chunk_rows(chunk.dictionary)[as_numpy(chunk.indices)]
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
                found = shard.read().rows(asked)
                rows[inside] = np.where(found >= 0, found + start, -1)
        return rows


def check_ranges(ranges: Sequence[tuple[int, Any, Any]], type_: pa.DataType) -> None:
    """Refuse ranges (rows, first, last) that are not ascending, or have an id in common."""
    kind = {"integer": int, "string": str}.get(id_kind(type_) or "")
    before = None
    for rows, first, last in ranges:
        if not rows and first is None and last is None:
            continue
        typed = rows > 0 and type(first) is kind and type(last) is kind
        if not typed or not first <= last or (before is not None and not before < first):
            raise InputError("user_id: the ranges of ids in shards are not distinct and ascending")
        before = last


def _count_below(ids: pa.Array, bound: Any) -> int:
    """Count the ids below a bound, of ids in ascending order."""
    if id_kind(ids.type) == "integer":
        return int((as_numpy(ids) < bound).sum())
    return int(pc.sum(pc.less(ids, pa.scalar(bound, ids.type))).as_py() or 0)
