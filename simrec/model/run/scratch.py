"""Where a fit keeps its long arrays: in memory, or in files where memory is limited.

Files have no name from the moment they are made: whatever ends the process, nothing is left. Room
on the disk is taken before an array is written to, so that a full disk is an error with a message.
Arrays are worked on in blocks of rows, and the pages of a block are given back when it is done.
Where an array lives changes no bit of a result.
"""

import itertools
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simrec import files
from simrec.data.sizes import parse_size
from simrec.errors import InputError
from simrec.mapped import is_mapped, release
from simrec.model.run.threads import in_threads

# Rows of small matrices that a thread takes at once.
_ROWS = 1024
# Rows that are worked on before their pages are given back.
BLOCK = 16 * _ROWS
# An array of more than this share of the memory goes to a file.
_SHARE = 64


@dataclass(frozen=True)
class Scratch:
    """Room for arrays.

    Attributes
    ----------
    memory : int or None
        Bytes to work in; None for no limit, with all arrays in memory.
    directory : path or None
        Where files are made; None for that of temporary files.
    """

    memory: int | None = None
    directory: str | os.PathLike[str] | None = None

    @classmethod
    def of(
        cls, memory: str | int | None = None, directory: str | os.PathLike[str] | None = None
    ) -> "Scratch":
        """Take the arguments of `TwoTower.fit`."""
        if directory is not None and memory is None:
            raise InputError("scratch: only a limit to the memory needs files; give memory too.")
        if directory is not None and not os.path.isdir(directory):
            raise InputError(f"scratch: {directory} is no directory.")
        return cls(None if memory is None else parse_size(memory), directory)

    @property
    def limited(self) -> bool:
        """Whether large arrays go to files."""
        return self.memory is not None

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> np.ndarray:
        """Return an array to be filled."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if self.memory is None or size * _SHARE <= self.memory or not size:
            return np.empty(shape, dtype)
        directory = tempfile.gettempdir() if self.directory is None else self.directory
        with (
            files.naming_full_disk(directory),
            tempfile.TemporaryFile(prefix=".simrec-scratch-", dir=directory) as file,
        ):
            os.posix_fallocate(file.fileno(), 0, size)
            mapped = mmap.mmap(file.fileno(), size)
        return np.frombuffer(mapped, dtype, count=size // np.dtype(dtype).itemsize).reshape(shape)

    def moved(self, array: np.ndarray) -> np.ndarray:
        """Return an array that is to be kept where there is room for it."""
        if is_mapped(array):
            return array
        out = self.empty(array.shape, array.dtype) if self.limited else array
        if not is_mapped(out):
            return array
        for rows in slices(len(array)):
            out[rows] = array[rows]
            release(out[rows])
        return out


IN_MEMORY = Scratch()


def slices(n: int) -> Iterator[slice]:
    """Cut n rows into blocks."""
    starts = [*range(0, n, BLOCK), n] if n else [0]
    for a, b in itertools.pairwise(starts):
        yield slice(a, b)


def by_blocks(work: Callable[[slice], None], n: int, *arrays: np.ndarray) -> None:
    """Call ``work`` with slices of n rows, side by side; few rows are not worth the hand-over.

    Pages of `arrays`, as long as the rows, are given back as their rows are done.
    """
    if n <= BLOCK:
        work(slice(0, n))
        release(*arrays)
        return
    step = BLOCK if any(is_mapped(array) for array in arrays) else n
    for a in range(0, n, step):
        b = min(a + step, n)

        def one(i: int, a: int = a, b: int = b) -> None:
            work(slice(a + i * _ROWS, min(a + (i + 1) * _ROWS, b)))

        in_threads(one, -(-(b - a) // _ROWS))
        release(*(array[a:b] for array in arrays))
