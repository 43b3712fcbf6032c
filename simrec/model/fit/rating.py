"""Fit both towers to ratings: posterior embeddings for known entities, encoders for new ones.

Three blocks of coordinates, each with biases, side by side in one vector (`simrec.model.layout`):

known    item and user both rated: posteriors around a prior mean from features and history.
items    a new item, from its features, beside users as they are *in terms of what features tell*.
users    a new user, from features, beside items in terms of what users' features tell.

A new item's embedding is less certain than a known one's. If its partners were taken from the known
block they would trust it too much; so they are fitted again, against embeddings of the training
items that were made without the item's own ratings (`cross_fit`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from simrec.model.fit.known_entities import ITEMS, USERS, Known, Problem, Report, fit_known
from simrec.model.fit.linear_encoder import Inputs, solve
from simrec.model.fit.networks import fit_network
from simrec.model.fit.new_entities import New, coordinate_penalty, fit_deep, fit_new
from simrec.model.fit.observed import Observed
from simrec.model.fit.posterior import Belief, statistics
from simrec.model.run.checkpoint import Checkpoint

if TYPE_CHECKING:
    from simrec.simec.simec import SimEc

# Entries on which errors are estimated.
_SAMPLE = 100_000
# Where both are new, users' features are shrunk this much more than beside known items.
_BOTH_PENALTY = 3.0


@dataclass(eq=False)
class RatingTowers:
    """All that was learned from ratings; see the module's text for the three blocks.

    `user_weights` (or `user_network`) encodes new users in the block of new items.
    """

    known: Known
    new_items: New
    new_users: New
    user_weights: np.ndarray
    user_network: SimEc | None = None

    def gathered(self, observed: Observed) -> RatingTowers:
        """Give the same with the users of all workers."""
        if observed.group.size == 1:
            return self
        known, cut = self.known, len(self.known.weights[ITEMS]) - observed.users.n_rows
        weights, history = known.weights[ITEMS][:cut], known.weights[ITEMS][cut:]
        whole = Known(
            [known.beliefs[ITEMS], _gathered(known.beliefs[USERS], observed)],
            known.scales,
            [known.priors[ITEMS], observed.gather(known.priors[USERS])],
            [np.vstack([weights, observed.gather(history)]), known.weights[USERS]],
            known.penalties,
        )
        items = replace(self.new_items, partners=_gathered(self.new_items.partners, observed))
        users = replace(self.new_users, held_out=observed.gather(self.new_users.held_out))
        return replace(self, known=whole, new_items=items, new_users=users)


def _gathered(belief: Belief, observed: Observed) -> Belief:
    assert belief.covariance is not None
    return Belief(observed.gather(belief.mean), observed.gather(belief.covariance))


def fit_rating(
    problem: Problem,
    embedding_dim: int,
    epochs: int,
    folds: int,
    hidden_layers: tuple[int, ...],
    rng: np.random.Generator,
    report: Report,
    checkpoint: Checkpoint | None = None,
) -> RatingTowers:
    """Fit the three blocks.

    Parameters
    ----------
    problem : Problem
        Ratings and features.
    embedding_dim : int
        Coordinates of an embedding in each block, without biases.
    epochs : int
        Sweeps over both sides.
    folds : int
        Parts in which entities are held out for cross-fitting.
    hidden_layers : tuple of int
        Widths of the hidden layers of the encoders of new entities; none for linear ones.
    rng : numpy.random.Generator
        Source of the start and of the folds.
    report : callable
        Told the loss of each sweep, and the error of each attempt on held-out entities.
    checkpoint : Checkpoint, optional
        Where to keep the state of the sweeps, and to go on from.
    """
    known = fit_known(problem, embedding_dim, epochs, rng, report, checkpoint)
    entries = problem.observed.sample(_SAMPLE, rng)
    # A side without features has only a constant, for which there is nothing to hide.
    deep = [bool(hidden_layers) and X.shape[1] > 1 for X in problem.features]
    items, users = (
        (fit_deep if deep[k] else fit_new)(
            problem, known, k, folds, hidden_layers, entries, rng, report
        )
        for k in (ITEMS, USERS)
    )
    # Where both are new: users' features against what items' features tell.
    beside = Belief(items.held_out)
    if deep[USERS]:
        X, seed = problem.features[USERS][:, :-1], int(rng.integers(2**31))
        network = fit_network(X, problem.observed.users, beside, hidden_layers, seed)
        return RatingTowers(known, items, users, np.zeros_like(users.weights), network)
    stats = statistics(problem.observed.users, beside)
    inputs = Inputs(problem.features[USERS], problem.groups[USERS], rows=problem.sides[USERS].rows)
    strength = _BOTH_PENALTY * users.strength
    penalty = coordinate_penalty(strength * users.penalties[inputs.groups], stats)
    user_weights, _ = solve(inputs, stats, penalty)
    return RatingTowers(known, items, users, user_weights)
