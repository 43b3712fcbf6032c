"""One tower of the ranking objective: a linear encoder with offsets against a last layer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from simrec.simec.keras import tf

_FEWEST_COLUMNS = 1024
_BETA_1, _BETA_2, _EPSILON = 0.9, 0.99, 1e-8


@dataclass(frozen=True)
class Stage:
    """Penalties and offset dropout of one tower."""

    l2: float
    l2_offset: float
    l2_last: float
    offset_dropout: float


class ColumnSample:
    """Columns that a batch of rows is compared with: all, or a sample with its weights.

    The sample is systematic: column j is in it with probability pi_j and weighs 1 / pi_j, so that
    sums over samples are, on average, sums over all columns. Columns with more ones have the larger
    predictions, hence more of the sum: they are taken more often.
    """

    def __init__(self, targets: sparse.csr_matrix, max_cells: int) -> None:
        n_rows, n_columns = targets.shape
        size = max(_FEWEST_COLUMNS, max_cells // n_rows)
        self.everything = size >= n_columns
        if self.everything:
            return
        counts = np.bincount(targets.indices, minlength=n_columns)
        share = 0.5 / n_columns + 0.5 * counts / counts.sum()
        always = np.zeros(n_columns, bool)
        while True:  # columns due more than once are always taken, the others share the rest
            chance = share * (size - always.sum()) / share[~always].sum()
            more = (chance >= 1) & ~always
            if not more.any():
                break
            always |= more
        self.chance = np.where(always, 1.0, chance)

    def draw(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return columns, each once, and their weights."""
        order = rng.permutation(len(self.chance))
        steps = np.floor(np.cumsum(self.chance[order]) + rng.random())
        columns = np.sort(order[np.diff(steps, prepend=0.0) >= 1])
        return columns, (1.0 / self.chance[columns]).astype(np.float32)


class RankingTower:
    """Vectors ``y = [x, 1] weights + offset`` against a last layer that is free or frozen.

    A step of Adam goes down the cross-entropy, summed over all entries of a batch of rows, plus
    half of ``l2 |weights|^2 + l2_offset |offsets|^2 + l2_last |last|^2``. The gradient is written
    out: a tape would keep several arrays of the size of the batch's entries.

    Parameters
    ----------
    weights, offsets, last : ndarray
        Where to start; all with D columns.
    one : int
        The coordinate of y that is always one.
    one_last : int or None
        That of the last layer; None where the last layer is frozen.
    stage : Stage
        Penalties and dropout.
    """

    def __init__(
        self,
        weights: np.ndarray,
        offsets: np.ndarray,
        last: np.ndarray,
        one: int,
        one_last: int | None,
        stage: Stage,
    ) -> None:
        self.stage = stage
        self._weights, self._offsets = tf.Variable(weights), tf.Variable(offsets)
        dim = weights.shape[1]
        self._free = tf.constant(np.arange(dim) != one, tf.float32)
        self._trained = [self._weights, self._offsets]
        self._frozen = one_last is None
        if self._frozen:
            self._last = tf.constant(last)
        else:
            self._last = tf.Variable(last)
            self._free_last = tf.constant(np.arange(dim) != one_last, tf.float32)
            self._trained.append(self._last)
        self._moments = [
            (tf.Variable(tf.zeros_like(v)), tf.Variable(tf.zeros_like(v))) for v in self._trained
        ]
        # The intercept is not shrunk.
        self._shrunk = tf.constant(np.arange(len(weights)) < len(weights) - 1, tf.float32)[:, None]
        self._time = tf.Variable(0.0)

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return weights, offsets and last layer."""
        return self._weights.numpy(), self._offsets.numpy(), self._last.numpy()

    def state(self) -> dict[str, np.ndarray]:
        """Return all that the next step depends on, by name."""
        return {name: variable.numpy() for name, variable in self._state().items()}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go back to what `state` gave."""
        for name, variable in self._state().items():
            variable.assign(arrays[name])

    def _state(self) -> dict[str, Any]:
        named = {"time": self._time}
        for i, (variable, moments) in enumerate(zip(self._trained, self._moments, strict=True)):
            named |= {f"trained{i}": variable}
            named |= {f"moment{i}_{j}": moment for j, moment in enumerate(moments)}
        return named

    def prepare(
        self, targets: sparse.csr_matrix, features: sparse.csr_matrix, max_cells: int
    ) -> None:
        """Take the ones and the features (with an intercept) of all rows."""
        self._targets, self._features = targets, features
        self._sample = ColumnSample(targets, max_cells)
        self._place = np.full(targets.shape[1], -1, np.int32)
        ints, pairs = tf.TensorSpec([None], tf.int32), tf.TensorSpec([None, 2], tf.int32)
        floats, number = tf.TensorSpec([None], tf.float32), tf.TensorSpec([], tf.float32)
        x = tf.SparseTensorSpec([None, features.shape[1]], tf.float32)
        signature = [x, ints, floats, pairs, number]
        if self._sample.everything:
            self._step = tf.function(self._step_all, input_signature=signature)
        else:
            signature += [ints, floats, pairs]
            self._step = tf.function(self._step_sampled, input_signature=signature)

    def step(self, rows: np.ndarray, rate: float, rng: np.random.Generator) -> float:
        """Take a step on some rows; return their cross-entropy before it."""
        ones, x = self._targets[rows].tocoo(), self._features[rows].tocoo()
        keep = rng.random(len(rows)) >= self.stage.offset_dropout
        arguments: list[Any] = [
            tf.SparseTensor(np.stack([x.row, x.col], 1).astype(np.int64), x.data, x.shape),
            rows.astype(np.int32),
            keep.astype(np.float32),
            np.stack([ones.row, ones.col], 1).astype(np.int32),
            np.float32(rate),
        ]
        if not self._sample.everything:
            columns, weights = self._sample.draw(rng)
            self._place[columns] = np.arange(len(columns), dtype=np.int32)
            at = self._place[ones.col]
            self._place[columns] = -1
            inside = np.stack([ones.row, at], 1)[at >= 0].astype(np.int32)
            arguments += [columns.astype(np.int32), weights, inside]
        return float(self._step(*arguments))

    def _step_all(self, x: Any, rows: Any, keep: Any, ones: Any, rate: Any) -> Any:
        offsets, y = self._encode(x, rows, keep)
        z, p, zero_loss = _compare(y, self._last)
        loss = tf.reduce_sum(zero_loss) - tf.reduce_sum(tf.gather_nd(z, ones))
        slope = tf.tensor_scatter_nd_sub(p, ones, tf.ones_like(ones[:, 0], tf.float32))
        grad_last = None if self._frozen else tf.matmul(slope, y, transpose_a=True)
        self._descend(x, rows, keep, offsets, tf.matmul(slope, self._last), grad_last, rate)
        return loss

    def _step_sampled(
        self,
        x: Any,
        rows: Any,
        keep: Any,
        ones: Any,
        rate: Any,
        columns: Any,
        weights: Any,
        inside: Any,
    ) -> Any:
        """Take the zeros from a sample of columns, the ones as they are.

        `inside` are the ones whose column is in the sample, by place in it: they are no zeros.
        """
        offsets, y = self._encode(x, rows, keep)
        last = tf.gather(self._last, columns)
        _, p, zero_loss = _compare(y, last)
        slope, zero_loss = p * weights, zero_loss * weights
        slope = tf.tensor_scatter_nd_sub(slope, inside, tf.gather_nd(slope, inside))
        ours, theirs = tf.gather(y, ones[:, 0]), tf.gather(self._last, ones[:, 1])
        z = tf.reduce_sum(ours * theirs, 1)
        loss = (
            tf.reduce_sum(zero_loss)
            - tf.reduce_sum(tf.gather_nd(zero_loss, inside))
            + tf.reduce_sum(tf.nn.softplus(-z))
        )
        missing = (tf.sigmoid(z) - 1.0)[:, None]
        grad_y = tf.matmul(slope, last) + tf.math.segment_sum(
            tf.concat([missing * theirs, tf.zeros_like(y[:1])], 0),
            tf.concat([ones[:, 0], tf.shape(rows) - 1], 0),
        )
        grad_last = None
        if not self._frozen:
            grad_last = tf.tensor_scatter_nd_add(
                tf.math.unsorted_segment_sum(missing * ours, ones[:, 1], self._last.shape[0]),
                columns[:, None],
                tf.matmul(slope, y, transpose_a=True),
            )
        self._descend(x, rows, keep, offsets, grad_y, grad_last, rate)
        return loss

    def _encode(self, x: Any, rows: Any, keep: Any) -> tuple[Any, Any]:
        offsets = tf.gather(self._offsets, rows)
        return offsets, tf.sparse.sparse_dense_matmul(x, self._weights) + offsets * keep[:, None]

    def _descend(
        self, x: Any, rows: Any, keep: Any, offsets: Any, grad_y: Any, grad_last: Any, rate: Any
    ) -> None:
        stage, size = self.stage, tf.cast(tf.shape(rows)[0], tf.float32)
        share = size / self._offsets.shape[0]  # of the penalties that are not of a row
        grad_y = grad_y * self._free
        of_rows = grad_y * keep[:, None] + stage.l2_offset * offsets
        grads = [
            tf.sparse.sparse_dense_matmul(x, grad_y, adjoint_a=True)
            + (stage.l2 * share) * self._shrunk * self._weights,
            tf.scatter_nd(rows[:, None], of_rows, self._offsets.shape),
        ]
        if grad_last is not None:
            grads.append((grad_last + (stage.l2_last * share) * self._last) * self._free_last)
        time = self._time.assign_add(1.0)
        rate = rate * tf.sqrt(1.0 - _BETA_2**time) / (1.0 - _BETA_1**time)
        for variable, moments, grad in zip(self._trained, self._moments, grads, strict=True):
            grad = grad / size
            first = moments[0].assign_add((1 - _BETA_1) * (grad - moments[0]))
            second = moments[1].assign_add((1 - _BETA_2) * (grad * grad - moments[1]))
            variable.assign_sub(rate * first / (tf.sqrt(second) + _EPSILON))


def _compare(y: Any, last: Any) -> tuple[Any, Any, Any]:
    """Return logits, probabilities, and the loss of each entry were it a zero."""
    z = tf.matmul(y, last, transpose_b=True)
    odds = tf.exp(tf.minimum(z, 30.0))  # one exponential for both, which may not overflow
    return z, odds / (1.0 + odds), tf.math.log(1.0 + odds)
