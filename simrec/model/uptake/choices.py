"""What a fit of uptake chooses on held-out pairs, along grids wide enough for any data set."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
from scipy import sparse

from simrec.data.sides import Sides
from simrec.model.head import Encoder
from simrec.model.run.arrange import counted
from simrec.model.run.progress import Step, no_step
from simrec.model.run.workers import Workers
from simrec.model.uptake.add_pairs import moved_by_pairs, spread_axes
from simrec.model.uptake.encoders import Regression, choose_regression
from simrec.model.uptake.held_out import HeldOut, between, climb, list_quality
from simrec.model.uptake.least_squares import start_vectors
from simrec.model.uptake.sweeps import factorize

# Ridges in units of `noise`, and weights of a zero.
_SHARES_OF_NOISE = tuple(0.5 * 2.0**k for k in range(-5, 3))
_ZEROS = tuple(3.0**-k for k in range(7))
_EXPONENTS = (-0.6, -0.5, -0.4, -0.3, -0.2, -0.1, 0.0)
_SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
_BEGUN_ZEROS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
_BEGUN_RIDGES = tuple(2.0**k for k in range(-2, 9))
_USER_PENALTIES = tuple(3.0 * 3**k for k in range(7))
# Dimension at which all else is chosen, and the larger ones there are.
_SEARCH, _LARGER = 128, (256, 512)
# Multiplications a pair may cost in a sweep over both sides.
_WORK = 4 * 128.0**2
_SWEEPS = 2


# What workers need not agree on to the last bit.
_VECTORS = ("U", "V", "new_users")


@dataclass
class Choices:
    """What was chosen.

    Attributes
    ----------
    ridge, zero, embedding_dim, exponent : float
        See `simrec.model.uptake.add_pairs.Solver`.
    popularity_share : float
        Share of popularity in the vector of a new user; 1 where features do not help.
    user_penalty : float
        Ridge penalty of the encoder of new users.
    begun_zero, begun_ridge : float
        See `Solver`.
    item_by_rarity, item_penalty : bool, float
        Whether the regression of item vectors weighs features by rarity, and its ridge penalty.
    item_prior : bool
        Whether known items are drawn towards what this regression says, or towards nothing.
    quality : dict
        NDCG@20 on held-out pairs of each choice.
    U, V : numpy.ndarray
        Vectors of the users and items of the held-out sample, learned without the held-out pairs.
    new_users : numpy.ndarray
        Vectors of its new users without any pairs, popularity as the last coordinate.
    """

    ridge: float
    zero: float
    embedding_dim: int
    exponent: float = 0.0
    popularity_share: float = 1.0
    user_penalty: float = 1.0
    begun_zero: float = 1.0
    begun_ridge: float = 1.0
    item_by_rarity: bool = False
    item_penalty: float = 1.0
    item_prior: bool = False
    quality: dict[str, float] = field(default_factory=dict)
    U: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))
    V: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))
    new_users: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))

    def agreed(self, workers: Workers) -> Choices:
        """Return the first worker's choices; each has made them on the same sample."""
        plain = {name: value for name, value in vars(self).items() if name not in _VECTORS}
        return replace(self, **workers.agreed(plain))


@dataclass(frozen=True)
class Whole:
    """How large all of the data is, of which choices see a sample.

    Attributes
    ----------
    shape : (int, int)
        Users and items.
    weight : float
        Sum of the confidences of all pairs.
    affordable : int
        The largest dimension at which a pair does not cost too much; short rows cost less.
    """

    shape: tuple[int, int]
    weight: float
    affordable: int

    @classmethod
    def of(cls, R: sparse.csr_matrix, workers: Workers) -> Whole:
        """Look at the pairs of all workers; R has those of this one's users."""
        n_items = workers.sum(counted(R.indices, R.shape[1]))
        n_pairs = max(float(n_items.sum()), 1.0)

        def work(d: int) -> float:
            of_users = workers.total(_work(np.diff(R.indptr), d))
            return (of_users + _work(n_items, d)) / n_pairs

        affordable = max([d for d in _LARGER if work(d) <= _WORK], default=_SEARCH)
        shape = int(workers.total(R.shape[0])), R.shape[1]
        return cls(shape, workers.total(float(R.sum())), affordable)

    def noise(self, zero: float) -> float:
        """Return the unit of the ridge."""
        return noise(self.shape, self.weight, zero)


class _Sample:
    """The held-out sample, and the quality of vectors that are learned on it."""

    def __init__(
        self, held: HeldOut, X: sparse.csr_matrix | None, rng: np.random.Generator
    ) -> None:
        self.T, self.warm, self.X = held.train, held.warm, X
        self.limit = max(min(self.T.shape) - 1, 1)
        self.counts = np.asarray(self.T.sum(0)).ravel()
        self._seed = rng.integers(1 << 31)
        self._starts: dict[int, np.ndarray] = {}
        self._features: Regression | None = None

    def vectors(self, choices: Choices) -> tuple[np.ndarray, np.ndarray]:
        """Learn vectors as chosen."""
        d, features = choices.embedding_dim, None
        if d not in self._starts:
            self._starts = {d: start_vectors(self.T, d, np.random.default_rng(self._seed))}
        if self.X is not None and choices.item_prior:
            if self._features is None:
                self._features = Regression(self.X, choices.item_by_rarity, choices.item_penalty)
            features = self._features
        ridge = choices.ridge * noise(self.T.shape, float(self.T.sum()), choices.zero)
        return factorize(self.T, self._starts[d], ridge, choices.zero, _SWEEPS, features)

    def quality(self, U: np.ndarray, V: np.ndarray, exponent: float = 0.0) -> float:
        """Return how well vectors find the held-out pairs."""
        V = V * item_factor(self.counts, exponent)[:, None]
        return list_quality(U, V, self.warm, self.T)

    def reached(self, choices: Choices) -> float:
        """Return the quality of what is chosen."""
        return self.quality(*self.vectors(choices))


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


def choose(
    X: Sides[sparse.csr_matrix | None],
    held: HeldOut,
    whole: Whole,
    embedding_dim: int | None,
    rng: np.random.Generator,
    step: Step = no_step,
) -> Choices:
    """Choose all that a fit needs.

    Features of users are those of the sample; `step` is called after each point that was tried.
    """
    sample = _Sample(held, None if X.items is None else X.items[held.items], rng)
    d = min(_SEARCH, embedding_dim or whole.affordable, sample.limit)
    choices = Choices(0.25, _ZEROS[2], d)
    priors: tuple[bool, ...] = (False,)
    if sample.X is not None:
        _, choices.item_by_rarity, choices.item_penalty = choose_regression(
            held.train, sample.X, *sample.vectors(choices), rng, step
        )
        priors = (True, False)

    def at(ridge: float, zero: float, prior: float) -> Choices:
        return replace(choices, ridge=ridge, zero=zero, item_prior=bool(prior))

    @cache
    def quality(ridge: float, zero: float, prior: float) -> float:
        return sample.reached(at(ridge, zero, prior))

    found, _ = climb(
        quality,
        {
            "ridge": (_SHARES_OF_NOISE, 0.5),
            "zero": (_ZEROS, _ZEROS[2]),
            "prior": (priors, priors[0]),
        },
        step,
    )
    choices = at(**found)
    choices.ridge = between(
        lambda ridge: quality(**found | {"ridge": ridge}), _SHARES_OF_NOISE, found["ridge"]
    )
    choices.U, choices.V = sample.vectors(choices)
    best, reached = climb(
        lambda exponent: sample.quality(choices.U, choices.V, exponent),
        {"exponent": (_EXPONENTS, 0.0)},
        step,
    )
    choices.exponent, choices.quality["known_users"] = best["exponent"], reached
    _choose_new_users(choices, X.users, held, step)
    d = embedding_dim or min(whole.affordable, sample.limit)
    if d != choices.embedding_dim:
        larger = replace(choices, embedding_dim=d)
        larger.U, larger.V = sample.vectors(larger)
        more = sample.quality(larger.U, larger.V, choices.exponent)
        if embedding_dim is not None or more > reached:
            choices, choices.quality["known_users"] = larger, more
    choices.new_users = _told(choices, X.users, held, held.new_users)
    choices.ridge *= whole.noise(choices.zero)
    return choices


def item_factor(counts: np.ndarray, exponent: float) -> np.ndarray:
    """Return (count + 1) ** exponent, 1 on average over pairs."""
    return ((counts + 1.0) ** exponent / factor_norm(counts, exponent)).astype(np.float32)


def factor_norm(counts: np.ndarray, exponent: float) -> float:
    """Return the average of (count + 1) ** exponent over pairs."""
    return float(np.average((counts + 1.0) ** exponent, weights=counts + 1e-9))


def _work(n: np.ndarray, d: int) -> float:
    """Return the multiplications of one sweep over rows of n pairs each."""
    low, high = np.minimum(n, d).astype(float), np.maximum(n, d).astype(float)
    return float((low**2 * high + low**3 / 3).sum())


def _choose_new_users(
    choices: Choices, X: sparse.csr_matrix | None, held: HeldOut, step: Step
) -> None:
    """Choose what features, popularity and a few pairs say of new users."""
    T, U, V = held.train, choices.U, choices.V
    ridge = choices.ridge * noise(T.shape, float(T.sum()), choices.zero)
    counts, n_new = np.asarray(T.sum(0)).ravel(), len(held.new_users)
    popularity = (counts / T.shape[0]).astype(np.float32)[:, None]
    plain = np.hstack([V, popularity])
    items = np.hstack([V * item_factor(counts, choices.exponent)[:, None], popularity])
    if X is not None:
        encoders: dict[float, Encoder] = {}

        def told(penalty: float, share: float) -> float:
            if penalty not in encoders:
                encoders[penalty] = Regression(X[held.users], False, penalty).encoder(U)
            own = encoders[penalty](X[held.new_users]) * np.float32(1 - share)
            vectors = np.hstack([own, np.full((n_new, 1), share, np.float32)])
            return list_quality(vectors, items, held.rest, held.given)

        found, choices.quality["new_users"] = climb(
            told,
            {"penalty": (_USER_PENALTIES, _USER_PENALTIES[3]), "share": (_SHARES, 0.6)},
            step,
        )
        choices.user_penalty, choices.popularity_share = found["penalty"], found["share"]
    prior = _told(choices, X, held, held.new_users)
    axes = spread_axes(U - _told(choices, X, held, held.users)[:, :-1])

    def few_pairs(zero: float, more: float) -> float:
        mean = float(T.sum()) / T.shape[0]
        moved = moved_by_pairs(
            held.given, prior, plain, axes, mean, ridge, choices.zero, zero, more
        )
        return list_quality(moved, items, held.rest, held.given)

    found, choices.quality["few_pairs"] = climb(
        few_pairs, {"zero": (_BEGUN_ZEROS, 0.03), "more": (_BEGUN_RIDGES, 8.0)}, step
    )
    choices.begun_zero, choices.begun_ridge = found["zero"], found["more"]


def _told(
    choices: Choices, X: sparse.csr_matrix | None, held: HeldOut, users: np.ndarray
) -> np.ndarray:
    """Return what features and popularity say of users of the sample."""
    share = np.float32(choices.popularity_share)
    own = np.zeros((len(users), choices.U.shape[1]), np.float32)
    if X is not None and share < 1:
        encoder = Regression(X[held.users], False, choices.user_penalty).encoder(choices.U)
        own = encoder(X[users]) * (1 - share)
    return np.hstack([own, np.full((len(users), 1), share, np.float32)])
