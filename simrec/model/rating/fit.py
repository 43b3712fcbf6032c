"""Fit ratings: posterior embeddings for known entities, encoders for new ones.

Three fits answer four tasks; `simrec.model.rating.layout` says how they lie in one vector:

known       item and user both have ratings: posteriors around what features and history say.
new_items   a new item, encoded from its features; users are refitted against such embeddings.
new_users   a new user, encoded from features; items are refitted against such embeddings.

Where both are new, users' features are regressed on the embeddings that features give to items.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from simrec.data.sides import Side, Sides
from simrec.model.rating.known_entities import KnownEntities, Problem, Report, fit_known
from simrec.model.rating.networks import fit_network
from simrec.model.rating.new_entities import NewEntities, fit_both, fit_new, fit_new_network
from simrec.model.rating.observed import Observed
from simrec.model.rating.posterior import Posterior
from simrec.model.run.checkpoint import Checkpoint

if TYPE_CHECKING:
    from simrec.simec.simec import SimEc

# Ratings on which errors are estimated.
_SAMPLE = 100_000


@dataclass(eq=False)
class RatingFit:
    """All that was learned from ratings.

    Attributes
    ----------
    known : Sides of KnownEntities
        Posteriors of the entities with ratings.
    new : Sides of NewEntities
        Encoders of new entities, and the partners they meet.
    both_weights : numpy.ndarray
        Encoder of new users as new items meet them.
    both_network : SimEc or None
        The same with hidden layers, in place of the weights.
    """

    known: Sides[KnownEntities]
    new: Sides[NewEntities]
    both_weights: np.ndarray
    both_network: SimEc | None = None

    def gathered(self, observed: Observed) -> RatingFit:
        """Return the same with the users of all workers."""
        if observed.workers.size == 1:
            return self
        items, users = self.known
        cut = len(items.weights) - observed.rows.users.n_rows
        history = observed.gather(items.weights[cut:])
        known = Sides(
            replace(items, weights=np.vstack([items.weights[:cut], history])),
            replace(
                users,
                posterior=_gathered(users.posterior, observed),
                prior_means=observed.gather(users.prior_means),
            ),
        )
        new = Sides(
            replace(self.new.items, partners=_gathered(self.new.items.partners, observed)),
            replace(self.new.users, held_out=observed.gather(self.new.users.held_out)),
        )
        return replace(self, known=known, new=new)


def _gathered(posterior: Posterior, observed: Observed) -> Posterior:
    assert posterior.covariance is not None
    return Posterior(observed.gather(posterior.mean), observed.gather(posterior.covariance))


def fit_rating(
    problem: Problem,
    embedding_dim: int,
    epochs: int,
    folds: int,
    hidden_layers: tuple[int, ...],
    rng: np.random.Generator,
    report: Report,
    checkpoint: Checkpoint | None = None,
) -> RatingFit:
    """Fit known entities, then encoders of new ones.

    Parameters
    ----------
    problem : Problem
        Ratings and features.
    embedding_dim : int
        Coordinates of an embedding, without bias.
    epochs : int
        Sweeps over both sides.
    folds : int
        Parts in which entities are held out for cross-fitting.
    hidden_layers : tuple of int
        Widths of the hidden layers of the encoders of new entities; none for linear ones.
    rng : numpy.random.Generator
        Source of the start and of the folds.
    report : callable
        Called with the loss of each sweep, and the error of each attempt on held-out entities.
    checkpoint : Checkpoint, optional
        Where to keep the state of the sweeps, and to go on from.
    """
    known = fit_known(problem, embedding_dim, epochs, rng, report, checkpoint)
    entries = problem.observed.sample(_SAMPLE, rng)
    # A side without features has only a constant, which needs no hidden layers.
    deep = problem.features.map(lambda X: bool(hidden_layers) and X.shape[1] > 1)

    def fit_side(side: Side) -> NewEntities:
        if deep[side]:
            return fit_new_network(problem, known, side, folds, hidden_layers, entries, rng, report)
        return fit_new(problem, known, side, folds, entries, rng, report)

    new = Sides.of(fit_side)
    if deep.users:
        X, seed = problem.features.users[:, :-1], int(rng.integers(2**31))
        rows = problem.observed.rows.users
        network = fit_network(X, rows, Posterior(new.items.held_out), hidden_layers, seed)
        return RatingFit(known, new, np.zeros_like(new.users.weights), network)
    both, hidden = fit_both(problem, new, folds, entries, rng), new.users.hidden
    if hidden is None:
        return RatingFit(known, new, both)
    return RatingFit(known, new, np.zeros_like(new.users.weights), hidden.network(both))
