"""Fit a `SimEc` by gradients, and encode with the Keras model that it becomes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from simrec.errors import InputError
from simrec.simec.closed_form import EmbeddingLayer, alternate
from simrec.simec.inputs import Features, Problem, Targets
from simrec.simec.keras import keras, tf
from simrec.simec.network import SimEcNetwork
from simrec.simec.options import relation_column_weights
from simrec.simec.training import Batches, train

# Rows encoded at a time; bounds memory, changes no result.
BLOCK = 4096


def fit_by_gradient(
    problem: Problem,
    rows: np.ndarray,
    held_out: np.ndarray | tuple[Features, Targets],
    callbacks: Sequence[Any] = (),
    log_dir: str | os.PathLike[str] | None = None,
) -> tuple[SimEcNetwork, list[dict[str, float]]]:
    """Train a network on these rows; return it, and what was logged of each epoch.

    `held_out` are rows to measure on, or other data.
    """
    params, features, targets = problem.params, problem.features, problem.targets
    weights = relation_column_weights(params["relation_weights"], targets)
    network = SimEcNetwork(problem)
    densify = params["encoder"] is not None
    if params["init"] == "least_squares":
        _start_in_closed_form(network, problem, rows, densify)
    if not params["epochs"]:
        return network, []
    validation = None
    if isinstance(held_out, tuple):
        validation = Batches(*held_out, BLOCK, weights, densify)
    elif len(held_out):
        validation = Batches(features, targets, BLOCK, weights, densify, rows=held_out)
    batches = Batches(features, targets, params["batch_size"], weights, densify, problem.rng, rows)
    logs = None if log_dir is None else os.fspath(log_dir)
    return network, train(network, batches, validation, params, callbacks, logs)


def _start_in_closed_form(
    network: SimEcNetwork, problem: Problem, rows: np.ndarray, densify: bool
) -> None:
    """Solve for the encoder's last layer and W_l in turn, with the layers before as they are."""
    params, targets, layer = problem.params, problem.targets, network.encoder.layers[-1]
    if len(rows) < targets.n_rows:
        targets = targets.only_rows(rows)
    F, bias = None, False
    if not isinstance(layer, keras.layers.Embedding):
        if not isinstance(layer, keras.layers.Dense) or layer.activation is not (
            keras.activations.linear
        ):
            raise InputError(
                "init='least_squares' solves for the encoder's last layer, which must be a linear "
                f"Dense layer, got {type(layer).__name__}"
            )
        hidden, bias = keras.Model(network.encoder.input, layer.input), layer.use_bias
        F = embed(hidden, problem.features, densify)
        if bias:
            F = np.concatenate([F, np.ones((len(F), 1), np.float32)], 1)
    solved = EmbeddingLayer(F, params["embedding_dim"], params["ridge"])
    last, frozen = network.last.numpy(), not network.last.trainable
    last = alternate(solved, targets, last, frozen, problem.rows_of_targets, params["sweeps"])
    C = solved.C.astype(np.float32)
    layer.set_weights([C[:-1], C[-1]] if bias else [C])
    network.last.assign(last)


def embed(encoder: Any, features: Features, densify: bool) -> np.ndarray:
    """Return the embeddings that a Keras model gives to feature rows."""
    fetch, blocks = features.fetcher(densify), []
    for start in range(0, features.n_rows, BLOCK):
        part = encoder(fetch(tf.range(start, min(start + BLOCK, features.n_rows))))
        part = tf.sparse.to_dense(part) if isinstance(part, tf.SparseTensor) else part
        blocks.append(part.numpy())
    return np.concatenate(blocks)
