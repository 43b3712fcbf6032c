"""The true parameters of synthetic ratings, and the best possible prediction for a pair.

A user's preference for an item is

    z = MEAN + b_u + b_i + p_u . q_i

Every parameter (biases b, factors p and q) is the sum of a *prior*, a linear function of the
entity's features, and of a normal *offset* of its own, independent of everything else. The rating
is z plus normal noise, rounded to half stars within the bounds. The pair is observed with
probability

    h(z) = 1 - exp(-exposure_u exposure_i sigmoid(SELECTIVITY (z - MEAN)))

independently of all others: activity of the user, popularity of the item, and more likely the
better the user likes the item (not the noise of the rating). Ratings are so missing not at random.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

BOUNDS = (0.5, 5.0)
STEP = 0.5
MEAN = 3.2
NOISE = 0.6  # standard deviation of what is left to chance when a preference becomes a rating
SELECTIVITY = 1.5  # how much more likely users rate what they like
USER_BIAS, ITEM_BIAS, INTERACTION = 0.35, 0.45, 0.7  # standard deviations of b_u, b_i, p_u . q_i

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(9)
_BLOCK = 1 << 15


@dataclass(frozen=True, eq=False)
class Parameters:
    """True parameters of the users, or of the items.

    `prior` (what features explain) and `offset` (the entity's own part) have factors and, last,
    the bias; `exposure` is the entity's factor in the expected number of times a pair comes up.
    """

    prior: np.ndarray
    offset: np.ndarray
    exposure: np.ndarray
    factor_sd: float
    bias_sd: float

    def of(self, rows: np.ndarray, known: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return factors and biases of some rows: the true ones, or what features say."""
        values = self.prior[rows].astype(np.float64)
        if known:
            values += self.offset[rows]
        return values[:, :-1], values[:, -1]


@dataclass(frozen=True, eq=False)
class Truth:
    """All that is needed to know the best prediction for a pair."""

    users: Parameters
    items: Parameters

    def preference(
        self, user: np.ndarray, item: np.ndarray, *, know_user: bool = True, know_item: bool = True
    ) -> np.ndarray:
        """Return z of each pair, or what it would be without the offsets not known."""
        p, user_bias = self.users.of(user, know_user)
        q, item_bias = self.items.of(item, know_item)
        return MEAN + user_bias + item_bias + np.einsum("nd,nd->n", p, q)

    def scorer(self) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        """Return `preference` for many calls: parameters are joined once, biases as coordinates."""
        p, user_bias = self.users.of(np.arange(len(self.users.prior)), True)
        q, item_bias = self.items.of(np.arange(len(self.items.prior)), True)
        users = np.column_stack([p, user_bias + MEAN, np.ones(len(p))])
        items = np.column_stack([q, np.ones(len(q)), item_bias])
        return lambda user, item: np.einsum(
            "nd,nd->n", users.take(user, axis=0), items.take(item, axis=0)
        )

    def acceptance(self, z: np.ndarray) -> np.ndarray:
        """Return how likely a user who comes across an item rates it."""
        return 0.5 + 0.5 * np.tanh(0.5 * SELECTIVITY * (z - MEAN))

    def rate(self, z: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw ratings of preferences z."""
        noisy = z + NOISE * rng.standard_normal(len(z))
        return np.clip(np.round(noisy / STEP) * STEP, *BOUNDS).astype(np.float32)

    def best(
        self, user: np.ndarray, item: np.ndarray, *, know_user: bool, know_item: bool
    ) -> np.ndarray:
        """Return the expected rating of each pair, given what is known of it.

        That a pair was observed is known too, and counts: among the items with the same features,
        a user rates those whose offset suits. The offsets not known are integrated over, weighted
        with the probability that the pair is then observed.
        """
        out = np.empty(len(user))
        size = max(1, _BLOCK // len(self._points(know_user, know_item)))
        for start in range(0, len(user), size):
            rows = slice(start, start + size)
            out[rows] = self._best(user[rows], item[rows], know_user, know_item)
        return out

    def _best(
        self, user: np.ndarray, item: np.ndarray, know_user: bool, know_item: bool
    ) -> np.ndarray:
        z = self.preference(user, item, know_user=know_user, know_item=know_item)
        expected = self._expected_rating()
        if know_user and know_item:
            return expected(z)
        p, _ = self.users.of(user, know_user)
        q, _ = self.items.of(item, know_item)
        # Given one side's factors, z is normal in the other side's offset and both biases'. Where
        # both sides are unknown, the user's offset goes over a set of points (pairs x points).
        points = self._points(know_user, know_item)
        mean = z[:, None] + q @ points.T
        variance = np.zeros_like(mean)
        if not know_user:
            variance += self.users.bias_sd**2
        if not know_item:
            variance += self.items.bias_sd**2
            shifted = (p**2).sum(axis=1)[:, None] + 2 * p @ points.T + (points**2).sum(axis=1)
            variance += self.items.factor_sd**2 * shifted
        else:
            variance += self.users.factor_sd**2 * (q**2).sum(axis=1)[:, None]
        sd = np.sqrt(variance)
        exposure = (self.users.exposure[user] * self.items.exposure[item])[:, None]
        total, rating = np.zeros(len(z)), np.zeros(len(z))
        for node, weight in zip(_NODES, _WEIGHTS, strict=True):
            at = mean + node * sd
            observed = weight * -np.expm1(-exposure * self.acceptance(at))
            total += observed.sum(axis=1)
            rating += (observed * expected(at)).sum(axis=1)
        return rating / total

    def _points(self, know_user: bool, know_item: bool) -> np.ndarray:
        """Return offsets of the user's factors that stand for their distribution."""
        rank = self.users.prior.shape[1] - 1
        if know_user or know_item:
            return np.zeros((1, rank))
        # Random points and their mirror images, made to have exactly the right covariance: all
        # moments up to the third are those of the normal distribution.
        half = np.random.default_rng(0).standard_normal((max(16, 2 * rank), rank))
        half = half @ np.linalg.inv(np.linalg.cholesky(half.T @ half / len(half))).T
        return self.users.factor_sd * np.concatenate([half, -half])

    def _expected_rating(self) -> Callable[[np.ndarray], np.ndarray]:
        """Return the function z -> mean rating, over the noise and the rounding."""
        # Looked up at the nearest of many points: off by a thousandth of a star at most.
        low, per_unit = MEAN - 12, 500
        grid = low + np.arange(24 * per_unit + 1) / per_unit
        # The mean is the lowest rating plus a step for each threshold passed.
        thresholds = np.arange(BOUNDS[0], BOUNDS[1], STEP) + STEP / 2
        passed = ndtr((grid[:, None] - thresholds) / NOISE)
        table = BOUNDS[0] + STEP * passed.sum(axis=1)
        shift = 0.5 - low * per_unit
        return lambda z: table.take((z * per_unit + shift).astype(np.int32), mode="clip")
