"""Scores of new items among those of others, and the factors that a blend has for both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from simrec.data.sides import Sides
from simrec.model.lists.blend import NEW, K, clear_gain, list_quality, spread
from simrec.model.lists.held_out import Task
from simrec.model.lists.user_encoder import Known

# Factors that are tried, relative to that at which scores of new items spread as much as others,
# and distances of their means, in spreads.
_SCALES = tuple(2.0**j for j in (0, -1, 1, -2, 2, -3, -4))
_OFFSETS = tuple(0.5 * j for j in sorted(range(-8, 7), key=abs))

# Factor and offset of the scores of new items.
Line = tuple[float, float]


def blend_of(weights: Mapping[str, float], scores: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the weighted sum of those components that there are."""
    return np.asarray(sum(w * scores[name] for name, w in weights.items() if name in scores))


class Compared(NamedTuple):
    """Lists from all items: the best known and the best new candidates of each user.

    No factor and no offset changes the order among either, so no others can be in a list.
    """

    known: np.ndarray  # scores, users x candidates
    new: np.ndarray
    hit: np.ndarray  # of the known ones, then of the new ones
    n_hits: np.ndarray
    spreads: tuple[float, float]  # of scores of all known items, and of all new ones
    means: tuple[float, float]

    @classmethod
    def of(cls, known: np.ndarray, new: np.ndarray, is_new: np.ndarray, task: Task) -> Compared:
        """Take scores of all items by the weights of known ones, and by those of new ones."""
        tops, hits = [], []
        for z, at in ((known, np.flatnonzero(~is_new)), (new, np.flatnonzero(is_new))):
            z = np.where(task.exclude[:, at], -np.inf, z[:, at])
            top = np.argpartition(-z, min(K, len(at)) - 1, axis=1)[:, :K]
            tops.append(np.take_along_axis(z, top, 1))
            hits.append(np.take_along_axis(task.hits[:, at], top, 1))
        both = known[:, ~is_new], new[:, is_new]
        return cls(
            tops[0],
            tops[1],
            np.hstack(hits),
            task.hits.sum(1),
            (spread(both[0]), spread(both[1])),
            (float(both[0].mean()), float(both[1].mean())),
        )


def comparable(draws: Sequence[Compared]) -> Line:
    """Choose what makes scores of new items comparable with those of others, on held-out lists.

    New items are below others unless lists clearly gain by them. Without draws their scores stay as
    they are.
    """
    if not draws:
        return 1.0, 0.0
    spreads = np.mean([one.spreads for one in draws], axis=0)
    means = np.mean([one.means for one in draws], axis=0)
    ratio = spreads[0] / spreads[1] if spreads[1] > 0 else 1.0

    def line(scale: float, offset: float) -> Line:
        factor = scale * ratio
        return float(factor), float(means[0] - factor * means[1] + offset * spreads[0])

    def quality(line: Line) -> list[np.ndarray]:
        return [
            list_quality(np.hstack([one.known, line[0] * one.new + line[1]]), one.hit, one.n_hits)
            for one in draws
        ]

    lines = [line(scale, offset) for scale in _SCALES for offset in _OFFSETS]
    lowest = line(_SCALES[-1], min(_OFFSETS))
    below = quality(lowest)
    gains = [clear_gain(quality(one), below) for one in lines]
    return lines[int(np.argmax(gains))] if any(gains) else lowest


def factors_of(
    kinds: Mapping[Known, Mapping[str, float]],
    new: Mapping[Known, Mapping[str, float]],
    lines: Mapping[Known, Line],
    names: Sequence[str],
) -> dict[str, Sides[np.ndarray]]:
    """Return the factors of coordinates from weights of tasks, for each kind of user.

    Weights of known and of new items differ in coordinates of their own, so that neither disturbs
    the other. Of popularity the second coordinate, the root of the likes, is for new items alone,
    and the third is their constant.
    """

    def of_new(name: str) -> np.ndarray:
        cold = [[lines[kind][0] * new[kind].get(name, 0.0)] for kind in kinds]
        return np.array(cold, np.float32)

    factors = {}
    for name in sorted(names):
        users = np.array([[kinds[kind].get(name, 0.0)] for kind in kinds], np.float32)
        cold, items = of_new(name), np.array([[0.0], [1.0]], np.float32)
        if name == "popularity":
            offsets = np.array([[lines[kind][1]] for kind in kinds], np.float32)
            users = np.hstack([users, 0 * users, 0 * users])
            cold = np.hstack([cold, of_new("likes"), offsets])
        if cold.any():
            factors[f"{NEW}{name}"] = Sides(1 - items, cold)
        if np.any(users):
            factors[name] = Sides(items, users)
    return dict(sorted(factors.items()))
