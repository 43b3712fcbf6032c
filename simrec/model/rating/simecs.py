"""The encoders of a model as `SimEc` objects."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from simrec.model.head import Encoder
from simrec.scoring.output import Output
from simrec.simec.closed_form import LinearEncoder
from simrec.simec.inputs import Features
from simrec.simec.simec import SimEc


def as_simec(encoder: Any, last_layer: np.ndarray, output: Output) -> SimEc:
    """Make a SimEc with an encoder: that of a head, a trained Keras model, or a table.

    A table (a row of an embedding for each entity) stands for features that are the identity. A
    head without features gives an encoder that reads one feature, which has no weight.
    """
    kind = "sparse"
    if isinstance(encoder, np.ndarray):
        kind, n = "identity", len(encoder)
        encoder = LinearEncoder("identity", np.ascontiguousarray(encoder))
    elif not isinstance(encoder, Encoder):
        n = int(encoder.input_shape[1])
    elif encoder.networks:
        encoder, n = _VectorEncoder(encoder), len(encoder.weights) - 1
    else:
        kernel, bias = encoder.weights[:-1], encoder.weights[-1]
        if not len(kernel):
            kernel = np.zeros((1, len(bias)), np.float32)
        encoder, n = LinearEncoder("sparse", kernel, bias), len(kernel)
    stack = getattr(encoder, "stack", None)
    linear, keras = isinstance(encoder, LinearEncoder), hasattr(encoder, "get_weights")
    sigmoid = not output.linear and output.lower is not None and output.upper is not None
    simec = SimEc(
        embedding_dim=len(last_layer),
        hidden_layers=() if stack is None else stack.widths[:-1],
        encoder=encoder if keras and stack is None else None,
        bounds=(output.lower, output.upper) if sigmoid else None,  # type: ignore[arg-type]
        solver="closed_form" if linear else "adam",
    )
    simec.encoder_ = encoder
    simec.last_layer_, simec.output_ = last_layer, output
    simec.targets_, simec.n_relations_ = np.arange(last_layer.shape[1]), 1
    simec.feature_kind_, simec.feature_shape_ = kind, (n,)
    simec.history_ = []
    return simec


@dataclass(frozen=True, eq=False)
class _VectorEncoder:
    """The encoder of a head, from checked feature rows to vectors."""

    encoder: Encoder

    def __call__(self, features: Features) -> np.ndarray:
        return self.encoder(features.data)

    def network(self) -> Any:
        """Return the same as a Keras model: a vector is linear in what the network gives."""
        from simrec.simec.keras import keras

        network, constants = self.encoder.networks[0], self.encoder.weights[-1]
        inner, last = network.simec.encoder_, keras.layers.Dense(len(constants))
        model = keras.Model(inner.input, last(inner.output))
        last.set_weights([network.place, constants])
        return model
