"""A hidden layer drawn at random, for encoders that see more than a sum over features.

Units are ``relu(x K + b)`` with K and b drawn once and not trained. Only the last layer is fitted,
in closed form, so that a cross-fit costs no more than with further features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from simrec.mapped import release
from simrec.model.run.scratch import IN_MEMORY, Scratch, slices
from simrec.model.run.workers import ONE_WORKER, Workers

if TYPE_CHECKING:
    from simrec.simec.simec import SimEc

# Units of a layer.
_WIDTH = 128


@dataclass(frozen=True, eq=False)
class HiddenLayer:
    """A layer of rectified units over features, without the constant.

    The units of the rows it was drawn for have mean 0, and together a variance of 1.

    Attributes
    ----------
    kernel, bias : numpy.ndarray
        Weights and biases of the units.
    mean, scale : numpy.ndarray
        What is subtracted from each unit, and what it is then multiplied with.
    """

    kernel: np.ndarray
    bias: np.ndarray
    mean: np.ndarray
    scale: np.ndarray

    @classmethod
    def drawn(
        cls,
        X: sparse.csr_matrix,
        relevance: np.ndarray,
        rng: np.random.Generator,
        workers: Workers = ONE_WORKER,
    ) -> HiddenLayer:
        """Draw a layer for rows of features.

        Parameters
        ----------
        X : csr_matrix
            Feature rows.
        relevance : numpy.ndarray
            Standard deviation of the weights of each feature.
        rng : numpy.random.Generator
            Source of the weights, the same on all workers.
        workers : Workers
            The workers between whom the rows are divided.
        """
        n = workers.total(X.shape[0])

        def mean(values: Callable[[sparse.csr_matrix], np.ndarray]) -> np.ndarray:
            total = np.zeros(_WIDTH)
            for rows in slices(X.shape[0]):
                total += values(X[rows]).sum(0)
            return workers.sum(total) / n

        kernel = rng.normal(size=(X.shape[1], _WIDTH)) * relevance[:, None]
        center = mean(lambda x: x @ kernel)
        std = np.maximum(np.sqrt(mean(lambda x: (x @ kernel - center) ** 2)), 1e-12)
        kernel = kernel / std
        bias = rng.normal(size=_WIDTH) - center / std
        center = mean(lambda x: np.maximum(x @ kernel + bias, 0))
        std = np.sqrt(mean(lambda x: (np.maximum(x @ kernel + bias, 0) - center) ** 2))
        # A unit that is hardly ever above zero is not blown up.
        parts = (kernel, bias, center, 1 / (np.sqrt(_WIDTH) * np.maximum(std, 0.01)))
        return cls(*(part.astype(np.float32) for part in parts))

    @property
    def width(self) -> int:
        """Number of units."""
        return len(self.bias)

    def __call__(self, X: sparse.csr_matrix, scratch: Scratch = IN_MEMORY) -> np.ndarray:
        """Return the units of feature rows."""
        out = scratch.empty((X.shape[0], self.width))
        for rows in slices(len(out)):
            units = np.maximum(X[rows] @ self.kernel + self.bias, 0)
            out[rows] = (units - self.mean) * self.scale
            release(out[rows])
        return out

    def network(self, weights: np.ndarray) -> SimEc:
        """Return the SimEc that encodes by ``[x, 1, units] @ weights``.

        A straight line is two rectified units, one for each sign.
        """
        from simrec.simec.encoders import DenseStack
        from simrec.simec.simec import SimEc

        n, D = len(self.kernel), weights.shape[1]
        line, constant, last = weights[:n], weights[n], weights[n + 1 :]
        eye = np.eye(D, dtype=np.float32)
        last = self.scale[:, None] * last
        stack = DenseStack("sparse", n, (self.width + 2 * D, D), activation="relu")
        simec = SimEc(embedding_dim=D, hidden_layers=stack.widths[:-1], activation="relu")
        simec.encoder_ = stack.build(np.random.default_rng(0))
        simec.encoder_.set_weights(
            [
                np.hstack([self.kernel, line, -line]),
                np.concatenate([self.bias, constant, -constant]),
                np.vstack([last, eye, -eye]),
                -self.mean @ last,
            ]
        )
        simec.feature_kind_, simec.feature_shape_ = "sparse", (n,)
        return simec
