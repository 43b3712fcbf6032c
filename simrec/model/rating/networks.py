"""Encoders with hidden layers for new entities: SimEcs whose last layer is frozen to the partners.

The rows are R's rows less the partners' biases, the last layer is [w, 1] of each partner as it is
believed to be, and rows held out whole say when to stop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from simrec.model.rating.observed import RatingRows
from simrec.model.rating.posterior import Posterior

if TYPE_CHECKING:
    from simrec.simec.simec import SimEc


def fit_network(
    X: sparse.csr_matrix,
    ratings: RatingRows,
    partners: Posterior,
    hidden_layers: tuple[int, ...],
    seed: int,
    rows: np.ndarray | None = None,
) -> SimEc:
    """Train a SimEc from features (without the constant) against frozen partners.

    Parameters
    ----------
    X : csr_matrix
        Feature rows.
    ratings : RatingRows
        The ratings, arranged by its rows.
    partners : Posterior
        Posterior of the partners; W_l is [w, 1] of each at its mean.
    hidden_layers : tuple of int
        Widths.
    seed : int
        Seed of the weights, the batches and the rows held out.
    rows : numpy.ndarray, optional
        Rows to train on; all by default.
    """
    from simrec.simec.simec import SimEc

    R = ratings.matrix()
    R.data = R.data - partners.mean[R.indices, -1]
    if rows is not None:
        X, R = X[rows], R[rows]
    simec = SimEc(
        embedding_dim=partners.mean.shape[1],
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
    return simec.fit(X, R, last_layer=partners.regressors().T)


def cross_fit_network(
    X: sparse.csr_matrix,
    ratings: RatingRows,
    partners: Posterior,
    hidden_layers: tuple[int, ...],
    folds: np.ndarray,
    seed: int,
) -> tuple[SimEc, np.ndarray]:
    """Train on all rows, and encode each row by a network that has not seen it."""
    simec = fit_network(X, ratings, partners, hidden_layers, seed)
    held_out = np.empty((ratings.n_rows, partners.mean.shape[1]), np.float32)
    for fold in range(int(folds.max(initial=0)) + 1):
        rows = folds == fold
        without = fit_network(X, ratings, partners, hidden_layers, seed, np.flatnonzero(~rows))
        held_out[rows] = without.transform(X[rows])
    return simec, held_out
