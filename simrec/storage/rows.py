"""Rows of arrays and sparse matrices, one for each entity: some at a time, and new ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from scipy import sparse

Array: TypeAlias = np.ndarray  # may be mapped from a file
Sparse: TypeAlias = "sparse.csr_matrix"
# Rows that are worked on at a time where something is summed over all of them.
BLOCK = 1 << 16


def blocks(array: Array, size: int = BLOCK) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield some rows at a time: where they are, and the rows."""
    for start in range(0, len(array), size):
        here = slice(start, min(start + size, len(array)))
        yield here, array[here]


def columns(matrix: Sparse, which: np.ndarray) -> Sparse:
    """Return some columns of a sparse matrix as rows."""
    return matrix.T.tocsr()[which]


@dataclass(frozen=True, eq=False)
class Insertion:
    """Where new rows go among those there are.

    `order` has the rows that there are now, as positions in [rows before; new rows]: not always a
    permutation, since an entity that is given again takes its new row. `places` says where the rows
    before are now. Both are None where nothing is inserted.
    """

    order: np.ndarray | None = None
    places: np.ndarray | None = None

    @classmethod
    def of(cls, before: int, after: int, at: np.ndarray, added: np.ndarray) -> Insertion:
        """Find where new rows go: at `at`; those in `added` take no other row's place."""
        places = np.delete(np.arange(after), at[added])
        order = np.empty(after, np.int64)
        order[places] = np.arange(before)
        order[at] = before + np.arange(len(at))
        return cls(order, places)

    def __call__(self, rows: Any, new: Any, replace: bool = True) -> Any:
        """Insert new rows into an array or a sparse matrix.

        With `replace`, an entity that is given again takes its new row; otherwise it keeps its own.
        """
        order, places = self.order, self.places
        if order is None or places is None:
            return rows
        if not replace:
            order = order.copy()
            order[places] = np.arange(len(places))
        if isinstance(rows, np.ndarray):
            return np.concatenate([rows, new])[order]
        from scipy import sparse

        return sparse.vstack([rows, new], format="csr")[order]
