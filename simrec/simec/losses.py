"""Every term of the loss: the error on observed entries, and the penalties.

Observed entries carry weight one (or the weight of their relation), the others weight zero. The
loss is the weighted mean, so an unobserved entry has no part in it and exactly zero gradient.

A batch is a dictionary: ``rows`` (row numbers), ``x`` (their features), ``targets``, and where
entries differ in weight ``weights``. Sparse targets are flat, with ``columns`` and ``segments``
(the row of each entry within the batch).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from simrec.scoring.output import Output
from simrec.simec.keras import keras, tf


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


class Factors(NamedTuple):
    """The factors of Y W_l, and R W_l^T: enough for the squared error of complete rows."""

    y: Any
    last: Any
    targets_last: Any


def mean_squared_error(targets: Any, z: Factors) -> Any:
    """Return the mean of (R - Y W_l)^2 over complete rows, in the time of one product with R.

    ||R - Y W||^2 = ||R||^2 - 2 <R W^T, Y> + <Y^T Y, W W^T> needs no array of the size of R besides
    R. The value loses digits once the error is far below the size of R; its gradient does not.
    """
    total = (
        tf.nn.l2_loss(targets) * 2.0
        - 2.0 * tf.reduce_sum(z.targets_last * z.y)
        + tf.reduce_sum(
            tf.matmul(z.y, z.y, transpose_a=True) * tf.matmul(z.last, z.last, transpose_a=True)
        )
    )
    return tf.math.divide_no_nan(total, tf.cast(tf.size(targets), tf.float32))


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
        if isinstance(y_pred, Factors):
            return mean_squared_error(y_true, y_pred)
        return _mean(self.pointwise(y_true, y_pred, self.output), sample_weight)


def _mean(errors: Any, weights: Any = None) -> Any:
    """Return the weighted mean; zero where nothing was observed."""
    if weights is None:
        return tf.math.divide_no_nan(tf.reduce_sum(errors), tf.cast(tf.size(errors), tf.float32))
    return tf.math.divide_no_nan(tf.reduce_sum(errors * weights), tf.reduce_sum(weights))


class SymmetricBlock:
    """The square block of S whose rows are the targets, for ``||S - W_l^T W_l||^2``.

    For few targets, whose whole product costs less than a batch.
    """

    def __init__(self, blocks: Sequence[Any]):
        self.values, self.masks = [], []
        for block in blocks:
            values, mask = block, ~np.isnan(block) if not sp.issparse(block) else None
            if mask is None:  # an entry that is not stored is missing; a stored zero is observed
                ones = (np.ones_like(block.data), block.indices, block.indptr)
                values, mask = block.toarray(), sp.csr_matrix(ones, block.shape).toarray()
            self.values.append(tf.constant(np.nan_to_num(values, nan=0.0), tf.float32))
            self.masks.append(tf.constant(mask, tf.float32))

    def __call__(self, last: Any) -> Any:
        """Return the mean over relations of the error of W_l^T W_l."""
        errors = [
            _mean(tf.math.squared_difference(values, tf.matmul(w, w, transpose_b=True)), mask)
            for w, values, mask in zip(
                tf.split(last, len(self.values)), self.values, self.masks, strict=True
            )
        ]
        return tf.add_n(errors) / len(errors)


def last_layer_norm(last: Any, inputs: dict[str, Any]) -> Any:
    """Return the mean over the observed entries of ||w_j||^2: frequent columns count more."""
    norms = tf.reduce_sum(last * last, axis=1)
    if "segments" in inputs:
        return tf.reduce_mean(tf.gather(norms, inputs["columns"]))
    if "weights" not in inputs:
        return tf.reduce_mean(norms)
    return _mean(norms, tf.reduce_sum(tf.cast(inputs["weights"] > 0, tf.float32), axis=0))


def symmetric_error(
    last: Any, inputs: dict[str, Any], target_of_row: Any, n_relations: int, expand: bool
) -> Any:
    """Return the error of W_l^T W_l on the rows of S that are in the batch.

    They are a sample of S: the product of all targets with all is never formed. `expand` computes
    it from factors where the rows are complete.
    """
    column = tf.gather(target_of_row, inputs["rows"])
    if "segments" in inputs:
        row = tf.gather(column, inputs["segments"])
        inside = tf.squeeze(tf.where(row >= 0), 1)
        other, n = tf.gather(inputs["columns"], inside), last.shape[0] // n_relations
        # The row's own target, among the columns of the entry's relation.
        own = tf.gather(row, inside) + (other // n) * n
        z = tf.reduce_sum(tf.gather(last, own) * tf.gather(last, other), axis=1)
        return _mean(tf.math.squared_difference(tf.gather(inputs["targets"], inside), z))
    inside = tf.squeeze(tf.where(column >= 0), 1)
    own, targets = tf.gather(column, inside), tf.gather(inputs["targets"], inside)
    if n_relations == 1 and expand and "weights" not in inputs:
        return mean_squared_error(
            targets, Factors(tf.gather(last, own), last, tf.matmul(targets, last))
        )
    parts = tf.split(last, n_relations)
    z = tf.concat([tf.matmul(tf.gather(w, own), w, transpose_b=True) for w in parts], 1)
    weights = None
    if "weights" in inputs:
        weights = tf.cast(tf.gather(inputs["weights"], inside) > 0, tf.float32)
    return _mean(tf.math.squared_difference(targets, z), weights)


def off_diagonal(last: Any, n_relations: int) -> Any:
    """Return the mean square of the off-diagonal of W_l W_l^T."""
    d, errors = last.shape[1], []
    for part in tf.split(last, n_relations):
        gram = tf.matmul(part, part, transpose_a=True)
        gram = gram - tf.linalg.diag(tf.linalg.diag_part(gram))
        errors.append(tf.reduce_sum(gram * gram) / max(1, d * (d - 1)))
    return tf.add_n(errors) / len(errors)


def self_similarity_error(
    y: Any, inputs: dict[str, Any], target_of_row: Any, n_targets: int
) -> Any:
    """Return the error of Y Y^T on the observed entries of S between rows of the batch."""
    column = tf.gather(target_of_row, inputs["rows"])
    inside = tf.squeeze(tf.where(column >= 0), 1)
    columns, weights = tf.gather(column, inside), None
    if "segments" in inputs:
        places = tf.cast(inside, tf.int32)
        place = tf.tensor_scatter_nd_update(tf.fill([n_targets], -1), columns[:, None], places)
        other = tf.gather(place, inputs["columns"])
        both = tf.squeeze(tf.where(other >= 0), 1)
        left = tf.gather(y, tf.gather(inputs["segments"], both))
        z = tf.reduce_sum(left * tf.gather(y, tf.gather(other, both)), axis=1)
        targets = tf.gather(inputs["targets"], both)
    else:
        z = tf.matmul(y, tf.gather(y, inside), transpose_b=True)
        targets = tf.gather(inputs["targets"], columns, axis=1)
        if "weights" in inputs:
            weights = tf.gather(inputs["weights"], columns, axis=1)
    return _mean(tf.math.squared_difference(targets, z), weights)


def reconstruction_error(x: Any, decoded: Any) -> Any:
    """Return the mean squared error of what a decoder makes of embeddings."""
    x = tf.sparse.to_dense(x) if isinstance(x, tf.SparseTensor) else x
    return tf.reduce_mean(tf.math.squared_difference(x, decoded))
