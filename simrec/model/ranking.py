"""The ranking objective: two towers that tell liked entries from all the others.

Liked entries are ones and everything else zeros, also the pairs nobody has seen: who takes up what
is the signal, and it is there for items that nobody has rated yet. The towers are the two similarity
encoders of the rating model. The item encoder is trained with a free last layer, the user encoder
with its last layer frozen to the item vectors. A vector holds the biases as coordinates, item
``[v, b, 1]`` and user ``[w, 1, c]``, so that the logit is one scalar product.
"""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import sparse

from simrec.errors import InputError
from simrec.model.keras import tf

_log = logging.getLogger(__name__)

# Entries of the target matrix that an epoch looks at before it starts to sample the zeros, and the
# fewest columns it then takes for a batch of rows.
_CELLS = 2**28
_FEWEST_COLUMNS = 1024
_FEWEST_BATCHES = 12
_BETA_1, _BETA_2, _EPSILON = 0.9, 0.99, 1e-8


@dataclass(frozen=True)
class RankingTowers:
    """Vectors of what was seen in training, and the linear encoders of what was not.

    Attributes
    ----------
    item_vectors : ndarray
        float32, items x D: the encoder's vector plus the item's own offset.
    user_vectors : ndarray
        float32, users x D. The logit of a pair is the scalar product of its two vectors.
    item_weights : ndarray
        float32, (item features + 1) x D: a new item's vector is ``[x, 1] @ item_weights``.
    user_weights : ndarray
        float32, (user features + 1) x D.
    history : list of dict
        One entry per epoch: tower, epoch, loss (cross-entropy per liked entry), seconds.
    """

    item_vectors: np.ndarray
    user_vectors: np.ndarray
    item_weights: np.ndarray
    user_weights: np.ndarray
    history: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class _Stage:
    """What the two towers' trainings have in common."""

    batch_size: int
    learning_rate: float
    l2: float
    l2_offset: float
    l2_last: float
    offset_dropout: float
    max_cells: int


class _Columns:
    """The columns that a batch of rows is compared with: all, or a sample with its weights.

    A sample is systematic: column j is in it with probability pi_j and weighs 1 / pi_j, so that the
    sum over the sample is the sum over all columns on average. Frequent columns have the larger
    products, hence more of the sum: they are taken more often.
    """

    def __init__(self, targets: sparse.csr_matrix, max_cells: int):
        n_rows, n_columns = targets.shape
        size = max(_FEWEST_COLUMNS, max_cells // max(n_rows, 1))
        self.all = size >= n_columns
        if self.all:
            return
        counts = np.bincount(targets.indices, minlength=n_columns)
        share = 0.5 / n_columns + 0.5 * counts / counts.sum()
        taken = np.zeros(n_columns, bool)
        # Columns due more than once are taken always; the others share what is left.
        for _ in range(20):
            chance = np.where(taken, 1.0, share * (size - taken.sum()) / share[~taken].sum())
            if (chance <= 1).all():
                break
            taken |= chance >= 1
        self._chance = np.minimum(chance, 1.0)

    def draw(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return columns (ascending) and their weights."""
        chance = self._chance
        order = rng.permutation(len(chance))
        steps = np.floor(np.cumsum(chance[order]) + rng.random())
        columns = np.sort(order[np.diff(steps, prepend=0.0) >= 1])
        return columns, (1.0 / chance[columns]).astype(np.float32)


def _sparse(rows: Any, columns: Any, values: Any, shape: Any) -> Any:
    return tf.sparse.SparseTensor(tf.stack([rows, columns], 1), values, tf.cast(shape, tf.int64))


class _Tower:
    """A linear encoder with offsets for the rows, against a last layer that is free or frozen.

    Minimises the cross-entropy summed over all entries, plus ``l2 / 2 |weights|^2``, ``l2_offset / 2
    |offsets|^2`` and ``l2_last / 2 |last layer|^2``: the penalties are precisions of priors, which
    is why they need no adjustment to the size of the data. The gradient is written out, since the
    entries of a batch are needed once and not kept for a tape.
    """

    def __init__(
        self,
        weights: np.ndarray,
        offsets: np.ndarray,
        last: np.ndarray,
        fixed: tuple[int, int | None],
        stage: _Stage,
    ):
        ones, other = fixed
        self.stage = stage
        self.weights = tf.Variable(weights, name="weights")
        self.offsets = tf.Variable(offsets, name="offsets")
        self.last = tf.Variable(last, name="last_layer", trainable=other is not None)
        free = np.ones(weights.shape[1], np.float32)
        free[ones] = 0.0
        self._free = tf.constant(free)
        self._variables = [self.weights, self.offsets]
        if other is not None:
            free = np.ones(weights.shape[1], np.float32)
            free[other] = 0.0
            self._free_last = tf.constant(free)
            self._variables.append(self.last)
        self._moments = [
            (tf.Variable(tf.zeros_like(v)), tf.Variable(tf.zeros_like(v))) for v in self._variables
        ]
        decay = np.ones((len(weights), 1), np.float32)
        decay[-1] = 0.0  # the intercept is not shrunk
        self._decay = tf.constant(decay)
        self._time = tf.Variable(0.0)

    @tf.function(reduce_retracing=True)
    def step(self, x, rows, keep, liked, columns, column_weights, inside, rate, share):  # type: ignore[no-untyped-def]
        """Take one step on a batch of rows; return its cross-entropy.

        `liked`: (row of the batch, column) of each one; `inside`: the same for those ones whose
        column is in the sample, by place in the sample. Empty `columns` means all of them.
        """
        sampled = column_weights is not None
        encoded = tf.sparse.sparse_dense_matmul(x, self.weights)
        offsets = tf.gather(self.offsets, rows)
        y = encoded + offsets * keep[:, None]
        last = tf.gather(self.last, columns) if sampled else self.last
        z = tf.matmul(y, last, transpose_b=True)
        # One exponential serves both the slope and the loss; it may not overflow.
        odds = tf.exp(tf.minimum(z, 30.0))
        p = odds / (1.0 + odds)
        softplus = tf.math.log(1.0 + odds)
        one = tf.ones_like(liked[:, 0], tf.float32)
        if sampled:
            # Zeros from the sample, weighted; ones exactly, by gathering their two vectors.
            slope = p * column_weights
            hit = tf.gather_nd(slope, inside)
            slope = tf.tensor_scatter_nd_sub(slope, inside, hit)
            entropy = tf.reduce_sum(softplus * column_weights) - tf.reduce_sum(
                tf.gather_nd(softplus, inside) * tf.gather(column_weights, inside[:, 1])
            )
            ours, theirs = tf.gather(y, liked[:, 0]), tf.gather(self.last, liked[:, 1])
            z_one = tf.reduce_sum(ours * theirs, 1)
            entropy += tf.reduce_sum(tf.nn.softplus(-z_one))
            missing = (tf.sigmoid(z_one) - 1.0)[:, None]
            grad_y = tf.matmul(slope, last) + tf.math.unsorted_segment_sum(
                missing * theirs, liked[:, 0], tf.shape(y)[0]
            )
        else:
            entropy = tf.reduce_sum(softplus) - tf.reduce_sum(tf.gather_nd(z, liked))
            slope = tf.tensor_scatter_nd_sub(p, liked, one)
            grad_y = tf.matmul(slope, last)
        size = tf.cast(tf.shape(rows)[0], tf.float32)
        grad_y *= self._free
        stage = self.stage
        grads = [
            tf.sparse.sparse_dense_matmul(x, grad_y, adjoint_a=True)
            + (stage.l2 * share) * self._decay * self.weights * self._free,
            tf.tensor_scatter_nd_add(
                tf.zeros_like(self.offsets),
                rows[:, None],
                grad_y * keep[:, None] + stage.l2_offset * offsets,
            ),
        ]
        if len(self._variables) == 3:
            grad = tf.matmul(slope, y, transpose_a=True)
            if sampled:
                grad = tf.tensor_scatter_nd_add(
                    tf.math.unsorted_segment_sum(
                        missing * ours, liked[:, 1], tf.shape(self.last)[0]
                    ),
                    columns[:, None],
                    grad,
                )
            grads.append((grad + (stage.l2_last * share) * self.last) * self._free_last)
        self._time.assign_add(1.0)
        correct = tf.sqrt(1.0 - _BETA_2**self._time) / (1.0 - _BETA_1**self._time)
        for variable, (first, second), grad in zip(
            self._variables, self._moments, grads, strict=True
        ):
            grad = grad / size
            first.assign_add((1 - _BETA_1) * (grad - first))
            second.assign_add((1 - _BETA_2) * (grad * grad - second))
            variable.assign_sub(rate * correct * first / (tf.sqrt(second) + _EPSILON))
        return entropy


def _train(
    tower: _Tower,
    name: str,
    targets: sparse.csr_matrix,
    features: sparse.csr_matrix,
    epochs: int,
    rng: np.random.Generator,
    on_epoch: Callable[[dict[str, Any]], None] | None,
) -> list[dict[str, Any]]:
    """Train a tower for some epochs of row batches, the step size decaying to zero."""
    stage = tower.stage
    n_rows = targets.shape[0]
    columns = _Columns(targets, stage.max_cells)
    place = np.full(targets.shape[1], -1, np.int32)
    n_batches = max(math.ceil(n_rows / stage.batch_size), min(_FEWEST_BATCHES, n_rows))
    history = []
    for epoch in range(epochs):
        started, total = time.perf_counter(), 0.0
        for number, rows in enumerate(np.array_split(rng.permutation(n_rows), n_batches)):
            done = (epoch * n_batches + number) / (epochs * n_batches)
            ones, x = targets[rows].tocoo(), features[rows].tocoo()
            liked = np.stack([ones.row, ones.col], 1).astype(np.int32)
            sample = weights = inside = None
            if not columns.all:
                sample, weights = columns.draw(rng)
                place[sample] = np.arange(len(sample), dtype=np.int32)
                at = place[ones.col]
                inside = np.stack([ones.row[at >= 0], at[at >= 0]], 1).astype(np.int32)
                place[sample] = -1
                sample = tf.constant(sample, tf.int32)
                weights, inside = tf.constant(weights), tf.constant(inside)
            keep = (rng.random(len(rows)) >= stage.offset_dropout).astype(np.float32)
            total += tower.step(
                _sparse(x.row.astype(np.int64), x.col.astype(np.int64), x.data, x.shape),
                tf.constant(rows, tf.int32),
                tf.constant(keep),
                tf.constant(liked),
                sample,
                weights,
                inside,
                tf.constant(stage.learning_rate * 0.5 * (1 + math.cos(math.pi * done)), tf.float32),
                tf.constant(len(rows) / n_rows, tf.float32),
            )
        facts = {
            "tower": name,
            "epoch": epoch + 1,
            "loss": float(total) / targets.nnz,
            "seconds": time.perf_counter() - started,
        }
        _log.info("%(tower)s tower, epoch %(epoch)d: loss %(loss).4f, %(seconds).1f s", facts)
        history.append(facts)
        if on_epoch is not None:
            on_epoch(facts)
    return history


def _with_intercept(features, n):
    if features is None:
        features = sparse.csr_matrix((n, 0), dtype=np.float32)
    return sparse.hstack([features, np.ones((n, 1), np.float32)], format="csr", dtype=np.float32)


def fit_ranking(
    liked,
    item_features,
    user_features,
    *,
    embedding_dim=24,
    epochs=30,
    user_epochs=10,
    batch_size=256,
    learning_rate=0.01,
    random_state=0,
    l2=1.0,
    l2_offset=1.0,
    l2_last=1.0,
    l2_user=1.0,
    l2_user_offset=1.0,
    offset_dropout=0.5,
    user_dropout=0.5,
    max_cells=_CELLS,
    on_epoch=None,
    init=True,
    ws=0.02,
) -> RankingTowers:
    n_items, n_users = liked.shape
    rng = np.random.default_rng(random_state)
    d = embedding_dim
    x_items, x_users = (
        _with_intercept(item_features, n_items),
        _with_intercept(user_features, n_users),
    )
    w = rng.normal(0, ws, (x_items.shape[1], d + 2)).astype(np.float32)
    w[-1, :d] = 0
    w[:, d:] = 0
    w[-1, d + 1] = 1
    density = liked.nnz / (n_items * n_users)
    w[-1, d] = math.log(density / (1 - density))
    last = rng.normal(0, 0.1, (n_users, d + 2)).astype(np.float32)
    last[:, d] = 1
    last[:, d + 1] = 0
    offs = np.zeros((n_items, d + 2), np.float32)
    if init:
        ci = np.asarray(liked.sum(1)).ravel()
        cu = np.asarray(liked.sum(0)).ravel()
        offs[:, d] = np.log((ci + 1) / (ci.mean() + 1))
        cc = np.log((cu + 1) / (cu.mean() + 1))
        last[:, d + 1] = cc
    tower = _Tower(
        w,
        offs,
        last,
        (d + 1, d),
        _Stage(batch_size, learning_rate, l2, l2_offset, l2_last, offset_dropout, max_cells),
    )
    hist = _train(tower, "item", liked, x_items, epochs, rng, on_epoch)
    iw = tower.weights.numpy()
    iv = x_items @ iw + tower.offsets.numpy()
    uv = tower.last.numpy()
    w = np.zeros((x_users.shape[1], d + 2), np.float32)
    w[-1] = uv.mean(0)
    t2 = _Tower(
        w,
        uv - uv.mean(0),
        iv.astype(np.float32),
        (d, None),
        _Stage(batch_size, learning_rate, l2_user, l2_user_offset, 0.0, user_dropout, max_cells),
    )
    if user_epochs:
        hist += _train(t2, "user", liked.T.tocsr(), x_users, user_epochs, rng, on_epoch)
    uw = t2.weights.numpy()
    return RankingTowers(iv, x_users @ uw + t2.offsets.numpy(), iw, uw, hist), uv
