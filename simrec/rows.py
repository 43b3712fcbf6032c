"""Arrays and sparse matrices whose rows lie in shards, read by rows as if they were one.

A shard is an array (a csr_matrix), or a file that is read when its rows are first asked for
(`simrec.stored`). Shards that nobody asks for are never read, and shards that nobody changes stay
the objects they were, so that saving need not write them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from scipy import sparse

# Rows that are worked on at a time where something is summed over all of them. Blocks do not
# depend on where shards end, hence neither does any bit of the sums.
BLOCK = 1 << 16


class _Sharded:
    """Rows in shards."""

    __slots__ = ("shards", "starts")

    def __init__(self, shards: Sequence[Any]) -> None:
        self.shards = tuple(shards)
        self.starts = first_rows([shard.shape[0] for shard in self.shards])

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of each shard."""
        return tuple(np.diff(self.starts).tolist())

    def _rows(self, rows: Any) -> np.ndarray:
        """Return row numbers of a slice, a mask or numbers, all within range."""
        if isinstance(rows, slice):
            return np.arange(*rows.indices(len(self)))
        rows = np.asarray(rows)
        if rows.dtype == bool:
            if rows.shape != (len(self),):
                raise IndexError(f"a mask of shape {rows.shape} for {len(self)} rows")
            return np.flatnonzero(rows)
        if not rows.size:
            return np.empty(0, np.int64)
        if rows.dtype.kind not in "iu" or rows.ndim != 1:
            raise IndexError(f"rows must be whole numbers, got {rows.dtype} of shape {rows.shape}")
        rows = rows.astype(np.int64, copy=False)
        if rows.min() < 0:
            rows = np.where(rows < 0, rows + len(self), rows)
        if rows.min() < 0 or rows.max() >= len(self):
            raise IndexError(f"a row is outside 0..{len(self) - 1}")
        return rows

    def _divided(self, rows: np.ndarray) -> Iterator[tuple[int, Any, np.ndarray]]:
        """Yield for each shard its number, which of the rows are in it, and where."""
        yield from divided(rows, self.starts)


class Rows(_Sharded):
    """An array in shards: shape, dtype, length, and rows by number, slice, numbers or mask.

    `numpy.asarray` makes one array of it.

    Parameters
    ----------
    shards : sequence of array
        At least one; all with the same dtype and the same shape but for their lengths.

    Examples
    --------
    >>> rows = Rows([np.array([1, 2]), np.array([3])])
    >>> len(rows), rows[2], rows[[2, 0]], rows[1:]
    (3, np.int64(3), array([3, 1]), array([2, 3]))
    """

    __slots__ = ()

    def __init__(self, shards: Sequence[Any]) -> None:
        super().__init__(shards)
        kinds = {(shard.dtype, shard.shape[1:]) for shard in self.shards}
        if len(kinds) != 1:
            raise ValueError(f"shards of different kinds: {sorted(map(str, kinds))}")

    @property
    def shape(self) -> tuple[int, ...]:
        """Length and the shape of a row."""
        return (len(self), *self.shards[0].shape[1:])

    @property
    def dtype(self) -> np.dtype:
        """Kind of numbers."""
        return self.shards[0].dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        joined = np.concatenate([np.asarray(shard) for shard in self.shards])
        return joined if dtype is None else joined.astype(dtype, copy=False)

    def __getitem__(self, rows: Any) -> Any:
        if isinstance(rows, int | np.integer):
            return self[np.array([rows])][0]
        rows = self._rows(rows)
        return self.take(rows, np.empty((len(rows), *self.shape[1:]), self.dtype))

    def take(self, rows: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Fill `out` with rows, which must be in range."""
        for number, here, at in self._divided(rows):
            out[here] = np.asarray(self.shards[number])[at]
        return out

    def __setitem__(self, rows: Any, values: Any) -> None:
        """Change rows, of shards that `writable` has copied."""
        rows = self._rows(rows)
        values = np.broadcast_to(values, (len(rows), *self.shape[1:]))
        for number, here, at in self._divided(rows):
            self.shards[number][at] = values[here]


class SparseRows(_Sharded):
    """A sparse matrix in shards: shape, nnz, and a csr_matrix of rows by number, numbers or mask.

    Parameters
    ----------
    shards : sequence of csr_matrix
        At least one; all of the same width.
    """

    __slots__ = ()

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self), self.shards[0].shape[1]

    @property
    def nnz(self) -> int:
        """Entries that are stored."""
        return sum(int(shard.nnz) for shard in self.shards)

    def tocsr(self) -> sparse.csr_matrix:
        """Make one matrix of it."""
        from scipy import sparse

        return sparse.vstack([shard.tocsr() for shard in self.shards], format="csr")

    def __getitem__(self, rows: Any) -> sparse.csr_matrix:
        from scipy import sparse

        rows = self._rows([rows] if isinstance(rows, int | np.integer) else rows)
        if not len(rows):
            return self.shards[0].tocsr()[:0]
        parts, places = [], []
        for number, here, at in self._divided(rows):
            parts.append(self.shards[number].tocsr()[at])
            places.append(np.arange(len(rows))[here])
        if len(parts) == 1:
            return parts[0]
        return sparse.vstack(parts, format="csr")[np.argsort(np.concatenate(places))]


Array: TypeAlias = "np.ndarray | Rows"
Sparse: TypeAlias = "sparse.csr_matrix | SparseRows"


def divided(rows: np.ndarray, starts: np.ndarray) -> Iterator[tuple[int, Any, np.ndarray]]:
    """Divide rows by the shards they are in.

    Parameters
    ----------
    rows : numpy.ndarray
        Row numbers, in any order.
    starts : numpy.ndarray
        First row of each shard, and the number of all rows.

    Yields
    ------
    number : int
        A shard.
    here : slice or numpy.ndarray
        Which of `rows` are in it.
    at : numpy.ndarray
        Their rows in the shard.
    """
    if not len(rows):
        return
    low, high = np.searchsorted(starts, [rows.min(), rows.max()], "right") - 1
    if low == high:
        yield int(low), slice(None), rows - starts[low]
        return
    shard = np.searchsorted(starts, rows, "right") - 1
    for number in np.unique(shard).tolist():
        here = np.flatnonzero(shard == number)
        yield number, here, rows[here] - starts[number]


def first_rows(sizes: Sequence[int]) -> np.ndarray:
    """Return the first row of each shard, and the number of all rows at the end."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def shards_of(rows: Any) -> tuple[Any, ...]:
    """Return the shards; of what is in one piece, that."""
    return rows.shards if isinstance(rows, _Sharded) else (rows,)


def same_kind(rows: Any, shards: Sequence[Any]) -> Any:
    """Make the same of other shards: Rows of Rows, an array of an array."""
    return type(rows)(shards) if isinstance(rows, _Sharded) else shards[0]


def plain(shard: Any) -> Any:
    """Return a shard as the array or csr_matrix that it is, or that its file holds."""
    return shard.tocsr() if hasattr(shard, "tocsr") else np.asarray(shard)


def blocks(array: Array, size: int = BLOCK) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield some rows at a time: where they are, and the rows."""
    for start in range(0, len(array), size):
        here = slice(start, min(start + size, len(array)))
        yield here, np.asarray(array[here])


def take_rows(array: Array, rows: np.ndarray, out: np.ndarray) -> None:
    """Fill `out` with rows that are known to be in range."""
    if isinstance(array, Rows):
        array.take(rows, out)
    else:
        # mode="clip" lets NumPy write into the buffer directly.
        np.take(array, rows, axis=0, out=out, mode="clip")


def writable(array: Array, rows: np.ndarray) -> Array:
    """Return a copy that may be written to at `rows`; other shards are not copied."""
    if not isinstance(array, Rows):
        return np.array(array)
    shards = list(array.shards)
    for number, _, _ in divided(np.asarray(rows), array.starts):
        shards[number] = np.array(shards[number])
    return Rows(shards)


def columns(matrix: Sparse, which: np.ndarray) -> sparse.csr_matrix:
    """Return some columns of a sparse matrix as rows."""
    from scipy import sparse

    turned = [sparse.csr_matrix(shard.tocsr().T)[which] for shard in shards_of(matrix)]
    return turned[0] if len(turned) == 1 else sparse.hstack(turned, format="csr")


def without(rows: Any, gone: np.ndarray) -> Any:
    """Return an array or sparse matrix without some rows; other shards are not copied."""
    shards, starts = list(shards_of(rows)), first_rows([s.shape[0] for s in shards_of(rows)])
    for number, _, at in divided(np.unique(gone), starts):
        keep = np.ones(shards[number].shape[0], bool)
        keep[at] = False
        shards[number] = plain(shards[number])[keep]
    return same_kind(rows, shards)


def change_shards(rows: Any, change: Callable[[int, Any], Any]) -> Any:
    """Apply a function of number and shard to each shard."""
    return same_kind(rows, [change(i, shard) for i, shard in enumerate(shards_of(rows))])


@dataclass(frozen=True, eq=False)
class Insertion:
    """Where new rows go among those there are.

    Attributes
    ----------
    orders : tuple of numpy.ndarray or None
        For each shard the rows that it has now, as positions in [its rows before; all new rows].
        None for a shard that stays as it is. Not always a permutation: an entity that is given
        again takes its new row.
    places : tuple of numpy.ndarray or None
        For each shard where its rows before are now.
    """

    orders: tuple[np.ndarray | None, ...]
    places: tuple[np.ndarray | None, ...]

    @classmethod
    def none(cls, shards: int) -> Insertion:
        """Insert nothing."""
        return cls((None,) * shards, (None,) * shards)

    @classmethod
    def of(
        cls, before: Sequence[int], after: Sequence[int], at: np.ndarray, added: np.ndarray
    ) -> Insertion:
        """Find out where rows go.

        Parameters
        ----------
        before, after : sequence of int
            Rows of each shard.
        at : numpy.ndarray
            Where each new row is afterwards, among all.
        added : numpy.ndarray of bool
            Which of the new rows take no other row's place.
        """
        orders: list[np.ndarray | None] = [None] * len(before)
        places: list[np.ndarray | None] = [None] * len(before)
        for number, here, rows in divided(at, first_rows(after)):
            kept = np.ones(after[number], bool)
            kept[rows[added[here]]] = False
            places[number] = old = np.flatnonzero(kept)
            orders[number] = order = np.empty(after[number], np.int64)
            order[old] = np.arange(before[number])
            order[rows] = before[number] + np.arange(len(at))[here]
        return cls(tuple(orders), tuple(places))

    def __call__(self, rows: Any, new: Any, replace: bool = True) -> Any:
        """Insert new rows into an array or a sparse matrix; other shards are not copied.

        Parameters
        ----------
        rows : Array or Sparse
            The rows there are.
        new : numpy.ndarray or csr_matrix
            The new ones.
        replace : bool
            Whether an entity that is given again takes its new row, or keeps the one it has.
        """

        def inserted(number: int, shard: Any) -> Any:
            order, places = self.orders[number], self.places[number]
            if order is None or places is None:
                return shard
            if not replace:
                order = order.copy()
                order[places] = np.arange(len(places))
            if hasattr(shard, "tocsr"):
                from scipy import sparse

                return sparse.vstack([shard.tocsr(), new], format="csr")[order]
            return np.concatenate([np.asarray(shard), new])[order]

        return change_shards(rows, inserted)
