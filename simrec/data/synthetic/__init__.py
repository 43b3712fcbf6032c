"""Synthetic ratings of known true parameters, and the lowest error that a model can reach."""

import os
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from simrec.data.ids import IdMap
from simrec.data.ratings import Ratings
from simrec.data.seeds import generator
from simrec.data.synthetic.truth import (
    BOUNDS,
    INTERACTION,
    ITEM_BIAS,
    USER_BIAS,
    Parameters,
    Truth,
)
from simrec.errors import InputError

if TYPE_CHECKING:
    from simrec.data.split import ColdStartSplit

_TASKS = ("warm", "new_items", "new_users", "new_both")
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
MOOD_DIM = 6
_YEARS = (1960, 2024)
_MISSING = 0.03
_RANK = 4  # factors of the preferences, without the biases
_FEATURE_SHARE = 0.75  # of the variance of users' and items' parameters, which features explain
_SKEW = 0.8  # exponent of the popularity of items (Zipf's law)
_CHUNK = 1 << 17


@dataclass(frozen=True, eq=False)
class Synthetic:
    """Ratings with features and their truth. Made by `make_synthetic`.

    Ratings are half stars, each pair once; items have title, genres (list), year (some missing),
    studio and mood (vector), users age (some missing), gender, occupation and region. The rows of
    the truth are as in `users` and `items`.
    """

    ratings: pa.Table
    items: pa.Table
    users: pa.Table
    truth: Truth
    bounds: tuple[float, float] = BOUNDS

    def best_predictions(self, pairs: Ratings, task: str) -> np.ndarray:
        """Return the best prediction for each pair, float64; its ratings are not looked at.

        That is the mean of the rating, given the true parameters of users and items that are not
        new in the `task`, and features and exposure of new ones. Warm, only noise is left: a floor
        that no model reaches from finitely many ratings.
        """
        if task not in _TASKS:
            raise InputError(f"task must be one of {', '.join(_TASKS)}, got {task!r}")

        def rows(name: str, table: pa.Table, ids: IdMap) -> np.ndarray:
            found = IdMap(table.column(name)).rows(ids.ids)
            if (found < 0).any():
                raise InputError(
                    f"{int((found < 0).sum())} values of {name} are not of this synthetic data, "
                    f"for example {ids.take(np.flatnonzero(found < 0)[:1])[0].as_py()!r}: "
                    "the truth about them is not known"
                )
            return found

        user = rows("user_id", self.users, pairs.users)[pairs.user_rows]
        item = rows("item_id", self.items, pairs.items)[pairs.item_rows]
        know_user, know_item = task in ("warm", "new_items"), task in ("warm", "new_users")
        return self.truth.best(user, item, know_user=know_user, know_item=know_item)

    def best_rmse(self, split: "ColdStartSplit") -> dict[str, float]:
        """Return the error of the best predictions on each task of a split, NaN without ratings.

        It compares with a model's error on the same ratings; where these are few, a model may by
        chance come out slightly below.
        """
        best = {}
        for task, ratings in split.tasks().items():
            error = ratings.values - self.best_predictions(ratings, task)
            best[task] = float(np.sqrt(np.mean(error**2))) if len(error) else float("nan")
        return best

    def write(self, directory: str | os.PathLike[str]) -> None:
        """Write ratings, items and users as Parquet files."""
        path = Path(directory)
        path.mkdir(parents=True, exist_ok=True)
        for name in ("ratings", "items", "users"):
            pq.write_table(getattr(self, name), path / f"{name}.parquet", compression="zstd")


def make_synthetic(
    n_users: int = 600,
    n_items: int = 400,
    n_ratings: int = 25_000,
    *,
    random_state: int = 0,
) -> Synthetic:
    """Make ratings of known truth: low-rank preferences that features explain in part.

    The defaults make the sample that comes with the project. Time and memory grow with the number
    of ratings: 25 million take about half a minute and 1 GB.

    Parameters
    ----------
    n_users, n_items, n_ratings : int
        Sizes. A user or an item may end up without ratings. At most a quarter of all pairs can be
        rated.
    random_state : int
        Seed.

    Returns
    -------
    Synthetic

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
    rng = generator(random_state)
    user_ids, item_ids = (pa.array(np.arange(1, n + 1, dtype=np.int32)) for n in (n_users, n_items))
    items, item_features = _make_items(n_items, item_ids, rng)
    users, user_features = _make_users(n_users, user_ids, rng)

    def parameters(features: np.ndarray, bias_sd: float, exposure: np.ndarray) -> Parameters:
        factor_sd = (INTERACTION**2 / _RANK) ** 0.25
        scale = np.append(np.full(_RANK, factor_sd), bias_sd)
        prior, offset = _mix(features, _RANK + 1, rng) * scale
        own = np.sqrt(1 - _FEATURE_SHARE)
        return Parameters(
            prior.astype(np.float32),
            offset.astype(np.float32),
            exposure / exposure.sum(),
            float(own * factor_sd),
            float(own * bias_sd),
        )

    popularity = np.empty(n_items)
    # Zipf's law over the ranks; the first ranks, some per cent of the items, are about alike.
    ranks = np.argsort(-_mix(item_features, 1, rng).sum(axis=(0, 2)))
    popularity[ranks] = (np.arange(n_items) + 0.02 * n_items + 1) ** -_SKEW
    activity = 0.2 + rng.lognormal(0.0, 0.9, n_users)
    user_parameters = parameters(user_features, USER_BIAS, activity)
    item_parameters = parameters(item_features, ITEM_BIAS, popularity)
    pairs, truth = _draw_pairs(Truth(user_parameters, item_parameters), n_ratings, rng)
    user, item, values = _draw_ratings(pairs, truth, rng)
    ratings = {"user_id": user_ids.take(pa.array(user)), "item_id": item_ids.take(pa.array(item))}
    return Synthetic(pa.table({**ratings, "rating": values}), items, users, truth)


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


def _draw_pairs(truth: Truth, n: int, rng: np.random.Generator) -> tuple[np.ndarray, Truth]:
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


def _draw_ratings(
    pairs: np.ndarray, truth: Truth, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return user rows, item rows and ratings of the pairs."""
    user, item = (np.empty(len(pairs), np.int32) for _ in range(2))
    value, preference = np.empty(len(pairs), np.float32), truth.scorer()
    for start in range(0, len(pairs), _CHUNK):
        rows = slice(start, start + _CHUNK)
        user[rows], item[rows] = np.divmod(pairs[rows], len(truth.items.exposure))
        value[rows] = truth.rate(preference(user[rows], item[rows]), rng)
    return user, item, value


def _mix(features: np.ndarray, columns: int, rng: np.random.Generator) -> np.ndarray:
    """Return a random linear function of the features, and normal numbers; (2, n, columns).

    Each column of the sum has variance 1.
    """
    explained = features @ rng.standard_normal((features.shape[1], columns))
    explained -= explained.mean(axis=0)
    explained /= np.maximum(explained.std(axis=0), 1e-9)
    own = rng.standard_normal((len(features), columns))
    return np.stack([np.sqrt(_FEATURE_SHARE) * explained, np.sqrt(1 - _FEATURE_SHARE) * own])
