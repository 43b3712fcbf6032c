"""Ids in shards: ranges of ascending ids, each read when an id in its range is asked for."""

import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.arrays import as_arrow, as_numpy
from simrec.data.id_columns import id_kind
from simrec.data.ids import IdMap, shared_type
from simrec.errors import InputError
from simrec.storage.rows import divided, first_rows


def _unread() -> IdMap:
    raise NotImplementedError("only the ends of this range are known")


@dataclass(frozen=True)
class IdShard:
    """A range of ids: how many, the lowest and highest (None where there are none), how to read it.

    `stored` has the stored arrays that they are in, unchanged; empty where there are none.
    """

    rows: int
    first: Any
    last: Any
    read: Callable[[], IdMap] = _unread
    stored: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, ids: IdMap) -> "IdShard":
        """Take ids that are in memory."""
        ends = ids.take([0, len(ids) - 1]).to_pylist() if len(ids) else [None, None]
        return cls(len(ids), ends[0], ends[1], lambda: ids)


class ShardedIds(IdMap):
    """Distinct ids in shards: ranges in ascending order with no id in common; see `IdMap`."""

    __slots__ = ("_type", "shards", "starts")

    def __init__(self, shards: Sequence[IdShard], type_: pa.DataType) -> None:
        kind = {"integer": int, "string": str}.get(id_kind(type_) or "")
        before = None
        for one in shards:
            if not one.rows and one.first is None and one.last is None:
                continue
            typed = one.rows > 0 and type(one.first) is kind and type(one.last) is kind
            if not (typed and one.first <= one.last and (before is None or before < one.first)):
                raise InputError("user_id: the ranges of ids are not distinct and ascending")
            before = one.last
        self.shards, self._type = tuple(shards), type_
        self.starts = first_rows(self.sizes)

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

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardedIds.of, ([shard.read() for shard in self.shards],)

    def take(self, rows: Any) -> pa.Array:
        """Return the ids of some rows, in the Arrow type they came in."""
        rows = self._checked(rows)
        parts, places = [pa.array([], self.type)], [np.empty(0, np.int64)]
        for number, here, at in divided(rows, self.starts):
            parts.append(self.shards[number].read().take(at))
            places.append(np.arange(len(rows))[here])
        return pa.concat_arrays(parts).take(as_arrow(np.argsort(np.concatenate(places))))

    def without(self, rows: Any) -> IdMap:
        """Return the map of the ids of all other rows."""
        shards = list(self.shards)
        for number, _, at in divided(np.unique(rows), self.starts):
            shards[number] = IdShard.of(shards[number].read().without(at))
        return ShardedIds(shards, self.type)

    def union(self, other: IdMap) -> IdMap:
        """Return the map of the ids in either; a new one goes to the last range that begins below.

        One below all goes to the first range.
        """
        if not len(other):
            return self
        other = other.as_kind(self.type)
        shared = shared_type(self, other)
        shards, more = list(self.cast(shared).shards), other.cast(shared).ids
        filled = [i for i, shard in enumerate(shards) if shard.rows] or [0]
        firsts = [shards[i].first for i in filled[1:]]
        starts = [bisect.bisect_left(more, one, key=lambda s: s.as_py()) for one in firsts]
        for i, start, stop in zip(filled, [0, *starts], [*starts, len(more)], strict=True):
            if start < stop:
                mine = IdMap(more.slice(start, stop - start))
                shards[i] = IdShard.of(shards[i].read().union(mine))
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
