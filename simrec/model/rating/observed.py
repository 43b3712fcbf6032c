"""The observed ratings by items and by users, and the sparse products that fitting needs."""

import itertools
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from simrec.data.ratings import Ratings
from simrec.data.sides import Sides
from simrec.errors import InputError
from simrec.model.run.threads import in_threads
from simrec.model.run.workers import ONE_WORKER, Workers, equal_parts
from simrec.scoring.output import IDENTITY, Output
from simrec.scoring.topk import processors

# Users whose rows are put together at once.
_PIECE = 1 << 16


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

    With a sigmoid output they are what its inverse makes of the ratings.

    Attributes
    ----------
    rows : Sides of RatingRows
        The ratings of this worker's users, by items and by users.
    mean, scale : float
        Mean and standard deviation of all ratings, as the inverse of the output has them.
    unit : float
        What an error of 1 is worth on the scale of the ratings, where the output rises as it does
        at the ratings on (root mean square) average.
    n_users : int
        Users of all workers.
    my_users : slice
        Which of them are on this worker.
    workers : Workers
        The workers.
    """

    rows: Sides[RatingRows]
    mean: float
    scale: float
    unit: float
    n_users: int
    my_users: slice
    workers: Workers = ONE_WORKER

    @classmethod
    def of(
        cls, ratings: Ratings, workers: Workers = ONE_WORKER, output: Output = IDENTITY
    ) -> "Observed":
        """Arrange ratings, with rows in the order of their id maps."""
        values, user_rows, item_rows = ratings.values, ratings.user_rows, ratings.item_rows
        values = output.link(values)
        mean = float(values.mean(dtype=np.float64))
        scale = float(np.std(values, dtype=np.float64)) or 1.0
        unit = scale
        if not output.linear:
            slopes = output.slopes(values - np.float32(output.shift))
            unit *= float(np.sqrt(np.mean(slopes**2, dtype=np.float64)))
        n_users, mine = ratings.n_users, slice(0, ratings.n_users)
        if workers.size > 1:
            if n_users < workers.size:
                raise InputError(
                    f"strategy: {workers.size} workers for {n_users} users; give each at least one."
                )
            per_user = np.bincount(user_rows, minlength=n_users)
            edges = equal_parts(per_user, workers.size)
            mine = slice(*edges[workers.rank : workers.rank + 2].tolist())
            here = (user_rows >= mine.start) & (user_rows < mine.stop)
            values, item_rows = values[here], item_rows[here]
            user_rows = user_rows[here] - mine.start
        values = ((values - np.float32(mean)) / np.float32(scale)).astype(np.float32)
        shape = (mine.stop - mine.start, ratings.n_items)
        users = sparse.csr_matrix(sparse.coo_matrix((values, (user_rows, item_rows)), shape=shape))
        users.sort_indices()
        items = users.T.tocsr()
        rows = Sides(
            rating_rows(items, column_workers=workers), rating_rows(users, row_workers=workers)
        )
        return cls(rows, mean, scale, unit, n_users, mine, workers)

    @property
    def n_entries(self) -> int:
        """Number of ratings on all workers."""
        return int(self.rows.items.counts.sum())

    def gather(self, part: np.ndarray) -> np.ndarray:
        """Put the rows of all workers' users together, on every worker."""
        if self.workers.size == 1:
            return part
        whole = np.zeros((self.n_users, *part.shape[1:]), part.dtype)
        whole[self.my_users] = part
        # Piece by piece: this is as large as the model, and sums come in arrays of their own.
        for a in range(0, self.n_users, _PIECE):
            whole[a : a + _PIECE] = self.workers.sum(whole[a : a + _PIECE])
        return whole

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
