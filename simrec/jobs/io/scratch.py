"""Arrays of a running job: in memory while they are small, in files when they are not."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simrec.storage import files


@dataclass(frozen=True)
class Scratch:
    """Room for arrays: those of more than `limit` bytes in a directory, removed with the job."""

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
