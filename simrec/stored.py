"""Files of a model directory in shards: mapped when it is loaded, checked when they are first read.

Mapped files stay what they were when the directory is replaced. What was not read is not known to
be undamaged; it is never answered from, and a copy of it keeps the checksum it should have.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from simrec import untrusted
from simrec.errors import InputError
from simrec.manifest import MANIFEST, REMEDY

if TYPE_CHECKING:
    from scipy import sparse


class StoredFile:
    """A file of a model directory.

    Parameters
    ----------
    path : Path
        The file.
    entry : mapping
        Its "sha256" and "bytes", as the manifest has them.
    mmap : bool
        Map it into memory instead of reading it.
    """

    def __init__(self, path: Path, entry: Mapping[str, Any], mmap: bool = True) -> None:
        check_size(path, entry)
        self.path, self.entry = path, {"sha256": entry["sha256"], "bytes": entry["bytes"]}
        self._buffer = untrusted.file_buffer(path, mmap)
        self._identity = _identity(path)
        self._verified = False
        self._lock = threading.Lock()

    @property
    def unchecked(self) -> pa.Buffer:
        """Its bytes, before anything is known of them."""
        return self._buffer

    def read(self) -> pa.Buffer:
        """Return its bytes; the first time, after comparing them with the checksum."""
        with self._lock:
            if not self._verified:
                found = hashlib.sha256(memoryview(self._buffer)).hexdigest()
                if found != self.entry["sha256"]:
                    raise damaged(self.path)
                self._verified = True
        return self._buffer

    def put(self, target: Path) -> None:
        """Make the same file elsewhere: a link to it, or a copy where there can be no link."""
        try:
            os.link(self.path, target)
            if _identity(target, follow=False) == self._identity:
                return
            target.unlink()  # another file has taken its name since
        except OSError:
            target.unlink(missing_ok=True)
        with open(target, "wb") as file:
            file.write(memoryview(self._buffer))


class StoredArray:
    """The array of a ``.npy`` file; a shard of `simrec.rows.Rows`."""

    def __init__(self, file: StoredFile) -> None:
        self.file = file
        try:
            # Only shape and type are taken from bytes that are not checked yet.
            self._layout = untrusted.npy_layout(file.path, file.unchecked)
        except InputError:
            file.read()  # where it is damaged, that is what to say
            raise

    @property
    def dtype(self) -> np.dtype:
        """Kind of numbers."""
        return self._layout.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Length and the shape of a row."""
        return self._layout.shape

    @cached_property
    def array(self) -> np.ndarray:
        """The numbers; floats are finite."""
        made = self._layout.array(self.file.read())
        if not untrusted.is_finite(made):
            raise not_finite(self.file.path)
        return made

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        made = self.array if dtype is None else self.array.astype(dtype, copy=False)
        return made.copy() if copy else made

    def __reduce__(self) -> tuple[Any, ...]:
        return np.array, (np.asarray(self),)


class StoredMatrix:
    """The sparse matrix of three ``.npy`` files; a shard of `simrec.rows.SparseRows`.

    Parameters
    ----------
    name : str
        Its name, for messages.
    data, indices, starts : StoredArray
        As in a csr_matrix.
    shape : (int, int)
        Its shape.
    """

    def __init__(
        self,
        name: str,
        data: StoredArray,
        indices: StoredArray,
        starts: StoredArray,
        shape: tuple[int, int],
    ) -> None:
        self.arrays = {"data": data, "indices": indices, "indptr": starts}
        self.name, self.shape, self._stored_width = name, shape, shape[1]

    @property
    def nnz(self) -> int:
        """Entries that are stored."""
        return self.arrays["data"].shape[0]

    def widened(self, width: int) -> StoredMatrix:
        """Return the same with more columns, all empty."""
        data, indices, starts = self.arrays.values()
        made = StoredMatrix(self.name, data, indices, starts, (self.shape[0], width))
        made._stored_width = self._stored_width
        return made

    @cached_property
    def _matrix(self) -> sparse.csr_matrix:
        data, indices, starts = (np.asarray(array) for array in self.arrays.values())
        path = self.arrays["data"].file.path.parent
        shape = (self.shape[0], self._stored_width)
        return checked_csr(path, self.name, data, indices, starts, shape)

    def tocsr(self) -> sparse.csr_matrix:
        """Return the matrix; every index in it is in range."""
        from scipy import sparse

        found = self._matrix
        if self.shape == found.shape:
            return found
        pieces = (found.data, found.indices, found.indptr)
        return sparse.csr_matrix(pieces, shape=self.shape, copy=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self.tocsr(),)


class StoredTable:
    """The table of an ``.arrow`` file."""

    def __init__(self, file: StoredFile) -> None:
        self.file = file

    @cached_property
    def table(self) -> pa.Table:
        """The table."""
        return untrusted.parse_arrow(self.file.path, self.file.read())


def checked_csr(
    path: Path,
    name: str,
    data: np.ndarray,
    indices: np.ndarray,
    starts: np.ndarray,
    shape: tuple[int, int],
) -> sparse.csr_matrix:
    """Make a sparse matrix of three arrays after checking every index in it."""
    from scipy import sparse

    if (
        len(indices) != len(data)
        or starts.shape != (shape[0] + 1,)
        or starts[0] != 0
        or starts[-1] != len(data)
        or (np.diff(starts) < 0).any()
        or (len(data) and (indices.min() < 0 or indices.max() >= shape[1]))
    ):
        raise InputError(
            f"{path}: {name!r} is no sparse matrix of shape {shape}: an index is out of range. "
            f"{REMEDY}"
        )
    return sparse.csr_matrix((data, indices, starts), shape=shape, copy=False)


def check_size(file: Path, entry: Mapping[str, Any]) -> None:
    """Raise InputError unless a file is there and as long as the manifest says."""
    if not file.is_file():
        raise InputError(f"{file}: listed in {MANIFEST} but missing. {REMEDY}")
    size = file.stat().st_size
    if size != entry["bytes"]:
        raise InputError(f"{file}: {size} bytes, {MANIFEST} says {entry['bytes']}. {REMEDY}")


def damaged(file: Path) -> InputError:
    """Say that a file is not what the manifest says it is."""
    return InputError(f"{file}: its content does not match the checksum in {MANIFEST}. {REMEDY}")


def not_finite(file: Path) -> InputError:
    """Say that an array holds what is no number."""
    return InputError(f"{file}: holds NaN or infinite values. {REMEDY}")


def _identity(path: Path, follow: bool = True) -> tuple[int, ...]:
    stat = os.stat(path, follow_symlinks=follow)
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def _itself(matrix: Any) -> Any:
    return matrix
