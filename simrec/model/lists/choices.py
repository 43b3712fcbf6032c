"""What implicit feedback needs, chosen on held-out pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from scipy import sparse

from simrec.model.head import Encoder
from simrec.model.lists.blend import clear_gain, list_quality
from simrec.model.lists.grids import climb
from simrec.model.lists.held_out import HeldOut, Task
from simrec.model.lists.item_encoder import (
    ItemRegression,
    Weighing,
    feature_weights,
    full_columns,
)
from simrec.model.lists.pair_weight import PairWeight
from simrec.model.lists.uptake_model import UptakeModel
from simrec.model.lists.user_encoder import KNOWN, Known, UserSetting
from simrec.model.prepare import Prepared, pair_matrix
from simrec.model.run.progress import Step, no_step

# Grids that are walked along.
_RIDGES = tuple(0.1 * 3.0**k for k in range(9))
_POWERS = (0.0, 0.5)
_FEATURE_RIDGES = tuple(100 * 4.0**k for k in range(-3, 5))
_PENALTIES = tuple(0.1 * 3.0**k for k in range(9))
_SLOPES = (0.25, 0.5, 1.0)
# Coordinates; twice as many where lists of known users gain so much by them.
DIM, _MOST_DIM, _WORTH = 256, 1024, 1.02
# Draws and users of a task that choices look at, at most; coordinates for new items.
_DRAWS, _USERS, _LOOKED_AT = 2, 600, 128
# What is known of the users of a task.
OF_TASK: Mapping[str, Known] = {
    "known_users": "known",
    "few_pairs": "few",
    "new_users": "nothing",
    "new_items": "known",
    "all_items": "known",
    "new_both": "nothing",
}


@dataclass(frozen=True)
class UptakeSetting:
    """What was chosen; the defaults hold where there is nothing to choose on."""

    nothing: UserSetting = UserSetting()  # noqa: RUF009 - frozen
    few: UserSetting = UserSetting(_RIDGES[3], 0.0)  # noqa: RUF009
    known: UserSetting = UserSetting(_RIDGES[4], 0.5)  # noqa: RUF009
    embedding_dim: int = DIM
    # The encoder of new items: how features are weighed, and its ridge.
    weighing: Weighing = "plain"
    item_penalty: float = _PENALTIES[4]

    @classmethod
    def from_plain(cls, document: Mapping[str, Any]) -> UptakeSetting:
        """Read what `dataclasses.asdict` returned."""
        users: dict[str, Any] = {name: UserSetting(**document[name]) for name in KNOWN}
        return cls(**{**document, **users})


class UptakeDraw:
    """Implicit feedback on one draw of held-out pairs."""

    def __init__(self, held: HeldOut, seed: int) -> None:
        self.held, self._seed = held, seed
        self.weight = PairWeight()
        self.embedding_dim = 0

    def learn(self, weight: PairWeight, embedding_dim: int) -> None:
        """Learn embeddings of so many coordinates, and sums over histories with this weight."""
        rng = np.random.default_rng(self._seed)
        if embedding_dim != self.embedding_dim:
            self.model = UptakeModel.of(self.held.data, weight, embedding_dim, rng)
        elif weight != self.weight:
            self.model = self.model.with_weight(self.held.data, weight)
        self.weight, self.embedding_dim = weight, embedding_dim
        self._inputs: dict[str, np.ndarray] = {}

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
            H = pair_matrix(ratings, self.weight(ratings.strength))
            coordinates = np.asarray(H[np.searchsorted(side.rated_rows, users)] @ inputs)
        elif OF_TASK[name] == "few":
            at = np.searchsorted(users, given.rows.users)
            here = (at < len(users)) & (users[np.minimum(at, len(users) - 1)] == given.rows.users)
            items = np.searchsorted(data.sides.items.rated_rows, given.rows.items)
            values = self.weight(given.strength)
            shape = (len(users), len(inputs))
            pairs = (values[here], (at[here], items[here]))
            coordinates = np.asarray(sparse.csr_matrix(pairs, shape=shape) @ inputs)
        features = side.tower.features[users] @ model.projection
        return np.hstack([coordinates, features, np.ones((len(users), 1), np.float32)])

    def users(self, task: str, setting: UserSetting, target: str) -> np.ndarray:
        """Return the vectors of the users of a task."""
        return self.inputs(task) @ self.model.users.maps(OF_TASK[task], setting)[target]

    def items(self, task: Task, encoder: Encoder | None = None) -> np.ndarray:
        """Return the vectors of the candidates of a task, of new ones by the encoder."""
        side, vectors = self.held.data.sides.items, self.model.axes.items
        out = np.zeros((len(task.items), vectors.shape[1]), np.float32)
        known = np.asarray(side.tower.counts)[task.items] > 0
        out[known] = vectors[np.searchsorted(side.rated_rows, task.items[known])]
        if encoder is not None and not known.all():
            out[~known] = encoder(side.tower.features[task.items[~known]])
        return out

    def quality(self, name: str, setting: UserSetting) -> np.ndarray:
        """Return the NDCG@20 of lists by what users like, or take up where that is not known."""
        task = self.held.tasks[name]
        if not len(task.users):
            return np.empty(0)
        # What known users like is told by predicted ratings.
        target = "taken" if name == "known_users" else self.model.users.targets[-1]
        return _quality(self.users(name, setting, target), self.items(task), task)


def _quality(users: np.ndarray, items: np.ndarray, task: Task) -> np.ndarray:
    some = task.first(_USERS)
    z = np.where(some.exclude, -np.inf, users[:_USERS] @ items.T)
    return list_quality(z, some.hits, some.hits.sum(1))


def choose_uptake(
    held: Sequence[HeldOut],
    embedding_dim: int | None,
    weight: PairWeight,
    rng: np.random.Generator,
    step: Step = no_step,
) -> tuple[UptakeSetting, PairWeight, list[UptakeDraw]]:
    """Choose all that a fit needs on held-out pairs.

    Parameters
    ----------
    held : sequence of HeldOut
        Draws of held-out pairs.
    embedding_dim : int or None
        Coordinates; None to choose.
    weight : PairWeight
        Mean strength, and what is liked.
    rng : numpy.random.Generator
        Source of the starts.
    step : callable
        Called after each point that was tried.

    Returns
    -------
    (UptakeSetting, PairWeight, list of UptakeDraw)
        The choice, what a pair counts in a history, and the draws, learned as chosen.
    """
    draws = [UptakeDraw(one, int(rng.integers(1 << 31))) for one in held]
    some = ([one for one in draws if not one.held.cold] or draws)[:_DRAWS]
    cold = [one for one in draws if one.held.cold][:_DRAWS]
    looked_at = list(dict.fromkeys([*some, *cold]))
    setting = UptakeSetting(embedding_dim=embedding_dim or DIM)

    def learn(which: Sequence[UptakeDraw]) -> None:
        for one in which:
            one.learn(weight, setting.embedding_dim)

    def lists(name: str, own: UserSetting) -> list[np.ndarray]:
        return [one.quality(name, own) for one in (some if name == "known_users" else cold)]

    def both() -> list[np.ndarray]:
        return lists("known_users", setting.known) + lists("few_pairs", setting.few)

    def better(name: str) -> UserSetting:
        own = OF_TASK[name]
        grids = {"feature_ridge": _FEATURE_RIDGES}
        if name != "new_users":
            grids = {"ridge": _RIDGES, "power": _POWERS}
        return climb(lambda one: _mean(lists(name, one)), getattr(setting, own), grids, step)

    learn(looked_at)
    if cold and cold[0].model.projection.shape[1]:
        found = better("new_users").feature_ridge
        users = {name: replace(getattr(setting, name), feature_ridge=found) for name in KNOWN}
        setting = replace(setting, **users)
    setting = replace(setting, few=better("few_pairs"), known=better("known_users"))
    strengths = [one.held.data.ratings.strength for one in looked_at]
    if any(np.ptp(one) > 0 for one in strengths):
        unit = 1 / float(np.concatenate(strengths).std())
        best, plain = both(), weight
        for slope in _SLOPES:
            weight = replace(plain, slope=slope * unit)
            learn(looked_at)
            if clear_gain(tried := both(), best):
                best, plain = tried, weight
        weight = plain
        learn(looked_at)
    if embedding_dim is None:
        reached = _mean(lists("known_users", setting.known))
        while setting.embedding_dim < _MOST_DIM:
            before = setting
            setting = replace(setting, embedding_dim=2 * setting.embedding_dim)
            learn(some)
            wider = _mean(lists("known_users", setting.known))
            step()
            if wider < _WORTH * reached:
                setting = before
                break
            reached = wider
    learn(draws)
    return _with_items(setting, cold, step), weight, draws


def _with_items(setting: UptakeSetting, cold: Sequence[UptakeDraw], step: Step) -> UptakeSetting:
    """Choose the encoder of new items."""
    cold = [one for one in cold if one.held.data.sides.items.X.shape[1] > 1]
    if not cold:
        return setting
    users = [one.users("new_items", setting.known, one.model.users.targets[-1]) for one in cold]

    @cache
    def regressions(weighing: Weighing) -> list[ItemRegression]:
        return [item_regression(one.held.data, weighing, _PENALTIES[0]) for one in cold]

    def quality(tried: UptakeSetting) -> float:
        found = []
        for one, own, regression in zip(cold, users, regressions(tried.weighing), strict=True):
            task = one.held.tasks["new_items"]
            if len(task.users):
                regression.set_penalty(tried.item_penalty)
                encoder = regression.encoder(one.model.axes.items[:, :_LOOKED_AT])
                side = one.held.data.sides.items
                items = encoder(side.tower.features[task.items])
                found.append(_quality(own[:, :_LOOKED_AT], items, task))
        return _mean(found)

    side = cold[0].held.data.sides.items
    weighings: list[Weighing] = ["plain", "rarity"]
    if len(full_columns(side.X[:, :-1], side.groups[:-1])):
        weighings.append("rarity and full columns")
    starts = [
        replace(setting, weighing=one, item_penalty=_PENALTIES[4 if one == "plain" else 1])
        for one in weighings
    ]
    grids = {"item_penalty": _PENALTIES}
    return max((climb(quality, one, grids, step) for one in starts), key=quality)


def item_regression(data: Prepared, weighing: Weighing, penalty: float) -> ItemRegression:
    """Return the regression of items' vectors on their features."""
    side = data.sides.items
    X = side.X[:, :-1]
    return ItemRegression(X, feature_weights(X, side.groups[:-1], weighing), penalty)


def _mean(quality: Sequence[np.ndarray]) -> float:
    every = np.concatenate(quality) if quality else np.empty(0)
    return float(every.mean()) if len(every) else 0.0
