"""Rating baselines: the mean, and the shrunk biases of users and items.

A user or an item that was not seen has no bias, so for pairs where both are new the two are the
same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from simrec.data.ids import IdMap
from simrec.data.ratings import Ratings
from simrec.data.tables import TableLike, read_table
from simrec.errors import InputError


@dataclass(frozen=True, eq=False)
class BiasBaseline:
    """Predict mean + bias of the user + bias of the item.

    A bias is the mean residual of an entity's ratings, shrunk towards 0 as if ``user_shrinkage``
    (``item_shrinkage``) ratings with residual 0 had come before. Users' and items' biases are
    fitted in turn.
    """

    sweeps: ClassVar[int] = 10
    mean: float
    users: IdMap
    items: IdMap
    user_bias: np.ndarray
    item_bias: np.ndarray

    @classmethod
    def fit(cls, train: Ratings, user_shrinkage: float = 10.0, item_shrinkage: float = 2.0) -> Self:
        """Fit the biases of `train`."""
        if not len(train):
            raise InputError("train has no ratings: a baseline needs some to take the mean of")
        if user_shrinkage < 0 or item_shrinkage < 0:
            raise InputError(
                f"shrinkage counts ratings and cannot be negative, got user_shrinkage="
                f"{user_shrinkage}, item_shrinkage={item_shrinkage}"
            )
        centred = train.values.astype(np.float64) - train.mean
        users, items = train.user_rows, train.item_rows
        per_user = np.bincount(users, minlength=train.n_users) + user_shrinkage
        per_item = np.bincount(items, minlength=train.n_items) + item_shrinkage
        user_bias, item_bias = np.zeros(train.n_users), np.zeros(train.n_items)
        for _ in range(cls.sweeps):
            rest = centred - user_bias[users]
            item_bias = np.bincount(items, rest, minlength=train.n_items) / per_item
            rest = centred - item_bias[items]
            user_bias = np.bincount(users, rest, minlength=train.n_users) / per_user
        return cls(train.mean, train.users, train.items, user_bias, item_bias)

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


class MeanBaseline(BiasBaseline):
    """Predict the mean of the training ratings, whoever the user and whatever the item."""

    sweeps: ClassVar[int] = 0


def _known(values: np.ndarray, known: IdMap, wanted: Any) -> np.ndarray:
    """Return the values of the wanted ids, 0 where they are not known."""
    rows = known.rows(wanted)
    return np.where(rows >= 0, values[rows], 0.0)
