"""Choose the weights of the components on draws of held-out pairs, and put them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simrec.model.head import Encoder
from simrec.model.lists.blend import Blend, Scored, choose_weights, spread
from simrec.model.lists.choices import OF_TASK, UptakeDraw, UptakeSetting, item_regression
from simrec.model.lists.held_out import Task
from simrec.model.lists.logit import logit_line
from simrec.model.lists.new_items import Compared, blend_of, comparable, factors_of
from simrec.model.lists.popularity import PopularityPart
from simrec.model.lists.user_encoder import KNOWN, Known
from simrec.model.part import Part

# Tasks whose lists are much the same for all users: a blend is to gain in several groups of items.
_BY_ITEMS, _GROUPS = ("new_users", "new_items", "new_both"), 4
# Tasks whose candidates are known; new ones are also ranked by the root of their likes.
_KNOWN_ITEMS = ("known_users", "few_pairs", "new_users")

# What a user encoder predicts, and how much of it is in the blend.
Mix = dict[str, float]


class Draw:
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
            users = np.asarray(part.heads.users.vectors[task.users])
            items = np.asarray(part.heads.items.vectors[task.items])
            if key == PopularityPart.name:  # the constant has a factor of its own
                if name not in _KNOWN_ITEMS:
                    found["likes"] = users[:, :1] @ items[:, 1:2].T
                users, items = users[:, :1], items[:, :1]
            found[key] = users @ items.T
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


def choose_blend(draws: Sequence[Draw], rated: bool) -> list[Any]:
    """Choose the weights of each task, and put them together as factors of coordinates.

    Returns the mix of targets for each kind of user, the line that makes implicit feedback a logit,
    the blend and what was chosen, as plain data.
    """
    parts = ["popularity", *(["rating"] if rated else [])]  # all others are targets of uptake
    chosen: dict[str, Any] = {}
    weights: dict[str, dict[str, float]] = {}
    mixes: dict[Known, Mix] = {}

    def scored_on(draw: Draw, task: str, mix: Mix | None) -> list[Scored]:
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


def _compared(draw: Draw, kind: Known, mix: Mix, known: Mix, new: Mix) -> Compared:
    """Return lists of one kind of users from all items."""
    task = draw.held.tasks[f"all_{kind}"]
    found = draw.of_mix(f"all_{kind}", mix)
    is_new = np.asarray(draw.held.data.sides.items.tower.counts)[task.items] == 0
    return Compared.of(blend_of(known, found), blend_of(new, found), is_new, task)


def _logit(
    draws: Sequence[Draw], task: str, mix: Mix, intercept: float | None = None
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
