"""Encoders with hidden layers for new entities: SimEcs whose last layer is frozen to the partners.

The rows are R's rows less the partners' biases, the last layer is [w, 1] of each partner as it is
believed to be, and rows held out whole say when to stop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from simrec.model.fit.observed import Side
from simrec.model.fit.posterior import Belief

if TYPE_CHECKING:
    from simrec.simec.simec import SimEc


@dataclass(eq=False)
class Network:
    """A trained encoder, and where its outputs z go in the vectors: ``z @ place``."""

    simec: SimEc
    place: np.ndarray

    def encode(self, X: sparse.csr_matrix) -> np.ndarray:
        """Give the network's part of the vectors of feature rows."""
        return self.simec.transform(X) @ self.place

    def document(self) -> dict[str, Any]:
        """Return the encoder as plain data; its weights are saved as arrays."""
        from simrec.simec.encoder_files import encoder_document

        return encoder_document(self.simec.encoder_)

    @classmethod
    def restore(
        cls, document: dict[str, Any], weights: list[np.ndarray], place: np.ndarray
    ) -> Network:
        """Return the network that `document` described, with these weights; runs no code."""
        from simrec.simec.encoder_files import encoder_from_document
        from simrec.simec.encoders import check_encoder_shapes
        from simrec.simec.simec import SimEc

        simec = SimEc(embedding_dim=len(place))
        simec.encoder_ = encoder_from_document(document, weights)
        simec.feature_kind_ = "sparse"
        simec.feature_shape_ = tuple(simec.encoder_.input_shape[1:])
        check_encoder_shapes(simec.encoder_, simec.feature_shape_, len(place))
        return cls(simec, place)


def fit_network(
    X: sparse.csr_matrix,
    side: Side,
    partners: Belief,
    hidden_layers: tuple[int, ...],
    seed: int,
    rows: np.ndarray | None = None,
) -> SimEc:
    """Train a SimEc from features (without the constant) against frozen partners.

    Parameters
    ----------
    X : csr_matrix
        Feature rows of the side.
    side : Side
        Its ratings.
    partners : Belief
        What is known of the other side.
    hidden_layers : tuple of int
        Widths.
    seed : int
        Seed of the weights, the batches and the rows held out.
    rows : numpy.ndarray, optional
        Rows to train on; all by default.
    """
    from simrec.simec.simec import SimEc

    R = sparse.vstack(side.blocks, format="csr")
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
    return simec.fit(X, R, last_layer=partners.rows().T)


def cross_fit_network(
    X: sparse.csr_matrix,
    side: Side,
    partners: Belief,
    hidden_layers: tuple[int, ...],
    folds: np.ndarray,
    seed: int,
) -> tuple[SimEc, np.ndarray]:
    """Train on all rows, and encode each row by a network that has not seen it."""
    simec = fit_network(X, side, partners, hidden_layers, seed)
    held_out = np.empty((side.n_rows, partners.mean.shape[1]), np.float32)
    for fold in range(int(folds.max(initial=0)) + 1):
        rows = folds == fold
        without = fit_network(X, side, partners, hidden_layers, seed, np.flatnonzero(~rows))
        held_out[rows] = without.transform(X[rows])
    return simec, held_out
