"""What implicit feedback needs, chosen on held-out pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from simrec.model.head import Encoder
from simrec.model.lists.axes import POWER
from simrec.model.lists.blend import list_quality
from simrec.model.lists.held_out import HeldOut, Task
from simrec.model.lists.item_encoder import (
    ItemRegression,
    Weighing,
    feature_weights,
    full_columns,
)
from simrec.model.lists.pair_weight import PairWeight
from simrec.model.lists.uptake_model import UptakeModel
from simrec.model.lists.user_encoder import Known
from simrec.model.prepare import Prepared, pair_matrix
from simrec.model.run.progress import Step, no_step

# Penalties of the item encoder that are tried.
_PENALTIES = tuple(0.3 * 3.0**k for k in range(7))
# Coordinates; twice as many where half of them are clearly too few. On five of six data sets the
# second half adds at most 1% to lists of known users, on CiteULike 20%: nothing lies between.
DIM, _MOST_DIM, _WORTH = 512, 1024, 1.05
# Powers of an item's count by which its column is divided: without one, popular items decide.
_POWERS = (POWER, 0.0)
# Tasks that powers are compared on.
_OF_PAIRS = ("known_users", "few_pairs")
# Draws of held-out pairs, at least: one with whole items and users held out, one without.
LEAST_DRAWS = 2
# Draws and users of a task that choices look at, at most; coordinates for new items.
_DRAWS, _USERS, _LOOKED_AT = 4, 600, 128
# What is known of the users of a task.
OF_TASK: Mapping[str, Known] = {
    "known_users": "known",
    "few_pairs": "few",
    "new_users": "nothing",
    "new_items": "known",
    "new_both": "nothing",
    "all_known": "known",
    "all_few": "few",
    "all_nothing": "nothing",
}


@dataclass(frozen=True)
class UptakeSetting:
    """What was chosen; the defaults hold where there is nothing to choose on."""

    embedding_dim: int = DIM
    power: float = POWER
    # The encoder of new items: how features are weighed, and its ridge.
    weighing: Weighing = "plain"
    item_penalty: float = _PENALTIES[3]


class UptakeDraw:
    """Implicit feedback on one draw of held-out pairs."""

    def __init__(self, held: HeldOut, weight: PairWeight, seed: int) -> None:
        self.held, self.weight, self._seed = held, weight, seed
        self._learned = 0, POWER
        self._inputs: dict[str, np.ndarray] = {}
        self.model: UptakeModel

    def learned(self, embedding_dim: int, power: float) -> UptakeDraw:
        """Return it with embeddings of so many coordinates."""
        if (embedding_dim, power) == self._learned:
            return self
        found, rng = copy(self), np.random.default_rng(self._seed)
        found.model = UptakeModel.of(self.held.data, self.weight, embedding_dim, power, rng)
        found._learned, found._inputs = (embedding_dim, power), {}
        return found

    def inputs(self, task: str) -> np.ndarray:
        """Return coordinates of histories, of features and a constant of the users of a task."""
        if task not in self._inputs:
            self._inputs[task] = self._inputs_of(task)
        return self._inputs[task]

    def _inputs_of(self, name: str) -> np.ndarray:
        users, data, given = self.held.tasks[name].users, self.held.data, self.held.given
        side, model = data.sides.users, self.model
        inputs = model.axes.inputs
        coordinates = np.zeros((len(users), inputs.shape[1]), np.float32)
        if OF_TASK[name] == "known":
            ratings = data.ratings
            H = pair_matrix(ratings, self.weight(ratings.values))
            coordinates = np.asarray(H[np.searchsorted(side.rated_rows, users)] @ inputs)
        elif OF_TASK[name] == "few":
            at = np.searchsorted(users, given.rows.users)
            here = (at < len(users)) & (users[np.minimum(at, len(users) - 1)] == given.rows.users)
            items = np.searchsorted(data.sides.items.rated_rows, given.rows.items)
            values = self.weight(given.values)
            shape = (len(users), len(inputs))
            pairs = (values[here], (at[here], items[here]))
            coordinates = np.asarray(sparse.csr_matrix(pairs, shape=shape) @ inputs)
        features = side.tower.features[users] @ model.projection
        return np.hstack([coordinates, features, np.ones((len(users), 1), np.float32)])

    def users(self, task: str, target: str) -> np.ndarray:
        """Return the vectors of the users of a task."""
        return self.inputs(task) @ self.model.users.maps(OF_TASK[task])[target]

    def items(self, task: Task, encoder: Encoder | None = None) -> np.ndarray:
        """Return the vectors of the candidates of a task, of new ones by the encoder."""
        side, vectors = self.held.data.sides.items, self.model.axes.items
        out = np.zeros((len(task.items), vectors.shape[1]), np.float32)
        known = np.asarray(side.tower.counts)[task.items] > 0
        out[known] = vectors[np.searchsorted(side.rated_rows, task.items[known])]
        if encoder is not None and not known.all():
            out[~known] = encoder(side.tower.features[task.items[~known]])
        return out


def _quality(users: np.ndarray, items: np.ndarray, task: Task) -> np.ndarray:
    some = task.first(_USERS)
    z = np.where(some.exclude, -np.inf, users[:_USERS] @ items.T)
    return list_quality(z, some.hits, some.hits.sum(1))


def _quality_of(draws: Sequence[UptakeDraw], name: str) -> float:
    """Return the quality of lists of a task, by the map that suits each draw better."""
    found = []
    for one in draws:
        task = one.held.tasks[name]
        if len(task.users):
            items = one.items(task)
            maps = [_quality(one.users(name, m), items, task) for m in ("taken", "every")]
            found.append(max(maps, key=np.mean))
    return _mean(found)


def choose_uptake(
    held: Sequence[HeldOut],
    embedding_dim: int | None,
    weight: PairWeight,
    rng: np.random.Generator,
    step: Step = no_step,
) -> tuple[UptakeSetting, list[UptakeDraw]]:
    """Choose item embeddings, and the encoder of new items, on held-out pairs.

    Parameters
    ----------
    held : sequence of HeldOut
        Draws of held-out pairs.
    embedding_dim : int or None
        Coordinates; None to choose.
    weight : PairWeight
        What a pair counts in a history.
    rng : numpy.random.Generator
        Source of the starts.
    step : callable
        Called after each point that was tried.

    Returns
    -------
    (UptakeSetting, list of UptakeDraw)
        The choice, and the draws, learned as chosen.
    """
    draws = [UptakeDraw(one, weight, int(rng.integers(1 << 31))) for one in held]
    if not draws:
        return UptakeSetting(embedding_dim or DIM), []
    dim, power, best = embedding_dim or DIM // 2, POWER, -1.0
    for tried in _POWERS:
        some = [one.learned(dim, tried) for one in draws[:LEAST_DRAWS]]
        quality = float(np.prod([_quality_of(some, name) or 1.0 for name in _OF_PAIRS]))
        if quality > best:
            power, first, best = tried, some, quality
        step()
    draws[: len(first)] = first
    if embedding_dim is None:
        place = next((k for k, one in enumerate(first) if not one.held.cold), 0)
        draws[place] = first[place].learned(DIM, power)
        half = _quality_of([first[place]], "known_users")
        whole = _quality_of([draws[place]], "known_users")
        dim = _MOST_DIM if whole > _WORTH * half else DIM
        step()
    draws = [one.learned(dim, power) for one in draws]
    cold = [one for one in draws if one.held.cold][:_DRAWS]
    return _with_items(UptakeSetting(dim, power), cold, step), draws


def _with_items(setting: UptakeSetting, cold: Sequence[UptakeDraw], step: Step) -> UptakeSetting:
    """Choose the encoder of new items."""
    cold = [one for one in cold if one.held.data.sides.items.X.shape[1] > 1]
    if not cold:
        return setting
    users = [one.users("new_items", one.model.users.targets[-1]) for one in cold]

    def qualities(weighing: Weighing, penalties: Sequence[float]) -> list[float]:
        found: list[list[np.ndarray]] = [[] for _ in penalties]
        for one, own in zip(cold, users, strict=True):  # one regression at a time: up to 300 MB
            task, side = one.held.tasks["new_items"], one.held.data.sides.items
            if not len(task.users):
                continue
            regression = item_regression(one.held.data, weighing, penalties[0])
            for penalty, so_far in zip(penalties, found, strict=True):
                regression.set_penalty(penalty)
                encoder = regression.encoder(one.model.axes.items[:, :_LOOKED_AT])
                items = encoder(side.tower.features[task.items])
                so_far.append(_quality(own[:, :_LOOKED_AT], items, task))
        return [_mean(one) for one in found]

    side = cold[0].held.data.sides.items
    weighings: list[Weighing] = ["plain", "rarity"]
    if len(full_columns(side.X[:, :-1], side.groups[:-1])):
        weighings.append("rarity and full columns")
    tried: dict[UptakeSetting, float] = {}

    def try_(weighing: Weighing, places: Sequence[int]) -> UptakeSetting:
        new = [replace(setting, weighing=weighing, item_penalty=_PENALTIES[p]) for p in places]
        new = [one for one in new if one not in tried]
        if new:
            tried.update(zip(new, qualities(weighing, [o.item_penalty for o in new]), strict=True))
        for _ in new:
            step()
        return max(tried, key=lambda one: tried[one])

    for weighing in weighings:
        best = try_(weighing, range(0, len(_PENALTIES), 2))
    place = _PENALTIES.index(best.item_penalty)
    return try_(best.weighing, range(max(place - 1, 0), min(place + 2, len(_PENALTIES))))


def item_regression(data: Prepared, weighing: Weighing, penalty: float) -> ItemRegression:
    """Return the regression of items' vectors on their features."""
    side = data.sides.items
    X = side.X[:, :-1]
    return ItemRegression(X, feature_weights(X, side.groups[:-1], weighing), penalty)


def _mean(quality: Sequence[np.ndarray]) -> float:
    every = np.concatenate(quality) if quality else np.empty(0)
    return float(every.mean()) if len(every) else 0.0
