"""What a fit of uptake chooses on held-out pairs: nothing is a constant of one data set."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy import sparse

from simrec.model.uptake.add_pairs import moved_by_pairs
from simrec.model.uptake.encoders import fit_encoder
from simrec.model.uptake.held_out import HeldOut, climb, list_quality
from simrec.model.uptake.least_squares import factorize, start_vectors

_RIDGES = tuple(0.0003 * 2**k for k in range(10))
_ZEROS = tuple(3.0**-k for k in range(7))
_EXPONENTS = (-0.6, -0.5, -0.4, -0.3, -0.2, -0.1, 0.0, 0.1, 0.2)
_SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
_BEGUN_ZEROS = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)
_BEGUN_GAINS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
_ITEM_PENALTIES = tuple(0.1 * 3**k for k in range(8))
_USER_PENALTIES = tuple(3.0 * 3**k for k in range(7))
# Dimensions that are tried, the first one for all other choices.
_DIMENSIONS = (64, 128, 256, 512)
# Multiplications a pair may cost in a sweep over both sides.
_WORK = 4 * 128.0**2
_SWEEPS = 2
# Items and users on which encoders of items are compared, and coordinates they are compared in.
_ITEMS, _USERS, _COORDINATES = 20_000, 1_500, 64


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
    begun_zero, begun_gain : float
        See `Solver`.
    item_by_rarity, item_penalty : bool, float
        Whether the encoder of new items weighs features by rarity, and its ridge penalty.
    quality : dict
        NDCG@20 on held-out pairs of each choice.
    U, V : numpy.ndarray
        Vectors of the users and items of the held-out sample, learned without the held-out pairs.
    """

    ridge: float
    zero: float
    embedding_dim: int
    exponent: float
    popularity_share: float = 1.0
    user_penalty: float = 1.0
    begun_zero: float = 1.0
    begun_gain: float = 1.0
    item_by_rarity: bool = False
    item_penalty: float = 1.0
    quality: dict[str, float] = field(default_factory=dict)
    U: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))
    V: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))


def choose(
    R: sparse.csr_matrix,
    X_users: sparse.csr_matrix | None,
    held: HeldOut,
    embedding_dim: int | None,
    rng: np.random.Generator,
) -> Choices:
    """Choose all but the encoder of items."""
    T, limit = held.train, max(min(held.train.shape) - 1, 1)
    small = min(_DIMENSIONS[0], embedding_dim or _DIMENSIONS[0], limit)
    start = start_vectors(T, small, rng)
    counts = np.asarray(T.sum(0)).ravel()

    def known(U: np.ndarray, V: np.ndarray, exponent: float) -> float:
        return list_quality(U, V * item_factor(counts, exponent)[:, None], held.warm, T)

    def quality(ridge: float, zero: float) -> float:
        U, V = factorize(T, start, ridge, zero, _SWEEPS)
        return max(known(U, V, exponent) for exponent in (0.0, -0.2))

    found, reached = climb(quality, {"ridge": (_RIDGES, _RIDGES[5]), "zero": (_ZEROS, _ZEROS[1])})
    ridge, zero = found["ridge"], found["zero"]
    d = embedding_dim or small
    U, V = factorize(T, start if d == small else start_vectors(T, d, rng), ridge, zero, _SWEEPS)
    if embedding_dim is None:
        d, U, V = _larger(R, held, ridge, zero, limit, (small, U, V), rng)
    best, reached = climb(lambda exponent: known(U, V, exponent), {"exponent": (_EXPONENTS, 0.0)})
    # The ridge is relative to all users of a fit; a prior's precision does not grow with them.
    whole = ridge * (T.shape[0] / R.shape[0]) ** 0.5
    choices = Choices(whole, zero, d, best["exponent"], quality={"known_users": reached})
    choices.U, choices.V = U, V
    _choose_new_users(choices, X_users, held, ridge)
    return choices


def item_factor(counts: np.ndarray, exponent: float) -> np.ndarray:
    """Return (count + 1) ** exponent, 1 on average over pairs."""
    return ((counts + 1.0) ** exponent / factor_norm(counts, exponent)).astype(np.float32)


def factor_norm(counts: np.ndarray, exponent: float) -> float:
    """Return the average of (count + 1) ** exponent over pairs."""
    return float(np.average((counts + 1.0) ** exponent, weights=counts + 1e-9))


def _larger(
    R: sparse.csr_matrix,
    held: HeldOut,
    ridge: float,
    zero: float,
    limit: int,
    best: tuple[int, np.ndarray, np.ndarray],
    rng: np.random.Generator,
) -> tuple[int, np.ndarray, np.ndarray]:
    """Take larger dimensions, as long as they help and pairs do not cost too much."""
    per_row = (np.diff(R.indptr), np.bincount(R.indices, minlength=R.shape[1]))
    top = list_quality(best[1], best[2], held.warm, held.train)
    for d in _DIMENSIONS[1:]:
        if d > limit or sum(_work(n, d) for n in per_row) > _WORK:
            break
        U, V = factorize(held.train, start_vectors(held.train, d, rng), ridge, zero, _SWEEPS)
        reached = list_quality(U, V, held.warm, held.train)
        if reached < top:
            break
        best, top = (d, U, V), reached
    return best


def _work(n: np.ndarray, d: int) -> float:
    """Return the multiplications for a pair in one sweep over rows of n pairs each."""
    low, high = np.minimum(n, d).astype(float), np.maximum(n, d).astype(float)
    return float((low**2 * high + low**3 / 3).sum() / max(n.sum(), 1))


def _choose_new_users(
    choices: Choices, X: sparse.csr_matrix | None, held: HeldOut, ridge: float
) -> None:
    """Choose what features, popularity and a few pairs say of new users."""
    T, U, V = held.train, choices.U, choices.V
    counts, n_new = np.asarray(T.sum(0)).ravel(), len(held.new_users)
    popularity = (counts / T.shape[0]).astype(np.float32)[:, None]
    plain = np.hstack([V, popularity])
    items = np.hstack([V * item_factor(counts, choices.exponent)[:, None], popularity])
    prior = np.zeros((n_new, V.shape[1] + 1), np.float32)
    prior[:, -1] = 1

    if X is not None:
        encoded: dict[float, np.ndarray] = {}

        def vectors(penalty: float, share: float) -> np.ndarray:
            if penalty not in encoded:
                encoder = fit_encoder(X[held.users], U, False, penalty)
                encoded[penalty] = encoder(X[held.new_users])
            own = encoded[penalty] * np.float32(1 - share)
            return np.hstack([own, np.full((n_new, 1), share, np.float32)])

        found, choices.quality["new_users"] = climb(
            lambda penalty, share: list_quality(
                vectors(penalty, share), items, held.rest, held.given
            ),
            {"penalty": (_USER_PENALTIES, _USER_PENALTIES[3]), "share": (_SHARES, 0.6)},
        )
        choices.user_penalty, choices.popularity_share = found["penalty"], found["share"]
        prior = vectors(found["penalty"], found["share"])

    def few_pairs(zero: float, gain: float) -> float:
        mean = float(T.sum()) / T.shape[0]
        moved = moved_by_pairs(held.given, prior, plain, mean, ridge, choices.zero, zero, gain)
        return list_quality(moved, items, held.rest, held.given)

    found, choices.quality["few_pairs"] = climb(
        few_pairs, {"zero": (_BEGUN_ZEROS, 0.1), "gain": (_BEGUN_GAINS, 1.0)}
    )
    choices.begun_zero, choices.begun_gain = found["zero"], found["gain"]


def choose_item_encoder(
    choices: Choices,
    R: sparse.csr_matrix,
    X: sparse.csr_matrix,
    U: np.ndarray,
    V: np.ndarray,
    rng: np.random.Generator,
) -> None:
    """Choose how features speak for new items, on held-out items.

    Vectors are cut to their leading coordinates: it is encoders that are compared.
    """
    items = rng.permutation(len(V))[:_ITEMS]
    known, new = items[len(items) // 5 :], np.sort(items[: len(items) // 5])
    users = np.sort(rng.permutation(len(U))[:_USERS])
    axes = np.linalg.eigh((V.T @ V).astype(np.float64))[1][:, ::-1][:, :_COORDINATES]
    axes = axes.astype(np.float32)
    U, V, hits = U[users] @ axes, V @ axes, sparse.csr_matrix(R[users][:, new])
    X_known, X_new = sparse.csr_matrix(X[known]), sparse.csr_matrix(X[new])
    options = []
    for by_rarity, start in ((False, _ITEM_PENALTIES[4]), (True, _ITEM_PENALTIES[1])):

        def quality(penalty: float, by_rarity: bool = by_rarity) -> float:
            encoder = fit_encoder(X_known, V[known], by_rarity, penalty)
            return list_quality(U, encoder(X_new), hits, None)

        found, reached = climb(quality, {"penalty": (_ITEM_PENALTIES, start)})
        options.append((reached, by_rarity, found["penalty"]))
    choices.quality["new_items"], choices.item_by_rarity, choices.item_penalty = max(options)
