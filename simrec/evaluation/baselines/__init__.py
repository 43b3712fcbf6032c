"""What a model has to beat. No baseline shares code with the model.

For ratings the mean and the biases; for lists popularity, EASE and a TF-IDF profile, which learn
from all training pairs, low ratings included: they are what a user chose.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from simrec.data.ids import IdMap
from simrec.data.ratings import Ratings
from simrec.data.tables import TableLike, read_table
from simrec.errors import InputError
from simrec.evaluation.baselines.lists import (
    ContentBaseline,
    EaseBaseline,
    ListBaseline,
    PopularityBaseline,
)

LIST_BASELINES = {"popular": "popularity", "ease": "EASE", "content": "a TF-IDF profile"}
"""List baselines by the ending of their columns, in words."""


def fit_list_baselines(
    train: Ratings, items: TableLike | None, threshold: float
) -> dict[str, ListBaseline]:
    """Fit all of `LIST_BASELINES` that these data allow."""
    found = {
        "popular": PopularityBaseline.fit(train, items, threshold),
        "ease": EaseBaseline.fit(train, threshold),
        "content": ContentBaseline.fit(train, items),
    }
    return {name: baseline for name, baseline in found.items() if baseline is not None}


@dataclass(frozen=True, eq=False)
class BiasBaseline:
    """Predict mean + bias of the user + bias of the item.

    A bias is the mean residual of an entity's ratings, shrunk towards 0 as if 10 ratings of a user
    (2 of an item) with residual 0 had come before. Users' and items' biases are fitted in turn. A
    user or an item that was not seen has none.
    """

    sweeps: ClassVar[int] = 10
    shrinkage: ClassVar[tuple[float, float]] = (10.0, 2.0)
    mean: float
    users: IdMap
    items: IdMap
    user_bias: np.ndarray
    item_bias: np.ndarray

    @classmethod
    def fit(cls, train: Ratings) -> Self:
        """Fit the biases of `train`."""
        if not len(train):
            raise InputError("train has no ratings: a baseline needs some to take the mean of")
        centred = train.values.astype(np.float64) - train.mean
        users, items = train.user_rows, train.item_rows
        per_user = np.bincount(users, minlength=train.n_users) + cls.shrinkage[0]
        per_item = np.bincount(items, minlength=train.n_items) + cls.shrinkage[1]
        user_bias, item_bias = np.zeros(train.n_users), np.zeros(train.n_items)
        for _ in range(cls.sweeps):
            rest = centred - user_bias[users]
            item_bias = np.bincount(items, rest, minlength=train.n_items) / per_item
            rest = centred - item_bias[items]
            user_bias = np.bincount(users, rest, minlength=train.n_users) / per_user
        return cls(train.mean, train.users, train.items, user_bias, item_bias)

    def predict(self, pairs: TableLike) -> np.ndarray:
        """Return a float32 prediction for each pair of a table."""
        table = read_table(pairs, ["user_id", "item_id"], allow_empty=True)
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
