"""What a `TwoTower` can learn: ratings, or what users like among all there is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import sparse
from threadpoolctl import threadpool_limits

from simrec.errors import InputError
from simrec.model.fit.known_entities import Problem, Report
from simrec.model.fit.prepare import Prepared
from simrec.model.run.checkpoint import Run
from simrec.model.tower import Tower
from simrec.scoring.output import Output

if TYPE_CHECKING:
    from simrec.model.two_tower import TwoTower
    from simrec.model.update.evidence import Evidence


@dataclass(frozen=True, eq=False)
class Fitted:
    """Two towers, the output of their scalar products, and what was chosen on the way.

    `evidence` is what is believed of each entity, where the objective tells.
    """

    items: Tower
    users: Tower
    output: Output
    chosen: dict[str, Any]
    evidence: Evidence | None = None


class Objective(NamedTuple):
    """How to fit, and the embedding_dim and epochs where they are not given."""

    fit: Callable[[TwoTower, Prepared, int, int, Report, Run], Fitted]
    embedding_dim: int
    epochs: int


def _fit_rating(
    model: TwoTower, data: Prepared, embedding_dim: int, epochs: int, report: Report, run: Run
) -> Fitted:
    from simrec.model.fit.observed import Observed
    from simrec.model.fit.rating import fit_rating
    from simrec.model.layout import item_priors, known_vectors, networks, new_weights, user_priors
    from simrec.model.update.evidence import evidence_of

    rng = np.random.default_rng(model.random_state)
    hidden = tuple(model.hidden_layers)
    groups = (data.items.groups, data.users.groups)
    checkpoint = run.keep(model, data)
    observed = Observed.of(data.ratings, run.group)
    mine = data.users.X[observed.mine] if run.group.size > 1 else data.users.X
    problem = Problem(observed, (data.items.X, mine), groups)
    # Matrices are small and many, and worked on in threads of our own: those of the BLAS would only
    # get in the way (half as much time again). Without them, results do not depend on their number.
    with threadpool_limits(1, "blas"):
        towers = fit_rating(
            problem, embedding_dim, epochs, model.folds, hidden, rng, report, checkpoint
        )
    if run.group.size > 1:
        # The model is one, with the users of all workers.
        towers = towers.gathered(observed)
        observed = Observed.of(data.ratings)
        problem = Problem(observed, (data.items.X, data.users.X), groups)
    vectors = known_vectors(towers, observed.scale)
    weights = new_weights(towers, observed.scale)
    deep = networks(towers, observed.scale)
    chosen = {
        "item_penalty": towers.new_items.strength,
        "user_penalty": towers.new_users.strength,
        "expected_rmse_new_items": observed.scale * towers.new_items.error,
        "expected_rmse_new_users": observed.scale * towers.new_users.error,
    }
    item_tower = data.items.tower(vectors[0], weights[0], deep[0])
    user_tower = data.users.tower(vectors[1], weights[1], deep[1])
    item_prior = item_priors(item_tower.vectors, observed.scale)
    user_prior = user_priors(user_tower.vectors, observed.scale)
    evidence = evidence_of(
        towers,
        problem,
        (data.items, data.users),
        (item_tower, user_tower),
        (item_prior[0], user_prior[0]),
        (item_prior[1], user_prior[1]),
    )
    output = Output(*data.bounds, shift=observed.mean, kind="clip")
    return Fitted(item_tower, user_tower, output, chosen, evidence)


def _fit_ranking(
    model: TwoTower, data: Prepared, embedding_dim: int, epochs: int, report: Report, run: Run
) -> Fitted:
    from simrec.model.fit.ranking import fit_ranking

    if model.hidden_layers:
        raise InputError("hidden_layers: the ranking objective has linear encoders only.")
    ratings, threshold = data.ratings, model.threshold
    if threshold is None:
        low, high = data.bounds
        threshold = low + 0.75 * (high - low)
    good = ratings.values >= threshold
    if not good.any():
        raise InputError(
            f"threshold: no rating reaches {threshold:g}, the highest is "
            f"{ratings.values.max():g}. Give a lower threshold."
        )
    ones = np.ones(int(good.sum()), np.float32)
    entries = (ones, (ratings.item_rows[good], ratings.user_rows[good]))
    towers = fit_ranking(
        sparse.csr_matrix(entries, shape=(ratings.n_items, ratings.n_users)),
        data.items.X[:, :-1],
        data.users.X[:, :-1],
        embedding_dim=embedding_dim,
        epochs=epochs,
        random_state=model.random_state,
        on_epoch=report,
        checkpoint=run.keep(model, data),
    )
    return Fitted(
        data.items.tower(towers.item_vectors, towers.item_weights),
        data.users.tower(towers.user_vectors, towers.user_weights),
        Output(0.0, 1.0),
        {"threshold": threshold, "liked": int(good.sum()), "ratings": len(ratings)},
    )


OBJECTIVES = {
    "rating": Objective(_fit_rating, 16, 16),
    "ranking": Objective(_fit_ranking, 32, 20),
}
