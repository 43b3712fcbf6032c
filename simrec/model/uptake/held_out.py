"""Held-out pairs of a bounded part of the training data, on which choices are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from simrec.model.run.progress import Step, no_step

# Pairs that choices look at, at most: their cost does not grow with the data.
PAIRS = 120_000
# New users, with repetitions, on whom it is chosen how to begin.
NEW_USERS = 1_000
# Pairs of a new user that are folded in.
_FEW = 5
_CELLS = 4_000_000
# Pairs that are ranked to tell how good lists are, at most: some users are enough.
_RANKED = 16_000_000


@dataclass(eq=False)
class HeldOut:
    """A part of the pairs, cut as the tasks are.

    Attributes
    ----------
    users, items, new_users : numpy.ndarray
        Rows and columns of R that the matrices are about.
    train, warm : csr_matrix
        Users x items: to learn from, and held out.
    given, rest : csr_matrix
        New users x items: a few pairs of each, and all others.
    """

    users: np.ndarray
    items: np.ndarray
    new_users: np.ndarray
    train: sparse.csr_matrix
    warm: sparse.csr_matrix
    given: sparse.csr_matrix
    rest: sparse.csr_matrix

    @classmethod
    def of(cls, R: sparse.csr_matrix, rng: np.random.Generator) -> HeldOut:
        """Sample users, hold out a fifth of them whole, and a tenth of the others' pairs.

        Users outside the sample are new ones too. Where there are few, each is there up to four
        times, with others of its pairs given.
        """
        order = rng.permutation(R.shape[0])
        enough = int(np.searchsorted(np.cumsum(np.diff(R.indptr)[order]), PAIRS))
        enough = max(enough, 10)
        n_new = len(order[:enough]) // 5
        users = np.sort(order[n_new:enough])
        new_users = np.concatenate([order[:n_new], order[enough:]])[:NEW_USERS]
        if len(new_users):
            new_users = np.tile(new_users, min(4, -(-NEW_USERS // len(new_users))))
        new_users = np.sort(new_users[:NEW_USERS])
        items = np.flatnonzero(np.bincount(R[order[:enough]].indices, minlength=R.shape[1]))
        part = sparse.csr_matrix(R[users][:, items])
        later = sparse.csr_matrix(R[new_users][:, items])
        out = rng.random(part.nnz) < 0.1
        n = np.diff(later.indptr)
        rows = np.repeat(np.arange(len(n)), n)
        by_chance = np.lexsort((rng.random(later.nnz), rows))
        few = np.zeros(later.nnz, bool)
        few[by_chance] = np.arange(later.nnz) - np.repeat(later.indptr[:-1], n) < _FEW
        more = (n > _FEW)[rows]
        return cls(
            users,
            items,
            new_users,
            _take(part, ~out),
            _take(part, out),
            _take(later, few & more),
            _take(later, ~few & more),
        )


def _take(R: sparse.csr_matrix, which: np.ndarray) -> sparse.csr_matrix:
    rows = np.repeat(np.arange(R.shape[0]), np.diff(R.indptr))[which]
    return sparse.csr_matrix((R.data[which], (rows, R.indices[which])), R.shape)


def list_quality(
    U: np.ndarray,
    V: np.ndarray,
    hits: sparse.csr_matrix,
    exclude: sparse.csr_matrix | None,
    k: int = 20,
) -> float:
    """Return NDCG@k of all columns ranked by U V^T, over rows with a hit, or enough of them."""
    rows = np.flatnonzero(np.diff(hits.indptr))
    rows = rows[:: 1 + len(rows) * hits.shape[1] // _RANKED]
    if not len(rows) or hits.shape[1] < 2:
        return 0.0
    k = min(k, hits.shape[1] - 1)
    discount = 1 / np.log2(np.arange(2, k + 2))
    ideal, total = np.r_[0, np.cumsum(discount)], 0.0
    for part in np.array_split(rows, max(1, len(rows) * hits.shape[1] // _CELLS)):
        S = U[part] @ V.T
        if exclude is not None:
            seen = exclude[part].tocoo()
            S[seen.row, seen.col] = -np.inf
        top = np.argpartition(-S, k, axis=1)[:, :k]
        top = np.take_along_axis(top, np.argsort(-np.take_along_axis(S, top, 1), axis=1), 1)
        found = np.take_along_axis(hits[part].toarray() > 0, top, 1)
        best = ideal[np.minimum(np.diff(hits.indptr)[part], k)]
        total += float(((found * discount).sum(1) / best).sum())
    return total / len(rows)


def climb(
    quality: Callable[..., float],
    grids: Mapping[str, tuple[Sequence[float], float]],
    step: Step = no_step,
) -> tuple[dict[str, float], float]:
    """Walk along each parameter of a grid in turn until none gets better.

    Parameters
    ----------
    quality : callable
        Called with the parameters by name; larger is better.
    grids : mapping of str to (sequence, float)
        Values of each parameter in order, and the one to start at.
    step : callable
        Called after each point that was tried.
    """
    best = {name: start for name, (_, start) in grids.items()}
    seen: dict[tuple[float, ...], float] = {}

    def value(point: Mapping[str, float]) -> float:
        key = tuple(point.values())
        if key not in seen:
            seen[key] = quality(**point)
            step()
        return seen[key]

    moved = True
    while moved:
        moved = False
        for name, (grid, _) in grids.items():
            for move in (1, -1):
                place = list(grid).index(best[name]) + move
                while 0 <= place < len(grid) and value({**best, name: grid[place]}) > value(best):
                    best[name], moved = grid[place], True
                    place += move
    return best, value(best)


def between(quality: Callable[[float], float], grid: Sequence[float], best: float) -> float:
    """Return the top of the parabola through the best of a grid of powers and its neighbours.

    Neighbours hardly differ in quality: three of them have less noise than the best alone.
    """
    place = grid.index(best)
    if place in (0, len(grid) - 1):
        return best
    less, here, more = (quality(grid[k]) for k in (place - 1, place, place + 1))
    bend = 2 * here - less - more
    move = (more - less) / (2 * bend) if bend > 0 else 0.0
    return float(best * (grid[1] / grid[0]) ** np.clip(move, -0.5, 0.5))
