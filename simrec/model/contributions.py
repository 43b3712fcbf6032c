"""A vector as a sum: what the average entity, feature columns, history and ratings contribute."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from simrec.data.features import FeatureEncoder
from simrec.data.sides import SINGULAR
from simrec.model.head import Encoder, Network, StoredHead
from simrec.model.part import Entity
from simrec.model.posterior.encoder import history_weight
from simrec.model.posterior.evidence import SideEvidence
from simrec.model.rating.layout import Layout
from simrec.scoring.pairs import Parts

# What the ratings of an entity add: by which partners it has, and by what they say and how many
# they are.
_HISTORY = {
    "items": ("who rated it", "how it was rated"),
    "users": ("what they rated", "how they rated"),
}


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
    from simrec.simec.encoders import relevance
    from simrec.simec.inputs import Features

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


def explain_rating(
    entity: Entity, vector: np.ndarray, head: StoredHead, kept: SideEvidence, layout: Layout
) -> Parts:
    """Take the rating vector of one entity apart."""
    side, count, x = entity.side, entity.count, entity.features
    vector = np.asarray(vector, np.float64)
    warmth = float(kept.warmth[entity.row]) if entity.row >= 0 else 0.0
    constant = layout.constants(side, warmth)
    names, values = [f"average {SINGULAR[side]}"], [""]
    if x is None:
        return Parts(names, values, (vector - constant)[None], constant)
    if entity.encoder is not None and not x.nnz:
        # Without a row of features: taken as average.
        pieces = (np.array(head.prior, np.float64) if count else vector.copy())[None]
    else:
        pieces = encoded_by_column(entity.encoder, x, head.encoder)
        columns = {} if entity.encoder is None else entity.encoder.words(x)
        names, values = [*names, *columns], [*values, *columns.values()]
    if warmth == 1 and layout.refined:
        warm = cold = by_column(entity.encoder, x, kept.weights)[: len(pieces)]
    else:
        warm, cold = layout.from_features(side, pieces)
    found = [layout.without_constants(side, warm, cold, warmth)]
    start = len(vector) - layout.content
    found[0][:, start:] = pieces[:, start:]
    if count and layout.refined:
        history = (history_weight(np.array([count])) * kept.history[entity.row])[None]
        found.append(layout.without_constants(side, history, history, warmth))
        names, values = [*names, _HISTORY[side][0]], [*values, f"{count:,} ratings"]
    if count:
        found.append((vector - constant - np.concatenate(found).sum(0))[None])
        names, values = [*names, _HISTORY[side][1]], [*values, f"{count:,} ratings"]
    return Parts(names, values, np.concatenate(found), constant)
