"""Thompson sampling with known propensities: lists drawn from the posteriors of the items."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr, ndtri

# Candidates that a list is drawn from, at least and in multiples of its length.
FEWEST, TIMES = 100, 10
# Points at which the distribution of an item's draw is looked at.
_POINTS = 100


def draw(
    scores: np.ndarray, deviations: np.ndarray, k: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw a list: rank by score + deviation * noise; return places, and the propensity of each.

    The propensity of an item is the probability that it is among the k, over the draws of all.
    """
    deviations = np.maximum(deviations.astype(np.float64), 1e-9)
    drawn = scores + deviations * rng.standard_normal(len(scores))
    places = np.argsort(-drawn, kind="stable")[:k]
    return places, propensities(scores, deviations, k, places)


def propensities(
    scores: np.ndarray, deviations: np.ndarray, k: int, places: np.ndarray
) -> np.ndarray:
    """Return the probability of each of `places` to be among the k largest draws.

    Given the draw x of an item, the number of others above x is a sum of independent coins; the
    probability that they are fewer than k is averaged over quantiles of x.
    """
    if len(scores) <= k:
        return np.ones(len(places))
    scores = np.asarray(scores, np.float64)
    deviations = np.maximum(np.asarray(deviations, np.float64), 1e-9)
    quantiles = ndtri((np.arange(_POINTS) + 0.5) / _POINTS)
    x = scores[places, None] + deviations[places, None] * quantiles
    fewer = np.zeros((k, *x.shape))  # probability that 0, 1, ... k - 1 others are above
    fewer[0] = 1
    for j in range(len(scores)):
        above = ndtr((scores[j] - x) / deviations[j])
        above[places == j] = 0
        if above.max() > 1e-12:
            fewer[1:] += above * (fewer[:-1] - fewer[1:])
            fewer[0] *= 1 - above
    return np.clip(fewer.sum(0).mean(1), 1e-12, 1)
