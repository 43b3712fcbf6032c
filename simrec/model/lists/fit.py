"""Fit the components of lists, and choose their blend on held-out pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from simrec.data.ratings import liked_from
from simrec.data.sides import Sides
from simrec.model.head import Encoder
from simrec.model.lists.blend import Blend, Scored, choose_weights, spread
from simrec.model.lists.choices import (
    LEAST_DRAWS,
    OF_TASK,
    UptakeDraw,
    UptakeSetting,
    choose_uptake,
    item_regression,
)
from simrec.model.lists.fading import Fading
from simrec.model.lists.held_out import HeldOut, Task
from simrec.model.lists.logit import logit_line
from simrec.model.lists.new_items import Compared, blend_of, comparable, factors_of
from simrec.model.lists.pair_weight import PairWeight
from simrec.model.lists.popularity import (
    Penalties,
    PopularityPart,
    choose_penalties,
    fit_popularity,
)
from simrec.model.lists.uptake import UptakePart, UserMaps, encoded_histories
from simrec.model.lists.uptake_model import UptakeModel
from simrec.model.lists.user_encoder import KNOWN, RIDGE, Known
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
# Tasks whose lists are much the same for all users: a blend is to gain in several groups of items.
_BY_ITEMS, _GROUPS = ("new_users", "new_items", "new_both"), 4

# What a user encoder predicts, and how much of it is in the blend.
Mix = dict[str, float]


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

    Returns the setting and what `_blended` returns, as plain data; the draws are given up.
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
        draws.append(_Draw(one, setting, parts_of(one.held.data)))
        step()
    return [asdict(setting), *_blended(draws, sample.ratings.has_ratings)]


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


class _Draw:
    """All components on one draw of held-out pairs."""

    def __init__(self, uptake: UptakeDraw, setting: UptakeSetting, parts: dict[str, Part]) -> None:
        self.held, self.uptake, self.parts = uptake.held, uptake, parts
        rating = {name: part for name, part in parts.items() if name == "rating"}
        self._given = {**parts, **self.held.with_given(rating)}
        self._encoder: Encoder | None = None
        if self.held.cold and self.held.data.sides.items.X.shape[1] > 1:
            regression = item_regression(self.held.data, setting.weighing, setting.item_penalty)
            self._encoder = regression.encoder(uptake.model.axes.items)

    def of_parts(self, name: str) -> dict[str, np.ndarray]:
        """Return the scores of predicted ratings and popularity for a task."""
        task, found = self.held.tasks[name], {}
        for key, part in (self._given if OF_TASK[name] == "few" else self.parts).items():
            users = np.array(part.heads.users.vectors[task.users])
            if key == PopularityPart.name:
                users[:, -1] = 0  # the coordinate of the offset, which is chosen later
            found[key] = users @ np.asarray(part.heads.items.vectors[task.items]).T
        return found

    def of_targets(self, name: str) -> dict[str, np.ndarray]:
        """Return the scores of parts, and of what users take up and what they like."""
        items = self.uptake.items(self.held.tasks[name], self._encoder).T
        maps = self.uptake.model.users.maps(OF_TASK[name])
        inputs = self.uptake.inputs(name)
        found = {target: (inputs @ one) @ items for target, one in maps.items()}
        return {**self.of_parts(name), **found}

    def of_mix(self, name: str, mix: Mix) -> dict[str, np.ndarray]:
        """Return the scores of parts, and of implicit feedback as mixed."""
        return {**self.of_parts(name), "uptake": self.of_uptake(name, mix)}

    def of_uptake(self, name: str, mix: Mix) -> np.ndarray:
        """Return the scores of implicit feedback as mixed."""
        maps = self.uptake.model.users.maps(OF_TASK[name])
        users = self.uptake.inputs(name) @ blend_of(mix, maps)
        return users @ self.uptake.items(self.held.tasks[name], self._encoder).T


def _blended(draws: Sequence[_Draw], rated: bool) -> list[Any]:
    """Choose the weights of each task, and put them together as factors of coordinates.

    Returns the mix of targets for each kind of user, the line that makes implicit feedback a logit,
    the blend and what was chosen, as plain data.
    """
    parts = ["popularity", *(["rating"] if rated else [])]  # all others are targets of uptake
    chosen: dict[str, Any] = {}
    weights: dict[str, dict[str, float]] = {}
    mixes: dict[Known, Mix] = {}

    def scored_on(draw: _Draw, task: str, mix: Mix | None) -> list[Scored]:
        # A component without a spread has nothing to say; nor has one that gives all new users the
        # same list, since what most people like is known: popularity.
        axis = 0 if task == "new_users" else 1
        every = draw.of_targets(task) if mix is None else draw.of_mix(task, mix)
        found = {n: z for n, z in every.items() if n == "popularity" or spread(z, axis)}
        groups = (_GROUPS if len(draws) < 3 else 2) if task in _BY_ITEMS else 1
        return _drawn(draw.held.tasks[task], found, groups)

    def choose(task: str, mix: Mix | None = None) -> None:
        scored = []
        warm_only = task == "known_users" and not all(draw.held.cold for draw in draws)
        for draw in draws:
            if len(draw.held.tasks[task].users) and not (warm_only and draw.held.cold):
                scored += scored_on(draw, task, mix)
        if scored:
            weights[task], chosen[f"held_out_ndcg@20_{task}"] = choose_weights(scored)

    for task in ("known_users", "few_pairs", "new_users"):
        choose(task)
    fallback = {"rating": 1.0, "popularity": 0.1} if rated else {"popularity": 1.0}
    known = weights.get("known_users", fallback)
    kinds: dict[Known, dict[str, float]] = {
        "nothing": weights.get("new_users", {"popularity": 1.0}),
        "few": weights.get("few_pairs", known),
        "known": known,
    }
    for kind, found in kinds.items():
        rest = {name: w for name, w in found.items() if name in parts}
        mix = {name: w for name, w in found.items() if name not in rest}
        mixes[kind] = mix or {"taken": 1.0}
        kinds[kind] = {**rest, **({"uptake": 1.0} if mix else {})}
    choose("new_items", mixes["known"])
    choose("new_both", mixes["nothing"])
    new = dict(weights.get("new_items", kinds["known"]))
    # What suits known users may say nothing of new items to a user of whom nothing is known.
    both = dict(weights.get("new_both", new))
    of_new: dict[Known, dict[str, float]] = {"nothing": both, "few": new, "known": new}
    lines = {}
    for kind in KNOWN:
        tasks = [(draw, draw.held.tasks[f"all_{kind}"]) for draw in draws if draw.held.cold]
        some = [draw for draw, task in tasks if len(task.users)]
        lines[kind] = comparable(
            [_compared(draw, kind, mixes[kind], kinds[kind], of_new[kind]) for draw in some]
        )
    line = _logit(draws, "known_users", mixes["known"]) or (1.0, 0.0)
    # Scores of users of whom nothing is known have a scale of their own.
    slope, _ = _logit(draws, "new_users", mixes["nothing"], line[1]) or line
    mixes["nothing"] = {name: slope / line[0] * w for name, w in mixes["nothing"].items()}
    known_slope = [(found, line[0]) for found in (kinds["few"], kinds["known"], new)]
    for weights_of, own in [*known_slope, (kinds["nothing"], slope), (both, slope)]:
        if "uptake" in weights_of:  # vectors have the slope in them
            weights_of["uptake"] /= own
    factors = factors_of(kinds, of_new, lines, ["uptake", *parts])
    chosen |= {f"weights_{kind}": _rounded({**kinds[kind], **mixes[kind]}) for kind in KNOWN}
    chosen |= {"weights_new_items": _rounded(new), "weights_new_both": _rounded(both)}
    return [mixes, line, Blend(factors).plain(), chosen]


def _compared(draw: _Draw, kind: Known, mix: Mix, known: Mix, new: Mix) -> Compared:
    """Return lists of one kind of users from all items."""
    task = draw.held.tasks[f"all_{kind}"]
    found = draw.of_mix(f"all_{kind}", mix)
    is_new = np.asarray(draw.held.data.sides.items.tower.counts)[task.items] == 0
    return Compared.of(blend_of(known, found), blend_of(new, found), is_new, task)


def _logit(
    draws: Sequence[_Draw], task: str, mix: Mix, intercept: float | None = None
) -> tuple[float, float] | None:
    """Return slope and intercept of the line from implicit feedback to the logit of uptake."""
    known = OF_TASK[task] == "known"
    for draw in draws:
        if known != draw.held.cold or all(one.held.cold for one in draws):
            z, rng = draw.of_uptake(task, mix), np.random.default_rng(0)
            # Of known users a tenth of the pairs is held out, of new ones all.
            line = logit_line(draw.held.tasks[task], z, rng, 10.0 if known else 1.0, intercept)
            if line is not None:
                return line
    return None


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
