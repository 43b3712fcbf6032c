"""Arrays and sparse matrices whose rows lie in shards, read by rows as if they were one.

A shard is an array (a csr_matrix), or a file that is checked when its rows are first asked for.
Shards that nobody changes stay the objects they were, so that saving links their files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from simrec.errors import InputError
from simrec.storage import arrays as npy
from simrec.storage.files import stamp

if TYPE_CHECKING:
    from scipy import sparse

# Rows that are worked on at a time where something is summed over all of them. Blocks do not
# depend on where shards end, hence neither does any bit of the sums.
BLOCK = 1 << 16


class _Sharded:
    """Rows in shards, at least one."""

    __slots__ = ("shards", "starts")

    def __init__(self, shards: Sequence[Any]) -> None:
        self.shards = tuple(shards)
        self.starts = first_rows([shard.shape[0] for shard in self.shards])

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def shape(self) -> tuple[int, ...]:
        """Length and the shape of a row."""
        return (len(self), *self.shards[0].shape[1:])

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of each shard."""
        return tuple(np.diff(self.starts).tolist())

    def _rows(self, rows: Any) -> np.ndarray:
        """Return row numbers of a slice, a mask, numbers or a number, all within range."""
        n = len(self)
        rows = np.arange(*rows.indices(n)) if isinstance(rows, slice) else np.atleast_1d(rows)
        if rows.dtype == bool and rows.shape == (n,):
            return np.flatnonzero(rows)
        if not rows.size:
            return np.empty(0, np.int64)
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise IndexError(f"no row numbers: {rows.dtype} of shape {rows.shape} for {n} rows")
        if rows.min() < -n or rows.max() >= n:
            raise IndexError(f"a row is outside 0..{n - 1}")
        return np.where(rows < 0, rows + n, rows).astype(np.int64, copy=False)


class Rows(_Sharded):
    """An array in shards: shape, dtype, length, and rows by number, slice, numbers or mask.

    `numpy.asarray` makes one array of it.

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
        places = self._rows(rows)
        found = self.take(places, np.empty((len(places), *self.shape[1:]), self.dtype))
        return found[0] if isinstance(rows, int | np.integer) else found

    def take(self, rows: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Fill `out` with rows, which must be in range."""
        pieces = sorted(divided(rows, self.starts), key=lambda piece: -len(piece[2]))
        for n, (number, here, at) in enumerate(pieces):
            shard = np.asarray(self.shards[number])
            if n == 0 and 2 * len(at) > len(rows):
                # Without a copy; rows of other shards are clipped, and overwritten below.
                np.take(shard, rows - self.starts[number], axis=0, out=out, mode="clip")
            else:
                out[here] = shard[at]
        return out

    def __setitem__(self, rows: Any, values: Any) -> None:
        """Change rows, of shards that `writable` has copied."""
        rows = self._rows(rows)
        values = np.broadcast_to(values, (len(rows), *self.shape[1:]))
        for number, here, at in divided(rows, self.starts):
            self.shards[number][at] = values[here]


class SparseRows(_Sharded):
    """A sparse matrix in shards: shape, nnz, and a csr_matrix of rows by numbers or mask."""

    __slots__ = ()

    @property
    def nnz(self) -> int:
        """Entries that are stored."""
        return sum(int(shard.nnz) for shard in self.shards)

    def tocsr(self) -> sparse.csr_matrix:
        """Make one matrix of it."""
        return _stacked([shard.tocsr() for shard in self.shards])

    def __getitem__(self, rows: Any) -> sparse.csr_matrix:
        rows = self._rows(rows)
        found = list(divided(rows, self.starts))
        if not found:
            return self.shards[0].tocsr()[:0]
        taken = _stacked([self.shards[number].tocsr()[at] for number, _, at in found])
        places = np.concatenate([np.arange(len(rows))[here] for _, here, _ in found])
        return taken if len(found) == 1 else taken[np.argsort(places)]


Array: TypeAlias = "np.ndarray | Rows"
Sparse: TypeAlias = "sparse.csr_matrix | SparseRows"


class StoredArray:
    """A shard of `Rows`: the array of a ``.npy`` file, mapped now, checked when first read.

    A mapped file stays what it was when the directory is replaced. A copy of a file that was never
    read keeps the checksum that it should have (`entry`, as the manifest has it).
    """

    # How many numbers are positive, where that is known: checked too.
    n_positive: int | None = None
    _array: np.ndarray | None = None

    def __init__(self, file: Path, entry: Mapping[str, Any]) -> None:
        self.file, self.entry = file, dict(entry)
        self._bytes, self._identity = npy.map_bytes(file, entry), stamp(file)
        try:
            # Only shape and type are taken from bytes that are not checked yet.
            view = npy.npy_view(file, self._bytes)
        except InputError:
            npy.verify(file, entry, self._bytes)  # where it is damaged, that is what to say
            raise
        self.dtype, self.shape = view.dtype, view.shape

    def read(self) -> np.ndarray:
        """Return the array; the first time, after checking its bytes. Floats are finite."""
        if self._array is None:
            npy.verify(self.file, self.entry, self._bytes)
            array = npy.npy_view(self.file, self._bytes)
            npy.check_finite(self.file, array)
            if self.n_positive not in (None, int((array > 0).sum())):
                raise InputError(f"{self.file}: not {self.n_positive} are positive. {npy.REMEDY}")
            self._array = array
        return self._array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        made = self.read() if dtype is None else self.read().astype(dtype, copy=False)
        return made.copy() if copy else made

    def __reduce__(self) -> tuple[Any, ...]:
        return np.array, (np.asarray(self),)

    def put(self, target: Path) -> None:
        """Make the same file elsewhere: a link to it, or a copy where there can be no link."""
        with suppress(OSError):
            os.link(self.file, target)
            if stamp(target) == self._identity and not target.is_symlink():
                return
        target.unlink(missing_ok=True)  # another file has taken its name since
        target.write_bytes(self._bytes.data)


@dataclass(eq=False)
class StoredMatrix:
    """A shard of `SparseRows`: the csr_matrix of three stored arrays, checked when first read."""

    arrays: Sequence[StoredArray]
    shape: tuple[int, int]
    _matrix: sparse.csr_matrix | None = None

    @property
    def nnz(self) -> int:
        """Entries that are stored."""
        return self.arrays[0].shape[0]

    def widened(self, width: int) -> StoredMatrix:
        """Return the same with more columns, all empty."""
        return StoredMatrix(self.arrays, (self.shape[0], width))

    def tocsr(self) -> sparse.csr_matrix:
        """Return the matrix; every index in it is in range."""
        if self._matrix is None:
            label, pieces = str(self.arrays[0].file), [np.asarray(a) for a in self.arrays]
            self._matrix = npy.checked_csr(label, pieces, self.shape)
        return self._matrix

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self.tocsr()), (self.tocsr(),)


def _stacked(matrices: Sequence[sparse.csr_matrix]) -> sparse.csr_matrix:
    from scipy import sparse

    return matrices[0] if len(matrices) == 1 else sparse.vstack(matrices, format="csr")


def divided(rows: np.ndarray, starts: np.ndarray) -> Iterator[tuple[int, Any, np.ndarray]]:
    """Divide row numbers by shard: yield a shard, which of `rows` are in it, and where.

    `starts` has the first row of each shard, and the number of all rows.
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


def change_shards(rows: Any, change: Callable[[int, Any], Any]) -> Any:
    """Apply a function of number and shard to each shard."""
    shards = [change(number, shard) for number, shard in enumerate(shards_of(rows))]
    return type(rows)(shards) if isinstance(rows, _Sharded) else shards[0]


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
    touched = {number for number, _, _ in divided(np.asarray(rows), array.starts)}
    return change_shards(array, lambda i, shard: np.array(shard) if i in touched else shard)


def columns(matrix: Sparse, which: np.ndarray) -> sparse.csr_matrix:
    """Return some columns of a sparse matrix as rows."""
    from scipy import sparse

    turned = [sparse.csr_matrix(shard.tocsr().T)[which] for shard in shards_of(matrix)]
    return turned[0] if len(turned) == 1 else sparse.hstack(turned, format="csr")


@dataclass(frozen=True, eq=False)
class AllBut:
    """All rows but these, for `without`: it then costs by the rows that stay."""

    rows: np.ndarray


def without(rows: Any, gone: np.ndarray | AllBut) -> Any:
    """Return an array or sparse matrix without some rows; other shards are not copied."""
    if isinstance(gone, AllBut):
        return rows[gone.rows]
    starts = first_rows([shard.shape[0] for shard in shards_of(rows)])
    found = {number: at for number, _, at in divided(np.unique(gone), starts)}

    def remaining(number: int, shard: Any) -> Any:
        if number not in found:
            return shard
        plain = shard.tocsr() if hasattr(shard, "tocsr") else np.asarray(shard)
        return plain[np.delete(np.arange(plain.shape[0]), found[number])]

    return change_shards(rows, remaining)


@dataclass(frozen=True, eq=False)
class Insertion:
    """Where new rows go among those there are; None for a shard that stays as it is.

    `orders` has the rows that a shard has now, as positions in [its rows before; all new rows]: not
    always a permutation, since an entity that is given again takes its new row. `places` says where
    its rows before are now.
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
        """Find where new rows go: at `at`, in shards of `before` rows that become `after`.

        Those in `added` take no other row's place.
        """
        orders: list[np.ndarray | None] = [None] * len(before)
        places: list[np.ndarray | None] = [None] * len(before)
        for number, here, rows in divided(at, first_rows(after)):
            old = np.delete(np.arange(after[number]), rows[added[here]])
            order = np.empty(after[number], np.int64)
            order[old] = np.arange(before[number])
            order[rows] = before[number] + np.arange(len(at))[here]
            orders[number], places[number] = order, old
        return cls(tuple(orders), tuple(places))

    def __call__(self, rows: Any, new: Any, replace: bool = True) -> Any:
        """Insert new rows into an array or a sparse matrix; other shards are not copied.

        With `replace`, an entity that is given again takes its new row; otherwise it keeps its own.
        """

        def inserted(number: int, shard: Any) -> Any:
            order, places = self.orders[number], self.places[number]
            if order is None or places is None:
                return shard
            if not replace:
                order = order.copy()
                order[places] = np.arange(len(places))
            if hasattr(shard, "tocsr"):
                return _stacked([shard.tocsr(), new])[order]
            return np.concatenate([np.asarray(shard), new])[order]

        return change_shards(rows, inserted)
