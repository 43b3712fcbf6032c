"""The vectors that one ranking of a service scores with."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np
from scipy import linalg

from simrec.data.sides import Sides
from simrec.model.head import Found, Head
from simrec.model.tower import Tower
from simrec.scoring.pairs import score_pairs
from simrec.scoring.threads import row_blocks

# Candidates, at most, that are scored one by one; as a share of all, while coordinates are left.
_FEW, _SHARE = 500, 0.01
# Coordinates that are multiplied before items are left out, and numbers from which on they are.
_STEP, _LARGE = 128, 1 << 24
# Users and items, about, on whom axes are found, and the ridge of the users' moments.
_SAMPLE, _RIDGE = 8_000, 0.01
_EPS = 1.1 * np.finfo(np.float32).eps


@dataclass(frozen=True, eq=False)
class Known:
    """Known items, coordinate by coordinate: a product reads half as fast item by item.

    Large ones are in principal axes of the items, in units in which users have unit covariance: the
    first of some hundred coordinates, and a bound on what the others add, leave few candidates.
    """

    vectors: np.ndarray  # coordinates x items
    columns: np.ndarray  # those of a user's vector that matter: in others all items are 0
    longest: float  # norm of an item
    turn: np.ndarray | None = None  # from these columns of a user to coordinates
    lengths: np.ndarray | None = None  # of the axes, by which items are rounded
    edges: tuple[int, ...] = ()  # coordinates after which items are left out
    rest: tuple[np.ndarray, ...] = ()  # norm of each item from there on

    @classmethod
    def of(cls, heads: Sides[Head], towers: Sides[Tower]) -> Self:
        """Arrange the items of a model."""
        n = len(towers.items.ids)

        def blocks() -> Iterator[tuple[slice, np.ndarray]]:
            for rows in row_blocks(n):
                yield rows, heads.items.of(towers.items.known(np.arange(rows.start, rows.stop)))

        used, longest = np.zeros(heads.items.width, bool), 0.0
        for _, vectors in blocks():
            used |= vectors.any(0)
            longest = float(np.linalg.norm(vectors, axis=1).max(initial=longest))
        columns = np.flatnonzero(used)
        d = len(columns)
        axes = turn = None
        if d > 2 * _STEP and d * n > _LARGE:
            axes, turn = _axes(
                *(
                    _moments(*pair)[np.ix_(columns, columns)]
                    for pair in zip(heads, towers, strict=True)
                )
            )
        out = np.empty((d, n), np.float32)
        for rows, vectors in blocks():
            some = vectors[:, columns]
            out[:, rows] = (some if axes is None else some @ axes.astype(np.float32)).T
        if axes is None:
            return cls(out, columns, longest)
        edges = tuple(range(_STEP, d - _STEP, _STEP))
        squares, rest = np.zeros(n), []
        for start, stop in pairwise(reversed((*edges, d))):
            squares += np.square(out[stop:start], dtype=np.float64).sum(0)
            rest.append((np.sqrt(squares) * (1 + 8 * _EPS)).astype(np.float32))
        return cls(out, columns, longest, turn, np.linalg.norm(axes, axis=0), edges, (*rest[::-1],))


def _moments(head: Head, tower: Tower) -> np.ndarray:
    """Return the mean of v v' over every n-th vector."""
    some = head.of(tower.known(np.arange(0, len(tower.ids), 1 + len(tower.ids) // _SAMPLE)))
    return (some.T @ some).astype(np.float64) / max(len(some), 1)


def _axes(items: np.ndarray, users: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the axes for items, and those for users, with which scalar products are the same."""
    users[np.diag_indices(len(users))] += max(_RIDGE * np.trace(users) / len(users), 1e-30)
    root = np.linalg.cholesky(users)
    turn = np.linalg.eigh(root.T @ items @ root)[1][:, ::-1]
    return root @ turn, linalg.solve_triangular(root, turn, lower=True, trans="T")


@dataclass(frozen=True, eq=False)
class View:
    """Vectors of one ranking, and what is added to a scalar product for the score."""

    heads: Sides[Head]
    known: Known
    # New items, in all coordinates of a vector
    new: np.ndarray
    longest: float
    shift: float

    def __len__(self) -> int:
        return self.known.vectors.shape[1] + len(self.new)

    def scores(self, query: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return exact scalar products with some items, new ones after the known."""
        n = self.known.vectors.shape[1]
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
            near = self._candidates(query, near, k, bonus)
        by = self._ranked(query, near, bonus)
        order = np.lexsort((near, -by))[:k]
        return near[order], by[order]

    def _ranked(self, query: np.ndarray, rows: np.ndarray, bonus: np.ndarray | None) -> np.ndarray:
        by = self.scores(query, rows)
        return by if bonus is None else by + bonus[rows]

    def _candidates(
        self, query: np.ndarray, near: np.ndarray, k: int, bonus: np.ndarray | None
    ) -> np.ndarray:
        """Return some items among which the k best are."""
        known, z = self.known, np.zeros(len(self), np.float32)
        n, q, length = known.vectors.shape[1], query[known.columns], float(np.linalg.norm(query))
        if known.turn is not None:
            q = q @ known.turn
            length += 2 * float(np.abs(q) @ known.lengths)
        # Rounding of these scores, and of those that the k best are found by
        slack = 2 * (len(query) + 8) * _EPS * length * self.longest
        z[n:] = self.new @ query
        if bonus is not None:
            z += bonus
            slack += 2 * (len(known.edges) + 2) * _EPS * float(np.abs(bonus).max())
        for i, (start, stop) in enumerate(pairwise((0, *known.edges, len(q)))):
            part = q[start:stop].astype(np.float32)
            # A blend has weight 0 in whole components for some users: these runs are left out.
            edges = np.flatnonzero(np.diff(part != 0, prepend=False, append=False))
            for a, b in edges.reshape(-1, 2):
                z[:n] += part[a:b] @ known.vectors[start + a : start + b]
            some = z[near]
            if stop == len(q):
                break
            best = near[np.argpartition(some, len(some) - k)[len(some) - k :]]
            least = self._ranked(query, best, bonus).min() - slack
            most = np.append(known.rest[i], np.zeros(len(self.new), np.float32))
            most = some + np.float32(np.linalg.norm(q[stop:])) * most[near]
            left = near[most >= least]
            if len(left) <= max(k, _SHARE * len(near), _FEW):
                return left
        return near[some >= np.partition(some, len(some) - k)[len(some) - k] - slack]
