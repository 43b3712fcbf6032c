"""The similarity encoder as a network: a `tfrs.Model` whose loss sees observed entries only."""

from typing import Any

import numpy as np

from simrec.errors import InputError
from simrec.simec import losses
from simrec.simec.closed_form import check_last_layer, first_last_layer
from simrec.simec.encoders import DenseStack, copy_encoder, kernels_squared
from simrec.simec.inputs import Problem
from simrec.simec.keras import keras, tf, tfrs
from simrec.simec.options import PENALTIES, check_hidden_layers


class SimEcNetwork(tfrs.Model):
    """Encoder, last layer and output, trained on the observed entries of a batch of rows."""

    def __init__(self, problem: Problem):
        super().__init__(name="simec")
        params, targets, rng = problem.params, problem.targets, problem.rng
        frozen = problem.last_layer is not None
        if frozen and (params["symmetric"] or params["orthogonal"]):
            raise InputError(
                "last_layer is frozen, but symmetric and orthogonal train it: leave one out"
            )
        self.encoder, self.decoder = _build_networks(problem)
        last = first_last_layer(problem, params["init"])
        self.last = tf.Variable(last, trainable=not frozen, dtype=tf.float32, name="last_layer")
        self.generator = tf.random.Generator.from_seed(int(rng.integers(2**31 - 1)))
        self.task = tfrs.tasks.Ranking(loss=losses.ObservedLoss(params["loss"], problem.output))
        self.error = keras.metrics.Mean("error")
        self.keep_inputs = 1.0 - params["input_dropout"]
        terms = [name for name in PENALTIES if params[name] and not (frozen and name == "l2_last")]
        self.penalties = {name: params[name] for name in terms}
        self.n_relations = targets.n_relations
        # Squared errors of complete rows are computed without forming Y W_l.
        self.expand = (
            params["solver"] != "lbfgs" and params["loss"] == "mse" and not problem.output.bounded
        )
        self.block = self.target_of_row = None
        rows = problem.rows_of_targets
        if rows is not None:
            if params["symmetric"] and targets.n_columns <= params["symmetric_block"]:
                blocks = [targets.relation(r)[rows] for r in range(targets.n_relations)]
                self.block = losses.SymmetricBlock(blocks)
            target_of_row = np.full(targets.n_rows, -1, np.int32)
            target_of_row[rows] = np.arange(targets.n_columns)
            self.target_of_row = tf.constant(target_of_row, tf.int32)
        if problem.start is not None:
            self._set_start(problem)

    def _set_start(self, problem: Problem) -> None:
        """Take over given weights of the encoder, and a given W_l."""
        assert problem.start is not None
        weights, last_layer = problem.start
        if weights is not None:
            found = [tuple(np.shape(w)) for w in weights]
            expected = [tuple(w.shape) for w in self.encoder.weights]
            if found != expected:
                raise InputError(
                    f"start has weights of shapes {found}, but those of the encoder are {expected}"
                )
            self.encoder.set_weights(weights)
        if last_layer is not None:
            if not self.last.trainable:
                raise InputError("last_layer is frozen, but start holds another W_l: leave one out")
            d = problem.params["embedding_dim"]
            self.last.assign(check_last_layer(last_layer, d, problem.targets))

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
        elif self.expand and weights is None:
            z = losses.Factors(y, self.last, tf.matmul(targets, self.last))
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
        total, last = tf.constant(0.0), self.last
        terms = {
            "l2": lambda: kernels_squared(self.encoder),
            "l2_embedding": lambda: tf.reduce_mean(tf.reduce_sum(y * y, axis=1)),
            "l2_last": lambda: losses.last_layer_norm(last, inputs),
            "symmetric": lambda: (
                losses.symmetric_error(
                    last, inputs, self.target_of_row, self.n_relations, self.expand
                )
                if self.block is None
                else self.block(last)
            ),
            "orthogonal": lambda: losses.off_diagonal(last, self.n_relations),
            "self_similarity": lambda: losses.self_similarity_error(
                y, inputs, self.target_of_row, last.shape[0]
            ),
            "decoder_weight": lambda: losses.reconstruction_error(inputs["x"], self.decoder(y)),
        }
        for name, term in terms.items():
            if name in self.penalties:
                total += self.penalties[name] * term()
        return total


def _build_networks(problem: Problem) -> tuple[Any, Any]:
    """Return the untrained encoder, and the decoder if one is asked for."""
    params, features, rng = problem.params, problem.features, problem.rng
    d, hidden = params["embedding_dim"], check_hidden_layers(params["hidden_layers"])
    if params["encoder"] is not None:
        return copy_encoder(params["encoder"], features.shape, d), None
    how = (params["activation"], params["bias"], params["dropout"])
    stack = DenseStack(features.kind, int(np.prod(features.shape)), (*hidden, d), *how)
    # Least squares keeps the hidden layers as they start: random biases make their units differ
    # in more than direction.
    encoder = stack.build(rng, bias_range=1.0 if params["init"] == "least_squares" else 0.0)
    if not params["decoder_weight"]:
        return encoder, None
    widths = (*reversed(hidden), features.shape[0])
    return encoder, DenseStack("dense", d, widths, params["activation"]).build(rng)
