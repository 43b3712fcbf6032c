"""Popularity that fades: to users of whom nothing is known, what is popular now is shown."""

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
        Popularity that a pair of that day adds to its item.
    """

    rate: float
    until: float
    scale: float = 1.0

    def weights(self, at: np.ndarray) -> np.ndarray:
        """Return how much pairs of some days count."""
        return 2.0 ** (-self.rate * (self.until - at))

    def later(
        self, popularity: np.ndarray, items: np.ndarray, weights: np.ndarray, at: np.ndarray | None
    ) -> tuple[Fading, np.ndarray]:
        """Let popularity fade until the latest of later pairs, and add these.

        Parameters
        ----------
        popularity : numpy.ndarray
            Of each item.
        items, weights : numpy.ndarray
            Row of the item of each later pair, and the confidence in it.
        at : numpy.ndarray or None
            Day of each; None for that of the latest pair so far.
        """
        at = np.full(len(items), self.until) if at is None else at
        now = replace(self, until=float(max(self.until, at.max(initial=self.until))))
        added = np.bincount(items, weights * now.weights(at), minlength=len(popularity))
        faded = popularity * 2.0 ** (-self.rate * (now.until - self.until))
        return now, (faded + self.scale * added).astype(np.float32)

    @classmethod
    def restored(cls, document: Mapping[str, Any]) -> Fading:
        """Read the numbers from a model directory."""
        fading = cls(**document)
        numbers = (fading.rate, fading.until, fading.scale)
        if not all(isinstance(n, int | float) and np.isfinite(n) for n in numbers):
            raise InputError(f"popularity: {dict(document)} are no finite numbers")
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
