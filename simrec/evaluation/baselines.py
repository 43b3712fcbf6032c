"""What a prediction has to beat: the mean, and the biases of users and items.

Both know the training ratings alone. A user or an item they have not seen has no bias, so for
pairs where both are new the two are the same.
"""

from dataclasses import dataclass

import numpy as np

from simrec.data.ids import IdMap
from simrec.data.ratings import Ratings
from simrec.errors import InputError

_SWEEPS = 10


@dataclass(frozen=True)
class MeanBaseline:
    """Predict the mean of the training ratings, whoever the user and whatever the item."""

    mean: float

    @classmethod
    def fit(cls, train: Ratings) -> "MeanBaseline":
        """Take the mean of `train`."""
        return cls(_mean(train))

    def predict(self, pairs: Ratings) -> np.ndarray:
        """Return a float32 prediction for each pair of `pairs`; its ratings are not looked at."""
        return np.full(len(pairs), self.mean, np.float32)


@dataclass(frozen=True, eq=False)
class BiasBaseline:
    """Predict mean + bias of the user + bias of the item.

    A bias is the mean of what is left of an entity's ratings, shrunk towards 0 as if
    ``user_shrinkage`` (``item_shrinkage``) ratings of exactly nothing had come before: few ratings
    say little. Users' and items' biases are found in turn until they agree.
    """

    mean: float
    users: IdMap
    items: IdMap
    user_bias: np.ndarray
    item_bias: np.ndarray

    @classmethod
    def fit(
        cls, train: Ratings, user_shrinkage: float = 10.0, item_shrinkage: float = 2.0
    ) -> "BiasBaseline":
        """Find the biases of `train`."""
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

    def predict(self, pairs: Ratings) -> np.ndarray:
        """Return a float32 prediction for each pair of `pairs`; its ratings are not looked at."""
        user = _spread(self.user_bias, self.users, pairs.users)[pairs.user_rows]
        item = _spread(self.item_bias, self.items, pairs.items)[pairs.item_rows]
        return (self.mean + user + item).astype(np.float32)


def _mean(train: Ratings) -> float:
    if not len(train):
        raise InputError("train has no ratings: a baseline needs some to take the mean of")
    return train.mean


def _spread(bias: np.ndarray, known: IdMap, wanted: IdMap) -> np.ndarray:
    """Return the biases of the wanted ids, 0 where they are not known."""
    rows = known.rows(wanted.ids)
    return np.where(rows >= 0, bias[rows], 0.0)
