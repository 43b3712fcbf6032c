"""The output nonlinearity g of the scorer: identity, or bounded to the rating scale."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

# A rating at an end of a sigmoid's range would have an infinite scalar product: it counts as lying
# this share of the range inside.
_EDGE = 0.005
# Points at which a function of a normal variable is averaged, and pairs taken at once.
_POINTS, _BLOCK = 20, 1 << 16


@dataclass(frozen=True)
class Output:
    """Map a scalar product z to a prediction r = g(z).

    Without bounds g(z) = z + shift. With bounds, g rises from lower to upper: as a sigmoid,
    lower + (upper - lower) * sigmoid(z + shift), or as the identity z + shift that is clipped.
    ``shift`` is set so that z = 0 gives the mean of the training targets.
    """

    lower: float | None = None
    upper: float | None = None
    shift: float = 0.0
    kind: Literal["sigmoid", "clip"] = "sigmoid"

    @classmethod
    def fit(cls, bounds: tuple[float, float], mean: float) -> "Output":
        """Return the sigmoid for `bounds` whose value at z = 0 is `mean`."""
        lower, upper = (float(b) for b in bounds)
        # A constant target at a bound would need an infinite shift: stay just inside.
        share = np.clip((mean - lower) / (upper - lower), 1e-3, 1 - 1e-3)
        return cls(lower, upper, float(np.log(share / (1 - share))))

    @property
    def bounded(self) -> bool:
        """Whether predictions are confined to [lower, upper]."""
        return self.lower is not None

    @property
    def linear(self) -> bool:
        """Whether g is the identity, but for its bounds."""
        return not self.bounded or self.kind == "clip"

    def __call__(self, z: np.ndarray) -> np.ndarray:
        """Return g(z) with the dtype of z."""
        return self.apply(np.asarray(z), _sigmoid, np.clip)

    def apply(self, z: Any, sigmoid: Callable[..., Any], clip: Callable[..., Any]) -> Any:
        """Return g(z) by the functions of the library that z belongs to.

        NumPy arrays use the call above; a tensor takes ``tf.sigmoid`` and ``tf.clip_by_value``.
        """
        z = z + self.shift
        if self.lower is None or self.upper is None:
            return z
        if self.kind == "sigmoid":
            z = self.lower + (self.upper - self.lower) * sigmoid(z)
        # Rounding in float32 can carry a scaled sigmoid past its bounds.
        return clip(z, self.lower, self.upper)

    def link(self, ratings: np.ndarray) -> np.ndarray:
        """Return z + shift of ratings, the inverse of g; of a sigmoid, short of its ends.

        >>> Output(1, 5).link(np.array([0.0, 3.0, 4.0])).round(2)
        array([-5.29,  0.  ,  1.1 ])
        """
        if self.linear or self.lower is None or self.upper is None:
            return ratings
        share = (ratings - self.lower) / (self.upper - self.lower)
        share = np.clip(share, _EDGE, 1 - _EDGE)
        return np.log(share / (1 - share)).astype(ratings.dtype)

    def slopes(self, z: np.ndarray) -> np.ndarray:
        """Return the derivative of g at each z, of the identity also beyond its bounds."""
        if self.linear or self.lower is None or self.upper is None:
            return np.ones_like(z)
        height = self.upper - self.lower
        share = (self(z) - self.lower) / height
        return height * share * (1 - share)

    def variance(self, z: np.ndarray, of_z: np.ndarray) -> np.ndarray:
        """Return the mean squared distance from g(z) of g of what is normal around z.

        `of_z` is the variance of each scalar product.
        """
        if self.linear:
            return of_z
        points, weights = np.polynomial.hermite_e.hermegauss(_POINTS)
        weights = weights / weights.sum()
        out = np.empty(len(z))
        for start in range(0, len(z), _BLOCK):
            part = slice(start, start + _BLOCK)
            at = z[part].astype(np.float64)
            spread = np.sqrt(of_z[part])
            off = self(at[:, None] + spread[:, None] * points) - self(at)[:, None]
            out[part] = off**2 @ weights
        return out


IDENTITY = Output()


def _sigmoid(z: np.ndarray) -> np.ndarray:
    # No overflow, and no import of scipy.special (0.09 s) for scipy's expit when scoring starts.
    return 0.5 * (1 + np.tanh(0.5 * z))
