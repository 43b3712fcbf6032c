"""Vectors of entities from their pairs, as they were solved for in `fit`, for later pairs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Solver:
    """What solving for a vector takes beside pairs and partners; all are numbers.

    Attributes
    ----------
    ridge, zero : float
        Penalty, and weight of a pair that is not there.
    begun_zero, begun_gain : float
        For an entity that has only begun: the share of `zero` that counts, since it has not turned
        down what it has not met; and a factor of what its pairs add to what features say.
    mean_item, mean_user : float
        Sum of confidences of an average item and user: with as many an entity is known.
    exponent, exponent_norm : float
        Known items are multiplied by (count + 1) ** exponent / exponent_norm, so that popular ones
        do not crowd out the others, or do.
    unit : float
        Users' vectors are multiplied by it, so that a scalar product is a logit.
    n_users : int
        Users in `fit`, to which popularity relates.
    """

    ridge: float
    zero: float
    begun_zero: float
    begun_gain: float
    mean_item: float
    mean_user: float
    exponent: float
    exponent_norm: float
    unit: float
    n_users: int

    def item_scale(self, counts: np.ndarray) -> np.ndarray:
        """Return the factor of the vectors of known items."""
        return (((counts + 1.0) ** self.exponent) / self.exponent_norm).astype(np.float32)

    def popularity(self, counts: np.ndarray) -> np.ndarray:
        """Return the share of users who took up each item."""
        return (counts / self.n_users).astype(np.float32)
