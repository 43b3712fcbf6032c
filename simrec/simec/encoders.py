"""Encoders, features -> embeddings: linear, hidden layers, or a Keras model of the user's."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from simrec.errors import InputError
from simrec.simec.keras import keras, tf


def check_hidden_layers(hidden_layers: Sequence[int]) -> tuple[int, ...]:
    """Return the widths as a tuple of positive ints."""
    if isinstance(hidden_layers, str) or not isinstance(hidden_layers, Sequence):
        raise InputError(f"hidden_layers must be a sequence of widths, got {hidden_layers!r}")
    widths = []
    for width in hidden_layers:
        if isinstance(width, bool) or int(width) != width or width < 1:
            raise InputError(f"hidden_layers must be positive integers, got {hidden_layers!r}")
        widths.append(int(width))
    return tuple(widths)


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**31 - 1))


def build_encoder(
    kind: str,
    n_features: int,
    embedding_dim: int,
    hidden_layers: Sequence[int] = (),
    activation: str = "tanh",
    bias: bool = True,
    dropout: float = 0.0,
    bias_range: float = 0.0,
    rng: np.random.Generator | None = None,
) -> Any:
    """Return a Keras model from features to embeddings; no nonlinearity on the last layer.

    Parameters
    ----------
    kind : {"dense", "sparse", "identity"}
        What the features are; "identity" takes row numbers in place of one-hot vectors.
    n_features : int
        Number of features (of rows, for the identity).
    embedding_dim : int
        Size d of the embedding.
    hidden_layers : sequence of int
        Widths of the hidden layers; none for a linear encoder.
    activation : str
        Nonlinearity of the hidden layers.
    bias : bool
        Whether layers add a bias (an identity's first layer never does: it would add nothing).
    dropout : float
        Share of hidden units dropped in training.
    bias_range : float
        Initial biases of hidden layers lie between minus this and this.
    rng : numpy.random.Generator or None
        Source of the initial weights and of the dropout.
    """
    rng = rng if rng is not None else np.random.default_rng()
    widths = [*check_hidden_layers(hidden_layers), embedding_dim]
    if kind == "identity":
        inputs = keras.Input((), dtype="int32")
    else:
        inputs = keras.Input((n_features,), sparse=kind == "sparse")
    x = inputs
    for depth, width in enumerate(widths):
        last = depth == len(widths) - 1
        initial = keras.initializers.GlorotUniform(seed=_seed(rng))
        if depth == 0 and kind == "identity":
            # A one-hot vector times a matrix is one of its rows: look it up. Rows start small, so
            # that early products are small whatever the number of rows.
            x = keras.layers.Embedding(
                n_features,
                width,
                embeddings_initializer=keras.initializers.RandomNormal(0, 0.1, seed=_seed(rng)),
            )(x)
        else:
            x = keras.layers.Dense(
                width,
                use_bias=bias,
                kernel_initializer=initial,
                bias_initializer=keras.initializers.RandomUniform(
                    -bias_range, bias_range, seed=_seed(rng)
                )
                if bias_range and not last
                else "zeros",
            )(x)
        if not last:
            x = keras.layers.Activation(activation)(x)
            if dropout:
                x = keras.layers.Dropout(dropout, seed=_seed(rng))(x)
    return keras.Model(inputs, x, name="encoder")


def build_decoder(
    n_features: int,
    embedding_dim: int,
    hidden_layers: Sequence[int],
    activation: str,
    rng: np.random.Generator,
) -> Any:
    """Return the mirrored encoder: embedding -> hidden layers in reverse -> features."""
    inputs = x = keras.Input((embedding_dim,))
    widths = [*reversed(check_hidden_layers(hidden_layers)), n_features]
    for depth, width in enumerate(widths):
        last = depth == len(widths) - 1
        x = keras.layers.Dense(
            width,
            activation=None if last else activation,
            kernel_initializer=keras.initializers.GlorotUniform(seed=_seed(rng)),
        )(x)
    return keras.Model(inputs, x, name="decoder")


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
    expected = tuple(copy.input_shape[1:])
    if len(expected) != len(feature_shape) or any(
        e is not None and e != f for e, f in zip(expected, feature_shape, strict=True)
    ):
        raise InputError(
            f"encoder takes inputs of shape {expected}, but a row of X has shape {feature_shape}"
        )
    if tuple(copy.output_shape[1:]) != (embedding_dim,):
        raise InputError(
            f"encoder gives outputs of shape {tuple(copy.output_shape[1:])}, but embedding_dim is "
            f"{embedding_dim}: end it with Dense({embedding_dim}) and no activation"
        )
    return copy


def check_no_code(layers: Any) -> None:
    """Raise where a network's Keras configuration holds a layer that is code."""
    if isinstance(layers, dict):
        if str(layers.get("class_name", "")).endswith("Lambda"):
            raise InputError(
                f"the encoder holds a {layers['class_name']} layer, which is code: it is neither "
                "saved nor loaded. Build the encoder from plain Keras layers"
            )
        layers = list(layers.values())
    if isinstance(layers, list):
        for part in layers:
            check_no_code(part)


def encoder_from_json(layers: dict[str, Any]) -> Any:
    """Return a network from its Keras configuration, refusing layers that carry code."""
    check_no_code(layers)
    return keras.models.model_from_json(json.dumps(layers))


def linear_kernel(encoder: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """Return (kernel, bias) of an encoder that is one linear layer, else None."""
    layers = [
        layer
        for layer in encoder.layers
        if not isinstance(layer, keras.layers.InputLayer | keras.layers.Dropout)
    ]
    if len(layers) != 1 or not isinstance(layers[0], keras.layers.Dense):
        return None
    if layers[0].activation is not keras.activations.linear:
        return None
    weights = layers[0].get_weights()
    bias = weights[1] if len(weights) > 1 else np.zeros(weights[0].shape[1], np.float32)
    return weights[0], bias


def kernels_squared(encoder: Any) -> Any:
    """Return the sum of squares of all trainable kernels (variables of rank two or more)."""
    return tf.add_n(
        [tf.reduce_sum(v * v) for v in encoder.trainable_variables if v.shape.rank >= 2]
        or [tf.constant(0.0)]
    )
