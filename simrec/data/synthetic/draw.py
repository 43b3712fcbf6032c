"""Draw the true parameters, the pairs that are observed, and their ratings."""

from dataclasses import replace
from itertools import pairwise

import numpy as np

from simrec.data.synthetic.truth import INTERACTION, ITEM_BIAS, USER_BIAS, Parameters, Truth

_CHUNK = 1 << 17


def draw_truth(
    user_features: np.ndarray,
    item_features: np.ndarray,
    rank: int,
    share: float,
    skew: float,
    noise: float,
    selectivity: float,
    rng: np.random.Generator,
) -> Truth:
    """Draw the parameters of users and items; features explain a share of their variance."""
    n_items = len(item_features)
    popular = _mix(item_features, 1, share, rng).sum(axis=(0, 2))
    popularity = np.empty(n_items)
    # Zipf's law over the ranks; the first ranks, some per cent of the items, are about alike.
    popularity[np.argsort(-popular)] = (np.arange(n_items) + 0.02 * n_items + 1) ** -skew
    activity = 0.2 + rng.lognormal(0.0, 0.9, len(user_features))
    factor_sd = (INTERACTION**2 / rank) ** 0.25
    users = _parameters(user_features, rank, factor_sd, USER_BIAS, share, activity, rng)
    items = _parameters(item_features, rank, factor_sd, ITEM_BIAS, share, popularity, rng)
    return Truth(users, items, noise, selectivity)


def draw_pairs(truth: Truth, n: int, rng: np.random.Generator) -> tuple[np.ndarray, Truth]:
    """Draw n observed pairs, and give the truth the number of encounters they took.

    Users come across items, as active and as popular as they are, and rate them as the preference
    says; what is rated twice counts once. Cost grows with n, not with the number of pairs.
    """
    n_items = len(truth.items.exposure)
    cumulated = np.cumsum(truth.items.exposure)
    preference = truth.scorer()
    keys, total, rate = np.empty(0, np.int64), 0, 0.5
    while len(keys) < n:
        encounters = int((n - len(keys)) / rate * 1.02) + 100
        counts = rng.multinomial(encounters, truth.users.exposure)
        cuts = np.searchsorted(np.cumsum(counts), np.arange(_CHUNK, encounters, _CHUNK))
        cuts = np.unique(np.concatenate([[0], cuts, [len(counts)]]))
        parts = [keys]
        for first, last in pairwise(cuts):
            user = np.repeat(np.arange(first, last), counts[first:last])
            item = np.searchsorted(cumulated, rng.random(len(user)) * cumulated[-1], side="right")
            rated = rng.random(len(user)) < truth.acceptance(preference(user, item))
            parts.append(user[rated] * n_items + item[rated])
        before, keys = len(keys), np.concatenate(parts)
        keys.sort()
        keys = keys[np.append(True, keys[1:] != keys[:-1])]
        rate = max((len(keys) - before) / encounters, 1e-3)
        total += encounters
    # The surplus goes at random, which leaves the odds between pairs as they were.
    surplus = rng.choice(len(keys), len(keys) - n, replace=False, shuffle=False)
    users = replace(truth.users, exposure=truth.users.exposure * total)
    return np.delete(keys, surplus), replace(truth, users=users)


def draw_ratings(
    pairs: np.ndarray, truth: Truth, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return user rows, item rows and ratings of the pairs."""
    user, item = (np.empty(len(pairs), np.int32) for _ in range(2))
    value = np.empty(len(pairs), np.float32)
    preference = truth.scorer()
    for start in range(0, len(pairs), _CHUNK):
        rows = slice(start, start + _CHUNK)
        user[rows], item[rows] = np.divmod(pairs[rows], len(truth.items.exposure))
        value[rows] = truth.rate(preference(user[rows], item[rows]), rng)
    return user, item, value


def _parameters(
    features: np.ndarray,
    rank: int,
    factor_sd: float,
    bias_sd: float,
    share: float,
    exposure: np.ndarray,
    rng: np.random.Generator,
) -> Parameters:
    scale = np.append(np.full(rank, factor_sd), bias_sd)
    prior, offset = _mix(features, rank + 1, share, rng) * scale
    own = np.sqrt(1 - share)
    return Parameters(
        prior.astype(np.float32),
        offset.astype(np.float32),
        exposure / exposure.sum(),
        float(own * factor_sd),
        float(own * bias_sd),
    )


def _mix(features: np.ndarray, columns: int, share: float, rng: np.random.Generator) -> np.ndarray:
    """Return a random linear function of the features, and normal numbers; (2, n, columns).

    Each column of the sum has variance 1, the first part's share of it as asked for.
    """
    explained = features @ rng.standard_normal((features.shape[1], columns))
    explained -= explained.mean(axis=0)
    explained /= np.maximum(explained.std(axis=0), 1e-9)
    own = rng.standard_normal((len(features), columns))
    return np.stack([np.sqrt(share) * explained, np.sqrt(1 - share) * own])
