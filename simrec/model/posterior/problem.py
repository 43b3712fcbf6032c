"""What ratings are learned from: observed ratings, and the features of both sides."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy import sparse

from simrec.data.sides import Side, Sides
from simrec.model.posterior.encoder import EncoderInputs
from simrec.model.posterior.observed import Observed
from simrec.model.prepare import Prepared
from simrec.scoring.output import Output

# Entities for whom something is drawn at once.
_PIECE = 1 << 16


@dataclass(frozen=True, eq=False)
class Problem:
    """Ratings and features."""

    observed: Observed
    features: Sides[sparse.csr_matrix]  # of this worker's entities, a constant column included
    groups: Sides[np.ndarray]  # for each feature, the number of the column that it comes from

    @classmethod
    def of(cls, data: Prepared, output: Output) -> Self:
        """Arrange prepared data; with a sigmoid output, ratings become its logits."""
        observed = Observed.of(data.ratings, data.workers, output)
        sides = data.sides
        return cls(observed, sides.map(lambda side: side.X), sides.map(lambda side: side.groups))

    @property
    def mine(self) -> Sides[slice]:
        """Which of all items and users are on this worker."""
        return Sides(slice(0, self.n_rows.items), self.observed.my_users)

    @property
    def n_rows(self) -> Sides[int]:
        """Number of items and users on all workers."""
        return Sides(self.observed.rows.items.n_rows, self.observed.n_users)

    def folds(self, side: Side, n: int, rng: np.random.Generator) -> np.ndarray:
        """Deal the entities of a side into n folds at random; return those of this worker's."""
        return self.drawn(side, rng, lambda part, size: part.permutation(np.arange(size) % n))

    def drawn(
        self,
        side: Side,
        rng: np.random.Generator,
        draw: Callable[[np.random.Generator, int], np.ndarray],
    ) -> np.ndarray:
        """Draw something for each entity of this worker's, by its place among those of all.

        In pieces that have generators of their own: the number of workers changes nothing, and no
        worker draws for all.
        """
        seed, mine, n = int(rng.integers(2**63)), self.mine[side], self.n_rows[side]
        first, last = mine.start // _PIECE, max(-(-mine.stop // _PIECE), 1)
        pieces = [
            draw(np.random.default_rng([seed, i]), min(_PIECE, n - i * _PIECE))
            for i in range(first, last)
        ]
        start = first * _PIECE
        return np.concatenate(pieces)[mine.start - start : mine.stop - start]

    def inputs(self, side: Side, history: bool) -> EncoderInputs:
        """Return what an encoder of a side reads.

        It reads features. With history, which only known entities have, it also reads the number of
        an entity's ratings, as a column of its own, and who its partners are.
        """
        rows, X, groups = self.observed.rows, self.features[side], self.groups[side]
        if not history:
            return EncoderInputs(X, groups, row_workers=rows[side].row_workers)
        # The logarithm of each entity's number of ratings, standardised.
        n, workers = self.n_rows[side], rows[side].row_workers
        logs = np.log(np.maximum(rows[side].counts, 1))
        off = logs - workers.total(float(logs.sum())) / n
        spread = np.sqrt(workers.total(float(off @ off)) / n)
        activity = (off / (spread or 1.0)).astype(np.float32)[:, None]
        X = sparse.hstack([X, sparse.csr_matrix(activity)], format="csr")
        groups = np.append(groups, groups.max(initial=-1) + 1)
        return EncoderInputs(X, groups, rows[side], rows.other(side), workers)
