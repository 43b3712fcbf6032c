"""Encoders, features -> embeddings: linear, hidden layers, or a Keras model of the user's."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from simrec.errors import InputError
from simrec.simec.inputs import Features
from simrec.simec.keras import keras, tf

_STEPS = 64  # points at which the gradient of a deep encoder is taken


@dataclass(frozen=True)
class DenseStack:
    """The shape of a built-in encoder: enough to build it again, without its weights.

    `features` is one of `FEATURE_KINDS`; the identity takes row numbers in place of one-hot vectors
    and has no bias in its first layer, whose table can express any. All layers but the last of
    `widths` have the activation.
    """

    features: str
    n_inputs: int
    widths: tuple[int, ...]
    activation: str = "tanh"
    bias: bool = True
    dropout: float = 0.0

    def build(self, rng: np.random.Generator, bias_range: float = 0.0) -> Any:
        """Return the Keras model with fresh weights; its attribute `stack` is this description.

        Initial biases of hidden layers lie between minus and plus `bias_range`.
        """
        table, make, layers = self.features == "identity", keras.initializers, keras.layers
        if table:
            inputs = keras.Input((), dtype="int32")
        else:
            inputs = keras.Input((self.n_inputs,), sparse=self.features == "sparse")
        x = inputs
        for depth, width in enumerate(self.widths):
            hidden = depth < len(self.widths) - 1
            kernel = make.GlorotUniform(seed=_seed(rng))
            if depth == 0 and table:
                # A one-hot vector times a matrix is a row of the matrix. Rows start small, so that
                # early products are small whatever the number of rows.
                rows = make.RandomNormal(0, 0.1, seed=_seed(rng))
                x = layers.Embedding(self.n_inputs, width, embeddings_initializer=rows)(x)
            else:
                bias: Any = "zeros"
                if bias_range and hidden:
                    bias = make.RandomUniform(-bias_range, bias_range, seed=_seed(rng))
                x = layers.Dense(
                    width, use_bias=self.bias, kernel_initializer=kernel, bias_initializer=bias
                )(x)
            if hidden:
                x = layers.Activation(self.activation)(x)
                if self.dropout:
                    x = layers.Dropout(self.dropout, seed=_seed(rng))(x)
        model = keras.Model(inputs, x)
        model.stack = self
        return model


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**31 - 1))


def copy_encoder(encoder: Any, feature_shape: tuple[int, ...], embedding_dim: int) -> Any:
    """Return a copy of the user's Keras model with the same weights, checked against the data.

    `fit` trains the copy, so that the model given stays as it is and a second fit starts from the
    same weights.
    """
    if not isinstance(encoder, keras.Model):
        raise InputError(
            f"encoder must be a tf_keras model, got {type(encoder).__module__}."
            f"{type(encoder).__name__}; build it from `simrec.simec.keras.keras` (Keras 2)"
        )
    try:
        copy = keras.models.clone_model(encoder)
    except (ValueError, NotImplementedError) as error:
        raise InputError(
            "encoder must be a Sequential or functional Keras model: a subclassed model cannot be "
            "copied or saved without running its code"
        ) from error
    if not copy.built:
        copy.build((None, *feature_shape))
    if encoder.built:
        copy.set_weights(encoder.get_weights())
    check_encoder_shapes(copy, feature_shape, embedding_dim)
    return copy


def check_encoder_shapes(encoder: Any, feature_shape: tuple[int, ...], embedding_dim: int) -> None:
    """Raise where an encoder's inputs are not feature rows or its outputs not embeddings."""
    expected = tuple(encoder.input_shape[1:])
    if len(expected) != len(feature_shape) or any(
        e is not None and e != f for e, f in zip(expected, feature_shape, strict=True)
    ):
        raise InputError(
            f"encoder takes inputs of shape {expected}, but a row of X has shape {feature_shape}"
        )
    if tuple(encoder.output_shape[1:]) != (embedding_dim,):
        raise InputError(
            f"encoder gives outputs of shape {tuple(encoder.output_shape[1:])}, but embedding_dim "
            f"is {embedding_dim}: end it with Dense({embedding_dim}) and no activation"
        )


def relevance(encoder: Any, features: Features, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (relevance of each feature, base): they sum to f'(x) . w for each row.

    `w` is one vector, or one for each row. Relevance is the integrated gradient along the line from
    0 to x, and the base is f'(0) . w: for a linear encoder y = x A + b, x_f (A w)_f and b . w. The
    integral is a midpoint rule; its small error is spread over the features in proportion to their
    relevance.
    """
    if features.kind == "identity":
        raise InputError("relevance needs features, but the model was fitted with X=None")
    x = features.as_kind("dense").data
    sparse = features.kind == "sparse"

    def product(rows: Any) -> Any:
        inputs = tf.sparse.from_dense(rows) if sparse else rows
        return tf.reduce_sum(encoder(inputs) * w, axis=-1)

    inputs = tf.constant(x)
    total = tf.zeros_like(inputs)
    for step in range(_STEPS):
        with tf.GradientTape() as tape:
            part = inputs * ((step + 0.5) / _STEPS)
            tape.watch(part)
            z = product(part)
        total += tape.gradient(z, part)
    shares = (inputs * total / _STEPS).numpy()
    base = product(tf.zeros_like(inputs)).numpy()
    missing = (product(inputs).numpy() - base).astype(np.float64)
    missing -= shares.reshape(len(x), -1).sum(1, dtype=np.float64)
    size = np.abs(shares)
    norm = size.reshape(len(x), -1).sum(1)
    spread = np.divide(missing, norm, out=np.zeros_like(missing), where=norm > 0)
    return shares + size * spread.reshape(-1, *[1] * (x.ndim - 1)).astype(np.float32), base
