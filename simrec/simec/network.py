"""The similarity encoder as a network: a `tfrs.Model` whose loss sees observed entries only."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from simrec.scoring.output import Output
from simrec.simec.encoders import kernels_squared
from simrec.simec.keras import keras, tf, tfrs
from simrec.simec.losses import Factors, ObservedLoss, mean_squared_error


@dataclass(frozen=True)
class Penalties:
    """Weights of everything in the loss besides the error on observed entries.

    The formulas are in docs/simec.md; a weight of zero takes the term out.
    """

    l2: float = 0.0
    l2_embedding: float = 0.0
    l2_last: float = 0.0
    symmetric: float = 0.0
    self_similarity: float = 0.0
    orthogonal: float = 0.0
    decoder: float = 0.0
    input_dropout: float = 0.0


class SymmetricBlock:
    """The square block of S whose rows are the targets, for ``||S - W_l^T W_l||^2``.

    Kept apart where there are few targets: their whole product then costs less than a batch.
    """

    def __init__(self, blocks: Sequence[Any]):
        self.n = blocks[0].shape[0]
        dense = [block.toarray() if sp.issparse(block) else block for block in blocks]
        if sp.issparse(blocks[0]):
            # What is not stored is missing, and what is stored counts, a zero included.
            for values, block in zip(dense, blocks, strict=True):
                stored = block.copy()
                stored.data = np.ones_like(stored.data)
                values[stored.toarray() == 0] = np.nan
        self.values = [tf.constant(np.nan_to_num(block, nan=0.0), tf.float32) for block in dense]
        self.masks = [tf.constant(~np.isnan(block), tf.float32) for block in dense]

    def __call__(self, last: Any) -> Any:
        """Return the mean over relations of the error of W_l^T W_l."""
        errors = []
        for r, (values, mask) in enumerate(zip(self.values, self.masks, strict=True)):
            w = last[r * self.n : (r + 1) * self.n]
            error = tf.math.squared_difference(values, tf.matmul(w, w, transpose_b=True))
            errors.append(tf.math.divide_no_nan(tf.reduce_sum(error * mask), tf.reduce_sum(mask)))
        return tf.add_n(errors) / len(errors)


class SimEcNetwork(tfrs.Model):
    """Encoder, last layer and output, trained on the observed entries of a batch of rows.

    Parameters
    ----------
    encoder : keras.Model
        f', from features to embeddings.
    last_layer : ndarray
        Initial W_l^T, a row for each column of the targets.
    trainable_last : bool
        Whether W_l is trained, or frozen.
    output : Output
        g.
    loss : str
        The pointwise loss.
    penalties : Penalties
        Weights of the further terms.
    block : SymmetricBlock or None
        For the symmetric regulariser with few targets.
    decoder : keras.Model or None
        From embeddings back to features.
    target_of_row : ndarray or None
        For the symmetric terms: the target column that each row is, or -1.
    n_relations : int
        Number of relations side by side in the columns.
    seed : int
        Of the input dropout.
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
        penalties: Penalties,
        block: SymmetricBlock | None = None,
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
        self.task = tfrs.tasks.Ranking(loss=ObservedLoss(loss, output))
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
            z = Factors(y, self.last, tf.matmul(inputs["targets"], self.last))
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
        """Take one step; as in `tfrs.Model`, but with the gradients of look-ups summed by row.

        Adam's moments are dense in any case, and sorting out repeated rows costs more than summing.
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
            total += p.l2_last * self._last_norm(inputs)
        if p.symmetric:
            total += p.symmetric * self._symmetric(inputs)
        if p.orthogonal:
            total += p.orthogonal * self._off_diagonal()
        if p.self_similarity:
            total += p.self_similarity * self._self_similarity(inputs, y)
        if p.decoder:
            x = inputs["x"]
            x = tf.sparse.to_dense(x) if isinstance(x, tf.SparseTensor) else x
            total += p.decoder * tf.reduce_mean(tf.math.squared_difference(x, self.decoder(y)))
        return total

    def _last_norm(self, inputs: dict[str, Any]) -> Any:
        """Mean over the observed entries of ||w_j||^2: frequent columns count more."""
        norms = tf.reduce_sum(self.last * self.last, axis=1)
        if "segments" in inputs:
            return tf.reduce_mean(tf.gather(norms, inputs["columns"]))
        if "weights" not in inputs:
            return tf.reduce_mean(norms)
        observed = tf.reduce_sum(tf.cast(inputs["weights"] > 0, tf.float32), axis=0)
        return tf.math.divide_no_nan(tf.reduce_sum(observed * norms), tf.reduce_sum(observed))

    def _symmetric(self, inputs: dict[str, Any]) -> Any:
        """Error of W_l^T W_l: the whole block of few targets, else the batch's rows of it.

        The rows of a batch are a sample of S, fetched already: for many targets the product of all
        with all is never formed.
        """
        if self.block is not None:
            return self.block(self.last)
        column = tf.gather(self.target_of_row, inputs["rows"])
        k = self.n_relations
        n = self.last.shape[0] // k
        if "segments" in inputs:
            row = tf.gather(column, inputs["segments"])
            inside = tf.squeeze(tf.where(row >= 0), 1)
            other = tf.gather(inputs["columns"], inside)
            # The target itself, within the columns of the entry's relation.
            own = tf.gather(row, inside) + (other // n) * n
            z = tf.reduce_sum(tf.gather(self.last, own) * tf.gather(self.last, other), axis=1)
            error = tf.math.squared_difference(tf.gather(inputs["targets"], inside), z)
            weights = tf.ones_like(error)
        else:
            inside = tf.squeeze(tf.where(column >= 0), 1)
            own = tf.gather(column, inside)
            targets = tf.gather(inputs["targets"], inside)
            parts = tf.split(self.last, k)
            if k == 1 and self.expand and "weights" not in inputs:
                z = Factors(tf.gather(self.last, own), self.last, tf.matmul(targets, self.last))
                return mean_squared_error(targets, z)
            z = tf.concat([tf.matmul(tf.gather(w, own), w, transpose_b=True) for w in parts], 1)
            error = tf.math.squared_difference(targets, z)
            weights = tf.ones_like(error)
            if "weights" in inputs:
                weights = tf.cast(tf.gather(inputs["weights"], inside) > 0, tf.float32)
        return tf.math.divide_no_nan(tf.reduce_sum(error * weights), tf.reduce_sum(weights))

    def _off_diagonal(self) -> Any:
        """Mean square of the off-diagonal of W_l W_l^T; the diagonal is free."""
        d = self.last.shape[1]
        parts = tf.split(self.last, self.n_relations)
        errors = []
        for part in parts:
            gram = tf.matmul(part, part, transpose_a=True)
            gram = gram - tf.linalg.diag(tf.linalg.diag_part(gram))
            errors.append(tf.reduce_sum(gram * gram) / max(1, d * (d - 1)))
        return tf.add_n(errors) / len(errors)

    def _self_similarity(self, inputs: dict[str, Any], y: Any) -> Any:
        """Error of Y Y^T on the observed entries of S between rows of the batch."""
        column = tf.gather(self.target_of_row, inputs["rows"])
        if "segments" in inputs:
            n = tf.shape(self.last)[0]
            is_target = tf.where(column >= 0)
            place = tf.tensor_scatter_nd_update(
                tf.fill([n], -1),
                tf.cast(tf.gather(column, is_target), tf.int32),
                tf.cast(tf.squeeze(is_target, 1), tf.int32),
            )
            other = tf.gather(place, inputs["columns"])
            both = tf.squeeze(tf.where(other >= 0), 1)
            left = tf.gather(y, tf.gather(inputs["segments"], both))
            right = tf.gather(y, tf.gather(other, both))
            error = tf.math.squared_difference(
                tf.gather(inputs["targets"], both), tf.reduce_sum(left * right, axis=1)
            )
            return tf.math.divide_no_nan(tf.reduce_sum(error), tf.cast(tf.size(both), tf.float32))
        inside = tf.squeeze(tf.where(column >= 0), 1)
        columns = tf.gather(column, inside)
        right = tf.gather(y, inside)
        targets = tf.gather(inputs["targets"], columns, axis=1)
        error = tf.math.squared_difference(targets, tf.matmul(y, right, transpose_b=True))
        if "weights" not in inputs:
            return tf.math.divide_no_nan(tf.reduce_sum(error), tf.cast(tf.size(error), tf.float32))
        weights = tf.gather(inputs["weights"], columns, axis=1)
        return tf.math.divide_no_nan(tf.reduce_sum(error * weights), tf.reduce_sum(weights))
