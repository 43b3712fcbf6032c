"""The observed ratings by items and by users, and the sparse products that fitting needs."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from simrec.data.ratings import Ratings
from simrec.data.sides import Sides
from simrec.model.run.workers import ONE_WORKER, Workers, own_places
from simrec.scoring.output import IDENTITY, Output
from simrec.scoring.threads import BLOCK, in_threads, processors

# Partners for whom tables are made at once, at least; a quarter of the rows if that is more.
_COLUMNS = 1 << 14
# Entries of a block of rows, at most.
_ENTRIES = 1 << 21

# Makes tables for a range of partners; takes the sums of a range of entities.
Tables = Callable[[slice], Sequence[np.ndarray]]
Take = Callable[[slice, np.ndarray, np.ndarray], None]


@dataclass(frozen=True, eq=False)
class RatingRows:
    """The ratings arranged by one side: a row for each entity, a column for each partner.

    Rows are kept in blocks of about equal numbers of entries. Each row is summed by one thread in
    one order, so the number of threads changes no bit of a result. Where there are many partners,
    the columns are cut too: what is summed over them is made for some of them at a time.

    `row_workers` and `column_workers` are the workers between whom the rows and the columns are
    divided. Where the columns are, each worker has a part of every row, and products are summed
    over all workers.
    """

    blocks: list[list[sparse.csr_matrix]]  # for each range of columns, the blocks of rows
    starts: np.ndarray  # edges of the blocks of rows
    columns: np.ndarray  # edges of the ranges of columns
    counts: np.ndarray  # ratings of each entity
    ones: np.ndarray  # as many ones as the largest block has entries
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

    def matrix(self) -> sparse.csr_matrix:
        """Return all ratings as one matrix."""
        parts = [sparse.vstack(blocks, format="csr") for blocks in self.blocks]
        return parts[0] if len(parts) == 1 else sparse.hstack(parts, format="csr")

    def sum_partners(self, table: np.ndarray) -> np.ndarray:
        """Sum the rows of a table over the partners of each entity."""
        return self._products(lambda columns: (table[columns],), (table.shape[1],))[0]

    def squares(self) -> np.ndarray:
        """Sum the squares of each entity's ratings."""
        total = np.zeros(self.n_rows)
        for blocks in self.blocks:
            parts = [
                np.add.reduceat(np.append(b.data.astype(np.float64) ** 2, 0), b.indptr[:-1])
                * (np.diff(b.indptr) > 0)
                for b in blocks
            ]
            total += np.concatenate(parts)
        return self.column_workers.sum(total)

    def sums(self, tables: Tables, widths: tuple[int, int], take: Take) -> None:
        """Sum the rows of two tables over the partners of each entity, the second times ratings."""
        if len(self.blocks) > 1 or self.column_workers.size > 1:
            take(slice(0, self.n_rows), *self._products(tables, widths))
            return
        first, second = tables(slice(0, int(self.columns[-1])))

        def fill(i: int) -> None:
            block, rows = self.blocks[0][i], slice(self.starts[i], self.starts[i + 1])
            take(rows, self._ones(block) @ first, block @ second)

        in_threads(fill, len(self.starts) - 1)

    def _products(self, tables: Tables, widths: Sequence[int]) -> list[np.ndarray]:
        """Sum the rows of tables over partners; those of a second table times ratings."""
        out = [np.empty((self.n_rows, width), np.float32) for width in widths]
        for j, blocks in enumerate(self.blocks):
            columns = slice(int(self.columns[j]), int(self.columns[j + 1]))
            parts = [np.ascontiguousarray(table, np.float32) for table in tables(columns)]

            def fill(
                i: int,
                blocks: list[sparse.csr_matrix] = blocks,
                parts: list[np.ndarray] = parts,
                more: bool = j > 0,
            ) -> None:
                rows = slice(self.starts[i], self.starts[i + 1])
                pair = (self._ones(blocks[i]), blocks[i])
                for whole, block, part in zip(out, pair, parts, strict=False):
                    found = block @ part
                    if more:
                        found += whole[rows]
                    whole[rows] = found

            in_threads(fill, len(blocks))
        return [self.column_workers.sum(whole) for whole in out]

    def _ones(self, block: sparse.csr_matrix) -> sparse.csr_matrix:
        parts = (self.ones[: block.nnz], block.indices, block.indptr)
        return sparse.csr_matrix(parts, shape=block.shape, copy=False)


@dataclass(frozen=True, eq=False)
class Observed:
    """Ratings as deviations from their mean, in units of their spread, arranged by both sides.

    With a sigmoid output they are what its inverse makes of the ratings.
    """

    rows: Sides[RatingRows]  # the ratings of this worker's users, by items and by users
    mean: float  # of all ratings, as the inverse of the output has them
    scale: float  # their standard deviation
    unit: float  # an error of 1 on the scale of the ratings, by the root mean square slope
    n_users: int  # users of all workers
    my_users: slice  # which of them are on this one
    workers: Workers = ONE_WORKER

    @classmethod
    def of(
        cls, ratings: Ratings, workers: Workers = ONE_WORKER, output: Output = IDENTITY
    ) -> "Observed":
        """Arrange the ratings of this worker's users, with rows in the order of their id maps."""
        n = workers.total(len(ratings))

        def total(of: Callable[[np.ndarray], np.ndarray]) -> float:
            """Sum something over what the inverse of the output makes of all ratings."""
            return workers.total(float(of(output.link(ratings.values)).sum(dtype=np.float64)))

        mean = total(lambda values: values) / n
        scale = float(np.sqrt(total(lambda values: (values - np.float64(mean)) ** 2) / n)) or 1.0
        unit = scale
        if not output.linear:
            shift = np.float32(output.shift)
            unit *= float(np.sqrt(total(lambda values: output.slopes(values - shift) ** 2) / n))

        entries = (output.link(ratings.values) - np.float32(mean)) / np.float32(scale)
        places, shape = (ratings.user_rows, ratings.item_rows), (ratings.n_users, ratings.n_items)
        users = sparse.csr_matrix((entries.astype(np.float32), places), shape=shape)
        rows = Sides(transposed_rows(users, workers), rating_rows(users, workers))
        n_users, mine = int(workers.total(ratings.n_users)), workers.places(ratings.n_users)
        return cls(rows, mean, scale, unit, n_users, mine, workers)

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
            mine = self.workers.places(int(self.rows.users.counts.sum()))
            places = own_places(places, mine)
        blocks = self.rows.users.blocks[0]
        ends = np.cumsum([block.nnz for block in blocks])
        owner = np.searchsorted(ends, places, side="right")
        items, values = np.empty(len(places), np.int64), np.empty(len(places), np.float32)
        for i, block in enumerate(blocks):
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


def rating_rows(matrix: sparse.csr_matrix, workers: Workers = ONE_WORKER) -> RatingRows:
    """Cut a matrix, whose rows are divided between workers, into blocks of rows."""
    return _arranged([matrix], np.array([0, matrix.shape[1]]), workers, ONE_WORKER)


def transposed_rows(matrix: sparse.csr_matrix, workers: Workers = ONE_WORKER) -> RatingRows:
    """Arrange a matrix by its columns, in ranges of its rows; workers divide the rows."""
    n, m = matrix.shape
    edges = np.unique([*range(0, n, max(_COLUMNS, m // 4)), n]).astype(np.int64)
    parts = [matrix[a:b].T.tocsr() for a, b in itertools.pairwise(edges)]
    return _arranged(parts, edges, ONE_WORKER, workers)


def _arranged(
    parts: list[sparse.csr_matrix], columns: np.ndarray, row_workers: Workers, col_workers: Workers
) -> RatingRows:
    """Cut the rows of matrices, which lie side by side, in the same places."""
    ends = np.sum([part.indptr.astype(np.int64) for part in parts], axis=0)
    m, n_entries = len(ends) - 1, int(ends[-1])
    # A few blocks a thread even out their work; small matrices are not worth the hand-over.
    n_blocks = 1 if n_entries < 50_000 else min(max(4 * processors(), n_entries // _ENTRIES), m)
    cuts = np.searchsorted(ends, np.linspace(0, n_entries, n_blocks + 1)[1:-1])
    starts = np.unique(np.concatenate([np.arange(0, m, BLOCK), cuts, [m]])).astype(np.int64)
    blocks = [_blocks(part, starts) for part in parts]
    ones = np.ones(max(block.nnz for part in blocks for block in part), np.float32)
    counts = col_workers.sum(np.diff(ends))
    return RatingRows(blocks, starts, columns, counts, ones, row_workers, col_workers)


def _blocks(matrix: sparse.csr_matrix, starts: np.ndarray) -> list[sparse.csr_matrix]:
    blocks = []
    for a, b in itertools.pairwise(starts):
        lo, hi = matrix.indptr[a], matrix.indptr[b]
        parts = (matrix.data[lo:hi], matrix.indices[lo:hi], matrix.indptr[a : b + 1] - lo)
        blocks.append(sparse.csr_matrix(parts, shape=(b - a, matrix.shape[1]), copy=False))
    return blocks
