"""Encoders of new entities with hidden layers: SimEcs that are trained.

The last layer is frozen to [w, 1] of each partner at its mean. The rows are R's rows less the
partners' biases, and rows held out whole say when to stop. Where there are very many users, a
sample of them is trained on. Workers train on the same sample, each for itself.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy import sparse

from simrec.data.sides import Side
from simrec.model.params import Settings
from simrec.model.posterior.posterior import Posterior
from simrec.model.posterior.problem import Problem
from simrec.model.run.workers import Workers
from simrec.model.sample import MOST_RATINGS, drawn_users, gathered_matrix
from simrec.simec.simec import SimEc


@dataclass(frozen=True, eq=False)
class Sampled:
    """The users that networks are trained on, on every worker."""

    problem: Problem
    R: sparse.csr_matrix  # these users x items, in the units of `Observed`
    rows: np.ndarray  # which of this worker's users are among them
    workers: Workers

    @classmethod
    def of(cls, problem: Problem, rng: np.random.Generator) -> Self:
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
