"""The similarity encoder as a network: a `tfrs.Model` whose loss sees observed entries only."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from simrec.model.encoders import kernels_squared
from simrec.model.keras import keras, tf, tfrs
from simrec.model.losses import ObservedLoss
from simrec.scoring.output import Output


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

    Where the block is larger than `size`, each step draws `size` targets (or, from a sparse block,
    `size` squared over eight entries) instead of forming the whole product.
    """

    def __init__(self, blocks: Sequence[Any], size: int, generator: Any):
        self.n = blocks[0].shape[0]
        self.size = size
        self.generator = generator
        self.sparse = sp.issparse(blocks[0])
        self.blocks: list[Any] = []
        for block in blocks:
            if self.sparse:
                entries = block.tocoo()
                self.blocks.append(
                    (
                        tf.constant(np.stack([entries.row, entries.col], 1), tf.int32),
                        tf.constant(entries.data, tf.float32),
                    )
                )
            else:
                self.blocks.append(tf.constant(block, tf.float32))

    def _dense(self, block: Any, w: Any) -> Any:
        if self.n > self.size:
            some = tf.argsort(self.generator.uniform([self.n]))[: self.size]
            block = tf.gather(tf.gather(block, some), some, axis=1)
            w = tf.gather(w, some)
        observed = ~tf.math.is_nan(block)
        # `where` twice: a NaN in the branch not taken would still poison the gradient.
        error = tf.where(
            observed,
            tf.math.squared_difference(
                tf.where(observed, block, 0.0), tf.matmul(w, w, transpose_b=True)
            ),
            0.0,
        )
        return tf.math.divide_no_nan(
            tf.reduce_sum(error), tf.reduce_sum(tf.cast(observed, tf.float32))
        )

    def _entries(self, block: Any, w: Any) -> Any:
        pairs, values = block
        limit = max(1, self.size * self.size // 8)
        if values.shape[0] > limit:
            some = self.generator.uniform([limit], 0, values.shape[0], dtype=tf.int32)
            pairs, values = tf.gather(pairs, some), tf.gather(values, some)
        products = tf.reduce_sum(tf.gather(w, pairs[:, 0]) * tf.gather(w, pairs[:, 1]), axis=1)
        return tf.reduce_mean(tf.math.squared_difference(values, products))

    def __call__(self, last: Any) -> Any:
        """Return the mean over relations of the error of the block, or of a sample of it."""
        part = self._entries if self.sparse else self._dense
        errors = [
            part(block, last[r * self.n : (r + 1) * self.n]) for r, block in enumerate(self.blocks)
        ]
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
        For the symmetric regulariser.
    decoder : keras.Model or None
        From embeddings back to features.
    target_of_row : ndarray or None
        For the self-similarity: the target column that each row is, or -1.
    n_relations : int
        Number of relations side by side in the columns.
    seed : int
        Of the input dropout.
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
        else:
            z = tf.matmul(y, self.last, transpose_b=True)
        loss = self.task(inputs["targets"], z, sample_weight=weights, compute_metrics=False)
        count = tf.cast(tf.size(z), tf.float32) if weights is None else tf.reduce_sum(weights)
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
        if p.symmetric and self.block is not None:
            total += p.symmetric * self.block(self.last)
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
