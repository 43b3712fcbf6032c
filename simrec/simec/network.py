"""The similarity encoder as a network: a `tfrs.Model` whose loss sees observed entries only."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simrec.errors import InputError
from simrec.scoring.output import Output
from simrec.simec import losses
from simrec.simec.encoders import (
    DenseStack,
    check_hidden_layers,
    copy_encoder,
    kernels_squared,
)
from simrec.simec.initial import random_last_layer, spectral_last_layer
from simrec.simec.inputs import Features, Targets
from simrec.simec.keras import keras, tf, tfrs


class SimEcNetwork(tfrs.Model):
    """Encoder, last layer and output, trained on the observed entries of a batch of rows.

    Parameters
    ----------
    encoder : keras.Model
        The map f' from features to embeddings.
    last_layer : ndarray
        Initial W_l^T, a row for each column of the targets.
    trainable_last : bool
        Whether W_l is trained; otherwise it is frozen.
    output : Output
        The output nonlinearity g.
    loss : str
        The pointwise loss.
    penalties : losses.Penalties
        Weights of the other terms of the loss.
    block : losses.SymmetricBlock or None
        For the symmetric regulariser with few targets.
    decoder : keras.Model or None
        From embeddings back to features.
    target_of_row : ndarray or None
        For the symmetric terms: the target that each row corresponds to, or -1.
    n_relations : int
        Number of relations side by side in the columns.
    seed : int
        Seed of the input dropout.
    expand : bool
        Whether squared errors of complete rows are computed without forming Y W_l.
    """

    def __init__(
        self,
        encoder: Any,
        last_layer: np.ndarray,
        trainable_last: bool,
        output: Output,
        loss: str,
        penalties: losses.Penalties,
        block: losses.SymmetricBlock | None = None,
        decoder: Any = None,
        target_of_row: np.ndarray | None = None,
        n_relations: int = 1,
        seed: int = 0,
        expand: bool = False,
    ):
        super().__init__(name="simec")
        self.encoder = encoder
        self.decoder = decoder
        self.last = tf.Variable(
            last_layer, trainable=trainable_last, dtype=tf.float32, name="last_layer"
        )
        self.task = tfrs.tasks.Ranking(loss=losses.ObservedLoss(loss, output))
        self.error = keras.metrics.Mean("error")
        self.penalties = penalties
        self.block = block
        self.n_relations = n_relations
        self.expand = expand and loss == "mse" and not output.bounded
        self.generator = tf.random.Generator.from_seed(seed)
        self.target_of_row = None if target_of_row is None else tf.constant(target_of_row, tf.int32)

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Return the scalar products Y W_l of a batch of feature rows with all columns."""
        return tf.matmul(self.encoder(inputs, training=training), self.last, transpose_b=True)

    def _drop_inputs(self, x: Any) -> Any:
        keep = 1.0 - self.penalties.input_dropout
        values = x.values if isinstance(x, tf.SparseTensor) else x
        kept = tf.cast(self.generator.uniform(tf.shape(values)) < keep, values.dtype)
        values = values * kept / keep
        return x.with_values(values) if isinstance(x, tf.SparseTensor) else values

    def compute_loss(self, inputs: dict[str, Any], training: bool = False) -> Any:
        """Return the error on the observed entries of the batch, with penalties in training."""
        x = inputs["x"]
        if training and self.penalties.input_dropout:
            x = self._drop_inputs(x)
        y = self.encoder(x, training=training)
        weights = inputs.get("weights")
        if "segments" in inputs:
            left = tf.gather(y, inputs["segments"])
            right = tf.gather(self.last, inputs["columns"])
            z = tf.reduce_sum(left * right, axis=1)
        elif self.expand and weights is None:
            z = losses.Factors(y, self.last, tf.matmul(inputs["targets"], self.last))
        else:
            z = tf.matmul(y, self.last, transpose_b=True)
        loss = self.task(inputs["targets"], z, sample_weight=weights, compute_metrics=False)
        count = (
            tf.cast(tf.size(inputs["targets"]), tf.float32)
            if weights is None
            else tf.reduce_sum(weights)
        )
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
        p = self.penalties
        total = tf.constant(0.0)
        if p.l2:
            total += p.l2 * kernels_squared(self.encoder)
        if p.l2_embedding:
            total += p.l2_embedding * tf.reduce_mean(tf.reduce_sum(y * y, axis=1))
        if p.l2_last:
            total += p.l2_last * losses.last_layer_norm(self.last, inputs)
        if p.symmetric:
            if self.block is not None:
                error = self.block(self.last)
            else:
                error = losses.symmetric_error(
                    self.last, inputs, self.target_of_row, self.n_relations, self.expand
                )
            total += p.symmetric * error
        if p.orthogonal:
            total += p.orthogonal * losses.off_diagonal(self.last, self.n_relations)
        if p.self_similarity:
            total += p.self_similarity * losses.self_similarity_error(
                y, inputs, self.target_of_row, self.last.shape[0]
            )
        if p.decoder:
            x = inputs["x"]
            x = tf.sparse.to_dense(x) if isinstance(x, tf.SparseTensor) else x
            total += p.decoder * tf.reduce_mean(tf.math.squared_difference(x, self.decoder(y)))
        return total


def check_last_layer(last_layer: Any, d: int, targets: Targets) -> np.ndarray:
    """Return a given W_l (d x n, or d x n x k) as the network keeps it: a row per column of R."""
    given = np.asarray(last_layer, dtype=np.float32)
    expected: tuple[int, ...] = (d, targets.n_columns)
    if targets.n_relations > 1:
        expected = (*expected, targets.n_relations)
    if given.shape != expected:
        raise InputError(
            f"last_layer must be {' x '.join(map(str, expected))} (embedding_dim x targets"
            f"{' x relations' if targets.n_relations > 1 else ''}), got shape {given.shape}"
        )
    if not np.isfinite(given).all():
        raise InputError("last_layer holds NaN or infinite values")
    return columns_from_last_layer(given)


def set_start(
    network: SimEcNetwork,
    weights: Sequence[np.ndarray] | None,
    last_layer: np.ndarray | None,
    d: int,
    targets: Targets,
) -> None:
    """Put given weights of the encoder, and a given W_l, into an untrained network."""
    if weights is not None:
        found = [tuple(np.shape(w)) for w in weights]
        expected = [tuple(w.shape) for w in network.encoder.weights]
        if found != expected:
            raise InputError(
                f"start has weights of shapes {found}, but those of the encoder are {expected}"
            )
        network.encoder.set_weights(weights)
    if last_layer is not None:
        if not network.last.trainable:
            raise InputError("last_layer is frozen, but start holds another W_l: leave one out")
        network.last.assign(check_last_layer(last_layer, d, targets))


def columns_from_last_layer(last_layer: np.ndarray) -> np.ndarray:
    """Return W_l (d x n, or d x n x k) as the network keeps it: (k n) x d, relation by relation."""
    if last_layer.ndim == 2:
        return np.ascontiguousarray(last_layer.T)
    return np.ascontiguousarray(last_layer.transpose(2, 1, 0).reshape(-1, last_layer.shape[0]))


def last_layer_from_columns(columns: np.ndarray, n_relations: int) -> np.ndarray:
    """Return W_l (d x n, or d x n x k) from the (k n) x d rows that the network keeps."""
    if n_relations == 1:
        return columns.T
    k, d = n_relations, columns.shape[1]
    return columns.reshape(k, -1, d).transpose(2, 1, 0)


def build_network(
    params: Mapping[str, Any],
    features: Features,
    targets: Targets,
    output: Output,
    rows_of_targets: np.ndarray | None,
    last_layer: Any,
    rng: np.random.Generator,
) -> SimEcNetwork:
    """Return an untrained network for these options and data."""
    d = params["embedding_dim"]
    if params["encoder"] is not None:
        encoder = copy_encoder(params["encoder"], features.shape, d)
    else:
        stack = DenseStack(
            features.kind,
            int(np.prod(features.shape)),
            (*check_hidden_layers(params["hidden_layers"]), d),
            params["activation"],
            params["bias"],
            params["dropout"],
        )
        # Least squares keeps the hidden layers as they start: random biases make their units differ
        # in more than direction.
        encoder = stack.build(rng, bias_range=1.0 if params["init"] == "least_squares" else 0.0)
    decoder = None
    if params["decoder_weight"]:
        mirrored = reversed(check_hidden_layers(params["hidden_layers"]))
        widths = (*mirrored, features.shape[0])
        decoder = DenseStack("dense", d, widths, params["activation"]).build(rng)
    if last_layer is not None:
        if params["symmetric"] or params["orthogonal"]:
            raise InputError(
                "last_layer is frozen, but symmetric and orthogonal train it: leave one out"
            )
        start = check_last_layer(last_layer, d, targets)
    elif params["init"] != "random":
        start = spectral_last_layer(targets, d, output, rows_of_targets, params["init_rows"], rng)
    else:
        start = random_last_layer(targets.matrix.shape[1], d, rng)
    seed = int(rng.integers(2**31 - 1))
    block = target_of_row = None
    if rows_of_targets is not None:
        if params["symmetric"] and targets.n_columns <= params["symmetric_block"]:
            block = losses.SymmetricBlock(
                [targets.relation(r)[rows_of_targets] for r in range(targets.n_relations)]
            )
        target_of_row = np.full(targets.n_rows, -1, np.int32)
        target_of_row[rows_of_targets] = np.arange(targets.n_columns)
    penalties = losses.Penalties(
        l2=params["l2"],
        l2_embedding=params["l2_embedding"],
        l2_last=params["l2_last"] if last_layer is None else 0.0,
        symmetric=params["symmetric"],
        self_similarity=params["self_similarity"],
        orthogonal=params["orthogonal"],
        decoder=params["decoder_weight"],
        input_dropout=params["input_dropout"],
    )
    return SimEcNetwork(
        encoder,
        start,
        last_layer is None,
        output,
        params["loss"],
        penalties,
        block,
        decoder,
        target_of_row,
        targets.n_relations,
        seed,
        expand=params["optimizer"] != "lbfgs",
    )
