"""What a pair counts in the history of a user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from simrec.data.ratings import Ratings
from simrec.errors import InputError

# A rating one standard deviation above the mean counts so much more.
_SLOPE = 0.25


@dataclass(frozen=True)
class PairWeight:
    """What a pair counts in a history: 1 + slope * (rating - mean).

    Attributes
    ----------
    slope : float
        How much more a pair counts the better it is rated; 0 without ratings.
    mean : float
        Mean rating.
    liked : float
        Rating from which on an item counts as liked.
    """

    slope: float = 0.0
    mean: float = 0.0
    liked: float = 0.0

    @classmethod
    def of(cls, ratings: Ratings, liked: float) -> PairWeight:
        """Let a rating count by how far it is above the mean, in standard deviations."""
        spread = float(ratings.values.std()) if ratings.has_ratings else 0.0
        slope = _SLOPE / spread if spread > 0 else 0.0
        return cls(slope, float(ratings.values.mean()), liked)

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Return what pairs with such ratings count."""
        counted = 1 + self.slope * (values - self.mean)
        # A rating that is rare is not to outweigh a whole history.
        return np.clip(counted, -1, 3).astype(np.float32)

    @classmethod
    def restored(cls, document: Mapping[str, Any]) -> PairWeight:
        """Read the numbers from a model directory."""
        weight = cls(**document)
        for one in fields(cls):
            value = getattr(weight, one.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or np.isnan(value):
                raise InputError(f"uptake: {one.name} is {value!r}, expected a number")
        return weight
