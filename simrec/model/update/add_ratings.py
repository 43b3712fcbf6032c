"""Ratings that come after fitting: what was believed is the prior, the ratings are the evidence.

`fit` solves for every entity ``P m = L f + t h`` with ``P = L + t S`` (`model.fit.posterior`).
S and h are sums over ratings, so further ratings add to both, and the belief so far stands for all
ratings before them. An entity without ratings has the belief that its features give, as wide as
held-out entities have shown it to be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from simrec.model.fit.known_entities import ITEMS, USERS
from simrec.model.fit.linear_encoder import history_weight
from simrec.model.fit.observed import Side, side_of
from simrec.model.fit.posterior import Belief, Scales, Statistics, statistics
from simrec.model.update.evidence import HALF_KNOWN, Evidence, Posteriors, SideEvidence

# Turns in which both sides learn from each other; one is enough where only one side moves.
_SWEEPS = 2
_CHUNK = 4096


@dataclass(frozen=True, eq=False)
class Later:
    """Ratings after fitting, by the rows of both towers; `values` in units of the spread."""

    items: np.ndarray
    users: np.ndarray
    values: np.ndarray

    def rows(self, k: int) -> np.ndarray:
        """Give the rows of one side."""
        return (self.items, self.users)[k]


def absorb(
    evidence: Evidence, counts: tuple[np.ndarray, np.ndarray], later: Later, only_new: bool
) -> tuple[Evidence, list[np.ndarray]]:
    """Add ratings to what is believed.

    Parameters
    ----------
    evidence : Evidence
        What is believed so far.
    counts : (numpy.ndarray, numpy.ndarray)
        Ratings of each item and user so far.
    later : Later
        The ratings.
    only_new : bool
        Whether only entities without ratings so far learn from them.

    Returns
    -------
    evidence : Evidence
        What is believed now.
    moved : list of numpy.ndarray
        Rows of the items and of the users that have learned.
    """
    before = [evidence.items, evidence.users]
    movers = []
    for k in (ITEMS, USERS):
        mine = later.rows(k)
        if only_new:
            mine = mine[counts[k][mine] == 0]
        movers.append(_Mover(before, k, later, counts[k], mine))
    # A copy to write to; those whose side keeps still are never copied.
    now = [
        replace(side, own=side.own.copied()) if len(mover.rows) else side
        for side, mover in zip(before, movers, strict=True)
    ]
    both = all(len(mover.rows) for mover in movers)
    for _ in range(_SWEEPS if both else 1):
        # Users first: there are more items that are known than users who are not.
        for k in (USERS, ITEMS):
            if len(movers[k].rows):
                now[k].own.put(movers[k].rows, movers[k].learned(now[1 - k].own))
    for k in (USERS, ITEMS):
        if len(movers[k].rows):
            now[k] = movers[k].finished(now[k], before[1 - k].cold)
    moved = [mover.rows for mover in movers]
    return replace(evidence, items=now[ITEMS], users=now[USERS]), moved


class _Mover:
    """The entities of one side that learn, with their ratings."""

    def __init__(
        self,
        sides: list[SideEvidence],
        k: int,
        later: Later,
        counts: np.ndarray,
        mine: np.ndarray,
    ) -> None:
        self.rows = np.unique(mine)
        self.side, self.counts = sides[k], counts[self.rows]
        if not len(self.rows):
            return
        place = np.full(len(counts), -1, np.int64)
        place[self.rows] = np.arange(len(self.rows))
        at = place[later.rows(k)]
        here = at >= 0
        # Only partners that occur: the cost is that of the ratings, not of the model.
        self.partners, columns = np.unique(later.rows(1 - k)[here], return_inverse=True)
        self.ratings: Side = side_of(
            sparse.csr_matrix(
                (later.values[here], (at[here], columns)),
                shape=(len(self.rows), len(self.partners)),
            )
        )
        side = self.side
        self.warmth = side.warmth[self.rows]
        # One that was fitted stays known; any other becomes it with its ratings.
        total = self.counts + self.ratings.counts
        self.warmer = np.where(self.warmth == 1, 1, total / (total + HALF_KNOWN)).astype(np.float32)
        self.history = side.history[self.rows] + self.ratings.count(
            sides[1 - k].pull[self.partners]
        )
        after = history_weight(total)[:, None] * self.history
        self.shift = after - history_weight(self.counts)[:, None] * side.history[self.rows]

    def learned(self, partners: Posteriors) -> Belief:
        """Give the beliefs beside known partners."""
        side, stats = self.side, statistics(self.ratings, partners.belief(self.partners))
        # The prior of those that were not fitted is wider.
        widths = np.where(self.warmth == 1, 1.0, side.width)
        return _added(side.own.belief(self.rows), stats, side.own_scales, self.shift, widths)

    def finished(self, now: SideEvidence, cold: np.ndarray) -> SideEvidence:
        """Give the beliefs beside new partners as well, and take note of the history."""
        side, stats = self.side, statistics(self.ratings, Belief(cold[self.partners]))
        widths = np.ones(len(self.rows))
        belief = _added(
            side.beside.belief(self.rows), stats, side.beside_scales, self.shift, widths
        )
        history, warmth = np.array(side.history), np.array(side.warmth)
        history[self.rows], warmth[self.rows] = self.history, self.warmer
        beside = side.beside.copied()
        beside.put(self.rows, belief)
        return replace(now, beside=beside, history=history, warmth=warmth)


def _added(
    belief: Belief, stats: Statistics, scales: Scales, shift: np.ndarray, widths: np.ndarray
) -> Belief:
    """Add evidence to beliefs whose prior means have shifted."""
    assert belief.covariance is not None
    mean, covariance = np.empty_like(belief.mean), np.empty_like(belief.covariance)
    for a in range(0, len(mean), _CHUNK):
        part = slice(a, a + _CHUNK)
        P = np.linalg.inv(belief.covariance[part].astype(np.float64))
        pull = (P @ belief.mean[part][:, :, None])[:, :, 0]
        pull += (shift[part] @ scales.L) / widths[part, None] + scales.t * stats.h[part]
        C = np.linalg.inv(P + scales.t * stats.S[part])
        mean[part] = (C @ pull[:, :, None])[:, :, 0]
        covariance[part] = C
    return Belief(mean, covariance)
