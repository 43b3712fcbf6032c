"""What a `TwoTower` learns, in order: ratings, then the components of lists and their blend."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from simrec.data.ratings import Ratings
from simrec.data.sides import SINGULAR, Sides
from simrec.data.tables import TableLike
from simrec.model.checkpoint import Checkpoint, Run, read_rating, write_rating
from simrec.model.idle_columns import without_idle_columns
from simrec.model.lists.blend import Blend
from simrec.model.lists.fading import find_fading
from simrec.model.lists.fit import FittedLists, fit_lists
from simrec.model.lists.uptake import UptakePart
from simrec.model.new_entities.fit import BothNew, RatingFit, fit_both, fit_new, unrefined
from simrec.model.params import Settings
from simrec.model.part import Part
from simrec.model.posterior.problem import Problem
from simrec.model.posterior.sweeps import Log, posteriors
from simrec.model.prepare import Encoding, Prepared, PreparedSide, prepare
from simrec.model.rating.content_block import add_block, choose_coefficient
from simrec.model.rating.output import choose_output
from simrec.model.rating.part import RatingPart
from simrec.model.run.progress import Progress, Stage
from simrec.scoring.threads import one_blas_thread

if TYPE_CHECKING:
    from simrec.model.two_tower import TwoTower

logger = logging.getLogger(__name__)

_SWEEPS, _NEW_ITEMS, _NEW_USERS, _LISTS = "ratings", "new items", "new users", "lists"
_STAGE_OF = {"val_new_items": _NEW_ITEMS, "val_new_users": _NEW_USERS}
# Ratings on which errors are estimated.
_SAMPLE = 100_000


def fit_model(model: TwoTower, ratings: Ratings, tables: Sides[TableLike | None], run: Run) -> None:
    """Fit a model to ratings, where there are any, and to pairs.

    Each of several workers has all items, and a range of ascending ids of the users; the ranges
    are in the order of the workers. It ends with its own users, as `save` writes them.
    """
    columns = Sides(model.item_columns, model.user_columns)
    settings = Settings.of(model.get_params())
    # Networks read all features, and words are for lists alone.
    networks = settings.hidden_layers or any(one is not None for one in settings.encoders)
    spell = not ratings.has_ratings or (_ranks(settings) and not networks)
    encoding = Encoding(columns, model.min_count, model.knots, spell)
    with one_blas_thread():
        data = prepare(ratings, model.bounds, tables, encoding, run.workers)
        data = without_idle_columns(data, model.item_columns or {})
    rating, fading = None, None
    chosen: dict[str, Any] = {}
    with _progress(model.verbose, data, settings) as progress:
        checkpoint = run.checkpoint({**model.get_params(), "bounds": data.bounds}, data)
        if settings.half_life is not None:
            fading = find_fading(data.ratings, settings.half_life, data.workers)
            chosen["half_life"] = fading and 1 / fading.rate
        if data.ratings.has_ratings:

            def log(logs: dict[str, float]) -> None:
                progress.epoch(_STAGE_OF.get(next(iter(logs)), _SWEEPS), logs)

            found = checkpoint and read_rating(checkpoint, data)
            if found:
                rating, more, logged = found
                for logs in logged:
                    log(logs)
            else:
                rating, more = fit_ratings(data, settings, log, checkpoint)
                if checkpoint is not None:
                    write_rating(checkpoint, rating, more, progress.history)
            chosen |= more
        if _has_lists(data, settings):
            quick = settings.quick(chosen)
            lists = fit_lists(
                data,
                rating,
                lambda held_out: fit_ratings(held_out, quick, lambda logs: None)[0],
                settings.embedding_dim,
                settings.random_state,
                fading,
                partial(progress.step, _LISTS),
            )
            expected = lists.chosen.get("held_out_ndcg@20_known_users")
            progress.epoch(_LISTS, {} if expected is None else {"val_lists": expected})
        else:
            lists = FittedLists({}, Blend.single("rating"))
    model.parts_ = {**({} if rating is None else {"rating": rating}), **lists.parts}
    model.blend_, model.chosen_ = lists.blend, {**chosen, **lists.chosen}
    model.towers_, model.columns_ = data.sides.map(lambda side: side.tower), data.ratings.columns
    model.history_, model.schema_ = progress.history, data.schema
    uptake = lists.parts.get("uptake")
    counted = uptake.weight(data.ratings.values) if isinstance(uptake, UptakePart) else None
    model.rated_ = data.rated(counted)
    model.liked_ = data.liked() if settings.keep_evidence else None
    model.model_id_, model.parent_, model.updates_ = None, None, []
    for name, value in model.chosen_.items():
        shown = f"{value:.4g}" if isinstance(value, float) else value
        logger.debug("chosen: %s = %s", name, shown)


def _has_lists(data: Prepared, settings: Settings) -> bool:
    """Tell whether components of lists are fitted; without, predicted ratings rank."""
    return not data.ratings.has_ratings or _ranks(settings)


def _ranks(settings: Settings) -> bool:
    return settings.lists and settings.refine


def _progress(verbose: int, data: Prepared, settings: Settings) -> Progress:
    """Return the progress of a fit; the shares of its stages are those of ML-100K and Amazon."""
    if data.workers.size > 1 and verbose:
        verbose = 2  # a bar does not travel from a worker to a terminal
    if data.workers.rank > 0:  # the first one reports for all
        verbose = 0
    new = 200 if settings.hidden_layers else 10
    stages = [Stage(_LISTS, 80, 60)] if _has_lists(data, settings) else []
    if data.ratings.has_ratings:
        sweeps = Stage(_SWEEPS, 25, settings.epochs)
        stages = [sweeps, Stage(_NEW_ITEMS, new, 6), Stage(_NEW_USERS, new, 6), *stages]
    return Progress(stages, verbose)


def fit_ratings(
    data: Prepared, settings: Settings, log: Log, checkpoint: Checkpoint | None = None
) -> tuple[Part, dict[str, Any]]:
    """Fit both towers to ratings; return the rating part, and what was chosen on the way.

    `log` is called with the loss of each sweep, and the error of each attempt on held-out entities.
    """
    rng = np.random.default_rng(settings.random_state)
    words = data.sides.map(lambda side: side.words)
    data = replace(data, sides=data.sides.map(PreparedSide.without_words))
    # Matrices are small and many, and worked on in threads of our own: those of the BLAS would only
    # get in the way (half as much time again). Without them, results do not depend on their number.
    with one_blas_thread():
        output, chosen = choose_output(data, settings, rng.spawn(1)[0])
        R = Problem.of(data, output)
        fit = fit_towers(R, settings, rng, log, checkpoint)
        part, expected = RatingPart.of(fit, R, output, data, settings.keep_evidence)
        content = settings.content
        if content is None:
            content = choose_coefficient(data, settings, output, rng.spawn(1)[0])
        part = add_block(part, data, content).with_words(words)
    if content:
        chosen["content"] = content
    for side, new in fit.new.named():
        if new.penalty is not None:
            chosen[f"{SINGULAR[side]}_penalty"] = new.penalty.strength
    return part, {**chosen, **expected}


def fit_towers(
    R: Problem,
    settings: Settings,
    rng: np.random.Generator,
    log: Log,
    checkpoint: Checkpoint | None = None,
) -> RatingFit:
    """Fit known entities, the item SimEc and the user SimEc; with refinement, also both new.

    Both SimEcs have a frozen last layer. Without refinement it is the bare sentence: the item SimEc
    learns item features against R, the user SimEc user features against R^T with W_l frozen to the
    item embeddings. `simrec.model.rating.layout` describes how all of it lies in one vector.
    """
    known = posteriors(R, settings, rng, log, checkpoint)
    sample = R.observed.sample(_SAMPLE, rng)
    items = fit_new(R, known, "items", settings, sample, rng, log)
    if not settings.refine:
        known = unrefined(R, known, items)
    users = fit_new(R, known, "users", settings, sample, rng, log)
    new = Sides(items, users)
    if settings.refine:
        return RatingFit(known, new, fit_both(R, new, settings, rng))
    known.users.weights = users.weights
    both = BothNew(users.weights, users.error, users.network)
    return RatingFit(known, new, both, refined=False)
