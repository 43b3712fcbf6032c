"""What a `TwoTower` learns, in order: ratings, uptake, and the weight between them in lists."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simrec.data.sides import Sides
from simrec.model.lists import choose_uptake_weight
from simrec.model.ordered.part import OrderedPart
from simrec.model.part import Part
from simrec.model.prepare import Prepared, pair_matrix
from simrec.model.rating.known_entities import Report
from simrec.model.rating.part import RatingPart
from simrec.model.run.checkpoint import Checkpoint
from simrec.model.run.workers import Workers
from simrec.model.uptake.fit import fit_uptake
from simrec.model.uptake.part import UptakePart

# Sweeps of the rating part (of two SimEcs, most iterations of each), and coordinates of its
# embeddings, where they are not given.
EPOCHS = {"default": 16, "simec": 200}
_EMBEDDING_DIM = 16


@dataclass(frozen=True)
class Settings:
    """The arguments of `TwoTower` that learning depends on."""

    embedding_dim: int | None
    epochs: int
    folds: int
    hidden_layers: tuple[int, ...]
    random_state: int
    method: str = "default"
    encoders: Sides[Any] = field(default_factory=lambda: Sides(None, None))


@dataclass(eq=False)
class FittedParts:
    """What was learned.

    Attributes
    ----------
    parts : dict of str to Part
        By name.
    uptake_weight : float
        Weight of uptake in lists, where the predicted rating has weight 1.
    chosen : dict
        What was chosen on the way, and the errors to expect.
    """

    parts: dict[str, Part] = field(default_factory=dict)
    uptake_weight: float = 1.0
    chosen: dict[str, Any] = field(default_factory=dict)


def fit_parts(
    data: Prepared,
    settings: Settings,
    workers: Workers,
    checkpoint: Checkpoint | None,
    report: Report,
) -> FittedParts:
    """Learn ratings, where there are any, and uptake."""
    fitted = FittedParts()
    embedding_dim = settings.embedding_dim or _EMBEDDING_DIM
    if data.ratings.has_ratings:
        rng = np.random.default_rng(settings.random_state)
        rating: RatingPart | OrderedPart
        if settings.method == "simec":
            rating, chosen = OrderedPart.fit(
                data,
                embedding_dim,
                settings.epochs,
                settings.hidden_layers,
                settings.encoders,
                rng,
                report,
            )
        else:
            rating, chosen = RatingPart.fit(
                data,
                embedding_dim,
                settings.epochs,
                settings.folds,
                settings.hidden_layers,
                rng,
                report,
                workers,
                checkpoint,
            )
        fitted.parts[rating.name] = rating
        fitted.chosen |= chosen
    # A generator of its own, so that what is learned of ratings does not depend on uptake.
    rng = np.random.default_rng([settings.random_state, 1])
    features = data.sides.map(lambda side: side.X[:, :-1])
    uptake = fit_uptake(pair_matrix(data.ratings), features, settings.embedding_dim, rng)
    fitted.chosen |= uptake.chosen
    if fitted.parts:
        weight, reached = choose_uptake_weight(data, uptake, embedding_dim, rng)
        # It was chosen beside ratings; scalar products of the rating part may have another scale.
        fitted.uptake_weight = weight / rating.output.slope()
        fitted.chosen |= {"uptake_weight": fitted.uptake_weight, "expected_ndcg@10": reached}
    fitted.parts[UptakePart.name] = UptakePart.of(uptake, data)
    report({"val_lists": uptake.chosen["expected_ndcg@20_known_users"]})
    return fitted
