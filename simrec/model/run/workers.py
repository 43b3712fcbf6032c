"""Workers that fit one model together: users are divided between them, items are on all of them.

The users of a worker are a range of ascending ids, and the ranges are in the order of the workers.
What a worker learns of its own users stays with it. Workers exchange only sums over all users,
which are as large as the items or the features, and samples of bounded size.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from simrec.errors import InputError
from simrec.storage import arrays as npy
from simrec.storage import artifacts, files

# Endings of arrays of where rows begin: of sparse matrices, and of text.
_STARTS = ("_indptr", "_offsets")


class WorkerLost(RuntimeError):
    """Another worker of a training has died, or is silent."""


class Workers:
    """A single worker: nothing is divided, and a sum over all workers is the array itself.

    Subclasses have a larger `size` and replace `sum`, which all workers call in the same order
    with arrays of the same shape.
    """

    rank = 0
    size = 1
    # What workers have sent each other so far.
    sums = 0
    bytes_summed = 0
    seconds_in_sums = 0.0

    def sum(self, array: np.ndarray) -> np.ndarray:
        """Add up the arrays of all workers; all get the same result."""
        return array

    def total(self, value: float) -> float:
        """Add up the numbers of all workers."""
        return value if self.size == 1 else float(self.sum(np.array([value], np.float64))[0])

    def first(self, array: np.ndarray) -> np.ndarray:
        """Return the first worker's array on all workers.

        Workers compute the same from the same numbers, but for the last bits where their
        processors differ. Where such a bit could lead to different decisions, the first decides.
        """
        if self.size == 1:
            return array
        return self.sum(array if self.rank == 0 else np.zeros_like(array))

    def agree(self, value: float) -> float:
        """Return the first worker's number on all workers."""
        return value if self.size == 1 else float(self.first(np.array([value], np.float64))[0])

    def agreed(self, document: Any) -> Any:
        """Return the first worker's plain data on all workers."""
        return document if self.size == 1 else self.documents(document)[0]

    def documents(self, document: Any) -> list[Any]:
        """Return the plain data of all workers, in their order."""
        if self.size == 1:
            return [document]
        found = self.gather(np.frombuffer(json.dumps(document).encode(), np.uint8))
        return [json.loads(one.tobytes()) for one in found]

    def gather(self, array: np.ndarray) -> list[np.ndarray]:
        """Return the arrays of all workers, which may differ in length, in their order."""
        if self.size == 1:
            return [array]
        lengths = np.zeros(self.size, np.int64)
        lengths[self.rank] = len(array)
        lengths = self.sum(lengths)
        ends = np.cumsum(lengths)
        whole = np.zeros((ends[-1], *array.shape[1:]), array.dtype)
        whole[ends[self.rank] - len(array) : ends[self.rank]] = array
        # Summed in bytes: exact whatever the numbers are.
        whole = self.sum(whole.view(np.uint8).reshape(len(whole), -1)) if whole.size else whole
        whole = whole.reshape(-1).view(array.dtype).reshape(ends[-1], *array.shape[1:])
        return np.split(whole, ends[:-1])

    def gather_tables(self, table: pa.Table) -> list[pa.Table]:
        """Return the Arrow tables of all workers, in their order."""
        if self.size == 1:
            return [table]
        found = self.gather(npy.table_bytes(table))
        return [pa.ipc.open_stream(pa.py_buffer(one)).read_all() for one in found]

    def places(self, n: int) -> slice:
        """Return where this worker's n entities stand among those of all workers."""
        if self.size == 1:
            return slice(0, n)
        ends = np.cumsum([one[0] for one in self.gather(np.array([n], np.int64))])
        return slice(int(ends[self.rank]) - n, int(ends[self.rank]))


ONE_WORKER = Workers()


@contextmanager
def written_together(path: str | os.PathLike[str], workers: Workers) -> Iterator[Path]:
    """Give all workers one directory, which takes the place of `path` when the block ends well.

    All wait for each other at the beginning and at the end. The first worker writes the manifest.
    """
    with ExitStack() as stack:
        stack.enter_context(files.naming_full_disk(path))
        aside = ""
        if workers.rank == 0:
            new = files.directory_aside(path, artifacts.check_replaceable)
            aside = str(stack.enter_context(new))
        yield Path(workers.agreed(aside))
    workers.total(0.0)


def write_rows(directory: Path, arrays: Mapping[str, np.ndarray], workers: Workers) -> None:
    """Write arrays whose rows are divided between workers: each its range of rows of one file.

    Where rows begin in other arrays (`_STARTS`) is counted on from the worker before.
    """
    mine, last = dict(arrays), workers.rank == workers.size - 1
    for name, array in arrays.items():
        if name.endswith(_STARTS) and not last:
            mine[name] = array[:-1]  # the next worker's first
    ends = {name: int(a[-1]) for name, a in arrays.items() if name.endswith(_STARTS)}
    about = {name: [len(a), ends.get(name, 0), a.dtype.str] for name, a in mine.items()}
    known = workers.documents(about)
    for name, array in mine.items():
        rows, shifts, types = zip(*(one[name] for one in known), strict=True)
        if len(set(types)) > 1:
            raise InputError(f"{name}: workers have different types: {', '.join(sorted(types))}.")
        if sum(shifts) > np.iinfo(np.int32).max:
            array = array.astype(np.int64)
        array = array + sum(shifts[: workers.rank]) if name in ends else array
        first = sum(rows[: workers.rank])
        npy.write_npy(directory / f"{name}.npy", array, first, sum(rows))
    workers.total(0.0)  # until all have written


def own_places(places: np.ndarray, mine: slice) -> np.ndarray:
    """Pick a worker's own of places among all entities, counted from its first entity.

    >>> own_places(np.array([1, 4, 5, 9]), slice(4, 8))
    array([0, 1])
    """
    return places[(places >= mine.start) & (places < mine.stop)] - mine.start


def equal_parts(counts: np.ndarray, n: int) -> np.ndarray:
    """Cut rows into n contiguous parts of about equal sums, none of them empty: n + 1 edges.

    >>> equal_parts(np.array([1, 1, 1, 1, 4]), 2)
    array([0, 4, 5])
    """
    ends = np.cumsum(counts)
    cuts = np.searchsorted(ends, np.linspace(0, ends[-1], n + 1)[1:-1]) + 1
    steps = np.arange(1, n)
    cuts = np.maximum.accumulate(np.maximum(cuts - steps, 0)) + steps
    cuts = np.minimum(cuts, len(counts) - n + steps)
    return np.concatenate([[0], cuts, [len(counts)]]).astype(np.int64)
