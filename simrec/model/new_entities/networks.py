"""Encoders of new entities with hidden layers: random units, or SimEcs that are trained.

Random units are ``relu(x K + b)`` with K and b drawn once. Only the last layer is fitted, in closed
form, so that a cross-fit costs no more than with further features.

A trained SimEc has its last layer frozen to [w, 1] of each partner at its mean. The rows are R's
rows less the partners' biases, and rows held out whole say when to stop. Where there are very many
users, a sample of them is trained on. Workers train on the same sample, each for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from simrec.data.sides import Side
from simrec.model.params import Settings
from simrec.model.posterior.posterior import Posterior
from simrec.model.posterior.problem import Problem
from simrec.model.run.threads import row_blocks
from simrec.model.run.workers import ONE_WORKER, Workers
from simrec.model.sample import MOST_RATINGS, drawn_users, gathered_matrix

if TYPE_CHECKING:
    from simrec.simec.simec import SimEc


# Units of a layer.
_WIDTH = 128


@dataclass(frozen=True, eq=False)
class HiddenLayer:
    """A layer of rectified units over features, without the constant.

    The units of the rows it was drawn for have mean 0, and together a variance of 1.
    """

    kernel: np.ndarray
    bias: np.ndarray
    mean: np.ndarray  # subtracted from each unit
    scale: np.ndarray  # factor of each unit after that

    @classmethod
    def drawn(
        cls,
        X: sparse.csr_matrix,
        relevance: np.ndarray,
        rng: np.random.Generator,
        workers: Workers = ONE_WORKER,
    ) -> HiddenLayer:
        """Draw a layer for rows; the weights of a feature have its relevance as deviation."""
        n = workers.total(X.shape[0])

        def mean(values: Callable[[sparse.csr_matrix], np.ndarray]) -> np.ndarray:
            total = np.zeros(_WIDTH)
            for rows in row_blocks(X.shape[0]):
                total += values(X[rows]).sum(0)
            return workers.sum(total) / n

        kernel = rng.normal(size=(X.shape[1], _WIDTH)) * relevance[:, None]
        center = mean(lambda x: x @ kernel)
        std = np.maximum(np.sqrt(mean(lambda x: (x @ kernel - center) ** 2)), 1e-12)
        kernel = kernel / std
        bias = rng.normal(size=_WIDTH) - center / std
        center = mean(lambda x: np.maximum(x @ kernel + bias, 0))
        std = np.sqrt(mean(lambda x: (np.maximum(x @ kernel + bias, 0) - center) ** 2))
        # A unit that is hardly ever above zero is not blown up.
        parts = (kernel, bias, center, 1 / (np.sqrt(_WIDTH) * np.maximum(std, 0.01)))
        return cls(*(part.astype(np.float32) for part in parts))

    @property
    def width(self) -> int:
        """Number of units."""
        return len(self.bias)

    def __call__(self, X: sparse.csr_matrix) -> np.ndarray:
        """Return the units of feature rows."""
        out = np.empty((X.shape[0], self.width), np.float32)
        for rows in row_blocks(len(out)):
            units = np.maximum(X[rows] @ self.kernel + self.bias, 0)
            out[rows] = (units - self.mean) * self.scale
        return out

    def network(self, weights: np.ndarray) -> SimEc:
        """Return the SimEc that encodes by ``[x, 1, units] @ weights``.

        A straight line is two rectified units, one for each sign.
        """
        from simrec.simec.encoders import DenseStack
        from simrec.simec.simec import SimEc

        n, D = len(self.kernel), weights.shape[1]
        line, constant, last = weights[:n], weights[n], weights[n + 1 :]
        eye = np.eye(D, dtype=np.float32)
        last = self.scale[:, None] * last
        stack = DenseStack("sparse", n, (self.width + 2 * D, D), activation="relu")
        simec = SimEc(embedding_dim=D, hidden_layers=stack.widths[:-1], activation="relu")
        simec.encoder_ = stack.build(np.random.default_rng(0))
        simec.encoder_.set_weights(
            [
                np.hstack([self.kernel, line, -line]),
                np.concatenate([self.bias, constant, -constant]),
                np.vstack([last, eye, -eye]),
                -self.mean @ last,
            ]
        )
        simec.feature_kind_, simec.feature_shape_ = "sparse", (n,)
        return simec


@dataclass(frozen=True, eq=False)
class Sampled:
    """The users that networks are trained on, on every worker."""

    problem: Problem
    R: sparse.csr_matrix  # these users x items, in the units of `Observed`
    rows: np.ndarray  # which of this worker's users are among them
    workers: Workers

    @classmethod
    def of(cls, problem: Problem, rng: np.random.Generator) -> Sampled:
        """Draw users; all where they have no more ratings than can be trained on."""
        observed = problem.observed
        rows = drawn_users(
            observed.my_users, observed.n_users, observed.n_entries, MOST_RATINGS, rng
        )
        R = observed.rows.users.matrix()[rows]
        return cls(problem, gathered_matrix(R, observed.workers), rows, observed.workers)

    def of_users(self, array: np.ndarray) -> np.ndarray:
        """Gather an array with a row for each user."""
        return np.concatenate(self.workers.gather(array[self.rows]))


def fit_network(
    sampled: Sampled,
    side: Side,
    partners: Posterior,
    settings: Settings,
    seed: int,
    keep: np.ndarray | None = None,
) -> SimEc:
    """Train a SimEc from features, without the constant, with W_l = [w, 1] of the partners' means.

    `keep` are the entities of the side to train on, all without it.
    """
    from simrec.simec.simec import SimEc

    X, R, mean = sampled.problem.features[side][:, :-1], sampled.R, partners.mean
    if side == "users":
        X = gathered_matrix(X[sampled.rows], sampled.workers)
        keep = None if keep is None else sampled.of_users(keep)
    else:
        R, mean = sparse.csr_matrix(R.T), sampled.of_users(mean)
    R = sparse.csr_matrix((R.data - mean[R.indices, -1], R.indices, R.indptr), shape=R.shape)
    if keep is not None:
        X, R = X[keep], R[keep]
    simec = SimEc(
        embedding_dim=mean.shape[1],
        hidden_layers=settings.hidden_layers,
        encoder=settings.encoders[side],
        l2=1e-4,
        input_dropout=0.1,
        # Few rows are cut into as many batches as many are: it is steps that training takes.
        batch_size=int(np.clip(R.shape[0] // 16, 8, 256)),
        epochs=40,
        validation_fraction=0.1 if R.shape[0] >= 20 else 0.0,
        patience=4 if R.shape[0] >= 20 else None,
        random_state=seed,
    )
    simec.fit(X, R, last_layer=Posterior(mean).regressors().T)
    if sampled.workers.size > 1:  # the last bits differ where the workers' processors do
        first = sampled.workers.first
        simec.encoder_.set_weights([first(w) for w in simec.encoder_.get_weights()])
        simec.last_layer_ = first(simec.last_layer_)
    return simec


def cross_fit_network(
    sampled: Sampled,
    side: Side,
    partners: Posterior,
    settings: Settings,
    folds: np.ndarray,
    seed: int,
) -> tuple[SimEc, np.ndarray]:
    """Train on all rows, and encode each row by a network that has not seen it."""
    simec = fit_network(sampled, side, partners, settings, seed)
    X = sampled.problem.features[side][:, :-1]
    held_out = np.empty((X.shape[0], partners.mean.shape[1]), np.float32)
    for fold in range(min(settings.folds, sampled.problem.n_rows[side])):
        rows = folds == fold
        without = fit_network(sampled, side, partners, settings, seed, ~rows)
        held_out[rows] = without.transform(X[rows])
    return simec, held_out
