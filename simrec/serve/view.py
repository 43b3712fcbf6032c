"""The vectors that one ranking of a service scores with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simrec.data.sides import Sides
from simrec.model.head import Found, Head
from simrec.scoring.pairs import score_pairs

# Candidates, at most, that are scored one by one.
_FEW = 500


@dataclass(frozen=True, eq=False)
class View:
    """Vectors of one ranking, and what is added to a scalar product for the score."""

    heads: Sides[Head]
    # Known items, coordinate by coordinate (a product reads half as fast item by item), without
    # those in which all items are 0; the coordinates that are left
    known: np.ndarray
    columns: np.ndarray
    # New items, in all coordinates
    new: np.ndarray
    longest: float
    shift: float

    def __len__(self) -> int:
        return self.known.shape[1] + len(self.new)

    def scores(self, query: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return exact scalar products with some items, new ones after the known."""
        n = self.known.shape[1]
        known = rows < n
        vectors = np.empty((len(rows), len(query)), np.float32)
        found = Found(rows[known], n, None, np.zeros(int(known.sum()), bool))
        vectors[known] = self.heads.items.of(found)
        vectors[~known] = self.new[rows[~known] - n]
        at = np.arange(len(rows))
        return score_pairs(query[None], vectors, np.zeros_like(at), at)

    def best(
        self, query: np.ndarray, keep: np.ndarray, k: int, bonus: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the k best items of a user, exactly as `top_k` finds them, and their scores."""
        near = np.flatnonzero(keep)
        if not k or not len(near):
            return np.empty(0, np.int64), np.empty(0, np.float32)
        if len(near) > max(k, _FEW):
            z = self._products(query)[near]
            if bonus is not None:
                z += bonus[near]
            # Those within the rounding error of the k-th best are scored again.
            slack = 1.1 * (len(query) + 8) * np.finfo(np.float32).eps
            slack *= float(np.linalg.norm(query)) * self.longest
            near = near[z >= np.partition(z, len(z) - k)[len(z) - k] - 2 * slack]
        by = self.scores(query, near)
        by = by if bonus is None else by + bonus[near]
        order = np.lexsort((near, -by))[:k]
        return near[order], by[order]

    def _products(self, query: np.ndarray) -> np.ndarray:
        """Return scalar products with all items, rounded in any order."""
        # A blend has weight 0 in whole components for some users: these runs are left out.
        q, z = query[self.columns], np.zeros(len(self), np.float32)
        known = z[: self.known.shape[1]]
        runs = np.flatnonzero(np.diff(q != 0, prepend=False, append=False)).reshape(-1, 2)
        for start, stop in runs:
            known += q[start:stop] @ self.known[start:stop]
        z[len(known) :] = self.new @ query
        return z
