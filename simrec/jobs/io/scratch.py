"""Arrays of a running job: in memory while they are small, in files when they are not."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simrec import files

_BLOCK = 1 << 16


@dataclass(frozen=True)
class Scratch:
    """Room for arrays.

    Attributes
    ----------
    directory : Path
        Where large arrays go; removed with the job.
    limit : int
        Bytes up to which an array is kept in memory.
    """

    directory: Path
    limit: int

    def empty(self, name: str, shape: tuple[int, ...], dtype: type) -> np.ndarray:
        """Return an array to be filled."""
        if int(np.prod(shape)) * np.dtype(dtype).itemsize <= self.limit:
            return np.empty(shape, dtype)
        path = self.directory / f"{name}.npy"
        with files.naming_full_disk(path):
            array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
            # Room is taken now: a full disk would end the process where the array is written to.
            with open(path, "rb+") as file:
                os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
        return array

    def stack(self, name: str, matrices: list[np.ndarray]) -> np.ndarray:
        """Return matrices below each other."""
        shape = (sum(len(matrix) for matrix in matrices), matrices[0].shape[1])
        stacked = self.empty(name, shape, np.float32)
        start = 0
        for matrix in matrices:
            for first in range(0, len(matrix), _BLOCK):
                piece = matrix[first : first + _BLOCK]
                stacked[start + first : start + first + len(piece)] = piece
            start += len(matrix)
        return stacked

    def take(self, name: str, matrix: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return some rows of a matrix."""
        taken = self.empty(name, (len(rows), matrix.shape[1]), np.float32)
        for first in range(0, len(rows), _BLOCK):
            taken[first : first + _BLOCK] = matrix[rows[first : first + _BLOCK]]
        return taken
