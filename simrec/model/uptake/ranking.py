"""The ranking objective: two towers that tell liked entries from all the others.

Liked entries are ones and everything else zeros, also the pairs nobody has seen: who takes up what
is the signal, and features carry it to items that nobody has rated yet. The towers are two
similarity encoders. The item encoder is trained with a free last layer, the user encoder with its
last layer frozen to the item vectors. Vectors hold the biases as coordinates, item ``[v, b, 1]``
and user ``[w, 1, c]``, so that the logit of a pair is one scalar product.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import lsqr

from simrec.errors import InputError
from simrec.model.run.checkpoint import Checkpoint
from simrec.model.uptake.ranking_network import RankingTower, Stage

logger = logging.getLogger(__name__)

# Share of the epochs that the user encoder takes: it starts from vectors that fit already.
_USER_SHARE = 0.25


@dataclass(frozen=True)
class RankingTowers:
    """Vectors of what was seen in training, and linear encoders for what was not.

    Attributes
    ----------
    item_vectors : ndarray
        float32, items x D. The logit of a pair is the scalar product of its two vectors.
    user_vectors : ndarray
        float32, users x D.
    item_weights : ndarray
        float32, (item features + 1) x D: the vector of a new item is ``[x, 1] @ item_weights``.
    user_weights : ndarray
        float32, (user features + 1) x D, likewise.
    history : list of dict
        Of each epoch: "loss" (or "user_loss"), the cross-entropy per liked entry, and "seconds".
    """

    item_vectors: np.ndarray
    user_vectors: np.ndarray
    item_weights: np.ndarray
    user_weights: np.ndarray
    history: list[dict[str, float]]


def fit_ranking(
    liked: sparse.csr_matrix,
    item_features: sparse.csr_matrix | None = None,
    user_features: sparse.csr_matrix | None = None,
    *,
    embedding_dim: int = 32,
    epochs: int = 20,
    batch_size: int = 256,
    learning_rate: float = 0.03,
    random_state: int = 0,
    l2: float = 300.0,
    l2_offset: float = 1.0,
    l2_last: float = 5.0,
    l2_user: float = 300.0,
    offset_dropout: float = 0.5,
    user_offset_dropout: float = 0.2,
    max_cells: int = 2**27,
    on_epoch: Callable[[dict[str, float]], None] | None = None,
    checkpoint: Checkpoint | None = None,
) -> RankingTowers:
    """Learn vectors whose scalar product is the logit of the probability that a user likes an item.

    The penalties are precisions of normal priors and stand beside the cross-entropy summed over
    all entries: they need no adjustment to the size of the data.

    Parameters
    ----------
    liked : scipy.sparse.csr_matrix
        Items x users: what is stored is liked, whatever its value; all else is a zero.
    item_features, user_features : scipy.sparse.csr_matrix or None
        A row of features for each item and user; None where there are none.
    embedding_dim : int
        Coordinates beside the two biases, so that D is two more.
    epochs : int
        Passes over the items; a quarter as many over the users follow.
    batch_size : int
        Most rows of a batch, unless there are more than 64 such batches in an epoch. Few rows are
        cut into 12 batches all the same: it is steps that it takes.
    learning_rate : float
        First step size (Adam); it falls to zero as a cosine.
    random_state : int
        Seed of the start, of the batches and of what is dropped and sampled.
    l2 : float
        Penalty of the item encoder's weights.
    l2_offset : float
        Penalty of the items' offsets from what their features say.
    l2_last : float
        Penalty of the users' vectors, and of their offsets.
    l2_user : float
        Penalty of the user encoder's weights.
    offset_dropout, user_offset_dropout : float
        Share of rows whose offsets are hidden in a step, so that the encoder must answer for them
        as it must for new ones.
    max_cells : int
        Most entries that an epoch looks at: beyond it the zeros are sampled and weighted. Bounds
        time and memory.
    on_epoch : callable or None
        Called after each epoch with its entry of the history.
    checkpoint : Checkpoint or None
        Where to keep the state after epochs, and to go on from.

    Returns
    -------
    RankingTowers
        Vectors and encoders.
    """
    liked = _check_liked(liked)
    x_items = _with_intercept(item_features, liked.shape[0], "item_features")
    x_users = _with_intercept(user_features, liked.shape[1], "user_features")
    if embedding_dim < 1 or epochs < 1 or batch_size < 1:
        raise InputError(
            "embedding_dim, epochs and batch_size must be at least 1, got "
            f"{embedding_dim}, {epochs} and {batch_size}"
        )
    rng = np.random.default_rng(random_state)
    run = _Run(epochs, batch_size, learning_rate, max_cells, rng, on_epoch, [], checkpoint)
    kept = run.resume()

    weights, offsets, last = _start(liked, x_items, embedding_dim, rng)
    one, bias = embedding_dim + 1, embedding_dim  # of an item vector; a user's are the other way
    items = RankingTower(
        weights, offsets, last, one, bias, Stage(l2, l2_offset, l2_last, offset_dropout)
    )
    if "item_weights" in kept:  # the items were done
        names = ("item_weights", "item_vectors", "user_vectors")
        item_weights, item_vectors, user_vectors = (kept[name] for name in names)
    else:
        run.train(items, liked, x_items, epochs, "loss")
        item_weights, offsets, user_vectors = items.arrays()
        item_vectors = x_items @ item_weights + offsets
    del items

    mean = user_vectors.mean(0)
    weights = np.zeros((x_users.shape[1], embedding_dim + 2), np.float32)
    weights[-1] = mean
    user_weights = weights
    if x_users.shape[1] > 1:
        users = RankingTower(
            weights,
            user_vectors - mean,
            item_vectors,
            bias,
            None,
            Stage(l2_user, l2_last, 0.0, user_offset_dropout),
        )
        done = {
            "item_weights": item_weights,
            "item_vectors": item_vectors,
            "user_vectors": user_vectors,
        }
        n = math.ceil(_USER_SHARE * epochs)
        run.train(users, liked.T.tocsr(), x_users, n, "user_loss", done)
        user_weights = users.arrays()[0]
    # A user who is known keeps the vector that the item tower's last layer gave. The one fitted
    # again to the final item vectors ranked new items worse on MovieLens in every comparison
    # (perhaps since those vectors have offsets and a new item's has none), warm ones about alike.
    return RankingTowers(item_vectors, user_vectors, item_weights, user_weights, run.history)


@dataclass
class _Run:
    """What the trainings of both towers have in common."""

    epochs: int
    batch_size: int
    learning_rate: float
    max_cells: int
    rng: np.random.Generator
    on_epoch: Callable[[dict[str, float]], None] | None
    history: list[dict[str, float]]
    checkpoint: Checkpoint | None

    def resume(self) -> dict[str, np.ndarray]:
        """Take over the checkpoint, if there is one to go on from; give its arrays."""
        self._saved: tuple[dict[str, np.ndarray], dict[str, Any]] | None = None
        if self.checkpoint is not None:
            self._saved = self.checkpoint.read()
        if self._saved is None:
            return {}
        for logs in self._saved[1]["history"]:
            self._log(logs)
        return self._saved[0]

    def train(
        self,
        tower: RankingTower,
        targets: sparse.csr_matrix,
        features: sparse.csr_matrix,
        epochs: int,
        name: str,
        before: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Train a tower in batches of rows, the step size decaying to zero.

        `before` is what earlier stages gave, for the checkpoint.
        """
        tower.prepare(targets, features, self.max_cells)
        first = 0
        if self._saved is not None:
            arrays, state = self._saved
            self._saved = None
            tower.restore(arrays)
            self.rng.bit_generator.state = state["rng"]
            first = state["epoch"]
        n_rows = targets.shape[0]
        n_batches = min(max(math.ceil(n_rows / self.batch_size), 12), 64, n_rows)
        for epoch in range(first, epochs):
            started, total = time.perf_counter(), 0.0
            order = self.rng.permutation(n_rows)
            for number, rows in enumerate(np.array_split(order, n_batches)):
                done = (epoch + number / n_batches) / epochs
                rate = self.learning_rate * 0.5 * (1 + math.cos(math.pi * done))
                total += tower.step(rows, rate, self.rng)
            logs = {name: total / targets.nnz, "seconds": time.perf_counter() - started}
            logger.debug("epoch %d of %d: %s", epoch + 1, epochs, logs)
            self._log(logs)
            if self.checkpoint is not None and self.checkpoint.due():
                begun = time.perf_counter()
                state = {
                    "epoch": epoch + 1,
                    "rng": self.rng.bit_generator.state,
                    "history": self.history,
                }
                self.checkpoint.write({**tower.state(), **(before or {})}, state, begun)

    def _log(self, logs: dict[str, float]) -> None:
        self.history.append(logs)
        if self.on_epoch is not None:
            self.on_epoch(logs)


def _start(
    liked: sparse.csr_matrix, x_items: sparse.csr_matrix, d: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return item weights, item offsets and user vectors to start from.

    Biases span several units of the logit, which would take most of the steps to walk. They start
    at the logarithms of the counts, an item's as a ridge regression on its features and the rest.
    """
    n_items, n_users = liked.shape
    weights = rng.normal(0, 0.02, (x_items.shape[1], d + 2)).astype(np.float32)
    weights[-1] = weights[:, d:] = 0.0
    weights[-1, d + 1] = 1.0
    offsets = np.zeros((n_items, d + 2), np.float32)
    users = rng.normal(0, 0.1, (n_users, d + 2)).astype(np.float32)
    users[:, d] = 1.0

    per_item, per_user = np.diff(liked.indptr), np.bincount(liked.indices, minlength=n_users)
    users[:, d + 1] = np.log((per_user + 1) / (per_user.mean() + 1))
    bias = np.log((per_item + 1) / (n_users + 1))
    mean = bias.mean()
    features = x_items[:, :-1]
    if features.shape[1]:
        weights[:-1, d] = lsqr(features, bias - mean, damp=5.0, iter_lim=100)[0]
    weights[-1, d] = mean
    offsets[:, d] = bias - x_items @ weights[:, d]
    return weights, offsets, users


def _check_liked(liked: Any) -> sparse.csr_matrix:
    if not sparse.issparse(liked) or liked.ndim != 2:
        raise InputError(f"liked must be a sparse matrix, items x users, got {type(liked)}")
    liked = sparse.csr_matrix(liked, copy=True)
    liked.sum_duplicates()
    if not liked.nnz:
        raise InputError(
            "nothing is liked: there is no positive entry to rank by. Lower the rating from which "
            "an item counts as liked"
        )
    return sparse.csr_matrix(
        (np.ones(liked.nnz, np.float32), liked.indices, liked.indptr), liked.shape
    )


def _with_intercept(features: Any, n_rows: int, name: str) -> sparse.csr_matrix:
    if features is None:
        features = sparse.csr_matrix((n_rows, 0), dtype=np.float32)
    if features.shape[0] != n_rows:
        raise InputError(f"{name} has {features.shape[0]} rows, but liked has {n_rows} of them")
    features = sparse.csr_matrix(features, dtype=np.float32)
    if not np.isfinite(features.data).all():
        row = (
            int(
                np.searchsorted(
                    features.indptr, np.flatnonzero(~np.isfinite(features.data))[0], "right"
                )
            )
            - 1
        )
        raise InputError(f"{name} has values that are not finite, the first in row {row}")
    return sparse.hstack([features, np.ones((n_rows, 1), np.float32)], format="csr")
