"""Losses over observed entries: small functions, a Keras loss that masks, the output in TensorFlow.

Observed entries carry weight one (or the weight of their relation), the others weight zero. The
loss is the weighted mean, so an unobserved entry has no part in it and exactly zero gradient.
"""

from typing import Any, NamedTuple

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


def apply_output(output: Output, z: Any) -> Any:
    """Return g(z) as a tensor; the counterpart of calling `output` on an array."""
    if output.lower is None or output.upper is None:
        return z + output.shift if output.shift else z
    # The sigmoid of a float32 can round past its limits once scaled: the clip keeps the promise.
    scale = output.upper - output.lower
    return tf.clip_by_value(
        output.lower + scale * tf.sigmoid(z + output.shift), output.lower, output.upper
    )


def squared_error(target: Any, z: Any, output: Output) -> Any:
    """(target - g(z))^2."""
    return tf.math.squared_difference(target, apply_output(output, z))


def absolute_error(target: Any, z: Any, output: Output) -> Any:
    """|target - g(z)|."""
    return tf.abs(target - apply_output(output, z))


def binary_cross_entropy(target: Any, z: Any, output: Output) -> Any:
    """Cross-entropy of the target's place between the bounds and sigmoid(z + shift)."""
    assert output.lower is not None and output.upper is not None
    share = (target - output.lower) / (output.upper - output.lower)
    # From the logits: the logarithm of a sigmoid that has rounded to 0 would be infinite.
    return tf.nn.sigmoid_cross_entropy_with_logits(labels=share, logits=z + output.shift)


_POINTWISE = {"mse": squared_error, "mae": absolute_error, "bce": binary_cross_entropy}


class Factors(NamedTuple):
    """Y W_l kept as factors, with R W_l^T, for a squared error that never forms the product."""

    y: Any
    last: Any
    targets_last: Any


def mean_squared_error(targets: Any, z: Factors) -> Any:
    """Mean of (R - Y W_l)^2 over complete rows, in the time of one product with R.

    ||R - Y W||^2 = ||R||^2 - 2 <R W^T, Y> + <Y^T Y, W W^T>: no array of the size of R but R itself.
    The difference loses digits once the error is far below the size of R, its gradient does not.
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
