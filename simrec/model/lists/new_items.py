"""Scores of new items among those of others, and the factors that a blend has for both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from simrec.data.sides import Sides
from simrec.model.lists.blend import NEW, list_quality, spread
from simrec.model.lists.components import PopularityPart
from simrec.model.lists.ease_choice import EaseSetting
from simrec.model.lists.held_out import HeldOut, Task
from simrec.model.part import Part

# Users on whom new items are made comparable with others.
_COMPARED = 300
_SCALES = tuple(2.0 ** (j / 2) for j in range(-4, 5))
_OFFSETS = tuple(0.5 * j for j in range(-6, 7))

# A draw, its components without and with the given pairs of new users.
Inner = tuple[HeldOut, dict[str, Any], dict[str, Any]]


def scores_of(task: Task, parts: Mapping[str, Part], filters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the score of each component for all users and candidates of a task."""
    found = {}
    for name, part in parts.items():
        users = np.asarray(part.heads.users.vectors[task.users]) * filters.get(name, np.float32(1))
        if name == PopularityPart.name:
            users[:, -1] = 0  # the coordinate of the offset, which is chosen later
        found[name] = users @ np.asarray(part.heads.items.vectors[task.items]).T
    return found


def blend_of(weights: Mapping[str, float], scores: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the weighted sum of those components that there are."""
    return np.asarray(sum(w * scores[name] for name, w in weights.items() if name in scores))


class Place(NamedTuple):
    """Where new items are among others: their spread and the distance of their mean, in spreads."""

    scale: float = 1.0
    offset: float = 0.0
    # Factor and offset of scores that do this for known users
    line: tuple[float, float] = (1.0, 0.0)


class Levels(NamedTuple):
    """Spreads and means of scores: those of known items, and those of new ones."""

    spreads: Sequence[float]
    means: Sequence[float]

    @classmethod
    def of(cls, old: Sequence[np.ndarray], cold: Sequence[np.ndarray]) -> Levels:
        """Measure scores of known and of new items, on several draws."""
        spreads = [float(np.mean([spread(z) for z in one])) for one in (old, cold)]
        means = [float(np.mean([z.mean() if z.size else 0 for z in one])) for one in (old, cold)]
        return cls(spreads, means)

    def line(self, scale: float, offset: float) -> tuple[float, float]:
        """Return the factor and offset that put scores of new items there; see `Place`."""
        factor = scale * (self.spreads[0] / self.spreads[1] if self.spreads[1] > 0 else 1.0)
        return factor, self.means[0] - factor * self.means[1] + offset * self.spreads[0]


def comparable(
    inner: Sequence[Inner], known: dict[str, float], new: dict[str, float], ease: EaseSetting
) -> Place:
    """Choose what makes scores of new items comparable with those of others.

    On lists of known users from all items, new ones among them.
    """
    tasks = []
    for held, before, _ in inner:
        task = held.tasks["all_items"].first(_COMPARED)
        if not len(task.users):
            continue
        found = scores_of(task, before, {"ease": ease.filter(before["ease"], few=False)})
        is_new = np.asarray(held.data.sides.items.tower.counts)[task.items] == 0
        tasks.append((blend_of(known, found), blend_of(new, found), is_new, task))
        del found  # as large as all components
    if not tasks:
        return Place()
    old, cold = ([z[k][:, new == (k == 1)] for *z, new, _ in tasks] for k in (0, 1))
    levels = Levels.of(old, cold)

    def quality(scale: float, offset: float) -> float:
        total, (factor, shift) = [], levels.line(scale, offset)
        for as_known, as_new, is_new, task in tasks:
            z = np.where(is_new[None], factor * as_new + shift, as_known)
            z = np.where(task.exclude, -np.inf, z)
            total.append(list_quality(z, task.hits, task.hits.sum(1)).mean())
        return float(np.mean(total))

    offset = max(_OFFSETS, key=lambda one: quality(1.0, one))
    scale = max((1.0, *_SCALES), key=lambda one: quality(one, offset))
    return Place(scale, offset, levels.line(scale, offset))


def factors_of(
    kinds: Mapping[str, Mapping[str, float]],
    new: Mapping[str, Mapping[str, float]],
    lines: Mapping[str, tuple[float, float]],
    names: Sequence[str],
    ease: EaseSetting,
    parts: Mapping[str, Any],
) -> dict[str, Sides[np.ndarray]]:
    """Return the factors of coordinates from weights of tasks.

    Weights of known and of new items differ in coordinates of their own, so that neither disturbs
    the other.
    """
    factors = {}
    for name in sorted(names):
        weights = [[kinds[kind].get(name, 0.0)] for kind in kinds]
        users, items = np.array(weights, np.float32), np.array([[0.0], [1.0]], np.float32)
        cold = np.array([[lines[kind][0] * new[kind].get(name, 0.0)] for kind in kinds], np.float32)
        if name == "popularity":
            # Its other coordinates are of new items alone: what features tell, and the offset.
            offsets = np.array([[lines[kind][1]] for kind in kinds], np.float32)
            users, items = np.hstack([users, cold, offsets]), np.ones((2, 3), np.float32)
        elif cold.any():
            factors[f"{NEW}{name}"] = Sides(1 - items, cold)
        if name == "ease":
            filters = [ease.filter(parts["ease"], few=few) for few in (True, True, False)]
            users = users * np.stack(filters)
        if np.any(users):
            factors[name] = Sides(items, users)
    return dict(sorted(factors.items()))
