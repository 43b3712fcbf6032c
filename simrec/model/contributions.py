"""What each column of features contributes to a vector."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from simrec.data.features import FeatureEncoder
from simrec.model.head import Encoder, Network


def by_column(
    encoder: FeatureEncoder | None, x: sparse.csr_matrix, weights: np.ndarray
) -> np.ndarray:
    """Apply weights to the features of each column; the first row is that of the constant."""
    out = np.zeros((1 + (0 if encoder is None else len(encoder.columns_)), weights.shape[1]))
    out[0] = weights[-1]
    if encoder is not None:
        np.add.at(out, 1 + encoder.groups_[x.indices], x.data[:, None] * weights[x.indices])
    return out


def encoded_by_column(
    features: FeatureEncoder | None, x: sparse.csr_matrix, encoder: Encoder
) -> np.ndarray:
    """Take apart the vector that an encoder gives to x; the first row is the constant part."""
    pieces = by_column(features, encoder.inputs(x), encoder.weights).astype(np.float64)
    for network in encoder.networks:
        pieces = pieces + by_column(features, x, linear_at(network, x))
    return pieces


def linear_at(network: Network, x: sparse.csr_matrix) -> np.ndarray:
    """Return weights that act at x as the network does: its integrated gradients over x."""
    from simrec.simec.inputs import Features
    from simrec.simec.relevance import relevance

    D = len(network.place)
    # One row for each output, in one go.
    rows = Features.check(sparse.vstack([x] * D, format="csr"))
    if network.simec.encoder is not None:  # a user's own encoder takes dense rows
        rows = rows.as_kind("dense")
    share, base = relevance(network.simec.encoder_, rows, np.eye(D, dtype=np.float32))
    weights = np.zeros((x.shape[1] + 1, D))
    there = x.data != 0
    weights[x.indices[there]] = (share[:, x.indices[there]] / x.data[there]).T
    weights[-1] = base
    return weights @ network.place
