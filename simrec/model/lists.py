"""The weight between the two parts of a list: what will be taken up, and what will be liked."""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy import sparse

from simrec.data.ratings import liked_from
from simrec.data.sides import Sides
from simrec.model.rating.sample import fit_sample
from simrec.model.run.progress import Step, no_step
from simrec.model.sample import Sample
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
    sample: Sample,
    uptake: UptakeFit,
    embedding_dim: int,
    rng: np.random.Generator,
    step: Step = no_step,
) -> tuple[float, float, float]:
    """Choose w of the list score, predicted rating + w * uptake, on held-out pairs.

    Both parts are learned without the held-out pairs, on the sample of users that uptake made its
    choices on. A hit is a held-out pair with a high rating. Users without pairs have a factor of
    their own, `Solver.alone`: for it, their ratings are taken to be those of an average user.
    `step` is called after each sweep and each point that was tried.

    Returns
    -------
    (float, float, float)
        The weight, the factor of users without pairs, and the NDCG@10 of the weight.
    """
    held = uptake.held
    train = _places(sample, held.users, held.items, held.train)
    if not len(train) or not held.warm.nnz:
        return 1.0, 1.0, 0.0  # too little to hold anything out
    rating = _rating_vectors(sample, uptake, train, embedding_dim, rng, step)
    equal = _spread(rating, rng) / max(_spread(uptake.sample, rng), _LEAST_SPREAD)
    items = np.hstack([rating.items, uptake.sample.items])
    hits = _liked(sample, held.users, held.items, held.warm)

    @cache
    def quality(weight: float) -> float:
        users = np.hstack([rating.users, np.float32(equal * weight) * uptake.sample.users])
        return list_quality(users, items, hits, held.train, 10)

    found, reached = climb(quality, {"weight": (_WEIGHTS, 1.0)}, step)
    weight = float(equal * between(quality, _WEIGHTS, found["weight"]))
    rest = _liked(sample, held.new_users, held.items, held.rest)
    average = np.tile(rating.users.mean(0), (len(held.new_users), 1))

    def quality_alone(factor: float) -> float:
        users = np.hstack([average, np.float32(weight * factor) * uptake.sample_new_users])
        return list_quality(users, items, rest, held.given, 10)

    alone, _ = climb(quality_alone, {"factor": (_FACTORS, 1.0)}, step)
    return weight, alone["factor"], reached


def _places(
    sample: Sample, users: np.ndarray, items: np.ndarray, part: sparse.csr_matrix
) -> np.ndarray:
    """Return the position among the ratings of each pair of some users and items."""
    ratings, pairs = sample.ratings, part.tocoo()
    if not pairs.nnz:
        return np.empty(0, np.int64)
    theirs = np.zeros(ratings.n_users, bool)
    theirs[users] = True
    at = np.flatnonzero(theirs[ratings.user_rows])  # all ratings may be too many at once
    places = sparse.csr_matrix(
        (at + 1, (ratings.user_rows[at], ratings.item_rows[at])),
        shape=(ratings.n_users, ratings.n_items),
    )
    return np.asarray(places[users[pairs.row], items[pairs.col]]).ravel() - 1


def _liked(
    sample: Sample, users: np.ndarray, items: np.ndarray, part: sparse.csr_matrix
) -> sparse.csr_matrix:
    """Return those pairs of some users and items that have a high rating."""
    pairs = part.tocoo()
    liked = sample.ratings.values[_places(sample, users, items, part)] >= liked_from(sample.bounds)
    entries = (np.ones(int(liked.sum()), np.float32), (pairs.row[liked], pairs.col[liked]))
    return sparse.csr_matrix(entries, shape=part.shape)


def _rating_vectors(
    sample: Sample,
    uptake: UptakeFit,
    train: np.ndarray,
    embedding_dim: int,
    rng: np.random.Generator,
    step: Step,
) -> Sides[np.ndarray]:
    """Fit known entities to the training pairs of the sample; return their vectors."""
    fit = fit_sample(sample, np.sort(train), embedding_dim, _EPOCHS, rng, step=step)

    def vectors(of: np.ndarray, rows: np.ndarray, found: np.ndarray) -> np.ndarray:
        out = np.zeros((len(of), found.shape[1]), np.float32)
        out[np.searchsorted(of, rows)] = found
        return out

    return Sides(uptake.held.items, uptake.held.users).map(vectors, fit.rows, fit.vectors)


def _spread(vectors: Sides[np.ndarray], rng: np.random.Generator) -> float:
    """Return the standard deviation of the scores of random pairs."""
    items = rng.integers(0, len(vectors.items), 10_000)
    users = rng.integers(0, len(vectors.users), 10_000)
    z = np.einsum("ij,ij->i", vectors.users[users], vectors.items[items])
    return float(z.std())
