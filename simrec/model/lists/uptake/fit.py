"""Learn which items users take up, by least squares over all pairs.

Every pair of a user and an item counts: one for what was taken up, zero for all the rest. Vectors
have one coordinate more than an embedding, for popularity::

    known item  [ v,  popularity ]       new item  [ features -> v,  mean of it  ]
    known user  [ u,  0          ]       new user  [ features -> u,  share of it ]
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simrec.data.sides import Sides
from simrec.model.head import Encoder
from simrec.model.lists.uptake.add_pairs import Solver, axes_of, spread_axes
from simrec.model.lists.uptake.choices import SWEEPS, Choices, Whole
from simrec.model.lists.uptake.encoders import Regression, feature_weights
from simrec.model.lists.uptake.least_squares import start_vectors
from simrec.model.lists.uptake.sweeps import factorize, solve_items
from simrec.model.prepare import Prepared, mean_confidence, pair_matrix
from simrec.scoring.output import Output
from simrec.scoring.threads import one_blas_thread, row_blocks

# Passes over both sides.
_SWEEPS = 3


@dataclass(eq=False)
class UptakeFit:
    """What was learned of the entities with pairs, and how to encode and solve for others."""

    vectors: Sides[np.ndarray]
    encoders: Sides[Encoder]
    priors: Sides[np.ndarray]  # vectors of average entities
    axes: Sides[np.ndarray]  # how vectors are spread around what features say
    solver: Solver
    output: Output  # from scalar products to probabilities


def fit_uptake(
    data: Prepared, choices: Choices, rng: np.random.Generator, learned: np.ndarray | None = None
) -> UptakeFit:
    """Learn from the pairs of all workers, as chosen.

    The generator is the source of the start; `learned` are item vectors of the choice to go on from
    instead.
    """
    workers, features = data.workers, data.sides.map(lambda side: side.X[:, :-1])
    confidence = mean_confidence(data.ratings, workers) if choices.weighted else 0.0
    R = pair_matrix(data.ratings, confidence)
    # Threads of our own work on batches of small matrices: those of the BLAS get in the way.
    with one_blas_thread():
        whole = Whole.of(R, workers)
        ridge = choices.ridge * whole.noise(choices.zero)
        d = min(choices.embedding_dim, max(min(whole.shape) - 1, 1))
        X = features.items if features.items.shape[1] else None
        regression = None
        if X is not None:
            weights = feature_weights(X, data.sides.items.groups[:-1], choices.weighing)
            regression = Regression(X, weights, choices.item_penalty)
        prior = regression if choices.item_prior else None
        start, sweeps = learned, _SWEEPS - SWEEPS
        if start is None:
            start, sweeps = start_vectors(R, d, rng, workers), _SWEEPS
        U, V = factorize(R, start, ridge, choices.zero, sweeps, prior, workers)
        items = None
        if regression is not None:
            # Vectors that were drawn towards features would leak features into the target.
            own = V
            if prior is not None:
                own = solve_items(R.T.tocsr(), U, ridge, choices.zero, None, workers)
            items = regression.encoder(own)
        counts = workers.sum(np.asarray(R.sum(0)).ravel())
        n_users, unit = whole.shape[0], choices.logit_slope
        solver = Solver(
            ridge,
            choices.zero,
            choices.new_zero,
            choices.new_ridge,
            whole.weight / whole.shape[1],
            whole.weight / n_users,
            unit,
            n_users,
            confidence,
        )
        popularity = counts.mean() / n_users
        prior_item = np.append(V.mean(0), popularity).astype(np.float32)
        prior_user = np.append(np.zeros(d), unit).astype(np.float32)
        if items is None:
            items = Encoder(prior_item[None].copy())
        else:
            items.weights = np.pad(items.weights, ((0, 0), (0, 1)))
            items.weights[-1, -1] = popularity
        users = Encoder(np.zeros((features.users.shape[1] + 1, d + 1), np.float32))
        users.weights[-1] = prior_user
        if features.users.shape[1] and choices.popularity_share < 1:
            share = np.float32(choices.popularity_share)
            users = Regression(features.users, None, choices.user_penalty, workers).encoder(U)
            users.weights = np.pad(users.weights * (1 - share) * np.float32(unit), ((0, 0), (0, 1)))
            users.weights[-1, -1] = share * unit
        gram = np.zeros((d, d))
        for rows in row_blocks(len(U)):
            offsets = U[rows] - users(features.users[rows])[:, :d] / np.float32(unit)
            gram += offsets.T @ offsets
        return UptakeFit(
            Sides(solver.item_vectors(V, counts), solver.user_vectors(U)),
            Sides(items, users),
            Sides(prior_item, prior_user),
            Sides(spread_axes(V - items(features.items)[:, :d]), axes_of(workers.sum(gram))),
            solver,
            Output(0.0, 1.0, choices.logit),
        )
