"""Synthetic ratings: low-rank preferences that features explain in part.

A user's preference for an item is

    z = MEAN + b_u + b_i + p_u . q_i

Every parameter (biases b, factors p and q) is the sum of a linear function of the entity's features
and of a normal offset of its own. The rating is z plus normal noise, rounded to half stars within
the bounds. A user who comes across an item rates it with probability
sigmoid(SELECTIVITY (z - MEAN)): more likely the better they like it. Ratings are so missing not at
random.
"""

import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from simrec.errors import InputError, check_seed

BOUNDS = (0.5, 5.0)
STEP = 0.5
MEAN = 3.2
NOISE = 0.6  # standard deviation of what is left to chance when a preference becomes a rating
SELECTIVITY = 1.5  # how much more likely users rate what they like
USER_BIAS, ITEM_BIAS, INTERACTION = 0.35, 0.45, 0.7  # standard deviations of b_u, b_i, p_u . q_i
MOOD_DIM = 6

_GENRES, _OCCUPATIONS, _REGIONS, _GENDERS, _ADJECTIVES, _NOUNS = map(
    str.split,
    (
        "Action Adventure Animation Comedy Crime Documentary Drama Family Fantasy Horror "
        "Musical Mystery Romance Thriller War Western",
        "artist baker carpenter clerk doctor driver engineer farmer lawyer librarian nurse "
        "pilot retired scientist student teacher",
        "Centre Coast East Highlands Islands North South West",
        "female male other",
        "Amber Ancient Borrowed Bright Broken Burning Crimson Crooked Distant Electric Empty "
        "Endless Fallen Final Forgotten Frozen Gentle Gilded Golden Hidden Hollow Hungry "
        "Invisible Last Little Lonely Lost Lucky Midnight Northern Pale Paper Quiet Restless "
        "Sacred Second Secret Silent Silver Sleeping Stolen Stubborn Sunken Velvet Wandering "
        "Wild Winter Wooden",
        "Archive Bell Bridge Captain Carnival Castle City Clock Compass Crown Daughter Door "
        "Dream Empire Express Falcon Garden Harbour Horizon Hotel House Island Journey Key "
        "Kingdom Lantern Letter Library Lighthouse Machine Mirror Mountain Ocean Orchard Planet "
        "Promise River Road Season Shadow Signal Song Station Storm Street Summer Tower Train "
        "Voyage Window",
    ),
)
_YEARS = (1960, 2024)
_MISSING = 0.03
_RANK = 4  # factors of the preferences, without the biases
_FEATURE_SHARE = 0.75  # of the variance of users' and items' parameters, which features explain
_SKEW = 0.8  # exponent of the popularity of items (Zipf's law)
_CHUNK = 1 << 17


@dataclass(frozen=True, eq=False)
class Synthetic:
    """Ratings with features. Made by `make_synthetic`.

    Ratings are half stars, each pair once; items have title, genres (list), year (some missing),
    studio and mood (vector), users age (some missing), gender, occupation and region.
    """

    ratings: pa.Table
    items: pa.Table
    users: pa.Table
    bounds: tuple[float, float] = BOUNDS

    def write(self, directory: str | os.PathLike[str]) -> None:
        """Write ratings, items and users as Parquet files."""
        path = Path(directory)
        path.mkdir(parents=True, exist_ok=True)
        for name in ("ratings", "items", "users"):
            pq.write_table(getattr(self, name), path / f"{name}.parquet", compression="zstd")


def make_synthetic(
    n_users: int = 600, n_items: int = 400, n_ratings: int = 25_000, *, random_state: int = 0
) -> Synthetic:
    """Make ratings of low-rank preferences that features explain in part.

    The defaults make the sample that comes with the project. Time and memory grow with the number
    of ratings: 25 million take about half a minute and 1 GB.

    Parameters
    ----------
    n_users, n_items, n_ratings : int
        Sizes. A user or an item may end up without ratings. At most a quarter of all pairs can be
        rated.
    random_state : int
        Seed.

    Examples
    --------
    >>> data = make_synthetic(n_users=50, n_items=40, n_ratings=300)
    >>> data.ratings.num_rows
    300
    """
    counts = {"n_users": n_users, "n_items": n_items, "n_ratings": n_ratings}
    for name, count in counts.items():
        if count < 1:
            raise InputError(f"{name} must be positive, got {count}")
    if n_ratings > n_users * n_items // 4:
        raise InputError(
            f"{n_ratings} ratings do not fit: at most a quarter of the {n_users} x {n_items} "
            f"pairs can be rated, {n_users * n_items // 4}. Ask for fewer, or for more entities."
        )
    rng = np.random.default_rng(check_seed(random_state))
    user_ids, item_ids = (pa.array(np.arange(1, n + 1, dtype=np.int32)) for n in (n_users, n_items))
    items, item_features = _make_items(n_items, item_ids, rng)
    users, user_features = _make_users(n_users, user_ids, rng)

    popularity = np.empty(n_items)
    # Zipf's law over the ranks; the first ranks, some per cent of the items, are about alike.
    ranks = np.argsort(-_mix(item_features, 1, rng).sum(axis=(0, 2)))
    popularity[ranks] = (np.arange(n_items) + 0.02 * n_items + 1) ** -_SKEW
    activity = 0.2 + rng.lognormal(0.0, 0.9, n_users)
    *p, user_bias = _parameters(user_features, USER_BIAS, rng)
    *q, item_bias = _parameters(item_features, ITEM_BIAS, rng)
    # Biases are coordinates: z is one scalar product.
    vectors = (
        np.column_stack([*p, user_bias + MEAN, np.ones(n_users)]),
        np.column_stack([*q, np.ones(n_items), item_bias]),
    )
    pairs = _draw_pairs(vectors, activity, popularity, n_ratings, rng)
    user, item = (np.empty(n_ratings, np.int32) for _ in range(2))
    values = np.empty(n_ratings, np.float32)
    for start in range(0, n_ratings, _CHUNK):
        rows = slice(start, start + _CHUNK)
        user[rows], item[rows] = np.divmod(pairs[rows], n_items)
        z = _preferences(vectors, user[rows], item[rows])
        noisy = z + NOISE * rng.standard_normal(len(z))
        values[rows] = np.clip(np.round(noisy / STEP) * STEP, *BOUNDS)
    ratings = {"user_id": user_ids.take(pa.array(user)), "item_id": item_ids.take(pa.array(item))}
    return Synthetic(pa.table({**ratings, "rating": values}), items, users)


def _make_items(n: int, ids: pa.Array, rng: np.random.Generator) -> tuple[pa.Table, np.ndarray]:
    """Return a table of n items, and what counts of it as numbers (n, features)."""
    n_genres = rng.choice([1, 2, 3], n, p=[0.35, 0.4, 0.25])
    # The first genres of a random order of all, so that no item has one twice.
    order = np.argsort(rng.random((n, len(_GENRES))), axis=1)
    has_genre = np.zeros((n, len(_GENRES)), np.float32)
    item, place = np.nonzero(np.arange(3)[None, :] < n_genres[:, None])
    has_genre[item, order[item, place]] = 1
    row, genre = np.nonzero(has_genre)
    offsets = np.searchsorted(row, np.arange(n + 1)).astype(np.int32)
    genres = pa.ListArray.from_arrays(pa.array(offsets), pa.array(_GENRES).take(pa.array(genre)))

    year = rng.integers(*_YEARS, n, dtype=np.int32)
    year_known = rng.random(n) >= _MISSING
    n_studios = int(np.clip(n // 40, 4, len(_NOUNS)))
    share = 1 / np.arange(1, n_studios + 1)
    studio = rng.choice(n_studios, n, p=share / share.sum())
    studios = pa.array([f"{noun} Pictures" for noun in _NOUNS[:n_studios]])
    mood = rng.standard_normal((n, MOOD_DIM)).astype(np.float32)
    table = pa.table(
        {
            "item_id": ids,
            "title": _titles(n, rng),
            "genres": genres,
            "year": pa.array(year, mask=~year_known),
            "studio": studios.take(pa.array(studio)),
            "mood": pa.FixedSizeListArray.from_arrays(pa.array(mood.ravel()), MOOD_DIM),
        }
    )
    groups = [has_genre, _one_hot(studio), _number(year, year_known), mood]
    return table, _features(groups)


def _make_users(n: int, ids: pa.Array, rng: np.random.Generator) -> tuple[pa.Table, np.ndarray]:
    """Return a table of n users, and what counts of it as numbers (n, features)."""
    age = np.clip(np.round(15 + rng.gamma(3.0, 8.0, n)), 15, 90).astype(np.int32)
    age_known = rng.random(n) >= _MISSING
    gender = rng.choice(len(_GENDERS), n, p=[0.48, 0.48, 0.04])
    occupation = rng.integers(0, len(_OCCUPATIONS), n)
    region = rng.integers(0, len(_REGIONS), n)
    table = pa.table(
        {
            "user_id": ids,
            "age": pa.array(age, mask=~age_known),
            "gender": pa.array(_GENDERS).take(pa.array(gender)),
            "occupation": pa.array(_OCCUPATIONS).take(pa.array(occupation)),
            "region": pa.array(_REGIONS).take(pa.array(region)),
        }
    )
    groups = [_number(age, age_known), _one_hot(gender), _one_hot(occupation), _one_hot(region)]
    return table, _features(groups)


def _titles(n: int, rng: np.random.Generator) -> pa.Array:
    """Return n different titles; when the words run out come the sequels."""
    names = len(_ADJECTIVES) * len(_NOUNS)
    part, name = np.divmod(np.arange(n), names)
    name = rng.permutation(names)[name]
    adjective = pa.array(_ADJECTIVES).take(pa.array(name // len(_NOUNS)))
    noun = pa.array(_NOUNS).take(pa.array(name % len(_NOUNS)))
    sequel = pc.if_else(pa.array(part == 0), "", pc.cast(pa.array(part + 1), pa.string()))
    return pc.utf8_rtrim_whitespace(
        pc.binary_join_element_wise("The", adjective, noun, sequel, " ")
    )


def _one_hot(codes: np.ndarray) -> np.ndarray:
    return np.eye(codes.max(initial=0) + 1, dtype=np.float32)[codes]


def _number(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return a standardised column; what is missing has no influence."""
    spread = values[known].std() if known.any() else 0.0
    centred = values - (values[known].mean() if known.any() else 0.0)
    return np.where(known, centred / (spread or 1.0), 0.0).astype(np.float32)[:, None]


def _features(groups: list[np.ndarray]) -> np.ndarray:
    """Join the columns, each group centred and with the same total variance."""
    parts = []
    for group in groups:
        centred = group - group.mean(axis=0)
        parts.append(centred / max(np.sqrt(centred.var(axis=0).sum()), 1e-6))
    return np.concatenate(parts, axis=1).astype(np.float32)


Vectors = tuple[np.ndarray, np.ndarray]
"""Those of users and of items, whose scalar products are preferences."""


def _preferences(vectors: Vectors, user: np.ndarray, item: np.ndarray) -> np.ndarray:
    users, items = vectors
    return np.einsum("nd,nd->n", users.take(user, axis=0), items.take(item, axis=0))


def _draw_pairs(
    vectors: Vectors, activity: np.ndarray, popularity: np.ndarray, n: int, rng: np.random.Generator
) -> np.ndarray:
    """Draw n pairs, as numbers user * n_items + item.

    Users come across items, as active and as popular as they are, and rate them as the preference
    says; what is rated twice counts once. Cost grows with n, not with the number of pairs.
    """
    n_items, activity = len(popularity), activity / activity.sum()
    cumulated = np.cumsum(popularity / popularity.sum())
    keys, rate = np.empty(0, np.int64), 0.5
    while len(keys) < n:
        encounters = int((n - len(keys)) / rate * 1.02) + 100
        counts = rng.multinomial(encounters, activity)
        cuts = np.searchsorted(np.cumsum(counts), np.arange(_CHUNK, encounters, _CHUNK))
        cuts = np.unique(np.concatenate([[0], cuts, [len(counts)]]))
        parts = [keys]
        for first, last in pairwise(cuts):
            user = np.repeat(np.arange(first, last), counts[first:last])
            item = np.searchsorted(cumulated, rng.random(len(user)) * cumulated[-1], side="right")
            z = _preferences(vectors, user, item)
            rated = rng.random(len(user)) < 0.5 + 0.5 * np.tanh(0.5 * SELECTIVITY * (z - MEAN))
            parts.append(user[rated] * n_items + item[rated])
        before, keys = len(keys), np.unique(np.concatenate(parts))
        rate = max((len(keys) - before) / encounters, 1e-3)
    # The surplus goes at random, which leaves the odds between pairs as they were.
    return np.delete(keys, rng.choice(len(keys), len(keys) - n, replace=False, shuffle=False))


def _parameters(features: np.ndarray, bias_sd: float, rng: np.random.Generator) -> np.ndarray:
    """Return a row for each factor of the entities, and their biases."""
    scale = np.append(np.full(_RANK, (INTERACTION**2 / _RANK) ** 0.25), bias_sd)
    explained, own = (_mix(features, _RANK + 1, rng) * scale).astype(np.float32)
    return (explained.astype(np.float64) + own).T


def _mix(features: np.ndarray, columns: int, rng: np.random.Generator) -> np.ndarray:
    """Return a random linear function of the features, and normal numbers; (2, n, columns).

    Each column of the sum has variance 1.
    """
    explained = features @ rng.standard_normal((features.shape[1], columns))
    explained -= explained.mean(axis=0)
    explained /= np.maximum(explained.std(axis=0), 1e-9)
    own = rng.standard_normal((len(features), columns))
    return np.stack([np.sqrt(_FEATURE_SHARE) * explained, np.sqrt(1 - _FEATURE_SHARE) * own])
