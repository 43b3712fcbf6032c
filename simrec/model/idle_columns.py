"""Columns of items that tell nothing of them are left out, as if they were not in the table.

Nothing is learned from them then, however wide they are.
"""

import logging
from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np
from scipy import sparse

from simrec.model.head import Encoder
from simrec.model.lists.axes import find_axes
from simrec.model.lists.column_weights import ColumnRegression
from simrec.model.lists.item_encoder import feature_weights
from simrec.model.prepare import Prepared, PreparedSide, pair_matrix

logger = logging.getLogger(__name__)

# Leading coordinates of who took an item up: fewer where features are so many that this bounds the
# numbers at hand. Ratings by which a mean is drawn to that of all.
_COORDINATES, _NUMBERS, _SHRINK = 16, 4_000_000, 5
# Items from which on it can be told that a column tells nothing; items to learn from at most, those
# with most pairs first.
_FEWEST, _MOST = 500, 2000
_REASON = "it tells nothing of items that were held out"


def without_idle_columns(data: Prepared, asked: Collection[str]) -> Prepared:
    """Leave out columns of items without which held-out items are predicted as well.

    Predicted is who took them up, how many, and who rated them how. Where no column tells anything
    all are kept, and so is what was asked for.
    """
    side = data.sides.items
    encoder, groups = side.tower.encoder, side.groups[:-1]
    if encoder is None or len(encoder.columns_) < 2 or len(side.rated_rows) < _FEWEST:
        return data
    rng = np.random.default_rng(0)  # the same columns with any seed
    rows = np.argsort(-side.counts, kind="stable")[:_MOST]
    X = side.X[rows][:, :-1]
    # A column without features, such as a vector that is the same for all, tells nothing.
    found, has_features = np.zeros((2, len(encoder.columns_)), bool)
    has_features[groups] = True
    columns = [
        _scaled(X[:, groups == column], side.words[:-1][groups == column])
        for column in range(len(found))
    ]
    for target in _targets(data, rng):
        idle = np.flatnonzero(has_features & ~found)
        if not len(idle):
            break
        folds = rng.integers(1 << 31)
        for column in idle:  # each on its own: what is found does not depend on other columns
            Z, own = columns[column], np.random.default_rng(folds)
            regression = ColumnRegression(Z, np.zeros(Z.shape[1], int), target[rows], own)
            found[column] = regression.tells(regression.plain())
        found = np.array(data.workers.agreed(found.tolist()))  # all go on alike
    tells = dict(zip(encoder.columns_, found.tolist(), strict=True))
    names = [name for name, told in tells.items() if not told and name not in asked]
    if not names or not any(tells.values()):
        return data
    for name in names:
        logger.info("items: column %r is left out: %s", name, _REASON)
    return replace(data, sides=data.sides.with_side("items", _without(side, names)))


def _targets(data: Prepared, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield what to predict of each item: what is fast to predict first."""
    ratings, workers, side = data.ratings, data.workers, data.sides.items
    counts = np.maximum(side.counts, 1)
    d = int(np.clip(_NUMBERS // side.X.shape[1], 1, _COORDINATES))

    def coordinates(pairs: sparse.csr_matrix) -> np.ndarray:
        axes = find_axes(pairs, counts, d, rng, workers)
        return np.asarray(axes.V * np.sqrt(axes.e / counts[:, None]))

    yield np.log1p(counts)
    residuals = None
    if ratings.has_ratings:
        mean = workers.total(float(ratings.values.sum())) / workers.total(len(ratings))
        off = np.bincount(ratings.item_rows, ratings.values - mean, minlength=len(counts))
        bias = workers.sum(off) / (counts + _SHRINK)
        left = ratings.values - mean - bias[ratings.item_rows]
        own = np.bincount(ratings.user_rows, left) / (np.bincount(ratings.user_rows) + _SHRINK)
        yield bias
        residuals = left - own[ratings.user_rows]
    yield coordinates(pair_matrix(ratings))
    if residuals is not None:
        yield coordinates(pair_matrix(ratings, residuals))


def _scaled(X: sparse.csr_matrix, words: np.ndarray) -> sparse.csr_matrix:
    """Return the features of one column as rows of length 1: components as heavy as words."""
    weights = feature_weights(X, words.astype(np.int64), "rarity and full columns")
    return Encoder(np.empty((0, 0)), idf=weights).inputs(X)


def _without(side: PreparedSide, idle: Collection[str]) -> PreparedSide:
    before = side.tower.encoder
    assert before is not None
    encoder = before.without(dict.fromkeys(idle, _REASON))
    columns = [place for place, name in enumerate(before.columns_) if name not in idle]
    kept = np.flatnonzero(np.isin(before.groups_, columns))
    tower = replace(side.tower, encoder=encoder, features=side.tower.features[:, kept])
    X = side.X[:, np.append(kept, side.X.shape[1] - 1)]
    groups, words = np.append(encoder.groups_, len(columns)), np.append(encoder.spelled_, False)
    return replace(side, tower=tower, X=X, groups=groups, words=words)
