"""The weight between the two parts of a list: what will be taken up, and what will be liked."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from simrec.data.ratings import Ratings, liked_from
from simrec.data.sides import Side, Sides
from simrec.model.prepare import Prepared
from simrec.model.rating.known_entities import Problem, fit_known
from simrec.model.rating.layout import Layout
from simrec.model.rating.observed import Observed
from simrec.model.uptake.fit import UptakeFit
from simrec.model.uptake.held_out import climb, list_quality

# Sweeps of the rating part on the sample; half of a fit is enough to rank by.
_EPOCHS = 8
# Weights that are tried, relative to the one at which both parts spread scores equally.
_WEIGHTS = tuple(1.5**j for j in range(-8, 13))


def choose_uptake_weight(
    data: Prepared, uptake: UptakeFit, embedding_dim: int, rng: np.random.Generator
) -> tuple[float, float]:
    """Choose w of the list score, predicted rating + w * uptake, on held-out pairs.

    Both parts are learned without the held-out pairs, on the sample of users that uptake made its
    choices on. A hit is a held-out pair with a high rating.

    Returns
    -------
    (float, float)
        The weight, and its NDCG@10.
    """
    held, ratings = uptake.held, data.ratings
    places = sparse.csr_matrix(
        (np.arange(1, len(ratings) + 1), (ratings.user_rows, ratings.item_rows)),
        shape=(ratings.n_users, ratings.n_items),
    )
    places = sparse.csr_matrix(places[held.users][:, held.items])
    train, warm = (_places(places, part) for part in (held.train, held.warm))
    if not len(train) or not len(warm):
        return 1.0, 0.0  # too little to hold anything out
    rating = _rating_vectors(data, uptake, train, embedding_dim, rng)
    liked = ratings.values[warm] >= liked_from(data.bounds)
    pairs = held.warm.tocoo()
    entries = (np.ones(int(liked.sum()), np.float32), (pairs.row[liked], pairs.col[liked]))
    hits = sparse.csr_matrix(entries, shape=held.warm.shape)
    sample = uptake.sample
    equal = _spread(rating, rng) / max(_spread(sample, rng), 1e-12)
    items = np.hstack([rating.items, sample.items])

    def quality(weight: float) -> float:
        users = np.hstack([rating.users, np.float32(equal * weight) * sample.users])
        return list_quality(users, items, hits, held.train, 10)

    found, reached = climb(quality, {"weight": (_WEIGHTS, 1.0)})
    return float(equal * found["weight"]), reached


def _places(places: sparse.csr_matrix, part: sparse.csr_matrix) -> np.ndarray:
    """Return the position among the ratings of each pair of a part."""
    pairs = part.tocoo()
    if not pairs.nnz:
        return np.empty(0, np.int64)
    return np.asarray(places[pairs.row, pairs.col]).ravel() - 1


def _rating_vectors(
    data: Prepared,
    uptake: UptakeFit,
    train: np.ndarray,
    embedding_dim: int,
    rng: np.random.Generator,
) -> Sides[np.ndarray]:
    """Fit known entities to the training pairs of the sample; return their vectors."""
    held, ratings = uptake.held, data.ratings
    chosen = np.zeros(len(ratings), bool)
    chosen[train] = True
    part: Ratings = ratings.select(chosen)
    rows = Sides(ratings.items.rows(part.items.ids), ratings.users.rows(part.users.ids))
    features = data.sides.map(lambda side, at: side.X[at], rows)
    groups = data.sides.map(lambda side: side.groups)
    observed = Observed.of(part)
    known = fit_known(
        Problem(observed, features, groups), embedding_dim, _EPOCHS, rng, lambda logs: None
    )
    layout = Layout(embedding_dim, observed.scale)

    def vectors(side: Side, sample: np.ndarray) -> np.ndarray:
        found = layout.coordinates(side, known[side].posterior.mean)
        out = np.zeros((len(sample), found.shape[1]), np.float32)
        out[np.searchsorted(sample, rows[side])] = found
        return out

    return Sides(vectors("items", held.items), vectors("users", held.users))


def _spread(vectors: Sides[np.ndarray], rng: np.random.Generator) -> float:
    """Return the standard deviation of the scores of random pairs."""
    items = rng.integers(0, len(vectors.items), 10_000)
    users = rng.integers(0, len(vectors.users), 10_000)
    z = np.einsum("ij,ij->i", vectors.users[users], vectors.items[items])
    return float(z.std())
