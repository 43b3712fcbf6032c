"""The output nonlinearity g of the scorer: identity, or bounded to the rating scale."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from simrec.errors import InputError


@dataclass(frozen=True)
class Output:
    """Map a scalar product z to a prediction r = g(z).

    Without bounds g(z) = z + shift. With bounds, g rises from lower to upper: as a sigmoid,
    lower + (upper - lower) * sigmoid(z + shift), or as the identity z + shift that is clipped.
    ``shift`` is set so that z = 0 gives the mean of the training targets.

    Parameters
    ----------
    lower, upper : float or None
        The range of the predictions; both None for an unbounded output.
    shift : float
        Added to z before the nonlinearity.
    kind : {"sigmoid", "clip"}
        Shape of a bounded output.
    """

    lower: float | None = None
    upper: float | None = None
    shift: float = 0.0
    kind: Literal["sigmoid", "clip"] = "sigmoid"

    @classmethod
    def fit(cls, bounds: tuple[float, float] | None, mean: float) -> "Output":
        """Return the sigmoid for `bounds` whose value at z = 0 is `mean`."""
        if bounds is None:
            return cls(shift=float(mean))
        lower, upper = (float(b) for b in bounds)
        if not lower < upper:
            raise InputError(f"bounds must be (low, high) with low < high, got {bounds!r}")
        # A constant target at a bound would need an infinite shift: stay just inside.
        share = np.clip((mean - lower) / (upper - lower), 1e-3, 1 - 1e-3)
        return cls(lower, upper, float(np.log(share / (1 - share))))

    @property
    def bounded(self) -> bool:
        """Whether predictions are confined to [lower, upper]."""
        return self.lower is not None

    def __call__(self, z: np.ndarray) -> np.ndarray:
        """Return g(z) with the dtype of z."""
        z = np.asarray(z)
        if self.lower is None or self.upper is None:
            return z + z.dtype.type(self.shift)
        if self.kind == "clip":
            return np.clip(
                z + z.dtype.type(self.shift), z.dtype.type(self.lower), z.dtype.type(self.upper)
            )
        one = z.dtype.type(1)
        # 0.5 * (1 + tanh(z / 2)) is the sigmoid without overflow.
        half = np.tanh((z + z.dtype.type(self.shift)) * z.dtype.type(0.5))
        scale = z.dtype.type(0.5 * (self.upper - self.lower))
        out = z.dtype.type(self.lower) + scale * (one + half)
        return np.clip(out, z.dtype.type(self.lower), z.dtype.type(self.upper))
