"""Ratings that come after fitting: the posterior so far is the prior, the ratings are the evidence.

`fit` solves for every entity ``P m = L f + t h`` with ``P = L + t S`` (see
`simrec.model.posterior.posterior`). S and h are sums over ratings, so further ratings add to both,
and the posterior so far stands for all ratings before them. An entity without ratings has the prior
that its features give, as wide as
the errors on held-out entities were.
"""

from dataclasses import replace

import numpy as np
from scipy import sparse

from simrec.data.sides import SIDES, Side, Sides
from simrec.model.part import LaterRatings
from simrec.model.part import learners as learners_of
from simrec.model.posterior.encoder import history_weight
from simrec.model.posterior.evidence import HALF_KNOWN, Evidence, PackedPosterior, SideEvidence
from simrec.model.posterior.observed import RatingRows, rating_rows
from simrec.model.posterior.packed import pack, unpack
from simrec.model.posterior.posterior import Posterior, Precisions, Statistics, statistics
from simrec.storage.arrays import Array

# Turns in which both sides learn from each other; one is enough where only one side learns.
_SWEEPS = 2
_CHUNK = 4096


def add_ratings(
    evidence: Evidence, counts: Sides[Array], later: LaterRatings, only_new: Sides[bool]
) -> tuple[Evidence, Sides[np.ndarray]]:
    """Add ratings to the posteriors of their users and items."""
    before, rows = evidence.sides, learners_of(counts, later, only_new)
    learners = Sides.of(lambda side: _Learners(before, side, later, counts[side], rows[side]))
    # A copy to write to; a side on which nobody learns is not copied.
    now = before.map(
        lambda side, mine: replace(side, warm=side.warm.copy()) if len(mine.rows) else side,
        learners,
    )
    both = all(len(mine.rows) for mine in learners)
    for _ in range(_SWEEPS if both else 1):
        # Users first: there are more items that are known than users who are not.
        for side in reversed(SIDES):
            if len(learners[side].rows):
                now[side].warm.put(learners[side].rows, learners[side].warm(now.other(side).warm))
    finished = Sides.of(
        lambda side: (
            learners[side].finished(now[side], before.other(side).out_of_fold)
            if len(learners[side].rows)
            else now[side]
        )
    )
    return replace(evidence, sides=finished), rows


class _Learners:
    """The entities of one side that learn, with their ratings."""

    def __init__(
        self,
        sides: Sides[SideEvidence],
        side: Side,
        later: LaterRatings,
        counts: Array,
        rows: np.ndarray,
    ) -> None:
        self.rows = rows
        self.before, self.counts = sides[side], counts[rows]
        if not len(rows):
            return
        at = np.minimum(np.searchsorted(rows, later.rows[side]), len(rows) - 1)
        here = rows[at] == later.rows[side]
        # Only partners that occur: the cost is that of the ratings, not of the model.
        self.partners, columns = np.unique(later.rows.other(side)[here], return_inverse=True)
        self.ratings: RatingRows = rating_rows(
            sparse.csr_matrix(
                (later.values[here], (at[here], columns)), shape=(len(rows), len(self.partners))
            )
        )
        before = self.before
        self.warmth = before.warmth[rows]
        # One that was fitted stays known; any other becomes known with its ratings.
        total = self.counts + self.ratings.counts
        self.warmer = np.where(self.warmth == 1, 1, total / (total + HALF_KNOWN)).astype(np.float32)
        weights = sides.other(side).history_weights[self.partners]
        self.history = before.history[rows] + self.ratings.sum_partners(weights)
        after = history_weight(total)[:, None] * self.history
        self.shift = after - history_weight(self.counts)[:, None] * before.history[rows]

    def warm(self, partners: PackedPosterior) -> Posterior:
        """Return the posteriors that known partners meet."""
        before = self.before
        stats = statistics(self.ratings, partners.unpacked(self.partners))
        # The prior of those that were not fitted is wider.
        widths = np.where(self.warmth == 1, 1.0, before.width)
        return _added(
            before.warm.unpacked(self.rows), stats, before.warm_precisions, self.shift, widths
        )

    def finished(self, now: SideEvidence, partners_encoded: Array) -> SideEvidence:
        """Update the posteriors against cold partners too, and the history."""
        before, rows = self.before, self.rows
        history, warmth = (np.array(a) for a in (before.history, before.warmth))
        history[rows], warmth[rows] = self.history, self.warmer
        now = replace(now, history=history, warmth=warmth)
        if before.cold is None or before.cold_precisions is None:
            return now
        stats = statistics(self.ratings, Posterior(partners_encoded[self.partners]))
        widths, cold = np.ones(len(rows)), before.cold.copy()
        precisions = before.cold_precisions
        cold.put(rows, _added(before.cold.unpacked(rows), stats, precisions, self.shift, widths))
        return replace(now, cold=cold)


def _added(
    posterior: Posterior,
    stats: Statistics,
    precisions: Precisions,
    shift: np.ndarray,
    widths: np.ndarray,
) -> Posterior:
    """Add ratings to posteriors whose prior means have shifted."""
    assert posterior.covariance is not None
    mean, covariance = np.empty_like(posterior.mean), np.empty_like(posterior.covariance)
    for a in range(0, len(mean), _CHUNK):
        part = slice(a, a + _CHUNK)
        P = np.linalg.inv(unpack(posterior.covariance[part]).astype(np.float64))
        weighted = (P @ posterior.mean[part][:, :, None])[:, :, 0]
        weighted += (shift[part] @ precisions.L) / widths[part, None] + precisions.t * stats.h[part]
        C = np.linalg.inv(P + precisions.t * unpack(stats.S[part]))
        mean[part] = (C @ weighted[:, :, None])[:, :, 0]
        covariance[part] = pack(C)
    return Posterior(mean, covariance)
