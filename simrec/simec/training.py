"""Fit a `SimEc` by gradients, batches of rows or all at once by L-BFGS, and encode with it."""

import itertools
import logging
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np

from simrec.console import lines_shown
from simrec.errors import InputError
from simrec.simec.closed_form import EmbeddingLayer, alternate
from simrec.simec.inputs import Features, Problem, Targets, row_batches
from simrec.simec.keras import keras, tf
from simrec.simec.network import SimEcNetwork

logger = logging.getLogger(__name__)


# Rows encoded at a time; bounds memory, changes no result.
BLOCK = 4096


class Batches:
    """Batches of the given rows.

    `densify` makes sparse features dense. `rng` shuffles the rows of each pass; without it they
    keep their order.
    """

    def __init__(
        self,
        features: Features,
        targets: Targets,
        rows: np.ndarray,
        batch_size: int,
        densify: bool,
        rng: np.random.Generator | None = None,
    ):
        self.features, self.targets, self.densify = features, targets, densify
        self.counts = np.where(np.isin(np.arange(targets.n_rows), rows), targets.counts(), 0)
        self.batch_size, self.rng = batch_size, rng
        self.n_batches = len(row_batches(self.counts, batch_size, None))

    def fetch(self, rows: np.ndarray) -> dict[str, Any]:
        """Return the batch of some rows; see `network`."""
        part, targets = self.targets.matrix[rows], self.targets
        batch = {"x": _inputs(self.features, rows, self.densify), "rows": tf.constant(rows)}
        if targets.sparse:
            entries = part.tocoo()
            columns, segments = (tf.constant(at, tf.int32) for at in (entries.col, entries.row))
            values = tf.constant(part.data)
            return {**batch, "targets": values, "columns": columns, "segments": segments}
        if targets.complete:
            return {**batch, "targets": tf.constant(part)}
        # NaN times a weight of zero is NaN: replace the value too.
        known = ~np.isnan(part)
        weights = tf.constant(known, tf.float32)
        return {**batch, "targets": tf.constant(np.where(known, part, 0)), "weights": weights}

    def _batches(self) -> Iterator[dict[str, Any]]:
        for _ in range(1) if self.rng is None else itertools.count():
            yield from map(self.fetch, row_batches(self.counts, self.batch_size, self.rng))

    def dataset(self) -> Any:
        """Return one pass in order, or with a generator endless passes, each shuffled anew."""
        first = self.fetch(np.flatnonzero(self.counts)[:1])
        signature = {
            name: (tf.SparseTensorSpec if isinstance(value, tf.SparseTensor) else tf.TensorSpec)(
                [None, *value.shape[1:]], value.dtype
            )
            for name, value in first.items()
        }
        batches = tf.data.Dataset.from_generator(self._batches, output_signature=signature)
        return batches.prefetch(2)


def _inputs(features: Features, rows: np.ndarray, densify: bool) -> Any:
    """Return what the encoder takes for some rows."""
    if features.kind == "identity":
        return tf.constant(rows, tf.int32)
    x = features.data[rows]
    if features.kind == "dense" or densify:
        return tf.constant(x.toarray() if densify and features.kind == "sparse" else x)
    entries = x.tocoo()
    return tf.SparseTensor(np.stack([entries.row, entries.col], 1), entries.data, entries.shape)


def fit_by_gradient(
    problem: Problem, rows: np.ndarray, held_out: np.ndarray
) -> tuple[SimEcNetwork, list[dict[str, float]]]:
    """Train on some rows, measure on `held_out` ones; return the network and its history."""
    params, data = problem.params, (problem.features, problem.targets)
    network, densify = SimEcNetwork(problem), params["encoder"] is not None
    if params["init"] == "least_squares":
        _start_in_closed_form(network, problem, densify)
    if not params["epochs"]:
        return network, []
    batches = Batches(*data, rows, params["batch_size"], densify, problem.rng)
    if params["solver"] == "lbfgs":
        return network, _train_by_lbfgs(network, batches, params)
    validation = Batches(*data, held_out, BLOCK, densify) if len(held_out) else None
    return network, _train_by_adam(network, batches, params, validation)


def _start_in_closed_form(network: SimEcNetwork, problem: Problem, densify: bool) -> None:
    """Solve for the encoder's last layer and W_l in turn, with the layers before as they are."""
    params, layer = problem.params, network.encoder.layers[-1]
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
    rows = problem.rows_of_targets
    last = alternate(solved, problem.targets, last, frozen, rows, params["sweeps"])
    C = solved.C.astype(np.float32)
    layer.set_weights([C[:-1], C[-1]] if bias else [C])
    network.last.assign(last)


def embed(encoder: Any, features: Features, densify: bool) -> np.ndarray:
    """Return the embeddings that a Keras model gives to feature rows."""
    blocks = []
    for start in range(0, features.n_rows, BLOCK):
        rows = np.arange(start, min(start + BLOCK, features.n_rows))
        part = encoder(_inputs(features, rows, densify))
        part = tf.sparse.to_dense(part) if isinstance(part, tf.SparseTensor) else part
        blocks.append(part.numpy())
    return np.concatenate(blocks)


def _train_by_adam(
    network: SimEcNetwork, training: Batches, params: Mapping[str, Any], validation: Batches | None
) -> list[dict[str, float]]:
    """Train the network in place and return the loss and errors of each epoch."""
    n_steps = params["epochs"] * training.n_batches
    rate = keras.optimizers.schedules.CosineDecay(params["learning_rate"], n_steps)
    # The legacy optimizer's step is one fused operation per variable: faster on CPUs. Keras'
    # epsilon of 1e-7 is as large as the gradients of a small matrix of similarities.
    optimizer = keras.optimizers.legacy.Adam(learning_rate=rate, epsilon=1e-10)
    # Variables made while tracing a step would have it traced twice.
    optimizer._create_all_weights(network.trainable_variables)
    network.compile(optimizer=optimizer)
    calls = []
    if validation is not None and params["patience"] is not None:
        stop = {"patience": params["patience"], "restore_best_weights": True, "mode": "min"}
        calls.append(keras.callbacks.EarlyStopping(monitor="val_error", **stop))
    logs = network.fit(
        training.dataset(),
        epochs=params["epochs"],
        # One endless iterator: starting a new one costs more than an epoch of a small matrix.
        steps_per_epoch=training.n_batches,
        validation_data=None if validation is None else validation.dataset(),
        callbacks=calls,
        verbose=params["verbose"],
    ).history
    final = float(logs["error"][-1])
    if not np.isfinite(final):
        raise InputError(
            "training diverged: the error is not finite. Lower learning_rate, or scale X and R"
        )
    logger.info("trained %d epochs, error %.6g", len(logs["error"]), final)
    epochs = zip(*logs.values(), strict=True)
    return [dict(zip(logs, map(float, epoch), strict=True)) for epoch in epochs]


def _train_by_lbfgs(
    network: SimEcNetwork, training: Batches, params: Mapping[str, Any]
) -> list[dict[str, float]]:
    """Minimise the loss over all rows at once by L-BFGS; `epochs` counts its iterations."""
    from scipy.optimize import minimize

    data = training.fetch(np.flatnonzero(training.counts))
    network.compute_loss(data)  # creates variables that are created on first use
    variables = network.trainable_variables
    sizes = [int(np.prod(v.shape)) for v in variables]

    @tf.function
    def value_and_gradient(flat: Any) -> Any:
        for variable, part in zip(variables, tf.split(flat, sizes), strict=True):
            variable.assign(tf.reshape(part, variable.shape))
        with tf.GradientTape() as tape:
            network.error.reset_state()
            loss = network.compute_loss(data, training=True)
        gradients = tape.gradient(loss, variables, unconnected_gradients="zero")
        flat_gradients = [tf.reshape(tf.convert_to_tensor(g), [-1]) for g in gradients]
        return loss, tf.concat(flat_gradients, 0), network.error.result()

    history: list[dict[str, float]] = []
    latest: dict[str, float] = {}

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        loss, gradient, error = value_and_gradient(tf.constant(flat, tf.float32))
        latest.update(total_loss=float(loss), error=float(error))
        return float(loss), gradient.numpy().astype(np.float64)

    def after_iteration(flat: np.ndarray) -> None:
        # A line search ends with the point that it accepts.
        history.append(dict(latest))
        if params["verbose"]:
            logger.info("iteration %d: error %.6g", len(history), latest["error"])

    start = np.concatenate([v.numpy().ravel() for v in variables]).astype(np.float64)
    options = {"maxiter": params["epochs"], "maxcor": 20, "ftol": 1e-10, "gtol": 1e-9}
    with lines_shown(logger) if params["verbose"] else nullcontext():
        result = minimize(
            objective, start, jac=True, method="L-BFGS-B", callback=after_iteration, options=options
        )
    objective(result.x)  # leaves its weights in the variables
    history.append(dict(latest))
    return history
