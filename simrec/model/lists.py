"""The weight between the two parts of a list: what will be taken up, and what will be liked."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
from scipy import sparse

from simrec.data.ratings import Ratings, liked_from
from simrec.data.sides import Side, Sides
from simrec.model.prepare import Prepared
from simrec.model.rating.known_entities import Problem, fit_known
from simrec.model.rating.layout import Layout
from simrec.model.rating.observed import Observed
from simrec.model.run.progress import Step, no_step
from simrec.model.uptake.fit import UptakeFit
from simrec.model.uptake.held_out import between, climb, list_quality

# Sweeps of the rating part on the sample; half of a fit is enough to rank by.
_EPOCHS = 8
# Weights that are tried, relative to the one at which both parts spread scores equally.
_WEIGHTS = tuple(1.5**j for j in range(-8, 13))
# Logits of uptake that spread less than this say nothing, and get no larger weight for it.
_LEAST_SPREAD = 0.1
# Factors of it that are tried for users without pairs.
_FACTORS = tuple(1.5**j for j in range(-2, 9))


def choose_uptake_weight(
    data: Prepared,
    uptake: UptakeFit,
    embedding_dim: int,
    rng: np.random.Generator,
    step: Step = no_step,
) -> tuple[float, float]:
    """Choose w of the list score, predicted rating + w * uptake, on held-out pairs.

    Both parts are learned without the held-out pairs, on the sample of users that uptake made its
    choices on. A hit is a held-out pair with a high rating. Users without pairs have a factor of
    their own, `Solver.alone`: for it, their ratings are taken to be those of an average user.
    `step` is called after each sweep and each point that was tried.

    Returns
    -------
    (float, float)
        The weight, and its NDCG@10.
    """
    held = uptake.held
    train = _places(data, held.users, held.items, held.train)
    if not len(train) or not held.warm.nnz:
        return 1.0, 0.0  # too little to hold anything out
    rating = _rating_vectors(data, uptake, train, embedding_dim, rng, step)
    sample = uptake.sample
    equal = _spread(rating, rng) / max(_spread(sample, rng), _LEAST_SPREAD)
    items = np.hstack([rating.items, sample.items])
    hits = _liked(data, held.users, held.items, held.warm)

    @cache
    def quality(weight: float) -> float:
        users = np.hstack([rating.users, np.float32(equal * weight) * sample.users])
        return list_quality(users, items, hits, held.train, 10)

    found, reached = climb(quality, {"weight": (_WEIGHTS, 1.0)}, step)
    weight = float(equal * between(quality, _WEIGHTS, found["weight"]))
    rest = _liked(data, held.new_users, held.items, held.rest)
    average = np.tile(rating.users.mean(0), (len(held.new_users), 1))

    def quality_alone(factor: float) -> float:
        users = np.hstack([average, np.float32(weight * factor) * uptake.sample_new_users])
        return list_quality(users, items, rest, held.given, 10)

    alone, _ = climb(quality_alone, {"factor": (_FACTORS, 1.0)}, step)
    uptake.solver = replace(uptake.solver, alone=alone["factor"])
    return weight, reached


def _places(
    data: Prepared, users: np.ndarray, items: np.ndarray, part: sparse.csr_matrix
) -> np.ndarray:
    """Return the position among the ratings of each pair of some users and items."""
    ratings, pairs = data.ratings, part.tocoo()
    if not pairs.nnz:
        return np.empty(0, np.int64)
    places = sparse.csr_matrix(
        (np.arange(1, len(ratings) + 1), (ratings.user_rows, ratings.item_rows)),
        shape=(ratings.n_users, ratings.n_items),
    )
    return np.asarray(places[users[pairs.row], items[pairs.col]]).ravel() - 1


def _liked(
    data: Prepared, users: np.ndarray, items: np.ndarray, part: sparse.csr_matrix
) -> sparse.csr_matrix:
    """Return those pairs of some users and items that have a high rating."""
    pairs = part.tocoo()
    liked = data.ratings.values[_places(data, users, items, part)] >= liked_from(data.bounds)
    entries = (np.ones(int(liked.sum()), np.float32), (pairs.row[liked], pairs.col[liked]))
    return sparse.csr_matrix(entries, shape=part.shape)


def _rating_vectors(
    data: Prepared,
    uptake: UptakeFit,
    train: np.ndarray,
    embedding_dim: int,
    rng: np.random.Generator,
    step: Step,
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
        Problem(observed, features, groups), embedding_dim, _EPOCHS, rng, lambda logs: step()
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
