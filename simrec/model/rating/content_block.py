"""What a user thinks of *this* director or brand: a block of rating vectors that follows residuals.

A few coordinates cannot hold an opinion of each of thousands of authors. The block adds to a
prediction, for each item that the user has rated, coefficient x residual x likeness of content::

    item    z = (x * idf) V           features of categories and lists, projected to K coordinates
    user    c sum of residual * z     over the items rated; zero for a new user

V are the leading singular vectors of the items' weighted features. The coefficient c is chosen on
held-out ratings; where they do not gain clearly, there is no block.
"""

from dataclasses import replace

import numpy as np
from scipy import sparse

from simrec.data.sides import Sides
from simrec.model.head import Encoder, Network, StoredHead
from simrec.model.params import Settings
from simrec.model.prepare import Prepared, PreparedSide
from simrec.model.rating.output import HeldOut
from simrec.model.rating.part import RatingPart
from simrec.model.sample import Sample, sample_users
from simrec.scoring.output import Output
from simrec.scoring.pairs import score_pairs
from simrec.simec.linear_algebra import randomised_svd

# Coordinates of the block, and the kinds of columns it is made of.
_WIDTH, _KINDS = 64, ("category", "list")
# Ratings to choose the coefficient on, about; with fewer than the least there is no block.
_MOST, _LEAST = 200_000, 20_000
_SURE = 3.0  # standard errors of a clear gain


def choose_coefficient(
    data: Prepared, settings: Settings, output: Output, rng: np.random.Generator
) -> float:
    """Choose the coefficient of the block on held-out ratings; 0 where there is none."""
    workers, enough = data.workers, data.workers.total(len(data.ratings)) >= _LEAST
    P = projection(data.sides.items) if enough and settings.refine else None
    if P is None:
        return 0.0
    sample = sample_users(data, _MOST, rng)
    found = _coefficient(sample, P, settings, output, rng) if workers.rank == 0 else 0.0
    return float(workers.agree(found))


def projection(items: PreparedSide) -> np.ndarray | None:
    """Return the weights from features, and a constant, to the block; None without such columns."""
    encoder, X = items.tower.encoder, items.X[:, :-1]
    if encoder is None:
        return None
    kinds = np.array([kind.split(":")[0] in _KINDS for kind in encoder.columns_.values()], bool)
    used = kinds[items.groups[:-1]]
    width = min(_WIDTH, int(used.sum()) - 1, X.shape[0] - 1)
    if width < 1:
        return None
    idf = np.log(X.shape[0] / np.maximum(np.bincount(X.indices, minlength=X.shape[1]), 1)) * used
    weighted = sparse.csr_matrix(X @ sparse.diags_array(idf))
    length = np.sqrt(np.asarray(weighted.multiply(weighted).sum(1))).mean() or 1.0
    V = randomised_svd(weighted, width, np.random.default_rng(0))[2].T
    return np.vstack([V * (idf / length)[:, None], np.zeros((1, width))]).astype(np.float32)


def _coefficient(
    sample: Sample, P: np.ndarray, settings: Settings, output: Output, rng: np.random.Generator
) -> float:
    """Regress the residuals of held-out ratings on what the block predicts for them."""
    held_out = HeldOut.of(sample, rng)
    part, rows = held_out.part, held_out.rows
    vectors, shift = held_out.fit(output, settings.rating_dim, rng)
    seen = Sides(part.item_rows, part.user_rows)

    def residuals(values: np.ndarray, at: Sides[np.ndarray]) -> np.ndarray:
        z = score_pairs(vectors.users, vectors.items, at.users, at.items)
        return output.link(values) - np.float32(shift) - z

    Z = sample.X.items[held_out.known.items] @ P
    Z = np.vstack([Z, np.zeros_like(Z[:1])])  # the last row is that of an average item
    places_of = (residuals(part.values, seen), (seen.users, seen.items))
    C = sparse.csr_matrix(places_of, shape=(len(vectors.users), len(Z))) @ Z
    wanted = residuals(sample.ratings.values[held_out.out], rows)
    block = score_pairs(C, Z, rows.users, rows.items)
    c = float(block @ wanted / max(block @ block, 1e-12))
    gain = (wanted**2 - (wanted - c * block) ** 2).astype(np.float64)
    sure = gain.mean() > _SURE * gain.std() / np.sqrt(len(gain))
    return c if sure and c > 0 else 0.0


def add_block(part: RatingPart, data: Prepared, coefficient: float) -> RatingPart:
    """Append the block to the vectors of a part."""
    items, ratings = data.sides.items, data.ratings
    P = projection(items)
    if P is None or not coefficient:
        return part
    P = data.workers.first(P)  # the last bits may differ
    rows = Sides(
        items.rated_rows[ratings.item_rows], data.sides.users.rated_rows[ratings.user_rows]
    )
    Z, width = np.asarray(items.tower.features @ P[:-1], np.float32), P.shape[1]
    prior = (items.counts / items.counts.sum()) @ Z[items.rated_rows]
    n_users = len(data.sides.users.tower.ids)
    none = np.zeros((len(part.heads.users.encoder.weights), width), np.float32)
    heads = Sides(
        _wider(part.heads.items, Z, P, prior),
        _wider(part.heads.users, np.zeros((n_users, width), np.float32), none, none[0]),
    )
    layout = replace(part.layout, content=width)
    wider = replace(part, heads=heads, layout=layout, coefficient=coefficient)
    return wider.with_residuals(rows, ratings.values, np.unique(rows.users))


def _wider(
    head: StoredHead, vectors: np.ndarray, weights: np.ndarray, prior: np.ndarray
) -> StoredHead:
    """Append coordinates to a head; networks have no part in them."""
    encoder, width = head.encoder, vectors.shape[1]
    networks = [
        Network(one.simec, np.pad(one.place, [(0, 0), (0, width)])) for one in encoder.networks
    ]
    return StoredHead(
        np.hstack([np.asarray(head.vectors), vectors]),
        Encoder(np.hstack([encoder.weights, weights]), networks),
        np.append(head.prior, prior).astype(np.float32),
    )
