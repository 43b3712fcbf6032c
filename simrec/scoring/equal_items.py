"""Items with equal vectors, searched as one.

New items known by few features often share them, and so their vector: every query then has long
runs of equal scores, which no threshold can tell apart. Of equal items the lower row comes first,
so it is enough to search each vector once and to spell out the rows afterwards.
"""

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from simrec.scoring.pairs import dot_rows
from simrec.scoring.second_look import merge

_WORTH = 0.02  # share of the items that must fall away
_BLOCK = 1 << 20


@dataclass(frozen=True, eq=False)
class EqualItems:
    """Groups of items with equal vectors, by their lowest (`first`) row, ascending.

    `rows` are those of all items, by group and ascending within; each group begins at `start`.
    """

    first: np.ndarray
    rows: np.ndarray
    start: np.ndarray

    def expand(self, groups: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Turn the k best groups of each query into the k best items."""
        n, k = groups.shape
        ids, best = np.full((n, k), -1, np.int64), np.full((n, k), -np.inf, np.float32)
        size = max(1, _BLOCK // (k * k))
        for begin in range(0, n, size):
            block = slice(begin, begin + size)
            query, rank = np.nonzero(groups[block] >= 0)
            group, score = groups[block][query, rank], scores[block][query, rank]
            # No more than k of a group can be results.
            count = np.minimum(self.start[group + 1] - self.start[group], k)
            place = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
            rows = self.rows[np.repeat(self.start[group], count) + place]
            found = (np.repeat(query, count), rows, np.repeat(score, count))
            merge([found], None, 0, ids[block], best[block])
        return ids, best


def find_equal(items: np.ndarray, excluded: sparse.csr_matrix | None) -> EqualItems | None:
    """Group equal items, or return None where there are too few to matter.

    An item that is excluded for some query is a group of its own: what holds for it need not hold
    for others with its vector.
    """
    # Equal vectors have equal scores for any query, as `dot_rows` computes them.
    some_query = np.random.default_rng(0).standard_normal((1, items.shape[1]), np.float32)
    key = dot_rows(some_query, items)
    ordered = np.sort(key)
    if np.count_nonzero(ordered[1:] == ordered[:-1]) < _WORTH * len(items):
        return None
    _, group = np.unique(key, return_inverse=True)
    if excluded is not None:
        single = np.unique(excluded.indices)
        group[single] = len(items) + single
    _, first, group = np.unique(group, return_index=True, return_inverse=True)
    if len(items) - len(first) < _WORTH * len(items):
        return None
    if not (items == items[first[group]]).all():  # different vectors that happen to agree here
        return None
    by_row = np.argsort(first)
    number = np.empty_like(by_row)
    number[by_row] = np.arange(len(by_row))
    group = number[group]
    start = np.concatenate([[0], np.cumsum(np.bincount(group, minlength=len(first)))])
    return EqualItems(first[by_row], np.argsort(group, kind="stable"), start)
