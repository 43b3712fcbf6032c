"""Training a `SimEcNetwork`: batches of rows through `fit`, or all rows at once by L-BFGS."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from simrec.console import lines_shown
from simrec.errors import InputError
from simrec.simec.inputs import Features, Targets, row_batches
from simrec.simec.keras import keras, tf
from simrec.simec.network import SimEcNetwork
from simrec.simec.tensorboard import ScalarLog

logger = logging.getLogger(__name__)

OPTIMIZERS = ("adam", "adamax", "adagrad", "rmsprop", "sgd", "lbfgs")
SCHEDULES = ("cosine", "constant")


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to train."""

    optimizer: str
    learning_rate: float
    schedule: str
    epochs: int
    batch_size: int
    patience: int | None
    verbose: int

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> "Schedule":
        """Return the schedule among the options of a `SimEc`."""
        return cls(**{field.name: params[field.name] for field in fields(cls)})


class Batches:
    """Batches of rows; only row numbers pass through Python.

    Parameters
    ----------
    features, targets : Features, Targets
        The data.
    batch_size : int
        Rows of a batch where rows have the mean number of entries.
    column_weights : ndarray or None
        Weight of each column; None where all count alike.
    densify : bool
        Whether sparse features are fetched as dense ones.
    rng : numpy.random.Generator or None
        Shuffles the rows of each pass; None keeps their order.
    rows : ndarray or None
        Rows to use; None for all.
    """

    def __init__(
        self,
        features: Features,
        targets: Targets,
        batch_size: int,
        column_weights: np.ndarray | None = None,
        densify: bool = False,
        rng: np.random.Generator | None = None,
        rows: np.ndarray | None = None,
    ):
        self.counts = targets.counts()
        if rows is not None:
            kept = np.zeros_like(self.counts)
            kept[rows] = self.counts[rows]
            self.counts = kept
        self.batch_size = batch_size
        self.rng = rng
        self.n_batches = len(row_batches(self.counts, batch_size, None))
        x = features.fetcher(densify)
        entries = targets.fetcher(column_weights)

        def fetch(rows: Any) -> dict[str, Any]:
            return {"x": x(rows), "rows": rows, **entries(rows)}

        self.fetch = fetch

    def _shuffled(self) -> Iterator[np.ndarray]:
        while True:
            yield from row_batches(self.counts, self.batch_size, self.rng)

    def dataset(self) -> Any:
        """Return one pass in order, or with a generator endless passes, each shuffled anew."""
        if self.rng is None:
            fixed = row_batches(self.counts, self.batch_size, None)
            lengths = [len(batch) for batch in fixed]
            rows = tf.data.Dataset.from_tensor_slices(
                tf.RaggedTensor.from_row_lengths(np.concatenate(fixed), lengths)
            )
        else:
            rows = tf.data.Dataset.from_generator(
                self._shuffled, output_signature=tf.TensorSpec([None], tf.int64)
            )
        return rows.map(self.fetch, num_parallel_calls=1).prefetch(2)

    def everything(self) -> dict[str, Any]:
        """Return one batch of all rows that have entries."""
        return self.fetch(tf.constant(np.flatnonzero(self.counts), tf.int64))


def train(
    network: SimEcNetwork,
    training: Batches,
    validation: Batches | None,
    schedule: Schedule,
    callbacks: Sequence[Any] = (),
    log_dir: str | None = None,
) -> list[dict[str, float]]:
    """Train the network in place and return the loss and errors of each epoch."""
    if schedule.optimizer == "lbfgs":
        if callbacks or log_dir:
            raise InputError(
                "optimizer='lbfgs' takes all rows at once and has no epochs to call back at: use "
                "another optimizer, or leave out callbacks and log_dir"
            )
        return train_by_lbfgs(network, training, schedule, validation)
    n_batches = training.n_batches
    rate: Any = schedule.learning_rate
    if schedule.schedule == "cosine":
        rate = keras.optimizers.schedules.CosineDecay(rate, schedule.epochs * n_batches)
    config: dict[str, Any] = {"learning_rate": rate}
    if schedule.optimizer in ("adam", "adamax"):
        # Keras' default of 1e-7 is as large as the gradients of a small matrix of similarities.
        config["epsilon"] = 1e-10
    optimizer = _optimizer_class(schedule.optimizer)(**config)
    # Variables made while tracing a step would have it traced twice.
    optimizer._create_all_weights(network.trainable_variables)
    network.compile(optimizer=optimizer)
    history: list[dict[str, float]] = []
    record = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda _, logs: history.append({k: float(v) for k, v in logs.items()})
    )
    calls = [record, *callbacks]
    if validation is not None and schedule.patience is not None:
        calls.append(
            keras.callbacks.EarlyStopping(
                monitor="val_error",
                patience=schedule.patience,
                restore_best_weights=True,
                mode="min",
            )
        )
    if log_dir is not None:
        calls.append(ScalarLog(log_dir))
    network.fit(
        training.dataset(),
        epochs=schedule.epochs,
        # One endless iterator: starting a new one costs more than an epoch of a small matrix.
        steps_per_epoch=n_batches,
        validation_data=None if validation is None else validation.dataset(),
        callbacks=calls,
        verbose=schedule.verbose,
    )
    final = history[-1]["error"]
    if not np.isfinite(final):
        raise InputError(
            "training diverged: the error is not finite. Lower learning_rate, or scale X and R"
        )
    logger.info("trained %d epochs, error %.6g", len(history), final)
    return history


def _optimizer_class(name: str) -> Any:
    """Return the optimizer whose step is one fused operation per variable: faster on CPUs."""
    legacy = keras.optimizers.legacy
    return {
        "adam": legacy.Adam,
        "adamax": legacy.Adamax,
        "adagrad": legacy.Adagrad,
        "rmsprop": legacy.RMSprop,
        "sgd": legacy.SGD,
    }[name]


def train_by_lbfgs(
    network: SimEcNetwork,
    training: Batches,
    schedule: Schedule,
    validation: Batches | None = None,
) -> list[dict[str, float]]:
    """Minimise the loss over all rows at once by L-BFGS; `epochs` counts its iterations.

    With held-out rows their error is measured at the start and after each iteration, and the best
    weights are kept; `patience` iterations without better ones end it. The last entry of the
    history is that of the weights that are kept.
    """
    from scipy.optimize import minimize

    data = training.everything()
    network.compute_loss(data)  # creates variables that are created on first use
    variables = network.trainable_variables
    shapes = [v.shape.as_list() for v in variables]
    sizes = [int(np.prod(s)) for s in shapes]
    held_out: Any = None if validation is None else validation.everything()

    @tf.function
    def value_and_gradient(flat: Any) -> Any:
        for variable, part, shape in zip(variables, tf.split(flat, sizes), shapes, strict=True):
            variable.assign(tf.reshape(part, shape))
        with tf.GradientTape() as tape:
            network.error.reset_state()
            loss = network.compute_loss(data, training=True)
        gradients = tape.gradient(loss, variables)
        flat_gradients = [
            tf.reshape(tf.convert_to_tensor(g), [-1]) if g is not None else tf.zeros([s])
            for g, s in zip(gradients, sizes, strict=True)
        ]
        return loss, tf.concat(flat_gradients, 0), network.error.result()

    @tf.function
    def held_out_error() -> Any:
        return network.compute_loss(held_out)

    history: list[dict[str, float]] = []
    latest: dict[str, float] = {}
    best: tuple[float, int, np.ndarray | None] = (np.inf, 0, None)

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        loss, gradient, error = value_and_gradient(tf.constant(flat, tf.float32))
        latest.update(total_loss=float(loss), error=float(error))
        return float(loss), gradient.numpy().astype(np.float64)

    def note(flat: np.ndarray) -> None:
        nonlocal best
        # A line search ends with the point that it accepts: its weights are in the variables.
        if held_out is not None:
            latest["val_error"] = float(held_out_error())
        history.append(dict(latest))
        if schedule.verbose:
            logger.info("iteration %d: error %.6g", len(history), latest["error"])
        if held_out is None:
            return
        if latest["val_error"] < best[0]:
            best = latest["val_error"], len(history), flat.copy()
        elif schedule.patience is not None and len(history) - best[1] >= schedule.patience:
            raise StopIteration

    start = np.concatenate([v.numpy().ravel() for v in variables]).astype(np.float64)
    if held_out is not None:  # the start may be the best
        objective(start)
        note(start)
    with lines_shown(logger) if schedule.verbose else nullcontext():
        result = minimize(
            objective,
            start,
            jac=True,
            method="L-BFGS-B",
            callback=note,
            options={"maxiter": schedule.epochs, "maxcor": 20, "ftol": 1e-10, "gtol": 1e-9},
        )
    kept = result.x if best[2] is None else best[2]
    objective(kept)  # leaves its weights in the variables
    if held_out is not None:
        latest["val_error"] = float(held_out_error())
    history.append(dict(latest))
    return history
