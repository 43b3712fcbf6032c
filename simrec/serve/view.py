"""The vectors that one ranking of a service scores with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simrec.data.sides import Sides
from simrec.model.head import Head
from simrec.scoring.pairs import score_pairs


@dataclass(frozen=True, eq=False)
class View:
    """Vectors of one ranking, and what is added to a scalar product for the score."""

    heads: Sides[Head]
    # Known items, without the coordinates in which all of them are 0; those that are left
    known: np.ndarray
    columns: np.ndarray
    # New items, in all coordinates
    new: np.ndarray
    longest: float
    shift: float

    def __len__(self) -> int:
        return len(self.known) + len(self.new)

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """Return the whole vectors of items, new ones after the known."""
        out = np.zeros((len(rows), self.new.shape[1]), np.float32)
        known = rows < len(self.known)
        out[np.ix_(known, self.columns)] = self.known[rows[known]]
        out[~known] = self.new[rows[~known] - len(self.known)]
        return out

    def scores(self, query: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return exact scalar products with some items; see `score_pairs`."""
        at = np.arange(len(rows))
        return score_pairs(query[None], self.vectors(rows), np.zeros_like(at), at)

    def best(
        self, query: np.ndarray, keep: np.ndarray, k: int, bonus: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the k best items of a user, exactly as `top_k` finds them, and their scores.

        One product with all items; those within its rounding error of the k-th best are scored
        again.
        """
        rows = np.flatnonzero(keep)
        if not k or not len(rows):
            return np.empty(0, np.int64), np.empty(0, np.float32)
        n, q = len(self.known), query[self.columns]
        old, new = np.split(rows, [np.searchsorted(rows, n)])
        z = self.known[old] @ q if len(old) < n // 8 else (self.known @ q)[old]
        z = np.concatenate([z, self.new[new - n] @ query])
        if bonus is not None:
            z = z + bonus[rows]
        slack = 1.1 * (len(query) + 8) * np.finfo(np.float32).eps
        slack *= float(np.linalg.norm(query)) * self.longest
        near = rows[z >= np.partition(z, len(z) - k)[len(z) - k] - 2 * slack]
        by = self.scores(query, near)
        by = by if bonus is None else by + bonus[near]
        order = np.lexsort((near, -by))[:k]
        return near[order], by[order]
