"""Every term of the loss: the error on observed entries, and the penalties.

Observed entries carry weight one (or the weight of their relation), the others weight zero. The
loss is the weighted mean, so an unobserved entry has no part in it and exactly zero gradient.

A batch is a dictionary: ``rows`` (row numbers), ``x`` (their features), ``targets``, and where
entries differ in weight ``weights``. Sparse targets are flat, with ``columns`` and ``segments``
(the row of each entry within the batch).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from simrec.errors import InputError
from simrec.scoring.output import Output
from simrec.simec.keras import keras, tf

LOSSES = ("mse", "mae", "bce")


def check_loss(loss: str, bounds: tuple[float, float] | None) -> None:
    """Raise for an unknown loss, or one that needs bounds and has none."""
    if loss not in LOSSES:
        raise InputError(f"loss must be one of {', '.join(LOSSES)}, got {loss!r}")
    if loss == "bce" and bounds is None:
        raise InputError(
            "loss='bce' compares a probability with a target between bounds, but bounds is None: "
            "give bounds=(0, 1), or the range of your targets"
        )


def predictions(output: Output, z: Any) -> Any:
    """Return g(z) of a tensor of scalar products."""
    return output.apply(z, tf.sigmoid, tf.clip_by_value)


def squared_error(target: Any, z: Any, output: Output) -> Any:
    """Return (target - g(z))^2."""
    return tf.math.squared_difference(target, predictions(output, z))


def absolute_error(target: Any, z: Any, output: Output) -> Any:
    """Return |target - g(z)|."""
    return tf.abs(target - predictions(output, z))


def binary_cross_entropy(target: Any, z: Any, output: Output) -> Any:
    """Return the cross-entropy of sigmoid(z + shift) and the target scaled from bounds to 0..1."""
    assert output.lower is not None and output.upper is not None
    share = (target - output.lower) / (output.upper - output.lower)
    # From the logits: the logarithm of a sigmoid that has rounded to 0 would be infinite.
    return tf.nn.sigmoid_cross_entropy_with_logits(labels=share, logits=z + output.shift)


_POINTWISE = {"mse": squared_error, "mae": absolute_error, "bce": binary_cross_entropy}


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
    """Weighted mean of a pointwise loss, for `tfrs.tasks.Ranking`.

    Takes scalar products z rather than predictions, so that cross-entropy works on logits.

    Parameters
    ----------
    loss : {"mse", "mae", "bce"}
        The pointwise loss.
    output : Output
        The output nonlinearity g.
    """

    def __init__(self, loss: str, output: Output):
        super().__init__(name=f"observed_{loss}")
        self.pointwise = _POINTWISE[loss]
        self.output = output

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Return sum(weight * l) / sum(weight); zero where nothing was observed."""
        if isinstance(y_pred, Factors):
            return mean_squared_error(y_true, y_pred)
        losses = self.pointwise(y_true, y_pred, self.output)
        if sample_weight is None:
            return tf.reduce_mean(losses)
        return tf.math.divide_no_nan(
            tf.reduce_sum(losses * sample_weight), tf.reduce_sum(sample_weight)
        )


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

    For few targets, whose whole product costs less than a batch.
    """

    def __init__(self, blocks: Sequence[Any]):
        self.n = blocks[0].shape[0]
        dense = [block.toarray() if sp.issparse(block) else block for block in blocks]
        if sp.issparse(blocks[0]):
            # An entry that is not stored is missing; a stored zero is observed.
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


def last_layer_norm(last: Any, inputs: dict[str, Any]) -> Any:
    """Return the mean over the observed entries of ||w_j||^2: frequent columns count more."""
    norms = tf.reduce_sum(last * last, axis=1)
    if "segments" in inputs:
        return tf.reduce_mean(tf.gather(norms, inputs["columns"]))
    if "weights" not in inputs:
        return tf.reduce_mean(norms)
    observed = tf.reduce_sum(tf.cast(inputs["weights"] > 0, tf.float32), axis=0)
    return tf.math.divide_no_nan(tf.reduce_sum(observed * norms), tf.reduce_sum(observed))


def symmetric_error(
    last: Any, inputs: dict[str, Any], target_of_row: Any, n_relations: int, expand: bool
) -> Any:
    """Return the error of W_l^T W_l on the rows of S that are in the batch.

    They are a sample of S: the product of all targets with all is never formed. `expand` computes
    it from factors where the rows are complete.
    """
    column = tf.gather(target_of_row, inputs["rows"])
    k = n_relations
    n = last.shape[0] // k
    if "segments" in inputs:
        row = tf.gather(column, inputs["segments"])
        inside = tf.squeeze(tf.where(row >= 0), 1)
        other = tf.gather(inputs["columns"], inside)
        # The row's own target, among the columns of the entry's relation.
        own = tf.gather(row, inside) + (other // n) * n
        z = tf.reduce_sum(tf.gather(last, own) * tf.gather(last, other), axis=1)
        error = tf.math.squared_difference(tf.gather(inputs["targets"], inside), z)
        weights = tf.ones_like(error)
    else:
        inside = tf.squeeze(tf.where(column >= 0), 1)
        own = tf.gather(column, inside)
        targets = tf.gather(inputs["targets"], inside)
        parts = tf.split(last, k)
        if k == 1 and expand and "weights" not in inputs:
            z = Factors(tf.gather(last, own), last, tf.matmul(targets, last))
            return mean_squared_error(targets, z)
        z = tf.concat([tf.matmul(tf.gather(w, own), w, transpose_b=True) for w in parts], 1)
        error = tf.math.squared_difference(targets, z)
        weights = tf.ones_like(error)
        if "weights" in inputs:
            weights = tf.cast(tf.gather(inputs["weights"], inside) > 0, tf.float32)
    return tf.math.divide_no_nan(tf.reduce_sum(error * weights), tf.reduce_sum(weights))


def off_diagonal(last: Any, n_relations: int) -> Any:
    """Return the mean square of the off-diagonal of W_l W_l^T."""
    d = last.shape[1]
    parts = tf.split(last, n_relations)
    errors = []
    for part in parts:
        gram = tf.matmul(part, part, transpose_a=True)
        gram = gram - tf.linalg.diag(tf.linalg.diag_part(gram))
        errors.append(tf.reduce_sum(gram * gram) / max(1, d * (d - 1)))
    return tf.add_n(errors) / len(errors)


def self_similarity_error(
    y: Any, inputs: dict[str, Any], target_of_row: Any, n_targets: int
) -> Any:
    """Return the error of Y Y^T on the observed entries of S between rows of the batch."""
    column = tf.gather(target_of_row, inputs["rows"])
    if "segments" in inputs:
        is_target = tf.where(column >= 0)
        place = tf.tensor_scatter_nd_update(
            tf.fill([n_targets], -1),
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
