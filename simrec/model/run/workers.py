"""Workers that fit one model together: users are divided between them, items are on all of them.

What a worker learns of its own users stays with it. Workers exchange only sums over all users,
which are as large as the items or the features.
"""

import numpy as np


class Workers:
    """One worker alone: nothing is divided, and a sum over all workers is the array itself.

    Subclasses have a larger `size` and replace `sum`, which all workers call in the same order
    with arrays of the same shape.
    """

    rank = 0
    size = 1

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


ONE_WORKER = Workers()


def equal_parts(counts: np.ndarray, n: int) -> np.ndarray:
    """Cut rows into n contiguous parts of about equal sums, none of them empty: n + 1 edges.

    Examples
    --------
    >>> equal_parts(np.array([1, 1, 1, 1, 4]), 2)
    array([0, 4, 5])
    """
    ends = np.cumsum(counts)
    cuts = np.searchsorted(ends, np.linspace(0, ends[-1], n + 1)[1:-1]) + 1
    steps = np.arange(1, n)
    cuts = np.maximum.accumulate(np.maximum(cuts - steps, 0)) + steps
    cuts = np.minimum(cuts, len(counts) - n + steps)
    return np.concatenate([[0], cuts, [len(counts)]]).astype(np.int64)
