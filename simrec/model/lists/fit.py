"""Fit the components of lists, and choose their blend on held-out pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from simrec.data.ratings import liked_from
from simrec.data.sides import Sides
from simrec.model.head import Encoder
from simrec.model.lists.blend import FEW, Blend, Scored, choose_weights, spread
from simrec.model.lists.components import (
    ContentPart,
    EasePart,
    PairWeight,
    PopularityPart,
    head_of,
    histories,
)
from simrec.model.lists.content import Content, ContentSetting, Maker, choose_content
from simrec.model.lists.ease_choice import EASE_DIM, EaseSetting, choose_ease
from simrec.model.lists.fading import Fading, day_of
from simrec.model.lists.held_out import GIVEN, HeldOut, Task
from simrec.model.lists.new_items import Inner, Levels, blend_of, comparable, factors_of, scores_of
from simrec.model.lists.popularity_encoder import popularity_encoder
from simrec.model.lists.spectrum import Spectrum, spectrum
from simrec.model.lists.uptake.choices import Choices, choose_uptake
from simrec.model.lists.uptake.encoders import Weighing
from simrec.model.lists.uptake.fit import fit_uptake
from simrec.model.lists.uptake.part import UptakePart
from simrec.model.part import Part
from simrec.model.prepare import Prepared, PreparedSide
from simrec.model.run.progress import Step, no_step
from simrec.model.sample import sample_users
from simrec.scoring.output import IDENTITY
from simrec.scoring.threads import one_blas_thread

# Pairs that a draw of held-out pairs is taken from, about: the cost of choices does not grow with
# the data. Small data sets are drawn from more often.
_PAIRS, LEAST_DRAWS, MOST_DRAWS = 100_000, 2, 8
# Users that are drawn beyond, for the tasks of new users, and the share of users and items that
# every other draw holds out whole.
_NEW_USERS, _COLD = 300, 0.2
# Tasks whose lists are much the same for all users: a blend is to gain in several groups of items.
_BY_ITEMS, _GROUPS = ("new_users", "new_items", "new_both"), 4


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


@dataclass(frozen=True, eq=False)
class _Settings:
    """What components are fitted with."""

    uptake: Choices
    ease: EaseSetting
    weight: PairWeight
    content: ContentSetting


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
        Coordinates of the least squares component; None to choose.
    random_state : int
        Seed of what is held out.
    fading : Fading, optional
        How popularity fades.
    step : callable
        Called after each thing that was tried.
    """
    # A generator of its own: what is learned of ratings does not depend on lists.
    rng = np.random.default_rng([random_state, 1])
    sample = sample_users(data, _PAIRS, rng, _NEW_USERS)
    values = sample.ratings.values
    liked = liked_from(data.bounds) if rating is not None else 0.0
    weight = PairWeight(0.0, float(values.mean()), float(liked))
    n_draws = int(np.clip(LEAST_DRAWS * _PAIRS // max(len(values), 1), LEAST_DRAWS, MOST_DRAWS))
    # Every other draw holds out pairs only: what suits known users depends on how dense the data
    # is, and whole items and users that are held out make it thinner.
    draws = [HeldOut.of(sample, liked, rng, _COLD * (k % 2 == 0)) for k in range(n_draws)]
    held = [draw for draw in draws if draw is not None]
    with one_blas_thread():
        choices, learned = choose_uptake(held, embedding_dim, rng, step)
    spectra = [_spectrum(draw.data, EASE_DIM, rng) for draw in held]
    share = len(values) / data.workers.total(len(data.ratings))
    ease, weight = choose_ease(held, spectra, weight, share)
    ease = EaseSetting(**data.workers.agreed(asdict(ease)))
    if ease.embedding_dim > EASE_DIM:
        spectra = [_spectrum(draw.data, ease.embedding_dim, rng) for draw in held]
    seed = int(rng.integers(1 << 31))

    @cache
    def content(data: Prepared, weighing: Weighing, embedding_dim: int) -> Content:
        return Content.of(data, weighing, embedding_dim, np.random.default_rng(seed))

    contents = choose_content(held, content) if data.sides.items.X.shape[1] > 1 else None
    found = (choices, ease, weight, contents or ContentSetting())
    plain = data.workers.agreed([asdict(one) for one in found])
    kinds = (Choices, EaseSetting, PairWeight, ContentSetting)
    settings = _Settings(*(kind(**one) for kind, one in zip(kinds, plain, strict=True)))
    axes = _spectrum(data, settings.ease.embedding_dim, rng)
    parts = _components(data, settings, axes, rng, content, fading=fading)
    inner = []
    for draw, axes in zip(held, spectra, strict=True):
        fitted: dict[str, Part] = {} if rating is None else {"rating": fit_rating(draw.data)}
        fitted |= _components(draw.data, settings, axes, rng, content, draw.cold, learned.get(draw))
        inner.append((draw, fitted, draw.with_given(fitted)))
        step()
    names = [*([] if rating is None else ["rating"]), *parts]
    blend, chosen = _blended(inner, names, settings.ease, parts)
    agreed, chosen = data.workers.agreed([blend.plain(), chosen])
    blend = Blend.from_plain(agreed)
    tower = data.sides.items.tower
    counts = np.asarray(tower.counts)
    rare = np.flatnonzero((counts > 0) & (counts < FEW))
    popularity = parts[PopularityPart.name]
    assert isinstance(popularity, PopularityPart)
    parts[popularity.name] = popularity.between(rare, counts[rare], tower.features[rare])
    return FittedLists(parts, blend, {**_described(settings), **chosen})


def _components(
    data: Prepared,
    settings: _Settings,
    found: Spectrum,
    rng: np.random.Generator,
    content: Maker,
    new_items: bool = True,
    learned: np.ndarray | None = None,
    fading: Fading | None = None,
) -> dict[str, Part]:
    """Fit all components but predicted ratings.

    `new_items`: whether any will be ranked; `learned`: item vectors that uptake goes on from.
    """
    uptake = fit_uptake(data, settings.uptake, rng, learned)
    parts: dict[str, Part] = {UptakePart.name: UptakePart.of(uptake, data)}
    parts[PopularityPart.name] = _popularity(
        data, settings.weight, rng if new_items else None, fading
    )
    parts[EasePart.name] = _ease(data, settings, found)
    if data.sides.items.X.shape[1] > 1:
        made = content(data, settings.content.weighing, settings.content.embedding_dim)
        parts[ContentPart.name] = made.part(data, settings.content, settings.weight)
    return parts


def _spectrum(data: Prepared, embedding_dim: int, rng: np.random.Generator) -> Spectrum:
    return spectrum(histories(data, PairWeight()), embedding_dim, rng, data.workers)


def _ease(data: Prepared, settings: _Settings, found: Spectrum) -> EasePart:
    ease, H = settings.ease, histories(data, settings.weight)
    items = found.items(ease.of_items)
    users = np.asarray(H @ found.inputs(), np.float32)
    d = items.shape[1]

    def none(side: PreparedSide) -> Encoder:
        return Encoder(np.zeros((side.tower.features.shape[1] + 1, d), np.float32))

    heads = data.sides.map(lambda side, v: head_of(side, v, none(side)), Sides(items, users))
    n = np.maximum(np.linalg.norm(items, axis=1), 1e-30)
    numbers = np.zeros(len(data.sides.items.tower.ids), np.float32)
    numbers[data.sides.items.rated_rows] = np.linalg.norm(found.inputs(), axis=1) / n
    ridge = ease.of_items * found.unit
    return EasePart(heads, IDENTITY, settings.weight, numbers, found.e, ridge)


def _popularity(
    data: Prepared,
    weight: PairWeight,
    rng: np.random.Generator | None,
    fading: Fading | None = None,
) -> PopularityPart:
    ratings, liked = data.ratings, data.ratings.values >= weight.liked

    def counted(weights: np.ndarray | None = None) -> np.ndarray:
        one = np.bincount(ratings.item_rows[liked], weights, minlength=ratings.n_items)
        return data.workers.sum(one.astype(np.float64))

    likes, at = counted(), day_of(ratings)
    if fading is not None and at is not None:  # over all items they sum up to the same
        recent = counted(fading.weights(at[liked]))
        if likes.any():
            fading = replace(fading, scale=float(likes.sum() / max(recent.sum(), 1e-30)))
        likes = recent * fading.scale
    logs = np.log1p(likes).astype(np.float32)
    X, groups = data.sides.items.X[:, :-1], data.sides.items.groups[:-1]
    encoder = popularity_encoder(X, groups, logs, rng)
    none = np.zeros_like(logs)
    items = head_of(data.sides.items, np.column_stack([logs, none, none]), encoder)
    constant = Encoder(np.zeros((data.sides.users.tower.features.shape[1] + 1, 3), np.float32))
    constant.weights[-1] = 1
    users = head_of(data.sides.users, np.ones((ratings.n_users, 3), np.float32), constant)
    numbers = np.zeros(len(data.sides.items.tower.ids), np.float32)
    numbers[data.sides.items.rated_rows] = likes
    return PopularityPart(Sides(items, users), IDENTITY, weight, numbers, fading)


def _blended(
    inner: Sequence[Inner], names: Sequence[str], ease: EaseSetting, parts: Mapping[str, Any]
) -> tuple[Blend, dict[str, Any]]:
    """Choose the weights of each task, and put them together as factors of coordinates."""
    chosen: dict[str, Any] = {}
    weights: dict[str, dict[str, float]] = {}
    for task in ("known_users", "few_pairs", "new_users", "new_items", "new_both"):
        draws = []
        warm_only = task == "known_users" and not all(held.cold for held, *_ in inner)
        for held, before, after in inner:
            if len(held.tasks[task].users) and not (warm_only and held.cold):
                fitted = after if task == "few_pairs" else before
                filters = {"ease": ease.filter(before["ease"], few=task == "few_pairs")}
                scored = scores_of(held.tasks[task], fitted, filters)
                # A component without a spread has nothing to say; nor has one that gives all new
                # users the same list, since what most people like is known: popularity.
                axis = 0 if task == "new_users" else 1
                scored = {n: z for n, z in scored.items() if n == "popularity" or spread(z, axis)}
                groups = (_GROUPS if len(inner) < 3 else 2) if task in _BY_ITEMS else 1
                draws += _drawn(held.tasks[task], scored, groups)
        if draws:
            weights[task], chosen[f"held_out_ndcg@20_{task}"] = choose_weights(draws)
    fallback = {"popularity": 1.0} if "rating" not in names else {"rating": 1.0, "popularity": 0.1}
    known = weights.get("known_users", fallback)
    few = weights.get("few_pairs", known)
    nothing = weights.get("new_users", {"popularity": 1.0})
    new = weights.get("new_items", known)
    kinds = {"nothing": nothing, "few": few, "known": known}
    # What suits known users may say nothing of new items to a user of whom nothing is known.
    both = weights.get("new_both", new)
    place = comparable(inner, known, new, ease)
    lines = dict.fromkeys(kinds, place.line)
    cold = [(held.tasks, before) for held, before, _ in inner if len(held.tasks["new_both"].users)]
    if cold:
        old_z = [blend_of(nothing, scores_of(tasks["new_users"], one, {})) for tasks, one in cold]
        new_z = [blend_of(both, scores_of(tasks["new_both"], one, {})) for tasks, one in cold]
        lines["nothing"] = Levels.of(old_z, new_z).line(place.scale, place.offset)
    of_new = {"nothing": both, "few": new, "known": new}
    blend = factors_of(kinds, of_new, lines, names, ease, parts)
    chosen |= {f"weights_{kind}": _rounded(w) for kind, w in kinds.items()}
    chosen |= {"weights_new_items": _rounded(new), "weights_new_both": _rounded(both)}
    return Blend(blend, float(GIVEN), 2.0 * GIVEN), chosen


def _drawn(task: Task, scores: Mapping[str, np.ndarray], groups: int) -> list[Scored]:
    """Return the scores of a task, its candidates in some groups that count as draws.

    A few items may be most of the hits: a gain is to hold for others too.
    """
    if groups == 1:
        return [Scored.of(scores, task.hits, task.exclude)]  # all users of a task have hits
    found = []
    for group in range(groups):
        at = np.arange(len(task.items)) % groups == group
        users = np.flatnonzero(task.hits[:, at].any(axis=1))
        if len(users):
            some = np.ix_(users, np.flatnonzero(at))
            part = {name: z[some] for name, z in scores.items()}
            found.append(Scored.of(part, task.hits[some], task.exclude[some]))
    return found


def _rounded(weights: Mapping[str, float]) -> dict[str, float]:
    return {name: float(f"{weight:.4g}") for name, weight in weights.items()}


def _described(settings: _Settings) -> dict[str, Any]:
    uptake, ease = settings.uptake, settings.ease
    return {
        "uptake_dimensions": uptake.embedding_dim,
        "uptake_zero": uptake.zero,
        "uptake_ridge": uptake.ridge,
        "uptake_weighted": uptake.weighted,
        "ease_ridge_known": ease.known,
        "ease_ridge_few": ease.few,
        "ease_dimensions": ease.embedding_dim,
        "rating_slope": settings.weight.slope,
        **{f"content_{name}": value for name, value in asdict(settings.content).items()},
    }
