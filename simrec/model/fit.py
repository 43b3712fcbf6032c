"""What a `TwoTower` learns, in order: ratings, uptake, and the weight between them in lists."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from simrec.data.sides import Sides
from simrec.model.kept_part import KeptPart, keep_part, kept_part
from simrec.model.lists import choose_uptake_weight
from simrec.model.ordered.part import OrderedPart
from simrec.model.part import Part
from simrec.model.prepare import Prepared, check_weights, mean_confidence, pair_matrix
from simrec.model.rating.known_entities import Report
from simrec.model.rating.output import OutputKind
from simrec.model.rating.part import RatingPart
from simrec.model.run.checkpoint import Checkpoint
from simrec.model.run.progress import Progress, Stage
from simrec.model.sample import sample_users
from simrec.model.uptake.fit import fit_uptake
from simrec.model.uptake.held_out import NEW_USERS, PAIRS
from simrec.model.uptake.part import UptakePart
from simrec.model.uptake.popularity import find_fading

# Sweeps of the rating part, or most iterations of each of two SimEcs, where they are not given.
EPOCHS = {"default": 16, "simec": 200}
# Coordinates of the rating part's embeddings, likewise.
_EMBEDDING_DIM = 16


_SWEEPS, _NEW_ITEMS, _NEW_USERS = "ratings", "new items", "new users"
_UPTAKE, _WEIGHT = "uptake", "weight of uptake"
_STAGE_OF = {"val_new_items": _NEW_ITEMS, "val_new_users": _NEW_USERS}


@dataclass(frozen=True)
class Settings:
    """The arguments of `TwoTower` that learning depends on."""

    embedding_dim: int | None
    epochs: int
    folds: int
    hidden_layers: tuple[int, ...]
    random_state: int
    method: Literal["default", "simec"] = "default"
    rating_output: OutputKind = "auto"
    own_encoders: Sides[Any] = Sides(None, None)  # noqa: RUF009 (frozen)
    keep_evidence: bool = True
    half_life: float | Literal["auto"] | None = None


def stages_of(settings: Settings, has_ratings: bool) -> list[Stage]:
    """Return the stages of a fit; their shares are those of fits of MovieLens 100K and Amazon."""
    new = 200 if settings.hidden_layers else 10
    rating = [
        Stage(_SWEEPS, 25, settings.epochs),
        Stage(_NEW_ITEMS, new, 6),
        Stage(_NEW_USERS, new, 6),
    ]
    if settings.method == "simec":
        rating = [Stage(_NEW_ITEMS, 70, 4), Stage(_NEW_USERS, 25, 4)]
    uptake = [Stage(_UPTAKE, 65, 60), Stage(_WEIGHT, 15, 30)]
    return [*rating, *uptake] if has_ratings else uptake[:1]


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
    checkpoint: Checkpoint | None,
    progress: Progress,
) -> FittedParts:
    """Learn ratings, where there are any, and uptake."""
    fitted, fading = FittedParts(), None
    if settings.half_life is not None:
        fading = find_fading(data.ratings, settings.half_life, data.workers)
        fitted.chosen["half_life"] = fading and 1 / fading.rate
    embedding_dim = settings.embedding_dim or _EMBEDDING_DIM
    if data.ratings.has_ratings:
        rating, chosen = _fit_rating(data, settings, embedding_dim, checkpoint, progress)
        fitted.parts[rating.name] = rating
        fitted.chosen |= chosen
    # A generator of its own, so that what is learned of ratings does not depend on uptake.
    rng = np.random.default_rng([settings.random_state, 1])
    check_weights(data)
    sample = sample_users(data, PAIRS, rng, NEW_USERS)
    features = data.sides.map(lambda side: side.X[:, :-1])
    # In units of the mean confidence: play counts and seconds of dwell time mean the same.
    confidence = mean_confidence(data.ratings, data.workers)
    uptake = fit_uptake(
        pair_matrix(data.ratings, confidence, data.scratch),
        features,
        pair_matrix(sample.ratings, confidence),
        sample.X.users[:, :-1],
        confidence,
        settings.embedding_dim,
        rng,
        data.workers,
        partial(progress.step, _UPTAKE),
        data.scratch,
    )
    del features
    fitted.chosen |= uptake.chosen
    progress.epoch(_UPTAKE, {"val_lists": uptake.chosen["expected_ndcg@20_known_users"]})
    if fitted.parts:
        step = partial(progress.step, _WEIGHT)
        weight, alone, reached = data.workers.agreed(
            choose_uptake_weight(sample, uptake, embedding_dim, rng, step)
        )
        uptake.solver = replace(uptake.solver, alone=alone)
        # Chosen with ratings as they are; a scalar product before a sigmoid is on another scale.
        fitted.uptake_weight = weight / fitted.parts["rating"].output.slope()
        fitted.chosen |= {"uptake_weight": fitted.uptake_weight, "expected_ndcg@10": reached}
    fitted.parts[UptakePart.name] = UptakePart.of(uptake, data).with_fading(fading, data)
    return fitted


def _fit_rating(
    data: Prepared,
    settings: Settings,
    embedding_dim: int,
    checkpoint: Checkpoint | None,
    progress: Progress,
) -> tuple[Part, dict[str, Any]]:
    told: list[dict[str, float]] = []

    def report(logs: dict[str, float]) -> None:
        told.append(logs)
        progress.epoch(_STAGE_OF.get(next(iter(logs)), _SWEEPS), logs)

    if checkpoint is not None:
        kept = kept_part(checkpoint, data, settings.keep_evidence)
        if kept is not None:
            for logs in kept.told:
                report(logs)
            return kept.part, kept.chosen
    part, chosen = _fitted(data, settings, embedding_dim, checkpoint, progress, report)
    if checkpoint is not None and checkpoint.due():
        keep_part(checkpoint, KeptPart(part, chosen, told), settings.keep_evidence)
    return part, chosen


def _fitted(
    data: Prepared,
    settings: Settings,
    embedding_dim: int,
    checkpoint: Checkpoint | None,
    progress: Progress,
    report: Report,
) -> tuple[Part, dict[str, Any]]:
    rng = np.random.default_rng(settings.random_state)
    if settings.method == "simec":
        return OrderedPart.fit(
            data,
            embedding_dim,
            settings.epochs,
            settings.hidden_layers,
            settings.own_encoders,
            rng,
            report,
            Sides.of(lambda side: partial(progress.step, _STAGE_OF[f"val_new_{side}"])),
            settings.keep_evidence,
            checkpoint,
        )
    return RatingPart.fit(
        data,
        embedding_dim,
        settings.epochs,
        settings.folds,
        settings.hidden_layers,
        settings.rating_output,
        rng,
        report,
        checkpoint,
        settings.keep_evidence,
    )
