"""The observed ratings by items and by users, and the sparse products that fitting needs."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from simrec.data.ratings import Ratings
from simrec.data.sides import Sides
from simrec.mapped import release
from simrec.model.run.arrange import PIECE, arranged, counted, pieces
from simrec.model.run.scratch import BLOCK, IN_MEMORY, Scratch
from simrec.model.run.threads import in_threads
from simrec.model.run.workers import ONE_WORKER, Workers, own_places
from simrec.scoring.output import IDENTITY, Output
from simrec.scoring.topk import processors

# Partners for whom tables are made at once, at least; a quarter of the rows if that is more.
_COLUMNS = 1 << 14

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

    Attributes
    ----------
    blocks : list of list of csr_matrix
        For each range of columns, the blocks of rows.
    starts, columns : numpy.ndarray
        Edges of the blocks of rows, and of the ranges of columns.
    counts : numpy.ndarray
        Ratings of each entity.
    ones : numpy.ndarray
        As many ones as the largest block has entries.
    """

    blocks: list[list[sparse.csr_matrix]]
    starts: np.ndarray
    columns: np.ndarray
    counts: np.ndarray
    ones: np.ndarray
    row_workers: Workers = ONE_WORKER
    column_workers: Workers = ONE_WORKER
    scratch: Scratch = IN_MEMORY

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
        """Sum the rows of two tables over the partners of each entity, the second times ratings.

        Parameters
        ----------
        tables : callable
            Makes both tables for a range of partners.
        widths : tuple of int
            Their numbers of columns.
        take : callable
            Called with a slice of entities and both of their sums.
        """
        if len(self.blocks) > 1 or self.column_workers.size > 1:
            take(slice(0, self.n_rows), *self._products(tables, widths))
            return
        first, second = tables(slice(0, int(self.columns[-1])))

        def fill(i: int) -> None:
            block, rows = self.blocks[0][i], slice(self.starts[i], self.starts[i + 1])
            take(rows, self._ones(block) @ first, block @ second)
            release(block.data, block.indices)

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
                release(blocks[i].data, blocks[i].indices)

            in_threads(fill, len(blocks))
        return [self.column_workers.sum(whole) for whole in out]

    def _ones(self, block: sparse.csr_matrix) -> sparse.csr_matrix:
        parts = (self.ones[: block.nnz], block.indices, block.indptr)
        return sparse.csr_matrix(parts, shape=block.shape, copy=False)


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
        Which of them are on this one.
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
        cls,
        ratings: Ratings,
        workers: Workers = ONE_WORKER,
        output: Output = IDENTITY,
        scratch: Scratch = IN_MEMORY,
    ) -> "Observed":
        """Arrange the ratings of this worker's users, with rows in the order of their id maps."""
        n = workers.total(len(ratings))

        def total(of: Callable[[np.ndarray], np.ndarray]) -> float:
            """Sum something over what the inverse of the output makes of all ratings."""
            found = 0.0
            for at in pieces(len(ratings)):
                found += float(of(output.link(ratings.values[at])).sum(dtype=np.float64))
                release(ratings.values[at])
            return workers.total(found)

        mean = total(lambda values: values) / n
        scale = float(np.sqrt(total(lambda values: (values - np.float64(mean)) ** 2) / n)) or 1.0
        unit = scale
        if not output.linear:
            shift = np.float32(output.shift)
            unit *= float(np.sqrt(total(lambda values: output.slopes(values - shift) ** 2) / n))

        def entries(at: slice | np.ndarray) -> np.ndarray:
            values = (output.link(ratings.values[at]) - np.float32(mean)) / np.float32(scale)
            release(ratings.values)
            return values.astype(np.float32)

        shape = (ratings.n_users, ratings.n_items)
        users = arranged(ratings.user_rows, ratings.item_rows, entries, shape, scratch)
        rows = Sides(
            transposed_rows(users, column_workers=workers, scratch=scratch),
            rating_rows(users, row_workers=workers, scratch=scratch),
        )
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


def rating_rows(
    matrix: sparse.csr_matrix,
    row_workers: Workers = ONE_WORKER,
    column_workers: Workers = ONE_WORKER,
    scratch: Scratch = IN_MEMORY,
) -> RatingRows:
    """Cut a matrix into blocks of rows."""
    data, indices = scratch.moved(matrix.data), scratch.moved(matrix.indices)
    matrix = sparse.csr_matrix((data, indices, matrix.indptr), shape=matrix.shape, copy=False)
    starts = _starts(matrix.indptr)
    columns, counts = np.array([0, matrix.shape[1]]), np.diff(matrix.indptr).astype(np.int64)
    return _rows(
        [_blocks(matrix, starts)], starts, columns, counts, row_workers, column_workers, scratch
    )


def transposed_rows(
    matrix: sparse.csr_matrix,
    row_workers: Workers = ONE_WORKER,
    column_workers: Workers = ONE_WORKER,
    scratch: Scratch = IN_MEMORY,
) -> RatingRows:
    """Arrange a matrix by its columns, in ranges of its rows."""
    n, m = matrix.shape
    counts = counted(matrix.indices, m)
    starts = _starts(np.concatenate([[0], np.cumsum(counts)]))
    edges = np.unique([*range(0, n, max(_COLUMNS, m // 4)), n]).astype(np.int64)
    data = scratch.empty((matrix.nnz,), matrix.data.dtype.type)
    indices = scratch.empty((matrix.nnz,), matrix.indices.dtype.type)
    blocks = []
    for a, b in itertools.pairwise(edges):
        part, at = matrix[a:b].T.tocsr(), slice(matrix.indptr[a], matrix.indptr[b])
        data[at], indices[at] = part.data, part.indices
        release(matrix.data[at], matrix.indices[at])
        parts = (data[at], indices[at], part.indptr)
        part = sparse.csr_matrix(parts, shape=part.shape, copy=False)
        blocks.append(_blocks(part, starts))
        release(data[at], indices[at])
    return _rows(blocks, starts, edges, counts, row_workers, column_workers, scratch)


def _starts(indptr: np.ndarray) -> np.ndarray:
    """Return the edges of blocks of rows."""
    m, n_entries = len(indptr) - 1, int(indptr[-1])
    # A few blocks a thread even out their work; small matrices are not worth the hand-over.
    n_blocks = 1 if n_entries < 50_000 else min(max(4 * processors(), n_entries // PIECE), m)
    cuts = np.searchsorted(indptr, np.linspace(0, n_entries, n_blocks + 1)[1:-1])
    return np.unique(np.concatenate([np.arange(0, m, BLOCK), cuts, [m]])).astype(np.int64)


def _blocks(matrix: sparse.csr_matrix, starts: np.ndarray) -> list[sparse.csr_matrix]:
    blocks = []
    for a, b in itertools.pairwise(starts):
        lo, hi = matrix.indptr[a], matrix.indptr[b]
        parts = (matrix.data[lo:hi], matrix.indices[lo:hi], matrix.indptr[a : b + 1] - lo)
        blocks.append(sparse.csr_matrix(parts, shape=(b - a, matrix.shape[1]), copy=False))
    return blocks


def _rows(
    blocks: list[list[sparse.csr_matrix]],
    starts: np.ndarray,
    columns: np.ndarray,
    counts: np.ndarray,
    row_workers: Workers,
    column_workers: Workers,
    scratch: Scratch,
) -> RatingRows:
    ones = np.ones(max(block.nnz for part in blocks for block in part), np.float32)
    counts = column_workers.sum(counts)
    return RatingRows(blocks, starts, columns, counts, ones, row_workers, column_workers, scratch)
