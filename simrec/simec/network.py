"""The similarity encoder as a network: a `tfrs.Model` whose loss sees observed entries only.

Observed entries carry weight one, the others weight zero. The loss is the weighted mean, so an
unobserved entry has no part in it and exactly zero gradient.

A batch is a dictionary: ``rows`` (row numbers), ``x`` (their features), ``targets``, and where
entries are missing ``weights``. Sparse targets are flat, with ``columns`` and ``segments`` (the row
of each entry within the batch).
"""

from typing import Any

import numpy as np

from simrec.errors import InputError
from simrec.scoring.output import Output
from simrec.simec.closed_form import first_last_layer
from simrec.simec.encoders import DenseStack, copy_encoder
from simrec.simec.inputs import Problem
from simrec.simec.keras import keras, tf, tfrs
from simrec.simec.options import PENALTIES, check_hidden_layers


def predictions(output: Output, z: Any) -> Any:
    """Return g(z) of a tensor of scalar products."""
    return output.apply(z, tf.sigmoid, tf.clip_by_value)


def _cross_entropy(target: Any, z: Any, output: Output) -> Any:
    """Return the cross-entropy of sigmoid(z + shift) and the target scaled from bounds to 0..1."""
    assert output.lower is not None and output.upper is not None
    share = (target - output.lower) / (output.upper - output.lower)
    # From the logits: the logarithm of a sigmoid that has rounded to 0 would be infinite.
    return tf.nn.sigmoid_cross_entropy_with_logits(labels=share, logits=z + output.shift)


_POINTWISE = {
    "mse": lambda target, z, g: tf.math.squared_difference(target, predictions(g, z)),
    "mae": lambda target, z, g: tf.abs(target - predictions(g, z)),
    "bce": _cross_entropy,
}


class ObservedLoss(keras.losses.Loss):
    """Weighted mean of the loss "mse", "mae" or "bce", for `tfrs.tasks.Ranking`.

    Takes scalar products z rather than predictions, so that cross-entropy works on logits.
    """

    def __init__(self, loss: str, output: Output):
        super().__init__(name=f"observed_{loss}")
        self.pointwise = _POINTWISE[loss]
        self.output = output

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Return sum(weight * l) / sum(weight); zero where nothing was observed."""
        return _mean(self.pointwise(y_true, y_pred, self.output), sample_weight)


def _mean(errors: Any, weights: Any = None) -> Any:
    """Return the weighted mean; zero where nothing was observed."""
    if weights is None:
        return tf.math.divide_no_nan(tf.reduce_sum(errors), tf.cast(tf.size(errors), tf.float32))
    return tf.math.divide_no_nan(tf.reduce_sum(errors * weights), tf.reduce_sum(weights))


class SimEcNetwork(tfrs.Model):
    """Encoder, last layer and output, trained on the observed entries of a batch of rows."""

    def __init__(self, problem: Problem):
        super().__init__(name="simec")
        params, targets, rng = problem.params, problem.targets, problem.rng
        frozen = problem.last_layer is not None
        if frozen and params["symmetric"]:
            raise InputError("last_layer is frozen, but symmetric trains it: leave one out")
        features, d = problem.features, params["embedding_dim"]
        if params["encoder"] is not None:
            self.encoder = copy_encoder(params["encoder"], features.shape, d)
        else:
            widths = (*check_hidden_layers(params["hidden_layers"]), d)
            how = (params["activation"], params["bias"], params["dropout"])
            stack = DenseStack(features.kind, int(np.prod(features.shape)), widths, *how)
            # Least squares keeps the hidden layers as they start: random biases make their units
            # differ in more than direction.
            self.encoder = stack.build(rng, 1.0 if params["init"] == "least_squares" else 0.0)
        last = first_last_layer(problem, params["init"])
        self.last = tf.Variable(last, trainable=not frozen, dtype=tf.float32, name="last_layer")
        self.generator = tf.random.Generator.from_seed(int(rng.integers(2**31 - 1)))
        self.task = tfrs.tasks.Ranking(loss=ObservedLoss(params["loss"], problem.output))
        self.error = keras.metrics.Mean("error")
        self.keep_inputs = 1.0 - params["input_dropout"]
        self.penalties = {name: params[name] for name in PENALTIES if params[name]}
        self.target_of_row = None
        if problem.rows_of_targets is not None:
            target_of_row = np.full(targets.n_rows, -1, np.int32)
            target_of_row[problem.rows_of_targets] = np.arange(targets.n_columns)
            self.target_of_row = tf.constant(target_of_row, tf.int32)

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Return the scalar products Y W_l of a batch of feature rows with all columns."""
        return tf.matmul(self.encoder(inputs, training=training), self.last, transpose_b=True)

    def _drop_inputs(self, x: Any) -> Any:
        values = x.values if isinstance(x, tf.SparseTensor) else x
        kept = tf.cast(self.generator.uniform(tf.shape(values)) < self.keep_inputs, values.dtype)
        values = values * kept / self.keep_inputs
        return x.with_values(values) if isinstance(x, tf.SparseTensor) else values

    def compute_loss(self, inputs: dict[str, Any], training: bool = False) -> Any:
        """Return the error on the observed entries of the batch, with penalties in training."""
        x = inputs["x"]
        if training and self.keep_inputs < 1:
            x = self._drop_inputs(x)
        y = self.encoder(x, training=training)
        targets, weights = inputs["targets"], inputs.get("weights")
        if "segments" in inputs:
            left = tf.gather(y, inputs["segments"])
            right = tf.gather(self.last, inputs["columns"])
            z = tf.reduce_sum(left * right, axis=1)
        else:
            z = tf.matmul(y, self.last, transpose_b=True)
        loss = self.task(targets, z, sample_weight=weights, compute_metrics=False)
        count = tf.cast(tf.size(targets), tf.float32) if weights is None else tf.reduce_sum(weights)
        self.error.update_state(loss, sample_weight=count)
        return loss + self._penalty(inputs, y) if training else loss

    def train_step(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Take one step, as in `tfrs.Model` but with sparse gradients made dense.

        Adam's moments are dense in any case, and merging repeated rows costs more than a sum.
        """
        with tf.GradientTape() as tape:
            total_loss = self.compute_loss(inputs, training=True)
        gradients = tape.gradient(total_loss, self.trainable_variables)
        dense = [None if g is None else tf.convert_to_tensor(g) for g in gradients]
        self.optimizer.apply_gradients(zip(dense, self.trainable_variables, strict=True))
        return {"error": self.error.result(), "total_loss": total_loss}

    def _penalty(self, inputs: dict[str, Any], y: Any) -> Any:
        """Return the weighted sum of the terms of docs/simec.md besides the error."""
        kernels = [v for v in self.encoder.trainable_variables if v.shape.rank >= 2]
        terms = {
            "l2": lambda: tf.add_n([tf.reduce_sum(v * v) for v in kernels] or [tf.constant(0.0)]),
            "symmetric": lambda: self._symmetric_error(inputs),
            "self_similarity": lambda: self._self_similarity_error(inputs, y),
        }
        total = tf.constant(0.0)
        for name, weight in self.penalties.items():
            total += weight * terms[name]()
        return total

    def _symmetric_error(self, inputs: dict[str, Any]) -> Any:
        """Return the error of W_l^T W_l on the rows of S that are in the batch.

        They are a sample of S: the product of all targets with all is never formed.
        """
        inside, columns = self._targets_in(inputs)
        own, targets = tf.gather(self.last, columns), tf.gather(inputs["targets"], inside)
        z = tf.matmul(own, self.last, transpose_b=True)
        return _mean(tf.math.squared_difference(targets, z))

    def _self_similarity_error(self, inputs: dict[str, Any], y: Any) -> Any:
        """Return the error of Y Y^T on the entries of S between rows of the batch."""
        inside, columns = self._targets_in(inputs)
        z = tf.matmul(y, tf.gather(y, inside), transpose_b=True)
        targets = tf.gather(inputs["targets"], columns, axis=1)
        return _mean(tf.math.squared_difference(targets, z))

    def _targets_in(self, inputs: dict[str, Any]) -> tuple[Any, Any]:
        """Return the places in the batch of rows that are targets, and which targets these are."""
        column = tf.gather(self.target_of_row, inputs["rows"])
        inside = tf.squeeze(tf.where(column >= 0), 1)
        return inside, tf.gather(column, inside)
