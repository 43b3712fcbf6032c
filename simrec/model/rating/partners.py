"""The partners of new entities: what they are refitted from, all of them or some."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from simrec.data.sides import Side, Sides
from simrec.model.rating.known_entities import KnownEntities, Problem
from simrec.model.rating.observed import Entries, RatingRows, rating_rows
from simrec.model.rating.posterior import Precisions


@dataclass(frozen=True, eq=False)
class Partners:
    """Known entities that meet new entities of the other side.

    Attributes
    ----------
    ratings : RatingRows
        Their ratings.
    prior_means : numpy.ndarray
        What features and history say of each.
    precisions : Precisions
        Around these, and of the noise.
    entries : Entries
        Ratings on which the error for new entities is estimated; of the partners, rows are those
        of `ratings`.
    """

    ratings: RatingRows
    prior_means: np.ndarray
    precisions: Precisions
    entries: Entries

    @classmethod
    def of(
        cls, problem: Problem, known: Sides[KnownEntities], side: Side, entries: Entries
    ) -> Partners:
        """Return all partners of a side's new entities."""
        other = known.other(side)
        rows = problem.observed.rows.other(side)
        return cls(rows, other.prior_means, other.precisions, entries)

    def some(self, side: Side) -> Partners:
        """Return those alone that have entries, where that is at most half of them.

        A penalty is chosen by the error on the entries. Where there are many users, refitting
        all of them for each attempt is most of the time of a fit.
        """
        rows = np.unique(self.entries.rows.other(side))
        workers = self.ratings.row_workers
        if 2 * workers.total(len(rows)) > workers.total(self.ratings.n_rows):
            return self
        if len(self.ratings.blocks) > 1:  # arranged by ranges of partners of their own
            return self
        edges = np.searchsorted(rows, self.ratings.starts)
        parts = [
            block[rows[a:b] - start]
            for block, start, (a, b) in zip(
                self.ratings.blocks[0],
                self.ratings.starts[:-1],
                itertools.pairwise(edges),
                strict=True,
            )
        ]
        matrix = sparse.vstack(parts, format="csr")
        ratings = rating_rows(matrix, workers, self.ratings.column_workers, self.ratings.scratch)
        places = np.searchsorted(rows, self.entries.rows.other(side))
        entries = replace(self.entries, rows=_with_other(self.entries.rows, side, places))
        return Partners(ratings, self.prior_means[rows], self.precisions, entries)


def _with_other(rows: Sides[np.ndarray], side: Side, places: np.ndarray) -> Sides[np.ndarray]:
    return Sides(rows.items, places) if side == "items" else Sides(places, rows.users)
