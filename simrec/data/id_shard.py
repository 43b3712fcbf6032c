"""Ascending ids that are looked up: all of a side, or those of one shard."""

import bisect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.arrays import as_arrow, as_numpy
from simrec.data.id_columns import dense_span, id_offsets

# Below this many values, a binary search each beats building a hash table of all known ids.
_FEW = 64
# From this share of the known ids on (one in so many), a hash table beats binary searches.
_MANY = 16


class IdShard:
    """Some ascending ids: how many, the lowest and the highest, None if there are none.

    They are read when they are first asked for. `stored` has the arrays of a model directory that
    hold them unchanged, if there are any.
    """

    __slots__ = ("_direct", "_ids", "_read", "first", "last", "rows", "stored")

    def __init__(
        self,
        rows: int,
        first: Any,
        last: Any,
        read: Callable[[], pa.Array] | None = None,
        stored: Mapping[str, Any] | None = None,
    ) -> None:
        self.rows, self.first, self.last, self.stored = rows, first, last, stored or {}
        self._read, self._ids = read, None
        self._direct: np.ndarray | None = None  # row by offset from the first id

    @classmethod
    def of(cls, ids: pa.Array) -> "IdShard":
        """Take ids in memory that are known to be distinct and ascending."""
        first, last = (ids[0].as_py(), ids[-1].as_py()) if len(ids) else (None, None)
        return cls(len(ids), first, last, lambda: ids)

    def __reduce__(self) -> tuple[Any, ...]:
        return IdShard.of, (self.ids,)

    @property
    def ids(self) -> pa.Array:
        """The ids."""
        if self._ids is None:
            assert self._read is not None, "only the ends of this range are known"
            self._ids = self._read()
        return self._ids

    def find(self, chunk: pa.Array) -> np.ndarray:
        """Return the row of each of some ids of the same kind, -1 where there is none."""
        if pa.types.is_integer(self.ids.type):
            return self._find_integers(as_numpy(chunk))
        if len(chunk) < _FEW < self.rows:
            return np.array([self._bisect(value) for value in chunk.to_pylist()], dtype=np.int64)
        known = self.ids
        if chunk.type != known.type:
            chunk, known = chunk.cast(pa.large_string()), known.cast(pa.large_string())
        return _places(chunk, known)

    def _bisect(self, value: str) -> int:
        row = bisect.bisect_left(self.ids, value, key=lambda scalar: scalar.as_py())
        return row if row < self.rows and self.ids[row].as_py() == value else -1

    def _find_integers(self, values: np.ndarray) -> np.ndarray:
        known = as_numpy(self.ids)
        low, high = int(known[0]), int(known[-1])
        inside = (values >= low) & (values <= high)  # exact whatever the two integer types
        if not inside.all():
            rows = np.full(len(values), -1, dtype=np.int64)
            rows[inside] = self._find_integers(values[inside])
            return rows
        if high - low >= dense_span(len(known)):
            values = values.astype(known.dtype, copy=False)
            if _MANY * len(values) > len(known):
                return _places(as_arrow(values), as_arrow(known))
            rows = np.searchsorted(known, values)
            return np.where(known[rows] == values, rows, -1)
        direct = self._direct
        if direct is None:
            direct = np.full(high - low + 1, -1, dtype=np.int64)
            direct[id_offsets(known, low)] = np.arange(len(known))
            self._direct = direct  # once it is whole: other threads look up too
        return direct[id_offsets(values, low)]


def _places(values: pa.Array, known: pa.Array) -> np.ndarray:
    """Find each value among the known ones, -1 where it is not."""
    found = pc.index_in(values, value_set=known)
    # Where a number would be made a scalar of Arrow's, pandas would be imported.
    return as_numpy(found.fill_null(as_arrow(np.array([-1], np.int32))[0])).astype(np.int64)
