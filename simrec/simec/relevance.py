"""Relevance: what each input feature contributes to a scalar product y . w, or y_1 . y_2."""

from typing import Any

import numpy as np

from simrec.errors import InputError
from simrec.simec.encoders import linear_kernel
from simrec.simec.inputs import Features
from simrec.simec.keras import tf


def relevance(
    encoder: Any, features: Features, w: np.ndarray, steps: int = 64
) -> tuple[np.ndarray, np.ndarray]:
    """Return (relevance of each feature, base): they sum to f'(x) . w for each row.

    `w` is one vector, or one for each row. A linear encoder y = x A + b gives x_f (A w)_f and the
    base b . w, exactly. Any other encoder gives the integrated gradient along the line from 0 to x
    and the base f'(0) . w. The integral is a midpoint rule with `steps` points; its small error is
    spread over the features in proportion to their relevance.
    """
    if features.kind == "identity":
        raise InputError("relevance needs features, but the model was fitted with X=None")
    x = features.as_kind("dense").data
    kernel = linear_kernel(encoder)
    if kernel is not None:
        weights, bias = kernel
        return x * (w @ weights.T), np.full(len(x), w @ bias, np.float32)
    if steps < 1:
        raise InputError(f"steps must be at least 1, got {steps}")
    sparse = features.kind == "sparse"

    def product(rows: Any) -> Any:
        inputs = tf.sparse.from_dense(rows) if sparse else rows
        return tf.reduce_sum(encoder(inputs) * w, axis=-1)

    inputs = tf.constant(x)
    total = tf.zeros_like(inputs)
    for step in range(steps):
        with tf.GradientTape() as tape:
            part = inputs * ((step + 0.5) / steps)
            tape.watch(part)
            z = product(part)
        total += tape.gradient(z, part)
    shares = (inputs * total / steps).numpy()
    base = product(tf.zeros_like(inputs)).numpy()
    missing = (product(inputs).numpy() - base).astype(np.float64)
    missing -= shares.reshape(len(x), -1).sum(1, dtype=np.float64)
    size = np.abs(shares)
    norm = size.reshape(len(x), -1).sum(1)
    spread = np.divide(missing, norm, out=np.zeros_like(missing), where=norm > 0)
    return shares + size * spread.reshape(-1, *[1] * (x.ndim - 1)).astype(np.float32), base
