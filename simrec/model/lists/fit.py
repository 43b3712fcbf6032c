"""Fit the components of lists, and choose their blend on held-out pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from simrec.data.ratings import liked_from
from simrec.data.sides import Sides
from simrec.model.head import Encoder
from simrec.model.lists.blend import Blend
from simrec.model.lists.choices import (
    LEAST_DRAWS,
    UptakeSetting,
    choose_uptake,
    item_regression,
)
from simrec.model.lists.fading import Fading
from simrec.model.lists.held_out import HeldOut
from simrec.model.lists.pair_weight import PairWeight
from simrec.model.lists.popularity import (
    Penalties,
    choose_penalties,
    fit_popularity,
)
from simrec.model.lists.uptake import UptakePart, UserMaps, encoded_histories
from simrec.model.lists.uptake_model import UptakeModel
from simrec.model.lists.user_encoder import KNOWN, RIDGE, Known
from simrec.model.lists.weights import Draw, Mix, choose_blend
from simrec.model.part import Part
from simrec.model.prepare import Prepared, pair_matrix, spread_rows
from simrec.model.run.progress import Step, no_step
from simrec.model.sample import Sample, sample_users
from simrec.scoring.output import Output
from simrec.scoring.threads import one_blas_thread

# Pairs that a draw of held-out pairs is taken from, about: the cost of choices does not grow with
# the data. Small data sets are drawn from more often.
_PAIRS, MOST_DRAWS = 100_000, 8
# Users that are drawn beyond, for the tasks of new users, and the share of users and items that
# every other draw holds out whole.
_NEW_USERS, _COLD = 300, 0.2


@dataclass(eq=False)
class FittedLists:
    """What lists are made of.

    Attributes
    ----------
    parts : dict of str to Part
        The components beside predicted ratings, by name.
    blend : Blend
        Their weights, and that of predicted ratings.
    chosen : dict
        What was chosen, and the quality of lists to expect.
    """

    parts: dict[str, Part]
    blend: Blend
    chosen: dict[str, Any] = field(default_factory=dict)


def fit_lists(
    data: Prepared,
    rating: Part | None,
    fit_rating: Callable[[Prepared], Part],
    embedding_dim: int | None,
    random_state: int,
    fading: Fading | None = None,
    step: Step = no_step,
) -> FittedLists:
    """Fit all components, and choose their weights on components fitted without held-out pairs.

    Parameters
    ----------
    data : Prepared
        Pairs and features.
    rating : Part or None
        What predicts ratings; None where there are none.
    fit_rating : callable
        Fits such a part to other data.
    embedding_dim : int or None
        Coordinates of item embeddings; None to choose.
    random_state : int
        Seed of what is held out.
    fading : Fading, optional
        How popularity fades.
    step : callable
        Called after each thing that was tried.
    """
    # Generators of their own: what is drawn for one choice does not depend on another.
    rng = np.random.default_rng([random_state, 1])
    sample = sample_users(data, _PAIRS, rng, _NEW_USERS)
    liked = float(liked_from(data.bounds)) if rating is not None else 0.0
    weight = PairWeight.of(sample.ratings, liked)
    with one_blas_thread():
        folds = np.random.default_rng([random_state, 2])
        agreed = data.workers.agreed(choose_penalties(data, liked, folds))
        penalties = agreed and Penalties(*agreed)

        def parts_of(held_out: Prepared) -> dict[str, Part]:
            own = {} if rating is None else {"rating": fit_rating(held_out)}
            return {**own, "popularity": fit_popularity(held_out, liked, penalties)}

        found = _chosen(sample, liked, weight, parts_of, embedding_dim, rng, step)
        del sample
        plain, mixes, line, blend_plain, chosen = data.workers.agreed(found)
        setting = UptakeSetting(**plain)
        uptake = _uptake(data, setting, weight, mixes, line, rng)
        if fading is not None:
            agreed = data.workers.agreed(choose_penalties(data, liked, folds, fading))
            penalties = agreed and Penalties(*agreed)
        popularity = fit_popularity(data, liked, penalties, fading)
    parts: dict[str, Part] = {"uptake": uptake, "popularity": popularity}
    settings = {f"uptake_{name}": value for name, value in asdict(setting).items()}
    return FittedLists(parts, Blend.from_plain(blend_plain), {**settings, **chosen})


def _chosen(
    sample: Sample,
    liked: float,
    weight: PairWeight,
    parts_of: Callable[[Prepared], dict[str, Part]],
    embedding_dim: int | None,
    rng: np.random.Generator,
    step: Step,
) -> list[Any]:
    """Choose the setting of implicit feedback and the blend on draws of held-out pairs.

    Returns the setting and what `choose_blend` returns, as plain data; the draws are given up.
    """
    n = len(sample.ratings)
    n_draws = int(np.clip(LEAST_DRAWS * _PAIRS // max(n, 1), LEAST_DRAWS, MOST_DRAWS))
    # Every other draw holds out pairs only: what suits known users depends on how dense the data
    # is, and whole items and users that are held out make it thinner.
    found = [HeldOut.of(sample, liked, rng, _COLD * (k % 2 == 0)) for k in range(n_draws)]
    held = [draw for draw in found if draw is not None]
    setting, tried = choose_uptake(held, embedding_dim, weight, rng, step)
    draws = []
    for one in tried:
        draws.append(Draw(one, setting, parts_of(one.held.data)))
        step()
    return [asdict(setting), *choose_blend(draws, sample.ratings.has_ratings)]


def _uptake(
    data: Prepared,
    setting: UptakeSetting,
    weight: PairWeight,
    mixes: Mapping[Known, Mix],
    line: Sequence[float],
    rng: np.random.Generator,
) -> UptakePart:
    """Fit implicit feedback to all pairs."""
    workers, ratings = data.workers, data.ratings
    model = UptakeModel.of(data, weight, setting.embedding_dim, setting.power, rng)
    maps = []
    for known in KNOWN:
        found = model.users.maps(known)
        maps.append(sum(w * found[target] for target, w in mixes[known].items()))
    slope, shift = line
    users = UserMaps(model.projection, workers.first(np.float32(slope) * np.stack(maps)))
    axes, mean = model.axes, model.mean
    del model, found, maps  # as many rows as users
    vectors, inputs = axes.items, axes.scale**2
    side = data.sides.items
    if side.X.shape[1] > 1:
        encoder = item_regression(data, setting.weighing, setting.item_penalty).encoder(vectors)
        encoder.weights = workers.first(encoder.weights)
    else:
        encoder = Encoder(vectors.mean(0, keepdims=True))
    tower = data.sides.users.tower
    H = spread_rows(pair_matrix(ratings, weight(ratings.values)), tower.counts > 0)
    # Of all users at once: these vectors are most of the memory of a fit.
    histories = encoded_histories(H, axes.inputs, tower.features, users)
    cold = Encoder(users.of_features())
    heads = Sides(
        side.head(vectors, encoder), data.sides.users.head(histories, cold, cold.weights[-1])
    )
    n = len(side.tower.ids)
    of_all, fitted = np.zeros(n, np.float32), np.zeros(n, bool)
    of_all[side.rated_rows], fitted[side.rated_rows] = inputs, True
    spread_ = axes.e + np.float32(RIDGE["known"])
    output = Output(0.0, 1.0, shift)
    power, typical = setting.power, float(side.counts.mean())
    return UptakePart(heads, output, weight, users, of_all, fitted, spread_, mean, power, typical)
