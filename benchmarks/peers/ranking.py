"""Peers that rank: LightFM, and orders that are no models, to see the scale."""

import numpy as np
import pyarrow as pa
from scipy import sparse

from peers.base import Entities, Peer
from peers.linear import ridge
from simrec import Ratings


class Ranker(Peer):
    """A peer that only ranks."""

    def predict(self, pairs: pa.Table) -> np.ndarray:
        raise NotImplementedError(f"{self.name} ranks, it does not predict ratings")


class LightFmWarp(Ranker):
    """LightFM's WARP loss on ids and features; the id of a new item is left out."""

    name = "lightfm"
    modules = ("lightfm",)
    packages = ("lightfm-next",)
    answers = ("known_users", "new_items", "new_users")
    n_factors = 64
    epochs = 30
    alpha = 1e-5
    learning_rate = 0.05

    def fit(self, train: Ratings, items: pa.Table | None, users: pa.Table | None) -> "LightFmWarp":
        from lightfm import LightFM

        # Texts are left out: an epoch takes as long as an item has features.
        self.users_ = Entities(train.users, users, "user_id", texts="none")
        self.items_ = Entities(train.items, items, "item_id", texts="none")
        self._features = [_with_ids(self.users_), _with_ids(self.items_)]
        liked = train.values >= self.liked
        where = (train.user_rows[liked], train.item_rows[liked])
        shape = (train.n_users, train.n_items)
        matrix = sparse.coo_matrix((np.ones(liked.sum(), np.float32), where), shape=shape)
        self.model_ = LightFM(
            no_components=self.n_factors,
            loss="warp",
            learning_rate=self.learning_rate,
            item_alpha=self.alpha,
            user_alpha=self.alpha,
            random_state=self.random_state,
        )
        self.model_.fit(
            matrix,
            user_features=self._features[0][: train.n_users],
            item_features=self._features[1][: train.n_items],
            epochs=self.epochs,
        )
        return self

    def score(self, users: pa.Array, items: pa.Array) -> np.ndarray:
        user_rows = self._features[0][self.users_.rows(users)]
        item_rows = self._features[1][self.items_.rows(items)]
        _, user_vectors = self.model_.get_user_representations(user_rows)
        item_bias, item_vectors = self.model_.get_item_representations(item_rows)
        # A user's own bias does not change the order of the items.
        return user_vectors @ item_vectors.T + item_bias


class Popularity(Ranker):
    """How often an item is liked, for everyone; of a new one what its features say (ridge)."""

    name = "popularity"
    version = 2
    answers = ("known_users", "new_items", "new_users", "few_ratings")
    l2 = 10.0

    def fit(self, train: Ratings, items: pa.Table | None, users: pa.Table | None) -> "Popularity":
        self.items_ = Entities(train.items, items, "item_id", texts="words")
        likes = np.bincount(train.item_rows[train.values >= self.liked], minlength=train.n_items)
        target = np.log1p(likes)
        known, new = np.split(np.arange(len(self.items_)), [train.n_items])
        features, mean = self.items_.features, target.mean()
        weight = ridge(features[known], target - mean, np.ones(train.n_items), self.l2)
        # The last one is of an item that has neither likes nor features.
        self.score_ = np.concatenate([target, mean + features[new] @ weight, [mean]])
        return self

    def fold_in(self, given: Ratings) -> "Popularity":
        return self

    def score(self, users: pa.Array, items: pa.Array) -> np.ndarray:
        return np.tile(self.score_[self.items_.rows(items)], (len(users), 1))


def _with_ids(entities: Entities) -> sparse.csr_matrix:
    """Ids beside features, each row divided by its sum, as LightFM's own tools do.

    Coordinates of vectors are two features each, for numbers above and below 0.
    """
    n_rated, n_all = entities.n_rated, len(entities)
    ids = sparse.csr_matrix(
        (np.ones(n_rated, np.float32), (np.arange(n_rated), np.arange(n_rated))),
        shape=(n_all, n_rated),
    )
    vectors = entities.features[:, entities.is_vector]
    below = (abs(vectors) - vectors) / 2
    blocks = [ids, abs(entities.features[:, ~entities.is_vector]), vectors + below, below]
    rows = sparse.hstack(blocks, format="csr")
    total = np.asarray(rows.sum(axis=1)).ravel()
    scale = sparse.diags_array(1 / np.maximum(total, 1e-9))
    return sparse.csr_matrix(scale @ rows, dtype=np.float32)
