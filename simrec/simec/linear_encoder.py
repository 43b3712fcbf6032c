"""Linear encoders without TensorFlow: a matrix and a bias, or a table with a row for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from simrec.simec.inputs import Features


@dataclass(frozen=True, eq=False)
class LinearEncoder:
    """Embed feature rows by ``x @ kernel + bias``, and the identity by the rows of the kernel."""

    kind: str
    kernel: np.ndarray
    bias: np.ndarray | None = None

    def __call__(self, features: Features) -> np.ndarray:
        """Return the embeddings of checked feature rows."""
        if self.kind == "identity":
            return self.kernel[: features.n_rows].copy()
        found = features.data @ self.kernel
        return np.asarray(found if self.bias is None else found + self.bias, np.float32)

    def network(self) -> Any:
        """Return the same encoder as a Keras model."""
        from simrec.simec.encoders import DenseStack

        n, d = self.kernel.shape
        stack = DenseStack(self.kind, n, (d,), bias=self.bias is not None)
        model = stack.build(np.random.default_rng(0))
        model.set_weights([self.kernel] if self.bias is None else [self.kernel, self.bias])
        return model
