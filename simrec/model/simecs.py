"""The encoders of a model as `SimEc` objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simrec.model.run.workers import Workers
from simrec.scoring.output import Output

if TYPE_CHECKING:
    from simrec.simec.simec import SimEc


def linear_simec(weights: np.ndarray, last_layer: np.ndarray, output: Output) -> SimEc:
    """Make a SimEc with a linear encoder.

    Parameters
    ----------
    weights : numpy.ndarray
        A row for each feature, and one for a constant. Where there are no features, the encoder
        reads one that is always 1.
    last_layer : numpy.ndarray
        W_l, as it is.
    output : Output
        g.
    """
    from simrec.simec.encoders import DenseStack

    kernel, bias = weights[:-1], weights[-1]
    if not len(kernel):
        kernel = np.zeros((1, len(bias)), np.float32)
    stack = DenseStack("sparse", len(kernel), (kernel.shape[1],))
    encoder = stack.build(np.random.default_rng(0))
    encoder.set_weights([kernel, bias])
    return _made(encoder, "sparse", len(kernel), last_layer, output)


def identity_simec(table: np.ndarray, last_layer: np.ndarray, output: Output) -> SimEc:
    """Make a SimEc whose encoder is a table: the identity in place of features."""
    from simrec.simec.encoders import DenseStack

    stack = DenseStack("identity", len(table), (table.shape[1],))
    encoder = stack.build(np.random.default_rng(0))
    encoder.set_weights([table])
    return _made(encoder, "identity", len(table), last_layer, output)


def network_simec(encoder: Any, last_layer: np.ndarray, output: Output) -> SimEc:
    """Make a SimEc with a trained Keras encoder."""
    return _made(encoder, "sparse", int(encoder.input_shape[1]), last_layer, output)


def agreed(simec: SimEc, workers: Workers) -> SimEc:
    """Give a SimEc that all workers have trained alike the first one's weights.

    They differ in the last bits where the workers' processors do.
    """
    if workers.size > 1:
        simec.encoder_.set_weights([workers.first(w) for w in simec.encoder_.get_weights()])
        simec.last_layer_ = workers.first(simec.last_layer_)
    return simec


def _made(encoder: Any, kind: str, n: int, last_layer: np.ndarray, output: Output) -> SimEc:
    from simrec.simec.encoders import DenseStack
    from simrec.simec.simec import SimEc

    stack = getattr(encoder, "stack", None)
    built_in = isinstance(stack, DenseStack)
    bounds = None
    if output.lower is not None and output.upper is not None:
        bounds = (output.lower, output.upper)
    simec = SimEc(
        embedding_dim=len(last_layer),
        hidden_layers=stack.widths[:-1] if isinstance(stack, DenseStack) else (),
        encoder=None if built_in else encoder,
        bounds=bounds,
    )
    simec.encoder_, simec.decoder_ = encoder, None
    simec.last_layer_, simec.output_ = last_layer, output
    simec.targets_, simec.n_relations_ = np.arange(last_layer.shape[1]), 1
    simec.feature_kind_, simec.feature_shape_ = kind, (n,)
    simec.history_ = []
    return simec
