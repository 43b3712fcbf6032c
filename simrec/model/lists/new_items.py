"""Scores of new items among those of others, and the factors that a blend has for both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from simrec.data.sides import Sides
from simrec.model.lists.blend import NEW, list_quality, spread
from simrec.model.lists.held_out import Task
from simrec.model.lists.user_encoder import Known

# Users on whom new items are made comparable with others.
_COMPARED = 300
_SCALES = tuple(2.0 ** (j / 2) for j in range(-4, 5))
_OFFSETS = tuple(0.5 * j for j in range(-6, 7))


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


class Compared(NamedTuple):
    """Lists of known users from all items, new ones among them."""

    as_known: np.ndarray  # scores by the weights of known items
    as_new: np.ndarray  # scores by those of new ones
    is_new: np.ndarray
    task: Task


def comparable(draws: Sequence[Compared]) -> Place:
    """Choose what makes scores of new items comparable with those of others."""
    draws = [
        Compared(z[:_COMPARED], new[:_COMPARED], is_new, task.first(_COMPARED))
        for z, new, is_new, task in draws
        if len(task.users) and is_new.any()
    ]
    if not draws:
        return Place()
    old = [one.as_known[:, ~one.is_new] for one in draws]
    levels = Levels.of(old, [one.as_new[:, one.is_new] for one in draws])

    def quality(scale: float, offset: float) -> float:
        total, (factor, shift) = [], levels.line(scale, offset)
        for as_known, as_new, is_new, task in draws:
            z = np.where(is_new[None], factor * as_new + shift, as_known)
            z = np.where(task.exclude, -np.inf, z)
            total.append(list_quality(z, task.hits, task.hits.sum(1)).mean())
        return float(np.mean(total))

    offset = max(_OFFSETS, key=lambda one: quality(1.0, one))
    scale = max((1.0, *_SCALES), key=lambda one: quality(one, offset))
    return Place(scale, offset, levels.line(scale, offset))


def factors_of(
    kinds: Mapping[Known, Mapping[str, float]],
    new: Mapping[Known, Mapping[str, float]],
    lines: Mapping[Known, tuple[float, float]],
    names: Sequence[str],
) -> dict[str, Sides[np.ndarray]]:
    """Return the factors of coordinates from weights of tasks, for each kind of user.

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
        if np.any(users):
            factors[name] = Sides(items, users)
    return dict(sorted(factors.items()))
