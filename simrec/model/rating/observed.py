"""The observed ratings by items and by users, and the sparse products that fitting needs."""

import itertools
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from simrec.data.ratings import Ratings
from simrec.data.sides import Sides
from simrec.model.run.threads import in_threads
from simrec.model.run.workers import ONE_WORKER, Workers
from simrec.scoring.topk import processors


@dataclass(frozen=True, eq=False)
class RatingRows:
    """The ratings arranged by one side: a row for each entity, a column for each partner.

    Rows are kept in blocks of about equal numbers of entries. Each row is summed by one thread in
    one order, so the number of threads changes no bit of a result.

    `row_workers` and `column_workers` are the workers between whom the rows and the columns are
    divided. Where the columns are, each worker has a part of every row, and products are summed
    over all workers.
    """

    blocks: list[sparse.csr_matrix]
    starts: np.ndarray
    counts: np.ndarray
    ones: np.ndarray
    row_workers: Workers = ONE_WORKER
    column_workers: Workers = ONE_WORKER

    @property
    def n_rows(self) -> int:
        """Number of entities."""
        return len(self.counts)

    def shares(self) -> np.ndarray:
        """Return the share of each entity in all ratings, those of other workers included."""
        total = self.row_workers.total(float(self.counts.sum()))
        return (self.counts / total).astype(np.float32)

    def sum_partners(self, table: np.ndarray) -> np.ndarray:
        """Sum the rows of a table over the partners of each entity."""
        return self._product(table, ones=True)

    def sum_rated(self, table: np.ndarray) -> np.ndarray:
        """Sum the rows of a table over the partners of each entity, times their ratings."""
        return self._product(table, ones=False)

    def squares(self) -> np.ndarray:
        """Sum the squares of each entity's ratings."""
        parts = [
            np.add.reduceat(np.append(b.data.astype(np.float64) ** 2, 0), b.indptr[:-1])
            * (np.diff(b.indptr) > 0)
            for b in self.blocks
        ]
        return self.column_workers.sum(np.concatenate(parts))

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
        return self.column_workers.sum(out)


@dataclass(frozen=True, eq=False)
class Observed:
    """Ratings as deviations from their mean, in units of their spread, arranged by both sides.

    Attributes
    ----------
    rows : Sides of RatingRows
        The ratings of this worker's users, by items and by users.
    mean, scale : float
        Mean and standard deviation of all ratings.
    n_users : int
        Users of all workers.
    my_users : slice
        Which of them are on this one.
    workers : Workers
        The workers.
    """

    rows: Sides[RatingRows]
    mean: float
    scale: float
    n_users: int
    my_users: slice
    workers: Workers = ONE_WORKER

    @classmethod
    def of(cls, ratings: Ratings, workers: Workers = ONE_WORKER) -> "Observed":
        """Arrange the ratings of this worker's users, with rows in the order of their id maps."""
        n = workers.total(len(ratings))
        mean = workers.total(float(ratings.values.sum(dtype=np.float64))) / n
        off = ratings.values - np.float64(mean)
        scale = float(np.sqrt(workers.total(float(off @ off)) / n)) or 1.0
        values = ((ratings.values - np.float32(mean)) / np.float32(scale)).astype(np.float32)
        shape = (ratings.n_users, ratings.n_items)
        entries = sparse.coo_matrix((values, (ratings.user_rows, ratings.item_rows)), shape=shape)
        users = sparse.csr_matrix(entries)
        users.sort_indices()
        items = users.T.tocsr()
        rows = Sides(
            rating_rows(items, column_workers=workers), rating_rows(users, row_workers=workers)
        )
        n_users, mine = int(workers.total(ratings.n_users)), workers.places(ratings.n_users)
        return cls(rows, mean, scale, n_users, mine, workers)

    @property
    def n_entries(self) -> int:
        """Number of ratings on all workers."""
        return int(self.rows.items.counts.sum())

    def sample(self, n: int, rng: np.random.Generator) -> "Entries":
        """Draw ratings, all where there are no more than `n`; return those of this worker."""
        total = self.n_entries
        places = np.arange(total) if total <= n else np.sort(rng.integers(0, total, n))
        drawn = len(places)
        if self.workers.size > 1:
            per_worker = np.zeros(self.workers.size, np.int64)
            per_worker[self.workers.rank] = self.rows.users.counts.sum()
            end = int(np.cumsum(self.workers.sum(per_worker))[self.workers.rank])
            places = places - (end - per_worker[self.workers.rank])
            places = places[(places >= 0) & (places < per_worker[self.workers.rank])]
        ends = np.cumsum([block.nnz for block in self.rows.users.blocks])
        owner = np.searchsorted(ends, places, side="right")
        items, values = np.empty(len(places), np.int64), np.empty(len(places), np.float32)
        for i, block in enumerate(self.rows.users.blocks):
            here = owner == i
            at = places[here] - (ends[i] - block.nnz)
            items[here], values[here] = block.indices[at], block.data[at]
        users = np.searchsorted(np.cumsum(self.rows.users.counts), places, side="right")
        return Entries(Sides(items, users), values, drawn, self.workers)


@dataclass(frozen=True, eq=False)
class Entries:
    """Some ratings, one by one: the rows of their items and users, and their values.

    They are those of this worker; all workers together have drawn `drawn` of them.
    """

    rows: Sides[np.ndarray]
    values: np.ndarray
    drawn: int
    workers: Workers = ONE_WORKER


def rating_rows(
    matrix: sparse.csr_matrix,
    row_workers: Workers = ONE_WORKER,
    column_workers: Workers = ONE_WORKER,
) -> RatingRows:
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
    counts = column_workers.sum(np.diff(matrix.indptr).astype(np.int64))
    return RatingRows(blocks, starts, counts, ones, row_workers, column_workers)
