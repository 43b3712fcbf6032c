"""A two-tower model in TensorFlow Recommenders, as its tutorials build one."""

from typing import Any

import numpy as np
import pyarrow as pa
from scipy import sparse

from peers.base import Entities, Peer
from simrec import Ratings


class TfrsTowers(Peer):
    """Towers of id and feature embeddings under a dense layer, trained to the best epoch.

    Trained with Adam on the rating error. Ids are dropped for some of the rows, so that towers
    learn to do without; a new user or item is one whose id is dropped. A few users, items and
    ratings are held out to find the number of epochs and their learning rates: each time the
    error stops falling, training goes on from the best epoch with a smaller rate. Then the same
    is done with all ratings.
    """

    name = "tfrs"
    version = 2
    modules = ("simrec.simec.keras",)
    packages = ("tensorflow", "tensorflow-recommenders")
    embedding_dim = 32
    prior = 20.0  # strength of regularisation, in ratings
    dropped_ids = 0.1
    learning_rate = 2e-3
    epochs = 100
    patience = 3
    held_out = 0.04

    def fit(self, train: Ratings, items: pa.Table | None, users: pa.Table | None) -> "TfrsTowers":
        rng = np.random.default_rng(self.random_state)
        self.users_ = Entities(train.users, users, "user_id")
        self.items_ = Entities(train.items, items, "item_id")
        user_new = (rng.random(train.n_users) < self.held_out)[train.user_rows]
        item_new = (rng.random(train.n_items) < self.held_out)[train.item_rows]
        learn = ~(user_new | item_new | (rng.random(len(train)) < self.held_out))
        ratings = {
            "user": _with_unknown(train.user_rows, ~user_new, self.users_),
            "item": _with_unknown(train.item_rows, ~item_new, self.items_),
            "rating": train.values,
        }
        task = (2 * user_new + item_new)[~learn]
        self._start(train)
        rates = self._search(_select(ratings, learn), _select(ratings, ~learn), task)
        # What was held out is learned from as well now, in the way that was found.
        self._start(train)
        ratings["user"] = _with_unknown(train.user_rows, True, self.users_)
        ratings["item"] = _with_unknown(train.item_rows, True, self.items_)
        data = self._batches(ratings)
        for rate in rates:
            self._epoch(data, rate)
        return self

    def _search(
        self, learned: dict[str, np.ndarray], checked: dict[str, np.ndarray], task: np.ndarray
    ) -> list[float]:
        """Train until it gets no better; give the learning rates on the way to the best epoch."""
        data = self._batches(learned)
        rate, since, best = self.learning_rate, 0, np.inf
        path: list[float] = []
        best_path, best_weights = path, self.model_.get_weights()
        for _ in range(self.epochs):
            self._epoch(data, rate)
            path = [*path, rate]
            error = self._error(checked, task)
            if error < best - 1e-5:
                best, best_path, best_weights = error, path, self.model_.get_weights()
                since = 0
                continue
            since += 1
            if since % self.patience == 0:
                # From the best epoch on, smaller steps get a little further.
                self.model_.set_weights(best_weights)
                path, rate = best_path, rate / 4
            if since == 3 * self.patience:
                break
        return best_path

    def _start(self, train: Ratings) -> None:
        from simrec.simec.keras import tf

        tf.keras.utils.set_random_seed(self.random_state)
        self.model_ = self._build(train.mean, self.prior / len(train))
        self.model_.compile(optimizer=tf.keras.optimizers.Adam(self.learning_rate))
        self._batch = 1024 if len(train) < 300_000 else 4096
        self.model_({side: np.zeros((1, 2), np.int64) for side in ("user", "item")})

    def _batches(self, ratings: dict[str, np.ndarray]) -> Any:
        from simrec.simec.keras import tf

        data = tf.data.Dataset.from_tensor_slices(ratings)
        return data.shuffle(len(ratings["rating"])).batch(self._batch).prefetch(2)

    def _epoch(self, data: Any, rate: float) -> None:
        self.model_.optimizer.learning_rate.assign(rate)
        self.model_.fit(data, epochs=1, verbose=0)

    def predict(self, pairs: pa.Table) -> np.ndarray:
        rows = {}
        for side, entities in (("user", self.users_), ("item", self.items_)):
            found = entities.rows(pairs.column(f"{side}_id"))
            rows[side] = _with_unknown(found, found < entities.n_rated, entities)
        return self.clip(self._scores(rows))

    def _scores(self, rows: dict[str, np.ndarray]) -> np.ndarray:
        n, size = len(rows["user"]), 65_536
        blocks = [
            self.model_({side: rows[side][first : first + size] for side in ("user", "item")})
            for first in range(0, n, size)
        ]
        return np.concatenate([np.zeros(0), *(block.numpy() for block in blocks)])

    def _error(self, checked: dict[str, np.ndarray], task: np.ndarray) -> float:
        """Average the errors of the tasks for which there are ratings held out."""
        squares = (self.clip(self._scores(checked)) - checked["rating"]) ** 2
        return float(np.mean([np.sqrt(squares[task == t].mean()) for t in np.unique(task)]))

    def _build(self, mean: float, l2: float) -> Any:
        from simrec.simec.keras import tf, tfrs

        keras, peer = tf.keras, self

        class Tower(keras.layers.Layer):
            """Embeddings of the id and of the features, added, then a dense layer."""

            def __init__(self, entities: Entities, bias_at: int) -> None:
                super().__init__()
                self.n_rated = entities.n_rated
                self.names, self.amounts = map(tf.constant, _bags(entities))
                regular = keras.regularizers.l2(l2)
                options = {"embeddings_regularizer": regular}
                width = peer.embedding_dim
                self.of_id = keras.layers.Embedding(self.n_rated + 1, width + 2, **options)
                n_features = entities.features.shape[1] + 1
                self.of_feature = keras.layers.Embedding(n_features, width, **options)
                self.hidden = keras.layers.Dense(width, "relu", kernel_regularizer=regular)
                self.out = keras.layers.Dense(width + 2, kernel_regularizer=regular)
                self.one = tf.one_hot(bias_at, width + 2)

            def call(self, rows: Any, training: bool = False) -> Any:
                ids = tf.minimum(rows[:, 0], self.n_rated)
                if training:
                    drop = tf.random.uniform(tf.shape(ids)) < peer.dropped_ids
                    ids = tf.where(drop, tf.constant(self.n_rated, ids.dtype), ids)
                known = tf.cast(ids < self.n_rated, tf.float32)[:, None]
                features = self.of_feature(tf.gather(self.names, rows[:, 1]))
                amounts = tf.gather(self.amounts, rows[:, 1])[:, :, None]
                of_features = tf.reduce_sum(features * amounts, axis=1)
                vector = self.out(self.hidden(of_features)) + known * self.of_id(ids)
                # One coordinate is 1, where the other tower has its bias.
                return vector * (1 - self.one) + self.one

        class TwoTowers(tfrs.Model):
            def __init__(self) -> None:
                super().__init__()
                self.user_tower = Tower(peer.users_, bias_at=0)
                self.item_tower = Tower(peer.items_, bias_at=1)
                self.task = tfrs.tasks.Ranking(loss=keras.losses.MeanSquaredError())

            def call(self, inputs: dict[str, Any], training: bool = False) -> Any:
                users = self.user_tower(inputs["user"], training=training)
                items = self.item_tower(inputs["item"], training=training)
                return mean + tf.reduce_sum(users * items, axis=1)

            def compute_loss(self, inputs: dict[str, Any], training: bool = False) -> Any:
                scores = self(inputs, training=training)
                return self.task(labels=inputs["rating"], predictions=scores)

        return TwoTowers()


def _select(columns: dict[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
    return {name: column[rows] for name, column in columns.items()}


def _with_unknown(rows: np.ndarray, known: np.ndarray | bool, entities: Entities) -> np.ndarray:
    """Row of the id, past the last where it is to be unknown, and row of the features."""
    rows = rows.astype(np.int64)
    ids = np.where(known & (rows >= 0), rows, entities.n_rated)
    return np.column_stack([ids, np.where(rows >= 0, rows, len(entities))])


def _bags(entities: Entities) -> tuple[np.ndarray, np.ndarray]:
    """Each entity's features as places and amounts, padded to the same number of them."""
    features = sparse.csr_matrix(entities.features)
    lengths = np.diff(features.indptr)
    shape = (len(entities) + 1, max(int(lengths.max(initial=0)), 1))
    places, amounts = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
    rows = np.repeat(np.arange(len(entities)), lengths)
    columns = np.arange(features.nnz) - np.repeat(features.indptr[:-1], lengths)
    places[rows, columns] = features.indices + 1
    amounts[rows, columns] = features.data
    return places, amounts
