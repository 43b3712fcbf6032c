"""How sure a prediction is: the noise of ratings, and what is not known of item and user.

The variance of a rating is ``noise + v_user + v_item``, where v is the trace of an entity's
posterior covariance with the second moments of the partners it meets. An entity without ratings has
the variance that held-out entities of its side have shown; one that is not known at all, in
addition, that of what features say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simrec.errors import InputError

if TYPE_CHECKING:
    from simrec.model.life import Life
    from simrec.model.tower import Found, Tower
    from simrec.model.update.evidence import Evidence, SideEvidence


def standard_deviations(model: Life, users: Found, items: Found) -> np.ndarray:
    """Give the standard deviation of the rating of each pair of users and items."""
    evidence = _evidence(model, "return_std")
    entities = _variance(model.user_tower_, evidence.users, users)
    entities = entities + _variance(model.item_tower_, evidence.items, items)
    return np.sqrt(evidence.noise + evidence.scale**2 * entities).astype(np.float32)


def exploration(model: Life, items: Found, explore: float) -> np.ndarray | None:
    """Give what `explore` standard deviations add to the score of each item."""
    check_explore(explore)
    if not explore:
        return None
    evidence = _evidence(model, "explore")
    variance = _variance(model.item_tower_, evidence.items, items)
    return (explore * evidence.scale * np.sqrt(variance)).astype(np.float32)


def check_explore(explore: float) -> None:
    """Refuse what is no number of standard deviations."""
    number = isinstance(explore, int | float | np.number) and not isinstance(explore, bool)
    if not number or not np.isfinite(explore) or explore < 0:
        raise InputError(f"explore must be a number from 0 on, got {explore!r}.")


def _variance(tower: Tower, side: SideEvidence, found: Found) -> np.ndarray:
    rows, n = found.rows, len(side.warmth)
    # Rows past the known ones are those of a table of features.
    variance = np.full(len(rows), np.sum(side.new_covariance() * side.moments))
    known = rows < n
    few = len(rows) < n  # for a few pairs, not all that is believed is read
    variance[known] = side.variance(rows[known]) if few else side.variance()[rows[known]]
    if found.average.any():
        variance = np.where(found.average, side.average_variance(tower.counts), variance)
    return variance


def _evidence(model: Life, what: str) -> Evidence:
    if model.evidence_ is None:
        raise InputError(
            f"{what}: a model for ranking predicts probabilities and keeps no uncertainty of its "
            "own. Fit with objective='rating'."
        )
    return model.evidence_
