"""What a fit of uptake chooses on held-out pairs, along grids wide enough for any data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from scipy import sparse

from simrec.model.lists.blend import clear_gain, list_quality
from simrec.model.lists.held_out import HeldOut, Task
from simrec.model.lists.uptake.add_pairs import (
    NewRidge,
    moved_by_pairs,
    spread_axes,
)
from simrec.model.lists.uptake.encoders import (
    Regression,
    Weighing,
    feature_weights,
    full_columns,
)
from simrec.model.lists.uptake.grids import between, climb
from simrec.model.lists.uptake.least_squares import start_vectors
from simrec.model.lists.uptake.logit import logit_line
from simrec.model.lists.uptake.sweeps import factorize
from simrec.model.prepare import pair_matrix
from simrec.model.run.progress import Step, no_step
from simrec.model.run.workers import Workers

# Ridges in units of `noise`, and weights of a zero.
_SHARES_OF_NOISE = tuple(0.5 * 2.0**k for k in range(-5, 3))
_ZEROS = tuple(3.0**-k for k in range(7))
_SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
_NEW_ZEROS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
_NEW_RIDGES = tuple(2.0**k for k in range(-2, 9))
_PENALTIES = tuple(0.1 * 3.0**k for k in range(8))
# Coordinates, and more where held-out pairs gain so much by them that their time is worth it.
_DIM, _LARGE_DIM, _WORTH = 128, 512, 1.05
SWEEPS = 2
# Draws and users of a task that choices look at, at most.
_DRAWS, _USERS = 2, 600


@dataclass(frozen=True)
class Choices:
    """What was chosen; the defaults hold where there is nothing to choose on."""

    # See `simrec.model.lists.uptake.add_pairs.Solver`.
    ridge: float = 0.25
    zero: float = _ZEROS[2]
    new_zero: float = 0.03
    new_ridge: float = 8.0
    embedding_dim: int = _DIM
    # Share of popularity in the vector of a new user, and the ridge of the encoder of new users.
    popularity_share: float = 1.0
    user_penalty: float = _PENALTIES[5]
    # The encoder of new items: how features are weighed, and its ridge.
    weighing: Weighing = "rarity"
    item_penalty: float = _PENALTIES[2]
    # Whether known items are drawn towards what this encoder says, or towards nothing.
    item_prior: bool = False
    # Whether pairs count by their confidence.
    weighted: bool = False
    # Slope and intercept that make a scalar product the logit of uptake.
    logit_slope: float = 1.0
    logit: float = 0.0


class _Draw:
    """A draw of held-out pairs as least squares meets it; rows are of those with pairs."""

    def __init__(self, held: HeldOut, seed: int) -> None:
        self.held, sides = held, held.data.sides
        self.X = sides.map(lambda side: side.X[:, :-1])
        self.tower = sides.map(lambda side: side.tower)
        self.rows = sides.map(lambda side: side.rated_rows)
        self._seed, self._starts = seed, {}  # type: ignore[var-annotated]

    @cache  # noqa: B019 - a draw lives as long as its choices
    def pairs(self, weighted: bool) -> sparse.csr_matrix:
        ratings = self.held.data.ratings
        if not weighted or ratings.weights is None:
            return pair_matrix(replace(ratings, weights=None))
        return pair_matrix(ratings, float(ratings.weights.mean()))

    def vectors(self, choices: Choices) -> tuple[np.ndarray, np.ndarray]:
        """Learn vectors of users and items as chosen."""
        T, d = self.pairs(choices.weighted), self.dim(choices)
        key = d, choices.weighted
        if key not in self._starts:
            self._starts = {key: start_vectors(T, d, np.random.default_rng(self._seed))}
        features = None
        if choices.item_prior:
            features = self.regression(choices.weighing, choices.item_penalty)
        return factorize(T, self._starts[key], self.ridge(choices), choices.zero, SWEEPS, features)

    def regression(self, weighing: Weighing, penalty: float) -> Regression:
        X, groups = self.X.items, self.held.data.sides.items.groups[:-1]
        return Regression(X, feature_weights(X, groups, weighing), penalty)

    def dim(self, choices: Choices) -> int:
        return min(choices.embedding_dim, max(min(self.pairs(choices.weighted).shape) - 1, 1))

    def ridge(self, choices: Choices) -> float:
        T = self.pairs(choices.weighted)
        return choices.ridge * noise(T.shape, float(T.sum()), choices.zero)

    def counts(self, choices: Choices) -> np.ndarray:
        return np.asarray(self.pairs(choices.weighted).sum(0)).ravel()

    def task(self, name: str) -> Task:
        return self.held.tasks[name].first(_USERS)

    def known(self, U: np.ndarray, V: np.ndarray) -> np.ndarray:
        """Return the quality of lists of known users."""
        task = self.task("known_users")
        at = np.searchsorted(self.rows.users, task.users)
        return quality_of(U[at] @ V.T, task)


def quality_of(z: np.ndarray, task: Task) -> np.ndarray:
    """Return the NDCG@20 of each user of a task whose candidates have these scores."""
    if not z.size:
        return np.empty(0)
    return list_quality(np.where(task.exclude, -np.inf, z), task.hits, task.hits.sum(1))


@dataclass(frozen=True)
class Whole:
    """How large all of the data is, of which choices see a sample: users and items, and weight."""

    shape: tuple[int, int]
    weight: float

    @classmethod
    def of(cls, R: sparse.csr_matrix, workers: Workers) -> Whole:
        """Look at the pairs of all workers; R has those of this one's users."""
        shape = int(workers.total(R.shape[0])), R.shape[1]
        return cls(shape, workers.total(float(R.sum())))

    def noise(self, zero: float) -> float:
        """Return the unit of the ridge."""
        return noise(self.shape, self.weight, zero)


def noise(shape: tuple[int, int], weight: float, zero: float) -> float:
    """Return the ridge at which noise alone would leave nothing of any coordinate.

    Of an m x n matrix of independent pairs that are there with probability p, weighted as in
    `solve_rows`, singular values reach s (sqrt(m) + sqrt(n)), where s is the standard deviation of
    an entry around its mean; ridges draw each singular value down by the root of their product.
    So a ridge in this unit means the same on a sample of the users as on all of them.
    """
    m, n = shape
    p = min(weight / (m * n), 0.5)
    deviation = zero * np.sqrt(p * (1 - p)) / (p + zero * (1 - p))
    return float(deviation * (m**-0.5 + n**-0.5) / (p + zero))


def choose_uptake(
    held: Sequence[HeldOut],
    embedding_dim: int | None,
    rng: np.random.Generator,
    step: Step = no_step,
) -> tuple[Choices, dict[HeldOut, np.ndarray]]:
    """Choose all that a fit needs on held-out pairs.

    Also returns item vectors that were learned as chosen, of some draws, to go on from: they have
    had `SWEEPS` passes.

    Parameters
    ----------
    held : sequence of HeldOut
        Draws of held-out pairs.
    embedding_dim : int or None
        Coordinates without popularity; None to choose.
    rng : numpy.random.Generator
        Source of the starts.
    step : callable
        Called after each point that was tried.
    """
    draws = [_Draw(one, int(rng.integers(1 << 31))) for one in held]
    warm = ([one for one in draws if not one.held.cold] or draws)[:_DRAWS]
    cold = [one for one in draws if one.held.cold][:_DRAWS]
    choices = Choices(embedding_dim=embedding_dim or _DIM)
    if not any(len(one.task("known_users").users) for one in warm):
        return choices, {}

    @cache
    def known(tried: Choices) -> list[np.ndarray]:
        return [one.known(*one.vectors(tried)) for one in warm]

    def better(tried: Choices) -> Choices:
        return tried if clear_gain(known(tried), known(choices)) else choices

    if any(one.held.data.ratings.weights is not None for one in warm):
        choices = better(replace(choices, weighted=True))
    has_features = warm[0].X.items.shape[1] > 0
    if has_features:
        choices = replace(_choose_items(choices, cold, step), item_prior=True)
    grids = {
        "ridge": _SHARES_OF_NOISE,
        "zero": _ZEROS,
        "item_prior": (False, True) if has_features else (False,),
    }

    def lists(tried: Choices) -> float:
        return _mean(known(tried))

    choices = climb(lists, choices, grids, step)
    # Where half of the coordinates are as good, many more are not worth their time.
    half = replace(choices, embedding_dim=_DIM // 2)
    if embedding_dim is None and lists(choices) > _WORTH * lists(half):
        larger = replace(choices, embedding_dim=_LARGE_DIM)
        larger = climb(lists, larger, {"ridge": _SHARES_OF_NOISE}, step)
        if lists(larger) > _WORTH * lists(choices):
            choices = larger
    ridge = between(
        lambda ridge: lists(replace(choices, ridge=ridge)), _SHARES_OF_NOISE, choices.ridge
    )
    choices = replace(choices, ridge=ridge)
    vectors = [one.vectors(choices) for one in warm]
    new = [_Cold(one, choices) for one in cold]
    choices = _choose_users(choices, new, step)
    U, V = vectors[0]
    learned = {one.held: V for one, (_, V) in zip(warm, vectors, strict=True)}
    learned |= {one.draw.held: one.V for one in new}
    task = warm[0].task("known_users")
    line = logit_line(task, U[np.searchsorted(warm[0].rows.users, task.users)], V, rng)
    if line is not None:
        choices = replace(choices, logit_slope=line[0], logit=line[1])
    return choices, learned


class _Cold:
    """A draw with whole items and users held out, and vectors that were learned without them."""

    def __init__(self, draw: _Draw, choices: Choices) -> None:
        self.draw, self.task = draw, draw.task("new_users")
        self._regressions: dict[Weighing, Regression] = {}
        self.U, self.V = draw.vectors(choices)
        counts, n_users = draw.counts(choices), len(self.U)
        popularity = (counts / n_users).astype(np.float32)[:, None]
        self.items = np.hstack([self.V, popularity])
        self.mean = float(counts.sum()) / n_users
        given = draw.held.given.rows
        at = given.users, np.searchsorted(draw.rows.items, given.items)
        ones = np.ones(len(given.users), np.float32)
        shape = (len(draw.tower.users.ids), len(self.V))
        self.few = sparse.csr_matrix((ones, at), shape=shape)[self.task.users]

    def regression(self, weighing: Weighing, penalty: float) -> Regression:
        """Return that of items' vectors on features; it goes on from the last one tried."""
        if weighing not in self._regressions:
            self._regressions[weighing] = self.draw.regression(weighing, penalty)
        self._regressions[weighing] = self._regressions[weighing].with_penalty(penalty)
        return self._regressions[weighing]

    def new_items(self, tried: Choices) -> np.ndarray:
        """Return the quality of lists of new items."""
        draw, task = self.draw, self.draw.task("new_items")
        made = self.regression(tried.weighing, tried.item_penalty).encoder(self.V)
        users = self.U[np.searchsorted(draw.rows.users, task.users)]
        return quality_of(users @ made(draw.tower.items.features[task.items]).T, task)

    @cache  # noqa: B019 - as above
    def encoded(self, penalty: float) -> tuple[np.ndarray, np.ndarray]:
        """Return what features say of known users, and of new ones."""
        X = self.draw.X.users
        made = Regression(X, None, penalty).encoder(self.U)
        return made(X), made(self.draw.tower.users.features[self.task.users])

    def cold_users(self, tried: Choices) -> tuple[np.ndarray, np.ndarray]:
        """Return embeddings of known users by their features, and vectors of new ones."""
        share, n = np.float32(tried.popularity_share), len(self.task.users)
        known, new = np.zeros_like(self.U), np.zeros((n, self.V.shape[1]), np.float32)
        if share < 1:
            known, new = (one * (1 - share) for one in self.encoded(tried.user_penalty))
        return known, np.hstack([new, np.full((n, 1), share, np.float32)])

    def new_users(self, tried: Choices) -> np.ndarray:
        """Return the quality of lists of users with nothing but features."""
        return quality_of(self.cold_users(tried)[1] @ self.items.T, self.task)

    def few_pairs(self, tried: Choices) -> np.ndarray:
        """Return the quality of lists of users with a few pairs."""
        known, prior = self.cold_users(tried)
        moved = moved_by_pairs(
            self.few,
            prior,
            self.items,
            spread_axes(self.U - known),
            NewRidge(
                self.mean, self.draw.ridge(tried), tried.zero, tried.new_zero, tried.new_ridge
            ),
        )
        return quality_of(moved @ self.items.T, self.task)


def _choose_items(choices: Choices, draws: Sequence[_Draw], step: Step) -> Choices:
    """Choose the encoder of new items."""
    cold = [_Cold(one, choices) for one in draws]

    def quality(tried: Choices) -> float:
        return _mean([one.new_items(tried) for one in cold])

    if not cold:
        return choices
    starts: dict[Weighing, float] = {"rarity": _PENALTIES[1], "plain": _PENALTIES[4]}
    if len(full_columns(draws[0].X.items, draws[0].held.data.sides.items.groups[:-1])):
        starts["rarity and full columns"] = _PENALTIES[1]
    options = [replace(choices, weighing=one, item_penalty=at) for one, at in starts.items()]
    grids = {"item_penalty": _PENALTIES}
    return max((climb(quality, one, grids, step) for one in options), key=quality)


def _choose_users(choices: Choices, cold: Sequence[_Cold], step: Step) -> Choices:
    """Choose what features, popularity and a few pairs say of new users."""
    if not cold:
        return choices
    if cold[0].draw.X.users.shape[1]:
        choices = climb(
            lambda tried: _mean([one.new_users(tried) for one in cold]),
            replace(choices, popularity_share=0.6),
            {"user_penalty": _PENALTIES, "popularity_share": _SHARES},
            step,
        )
    return climb(
        lambda tried: _mean([one.few_pairs(tried) for one in cold]),
        choices,
        {"new_zero": _NEW_ZEROS, "new_ridge": _NEW_RIDGES},
        step,
    )


def _mean(quality: Sequence[np.ndarray]) -> float:
    every = np.concatenate(quality)
    return float(every.mean()) if len(every) else 0.0
