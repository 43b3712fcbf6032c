"""Numbers as piecewise linear curves, for effects that are not straight lines."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from simrec.data.blocks import Block
from simrec.data.columns import NumberColumn
from simrec.data.numbers import Context, numbers


@dataclass(frozen=True)
class CurveColumn:
    """A standardised number, and how near it is to each of some knots.

    A linear model of these features is a piecewise linear curve over the number, constant beyond
    the outer knots (but for the straight part).

    Attributes
    ----------
    number : NumberColumn
        The standardised number, and its indicator where it is missing.
    knots : numpy.ndarray
        Ascending; between two of them, both features add up to 1.
    """

    number: NumberColumn
    knots: np.ndarray

    @classmethod
    def fit(
        cls, values: pa.ChunkedArray, context: Context, n_knots: int
    ) -> "CurveColumn | NumberColumn":
        """Put the knots at quantiles; a number of few values is left as it is."""
        number = NumberColumn.fit(values, context)
        x, missing = numbers(values, context)
        x = x[~missing] if missing is not None else x
        if n_knots < 3 or not number.scale:
            return number
        # Values that occur, so that a number with two values gets no knot between them.
        knots = np.unique(np.quantile(x, np.linspace(0, 1, n_knots), method="inverted_cdf"))
        return cls(number, knots) if len(knots) >= 3 else number

    @property
    def width(self) -> int:
        """Number of features."""
        return self.number.width + len(self.knots)

    def names(self, column: str) -> list[str]:
        """Name the features."""
        short = [f"{knot:.6g}" for knot in self.knots]
        if len(set(short)) < len(short):
            short = [repr(knot) for knot in self.knots.tolist()]
        return [*self.number.names(column), *(f"{column}~{knot}" for knot in short)]

    def encode(self, values: pa.ChunkedArray, context: Context) -> Block:
        """Give the number, and its shares in the knots on both sides of it."""
        straight = self.number.encode(values, context)
        x, missing = numbers(values, context)
        there = np.ones(len(x), bool) if missing is None else ~missing
        inside = np.clip(x, self.knots[0], self.knots[-1])
        left = np.clip(np.searchsorted(self.knots, inside, "right") - 1, 0, len(self.knots) - 2)
        share = (inside - self.knots[left]) / (self.knots[left + 1] - self.knots[left])
        own = self.number.width + left
        indices = np.stack([np.where(there, 0, 1), own, own + 1], axis=1).astype(np.int32)
        assert straight.data is not None
        data = np.stack([straight.data, 1 - share, share], axis=1).astype(np.float32)
        if missing is None:
            return Block(indices.ravel(), data.ravel(), 3)
        kept = np.ones(indices.shape, bool)
        kept[missing, 1:] = False
        return Block(indices[kept], data[kept], kept.sum(axis=1))

    def to_dict(self) -> dict[str, Any]:
        """Give what was learned of the number, and the knots."""
        return {**self.number.to_dict(), "knots": self.knots.tolist()}


def number_from_dict(data: dict[str, Any]) -> "CurveColumn | NumberColumn":
    """Restore a column of numbers, with knots or without."""
    number = NumberColumn.from_dict(data)
    return CurveColumn(number, np.array(data["knots"])) if "knots" in data else number
