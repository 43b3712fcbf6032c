"""How much the parts of two vectors add to their scalar product."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Parts:
    """A vector as a sum of named parts (rows of `vectors`) with the entity's value of each.

    `constant` has the coordinates of the vector that stand for "one" and let the other's biases
    through; it is zero elsewhere.
    """

    names: list[str]
    values: list[str]
    vectors: np.ndarray
    constant: np.ndarray


def shares(one: Parts, other: Parts) -> tuple[np.ndarray, np.ndarray]:
    """Give for each part of `one` its bias and its taste.

    A bias meets the constants of the other vector and is a part's own. What two parts make together
    belongs to both: each has half (their Shapley values). All biases and tastes of both vectors
    sum to the scalar product.
    """
    bias = one.vectors.astype(np.float64) @ other.constant
    taste = 0.5 * (one.vectors.astype(np.float64) @ other.vectors.sum(0, dtype=np.float64))
    return bias, taste
