"""Popularity that fades: to users of whom nothing is known, what is popular now is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy import sparse

from simrec.data.ratings import Ratings
from simrec.data.split import days
from simrec.errors import InputError
from simrec.model.run.workers import ONE_WORKER, Workers

# Half-lives within the time the pairs span, to choose from.
_HALF_LIVES = tuple(2.0**j for j in range(7))
# Share of the time whose newcomers decide, how many there have to be, and how many are asked.
_LAST, _FEWEST, _MOST = 0.1, 20, 5000
_K = 10


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
    """Make the fading of a half-life in days, or of the one that fits newcomers best, if any."""
    at = day_of(ratings)
    if at is None:
        raise InputError(
            "half_life: the ratings have no timestamps. Give a column 'timestamp', or leave "
            "half_life out."
        )
    rate = choose_rate(ratings, at, workers) if half_life == "auto" else 1 / half_life
    return Fading(rate, _ends(at, workers)[1]) if rate else None


def _ends(at: np.ndarray, workers: Workers) -> tuple[float, float]:
    """Return the first and the last day of all workers' pairs."""
    first, last = np.array(workers.gather(np.array([[at.min(), at.max()]]))).reshape(-1, 2).T
    return float(first.min()), float(last.max())


def choose_rate(ratings: Ratings, at: np.ndarray, workers: Workers = ONE_WORKER) -> float:
    """Choose half-lives a day on users who came in the last tenth of the time; 0 for none.

    Items are ranked by the popularity that the pairs before give them; NDCG@10 of what newcomers
    took up has to rise by more than its standard error over that without fading.
    """
    first, last = _ends(at, workers)
    span, cut = last - first, last - _LAST * (last - first)
    early = at < cut
    came = np.setdiff1d(ratings.user_rows[~early], ratings.user_rows[early])[:_MOST]
    if not span or workers.total(len(came)) < _FEWEST:
        return 0.0
    late = np.isin(ratings.user_rows, came)
    entries = (np.ones(int(late.sum())), (ratings.user_rows[late], ratings.item_rows[late]))
    taken = sparse.csr_matrix(entries, shape=(ratings.n_users, ratings.n_items))[came]
    discount = 1 / np.log2(np.arange(2, _K + 2))
    ideal = np.cumsum(discount)[np.minimum(np.diff(taken.indptr), _K) - 1]

    def quality(rate: float) -> np.ndarray:
        weights = Fading(rate, cut).weights(at[early])
        counts = np.bincount(ratings.item_rows[early], weights, minlength=ratings.n_items)
        popular = workers.sum(counts)
        top = np.argsort(-popular, kind="stable")[:_K]
        found = taken[:, top].toarray() @ discount[: len(top)] / ideal
        return np.concatenate(workers.gather(found))

    plain, found = quality(0.0), {n / span: quality(n / span) for n in _HALF_LIVES}
    best = max(found, key=lambda rate: found[rate].mean())
    gain = found[best] - plain
    return best if gain.mean() > gain.std() / np.sqrt(len(gain)) else 0.0
