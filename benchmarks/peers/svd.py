"""Surprise: the SVD of the Netflix prize, by stochastic gradient descent."""

from collections import defaultdict

import numpy as np
import pyarrow as pa

from peers.base import Peer
from simrec import Ratings

_SMALL = {"lr_all": 0.01, "reg_all": 0.1}
_LARGE = {
    "lr_all": 0.02,
    "reg_all": 0.08,
    "lr_bu": 0.005,
    "lr_bi": 0.005,
    "reg_bu": 0.05,
    "reg_bi": 0.02,
}


class Surprise(Peer):
    """Surprise's SVD; a new user or item has neither bias nor factors.

    Learning rate and regularisation are the best found for small and for large data.
    """

    name = "surprise"
    modules = ("surprise",)
    packages = ("scikit-surprise",)
    n_factors = 64
    n_epochs = 30

    def fit(self, train: Ratings, items: pa.Table | None, users: pa.Table | None) -> "Surprise":
        from surprise import SVD

        settings = _SMALL if len(train) < 300_000 else _LARGE
        self.users_, self.items_ = train.users, train.items
        self.model_ = SVD(
            n_factors=self.n_factors,
            n_epochs=self.n_epochs,
            random_state=self.random_state,
            **settings,
        ).fit(self._trainset(train))
        return self

    def predict(self, pairs: pa.Table) -> np.ndarray:
        user_rows = self.users_.rows(pairs.column("user_id"))
        item_rows = self.items_.rows(pairs.column("item_id"))
        none = np.zeros((1, self.n_factors))
        model = self.model_
        biases = np.append(model.bu, 0)[user_rows] + np.append(model.bi, 0)[item_rows]
        products = np.einsum(
            "nd,nd->n",
            np.vstack([model.pu, none])[user_rows],
            np.vstack([model.qi, none])[item_rows],
        )
        return self.clip(model.trainset.global_mean + biases + products)

    def _trainset(self, train: Ratings) -> object:
        from surprise.trainset import Trainset

        # Surprise's own readers go line by line and take longer than its training.
        by_user, by_item = defaultdict(list), defaultdict(list)
        rows = zip(
            train.user_rows.tolist(), train.item_rows.tolist(), train.values.tolist(), strict=True
        )
        for user, item, rating in rows:
            by_user[user].append((item, rating))
            by_item[item].append((user, rating))
        return Trainset(
            by_user, by_item, train.n_users, train.n_items, len(train), self.bounds, {}, {}
        )
