"""The observed entries of R in both directions, and the sparse products that fitting needs."""

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from simrec.data.ratings import Ratings
from simrec.errors import InputError
from simrec.model.run.workers import ALONE, Group, equal_parts
from simrec.scoring.topk import processors

# Rows of small matrices that a thread takes at once.
_ROWS = 1024
# Users whose rows are put together at once.
_PIECE = 1 << 16


@dataclass(frozen=True, eq=False)
class Side:
    """One direction of R: a row for each entity of this side, a column for each of the other.

    Rows are kept in blocks of about equal numbers of entries. Each row is summed by one thread in
    one order, so the number of threads changes no bit of a result.

    `rows` and `columns` are the workers between whom the rows and the columns are divided. Where
    it is the columns, each worker has a part of every row, and products are summed over all.
    """

    blocks: list[sparse.csr_matrix]
    starts: np.ndarray
    counts: np.ndarray
    ones: np.ndarray
    rows: Group = ALONE
    columns: Group = ALONE

    @property
    def n_rows(self) -> int:
        """How many entities this side has."""
        return len(self.counts)

    def count(self, table: np.ndarray) -> np.ndarray:
        """Sum the rows of a table over each entity's observed partners."""
        return self._product(table, ones=True)

    def weigh(self, table: np.ndarray) -> np.ndarray:
        """Sum the rows of a table over each entity's partners, times the observed values."""
        return self._product(table, ones=False)

    def squares(self) -> np.ndarray:
        """Sum the squares of each entity's values."""
        parts = [
            np.add.reduceat(np.append(b.data.astype(np.float64) ** 2, 0), b.indptr[:-1])
            * (np.diff(b.indptr) > 0)
            for b in self.blocks
        ]
        return self.columns.sum(np.concatenate(parts))

    def _product(self, table: np.ndarray, ones: bool) -> np.ndarray:
        out = np.empty((self.n_rows, table.shape[1]), np.float32)
        table = np.ascontiguousarray(table, np.float32)

        def fill(i: int) -> None:
            block = self.blocks[i]
            if ones:
                parts = (self.ones[: block.nnz], block.indices, block.indptr)
                block = sparse.csr_matrix(parts, shape=block.shape, copy=False)
            out[self.starts[i] : self.starts[i + 1]] = block @ table

        in_threads(fill, len(self.blocks))
        return self.columns.sum(out)


@dataclass(frozen=True, eq=False)
class Observed:
    """Ratings as deviations from their mean, in units of their spread, seen from both sides.

    Attributes
    ----------
    items, users : Side
        The ratings of this worker's users.
    mean, scale : float
        Of all ratings.
    n_users : int
        Users of all workers.
    mine : slice
        Which of them are this worker's.
    group : Group
        The workers.
    """

    items: Side
    users: Side
    mean: float
    scale: float
    n_users: int
    mine: slice
    group: Group = ALONE

    @classmethod
    def of(cls, ratings: Ratings, group: Group = ALONE) -> "Observed":
        """Arrange ratings, rows in the order of their id maps."""
        mean = ratings.mean
        scale = float(np.std(ratings.values, dtype=np.float64)) or 1.0
        values, user_rows, item_rows = ratings.values, ratings.user_rows, ratings.item_rows
        n_users, mine = ratings.n_users, slice(0, ratings.n_users)
        if group.size > 1:
            if n_users < group.size:
                raise InputError(
                    f"strategy: {group.size} workers for {n_users} users; give each at least one."
                )
            per_user = np.bincount(user_rows, minlength=n_users)
            mine = slice(*equal_parts(per_user, group.size)[group.rank : group.rank + 2].tolist())
            here = (user_rows >= mine.start) & (user_rows < mine.stop)
            values, item_rows = values[here], item_rows[here]
            user_rows = user_rows[here] - mine.start
        values = ((values - np.float32(mean)) / np.float32(scale)).astype(np.float32)
        shape = (mine.stop - mine.start, ratings.n_items)
        users = sparse.csr_matrix(sparse.coo_matrix((values, (user_rows, item_rows)), shape=shape))
        users.sort_indices()
        items = users.T.tocsr()
        sides = side_of(items, columns=group), side_of(users, rows=group)
        return cls(*sides, mean, scale, n_users, mine, group)

    @property
    def n_entries(self) -> int:
        """How many entries were observed, by all workers."""
        return int(self.items.counts.sum())

    def gather(self, part: np.ndarray) -> np.ndarray:
        """Put the rows of all workers' users together, on every worker."""
        if self.group.size == 1:
            return part
        whole = np.zeros((self.n_users, *part.shape[1:]), part.dtype)
        whole[self.mine] = part
        # Piece by piece: this is as large as the model, and sums come in arrays of their own.
        for a in range(0, self.n_users, _PIECE):
            whole[a : a + _PIECE] = self.group.sum(whole[a : a + _PIECE])
        return whole

    def sample(self, n: int, rng: np.random.Generator) -> "Entries":
        """Draw entries, all of them where there are no more than `n`; give those of this worker."""
        total = self.n_entries
        places = np.arange(total) if total <= n else np.sort(rng.integers(0, total, n))
        drawn = len(places)
        if self.group.size > 1:
            per_worker = np.zeros(self.group.size, np.int64)
            per_worker[self.group.rank] = self.users.counts.sum()
            end = int(np.cumsum(self.group.sum(per_worker))[self.group.rank])
            places = places - (end - per_worker[self.group.rank])
            places = places[(places >= 0) & (places < per_worker[self.group.rank])]
        ends = np.cumsum([block.nnz for block in self.users.blocks])
        owner = np.searchsorted(ends, places, side="right")
        items, values = np.empty(len(places), np.int64), np.empty(len(places), np.float32)
        for i, block in enumerate(self.users.blocks):
            here = owner == i
            at = places[here] - (ends[i] - block.nnz)
            items[here], values[here] = block.indices[at], block.data[at]
        users = np.searchsorted(np.cumsum(self.users.counts), places, side="right")
        return Entries(items, users, values, drawn, self.group)


@dataclass(frozen=True, eq=False)
class Entries:
    """Some observed entries, one by one: those of this worker, of `drawn` in all."""

    items: np.ndarray
    users: np.ndarray
    values: np.ndarray
    drawn: int
    group: Group = ALONE


def in_threads(work: Callable[[int], None], n: int) -> None:
    """Call ``work(0) ... work(n - 1)``, side by side where there are cores."""
    if n == 1 or processors() == 1:
        for i in range(n):
            work(i)
        return
    with ThreadPoolExecutor(processors()) as pool:
        list(pool.map(work, range(n)))


def by_rows(work: Callable[[slice], None], n: int) -> None:
    """Call ``work`` with slices of n rows, side by side; few rows are not worth the hand-over."""
    if n <= 16 * _ROWS:
        work(slice(0, n))
    else:
        in_threads(lambda i: work(slice(i * _ROWS, (i + 1) * _ROWS)), -(-n // _ROWS))


def side_of(matrix: sparse.csr_matrix, rows: Group = ALONE, columns: Group = ALONE) -> Side:
    """Cut a matrix into blocks of rows."""
    m = matrix.shape[0]
    # A few blocks a thread even out their work; small matrices are not worth the hand-over.
    n_blocks = 1 if matrix.nnz < 50_000 else min(4 * processors(), m)
    cuts = np.searchsorted(matrix.indptr, np.linspace(0, matrix.nnz, n_blocks + 1)[1:-1])
    starts = np.unique(np.concatenate([[0], cuts, [m]])).astype(np.int64)
    blocks = []
    for a, b in itertools.pairwise(starts):
        lo, hi = matrix.indptr[a], matrix.indptr[b]
        parts = (matrix.data[lo:hi], matrix.indices[lo:hi], matrix.indptr[a : b + 1] - lo)
        blocks.append(sparse.csr_matrix(parts, shape=(b - a, matrix.shape[1]), copy=False))
    ones = np.ones(max(block.nnz for block in blocks), np.float32)
    counts = columns.sum(np.diff(matrix.indptr).astype(np.int64))
    return Side(blocks, starts, counts, ones, rows, columns)
