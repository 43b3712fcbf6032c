"""What a model has to beat: the mean and the biases for ratings, popularity for lists.

All know the training ratings, and popularity the features of new items. A user or an item that
was not seen has no bias, so for pairs where both are new the mean and the biases are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from scipy import sparse

from simrec.data.features import FeatureEncoder
from simrec.data.ids import IdMap
from simrec.data.ratings import Ratings
from simrec.data.tables import TableLike, read_table
from simrec.errors import InputError

_SWEEPS = 10
_PENALTIES = (3.0, 30.0, 300.0)


@dataclass(frozen=True)
class MeanBaseline:
    """Predict the mean of the training ratings, whoever the user and whatever the item."""

    mean: float

    @classmethod
    def fit(cls, train: Ratings) -> MeanBaseline:
        """Take the mean of `train`."""
        return cls(_mean(train))

    def predict(self, pairs: Ratings | TableLike) -> np.ndarray:
        """Return a float32 prediction for each pair of `pairs`; its ratings are not looked at."""
        n = len(pairs) if isinstance(pairs, Ratings) else read_table(pairs).num_rows
        return np.full(n, self.mean, np.float32)


@dataclass(frozen=True, eq=False)
class BiasBaseline:
    """Predict mean + bias of the user + bias of the item.

    A bias is the mean residual of an entity's ratings, shrunk towards 0 as if ``user_shrinkage``
    (``item_shrinkage``) ratings with residual 0 had come before. Users' and items' biases are
    fitted in turn.
    """

    mean: float
    users: IdMap
    items: IdMap
    user_bias: np.ndarray
    item_bias: np.ndarray

    @classmethod
    def fit(
        cls, train: Ratings, user_shrinkage: float = 10.0, item_shrinkage: float = 2.0
    ) -> BiasBaseline:
        """Fit the biases of `train`."""
        if user_shrinkage < 0 or item_shrinkage < 0:
            raise InputError(
                f"shrinkage counts ratings and cannot be negative, got user_shrinkage="
                f"{user_shrinkage}, item_shrinkage={item_shrinkage}"
            )
        mean = _mean(train)
        centred = train.values.astype(np.float64) - mean
        users, items = train.user_rows, train.item_rows
        per_user = np.bincount(users, minlength=train.n_users) + user_shrinkage
        per_item = np.bincount(items, minlength=train.n_items) + item_shrinkage
        user_bias = np.zeros(train.n_users)
        for _ in range(_SWEEPS):
            rest = centred - user_bias[users]
            item_bias = np.bincount(items, rest, minlength=train.n_items) / per_item
            rest = centred - item_bias[items]
            user_bias = np.bincount(users, rest, minlength=train.n_users) / per_user
        return cls(mean, train.users, train.items, user_bias, item_bias)

    def predict(self, pairs: Ratings | TableLike) -> np.ndarray:
        """Return a float32 prediction for each pair of `pairs`; its ratings are not looked at."""
        if isinstance(pairs, Ratings):
            user = _known(self.user_bias, self.users, pairs.users.ids)[pairs.user_rows]
            item = _known(self.item_bias, self.items, pairs.items.ids)[pairs.item_rows]
        else:
            table = read_table(pairs, ["user_id", "item_id"])
            user = _known(self.user_bias, self.users, table["user_id"])
            item = _known(self.item_bias, self.items, table["item_id"])
        return (self.mean + user + item).astype(np.float32)


@dataclass(frozen=True, eq=False)
class PopularityBaseline:
    """Recommend what most users took up, the same list for everyone.

    The score of a known item is log(1 + number of its ratings); that of an item without ratings
    is predicted from its features by ridge regression, or is the mean where it has none.

    Attributes
    ----------
    items : IdMap
        All items with a score.
    scores : numpy.ndarray
        Their scores.
    default : float
        The score of any other item.
    """

    items: IdMap
    scores: np.ndarray
    default: float

    @classmethod
    def fit(
        cls, train: Ratings, items: TableLike | None = None, threshold: float | None = None
    ) -> PopularityBaseline:
        """Count the ratings of `train`, those from `threshold` on; `items` are the features."""
        liked = np.ones(len(train), bool) if threshold is None else train.values >= threshold
        counts = np.bincount(train.item_rows[liked], minlength=train.n_items)
        known, scores = train.items, np.log1p(counts)
        default = float(scores.mean()) if len(scores) else 0.0
        if items is None:
            return cls(known, scores, default)
        ids, features = item_features(items)
        rows = known.rows(ids.ids)
        if not (rows < 0).any() or (rows >= 0).sum() < 20:
            return cls(known, scores, default)
        rated = rows >= 0
        weights = _ridge(features[rated], scores[rows[rated]] - default)
        everyone = known.union(ids)
        merged = np.empty(len(everyone))
        merged[everyone.rows(ids.ids)] = default + features @ weights
        merged[everyone.rows(known.ids)] = scores
        return cls(everyone, merged, default)

    def score(self, items: Any) -> np.ndarray:
        """Return the score of each item id."""
        return _known(self.scores - self.default, self.items, items) + self.default

    def recommend(
        self, users: pa.Array, k: int, items: pa.Array, exclude: Ratings | None = None
    ) -> pa.Table:
        """Return the k most popular of `items` for each user, without the pairs of `exclude`."""
        order = np.argsort(-self.score(items), kind="stable")
        seen: dict[int, np.ndarray] = {}
        if exclude is not None:
            rows, matrix = exclude.users.rows(users), exclude.to_csr()
            candidates = IdMap.from_values(items)
            place = np.empty(len(items), np.int64)
            place[candidates.rows(items)] = np.arange(len(items))
            found = candidates.rows(exclude.items.ids)
            at = np.where(found >= 0, place[found], -1)
            seen = {n: at[matrix[row].indices] for n, row in enumerate(rows) if row >= 0}
        chosen = []
        for n in range(len(users)):
            skip = seen.get(n, ())
            head = order[: k + len(skip)]  # enough to have k left without what is excluded
            chosen.append(head[~np.isin(head, skip)][:k])
        lengths = [len(c) for c in chosen]
        return pa.table(
            {
                "user_id": users.take(pa.array(np.repeat(np.arange(len(users)), lengths))),
                "item_id": items.take(pa.array(np.concatenate([*chosen, []]).astype(np.int64))),
                "rank": np.concatenate([*(np.arange(1, n + 1) for n in lengths), []]).astype(int),
            }
        )


def item_features(items: TableLike) -> tuple[IdMap, sparse.csr_matrix]:
    """Encode a table of items: their ids, and a row of features for each."""
    table = read_table(items, name="items")
    ids = IdMap.from_values(table["item_id"])
    _, first = np.unique(ids.rows(table["item_id"]), return_index=True)
    table = table.take(pa.array(first))
    return ids, FeatureEncoder(id_column="item_id").fit_transform(table, name="items")


def _ridge(features: sparse.csr_matrix, target: np.ndarray) -> np.ndarray:
    """Fit a ridge regression whose penalty is chosen on every fifth row."""
    from scipy.sparse.linalg import lsmr

    def fit(rows: np.ndarray, l2: float) -> np.ndarray:
        return lsmr(features[rows], target[rows], damp=np.sqrt(l2), maxiter=100)[0]

    held_out = np.arange(len(target)) % 5 == 0
    errors = []
    for l2 in _PENALTIES:
        left = target[held_out] - features[held_out] @ fit(~held_out, l2)
        errors.append(float(left @ left))
    return fit(np.ones(len(target), bool), _PENALTIES[int(np.argmin(errors))])


def _mean(train: Ratings) -> float:
    if not len(train):
        raise InputError("train has no ratings: a baseline needs some to take the mean of")
    return train.mean


def _known(values: np.ndarray, known: IdMap, wanted: Any) -> np.ndarray:
    """Return the values of the wanted ids, 0 where they are not known."""
    rows = known.rows(wanted)
    return np.where(rows >= 0, values[rows], 0.0)
