"""What a pair counts in the history of a user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from simrec.errors import InputError


@dataclass(frozen=True)
class PairWeight:
    """What a pair counts in a history: 1 + slope * (strength - mean).

    The strength of a pair is its rating; without ratings its weight.

    Attributes
    ----------
    slope : float
        0 where strengths do not matter; with a large one, low ratings push their neighbours down.
    mean : float
        Mean strength.
    liked : float
        Rating from which on an item counts as liked.
    """

    slope: float = 0.0
    mean: float = 0.0
    liked: float = 0.0

    def __call__(self, strength: np.ndarray) -> np.ndarray:
        """Return what pairs of such strengths count."""
        return (1 + self.slope * (strength - self.mean)).astype(np.float32)

    @classmethod
    def restored(cls, document: Mapping[str, Any]) -> PairWeight:
        """Read the numbers from a model directory."""
        weight = cls(**document)
        for one in fields(cls):
            value = getattr(weight, one.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or np.isnan(value):
                raise InputError(f"uptake: {one.name} is {value!r}, expected a number")
        return weight
