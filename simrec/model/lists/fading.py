"""Popularity that fades: cold users are shown what is popular now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from simrec.data.ratings import Ratings
from simrec.data.split import days
from simrec.errors import InputError
from simrec.model.run.workers import ONE_WORKER, Workers

# Half-lives within the time that the pairs span, where none is given.
_HALF_LIVES = 8.0


@dataclass(frozen=True)
class Fading:
    """How the popularity of items fades.

    Attributes
    ----------
    rate : float
        Half-lives in a day.
    until : float
        Day since 1970 of the latest pair; popularity is that of this day.
    scale : float
        What a pair of that day adds to the likes of its item.
    """

    rate: float
    until: float
    scale: float = 1.0

    def weights(self, at: np.ndarray) -> np.ndarray:
        """Return how much pairs of some days count."""
        return self.scale * 2.0 ** (-self.rate * (self.until - at))

    def until_day(self, day: float) -> tuple[Fading, float]:
        """Return the fading until a later day, and what is left by then of the likes so far."""
        left = 2.0 ** (-self.rate * (day - self.until))
        return replace(self, until=day), left

    @classmethod
    def restored(cls, document: Mapping[str, Any]) -> Fading:
        """Read the numbers from a model directory."""
        fading = cls(**document)
        numbers = (fading.rate, fading.until, fading.scale)
        finite = all(isinstance(n, int | float) and np.isfinite(n) for n in numbers)
        if not finite or fading.rate < 0 or fading.scale <= 0:
            raise InputError(f"popularity: {dict(document)} cannot be how likes fade")
        return fading


def day_of(ratings: Ratings) -> np.ndarray | None:
    """Return the day, since 1970, of each rating; None without timestamps."""
    times = ratings.timestamps
    if times is None:
        return None
    return days(times - np.datetime64(0, "s") if times.dtype.kind == "M" else times)


def find_fading(
    ratings: Ratings, half_life: float | Literal["auto"], workers: Workers = ONE_WORKER
) -> Fading | None:
    """Make the fading of a half-life in days; None if all ratings are of one moment."""
    at = day_of(ratings)
    if at is None:
        raise InputError(
            "half_life: the ratings have no timestamps. Give a column 'timestamp', or leave "
            "half_life out."
        )
    ends = np.concatenate(workers.gather(np.array([[at.min(), at.max()]])))
    first, last = float(ends[:, 0].min()), float(ends[:, 1].max())
    length = (last - first) / _HALF_LIVES if half_life == "auto" else float(half_life)
    return Fading(1 / length, last) if length else None
