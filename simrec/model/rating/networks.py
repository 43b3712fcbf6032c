"""Encoders with hidden layers for new entities: SimEcs whose last layer is frozen to the partners.

The rows are R's rows less the partners' biases, the last layer is [w, 1] of each partner as it is
believed to be, and rows held out whole say when to stop. Where there are very many users, a sample
of them is trained on. Workers train on the same sample, each for itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from simrec.data.sides import Side
from simrec.model.rating.known_entities import Problem
from simrec.model.rating.posterior import Posterior
from simrec.model.run.workers import Workers
from simrec.model.sample import MOST_RATINGS, drawn_users, gathered_matrix
from simrec.model.simecs import agreed

if TYPE_CHECKING:
    from simrec.simec.simec import SimEc


@dataclass(frozen=True, eq=False)
class Sampled:
    """The users that networks are trained on, on every worker.

    Attributes
    ----------
    R : csr_matrix
        These users x items, in the units of `Observed`.
    rows : numpy.ndarray
        Which of this worker's users are among them.
    workers : Workers
        The workers.
    """

    R: sparse.csr_matrix
    rows: np.ndarray
    workers: Workers

    @classmethod
    def of(cls, problem: Problem, rng: np.random.Generator) -> Sampled:
        """Draw users; all where they have no more ratings than can be trained on."""
        observed = problem.observed
        rows = drawn_users(
            observed.my_users, observed.n_users, observed.n_entries, MOST_RATINGS, rng
        )
        R = observed.rows.users.matrix()[rows]
        return cls(gathered_matrix(R, observed.workers), rows, observed.workers)

    def of_users(self, array: np.ndarray) -> np.ndarray:
        """Gather an array with a row for each user."""
        return np.concatenate(self.workers.gather(array[self.rows]))


def fit_network(
    problem: Problem,
    sampled: Sampled,
    side: Side,
    partners: Posterior,
    hidden_layers: tuple[int, ...],
    seed: int,
    keep: np.ndarray | None = None,
) -> SimEc:
    """Train a SimEc from features (without the constant) against frozen partners.

    Parameters
    ----------
    problem : Problem
        Ratings and features.
    sampled : Sampled
        The users to train on.
    side : {"items", "users"}
        Whose features are encoded.
    partners : Posterior
        Posterior of the partners; W_l is [w, 1] of each at its mean.
    hidden_layers : tuple of int
        Widths.
    seed : int
        Seed of the weights, the batches and the rows held out.
    keep : numpy.ndarray of bool, optional
        Which entities of the side to train on, all of this worker's and of the others' likewise.
    """
    from simrec.simec.simec import SimEc

    X, R, mean = problem.features[side][:, :-1], sampled.R, partners.mean
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
        hidden_layers=hidden_layers,
        l2=1e-4,
        input_dropout=0.1,
        # Few rows are cut into as many batches as many are: it is steps that training takes.
        batch_size=int(np.clip(R.shape[0] // 16, 8, 256)),
        epochs=40,
        validation_fraction=0.1 if R.shape[0] >= 20 else 0.0,
        patience=4 if R.shape[0] >= 20 else None,
        random_state=seed,
    )
    trained = simec.fit(X, R, last_layer=Posterior(mean).regressors().T)
    return agreed(trained, sampled.workers)


def cross_fit_network(
    problem: Problem,
    sampled: Sampled,
    side: Side,
    partners: Posterior,
    hidden_layers: tuple[int, ...],
    n_folds: int,
    folds: np.ndarray,
    seed: int,
) -> tuple[SimEc, np.ndarray]:
    """Train on all rows, and encode each row by a network that has not seen it."""
    simec = fit_network(problem, sampled, side, partners, hidden_layers, seed)
    X = problem.features[side][:, :-1]
    held_out = np.empty((X.shape[0], partners.mean.shape[1]), np.float32)
    for fold in range(n_folds):
        rows = folds == fold
        without = fit_network(problem, sampled, side, partners, hidden_layers, seed, ~rows)
        held_out[rows] = without.transform(X[rows])
    return simec, held_out
