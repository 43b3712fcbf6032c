"""A network from features to vectors of items, as DropoutNet and CLCRec train one."""

from typing import Any

import numpy as np
import pyarrow as pa
from scipy import sparse
from sklearn.decomposition import TruncatedSVD

from peers.base import Entities, pair_matrix
from peers.ranking import Ranker
from simrec import Ratings
from simrec.scoring.metrics import hits, ndcg_at_k


class ContentNetwork(Ranker):
    """Vectors of users and items, and a network from features to the vectors of items.

    Trained with Adam on the softmax of a pair's item among items drawn at random. As in CLCRec half
    of the items of a batch are taken by what the network makes of their features instead of their
    own vector (DropoutNet's dropped ids), and the vector and what the network makes of the same
    item are drawn together by a contrastive loss. A tenth of the items is held out to find the
    number of epochs. It ranks new items only. Features are 300 singular vectors of TF-IDF, as many
    as published work on CiteULike has.
    """

    name = "content-network"
    modules = ("simrec.simec.keras",)
    packages = ("tensorflow",)
    answers = ("new_items",)
    embedding_dim = 64
    hidden = 200
    components = 300
    negatives = 256
    batch_size = 1024
    epochs = 40
    patience = 4
    learning_rate = 3e-3
    l2 = 1e-6
    contrast = 0.1

    def fit(
        self, train: Ratings, items: pa.Table | None, users: pa.Table | None
    ) -> "ContentNetwork":
        from simrec.simec.keras import tf

        tf.keras.utils.set_random_seed(self.random_state)
        rng = np.random.default_rng(self.random_state)
        self.users_ = train.users
        self.items_ = Entities(train.items, items, "item_id", texts="words")
        n = train.n_items
        inputs = self._inputs()
        held = rng.permutation(n) < 0.1 * n
        pairs = np.column_stack([train.user_rows, train.item_rows])
        seen = pairs[~held[train.item_rows]]
        X = pair_matrix(train, train.users, train.items)[:, held]
        checked = np.flatnonzero(np.diff(X.indptr))[:1000]
        relevant = sparse.csr_matrix(X[checked])
        model = self._build(tf, train.n_users, n, inputs[:n])
        best, since, kept = -1.0, 0, None
        for _ in range(self.epochs):
            for first in range(0, len(seen), self.batch_size):
                if first == 0:
                    rng.shuffle(seen)
                negatives = rng.choice(np.flatnonzero(~held), self.negatives)
                model.step(*map(tf.constant, (seen[first : first + self.batch_size], negatives)))
            scores = model.users.numpy()[checked] @ model.made(inputs[:n][held]).T
            top = np.argsort(-scores, axis=1)[:, :20]
            quality = ndcg_at_k(hits(top, relevant), np.diff(relevant.indptr)).mean()
            since += 1
            if quality > best:
                best, since = quality, 0
                kept = model.users.numpy(), model.made(inputs)
            if since == self.patience:
                break
        self.user_vectors_, said = kept
        self.item_vectors_ = np.vstack([said, np.zeros_like(said[:1])])
        return self

    def score(self, users: pa.Array, items: pa.Array) -> np.ndarray:
        vectors = self.user_vectors_[self.users_.rows(users)]
        return vectors @ self.item_vectors_[self.items_.rows(items)].T

    def _inputs(self) -> np.ndarray:
        terms, _ = self.items_.terms()
        width = min(self.components, min(terms.shape) - 1)
        svd = TruncatedSVD(width, random_state=self.random_state)
        found = svd.fit(terms[: self.items_.n_rated]).transform(terms)
        return (found / found.std()).astype(np.float32)

    def _build(self, tf: Any, n_users: int, n_items: int, inputs: np.ndarray) -> Any:
        keras, peer = tf.keras, self

        class Network:
            def __init__(self) -> None:
                small = tf.random_normal_initializer(stddev=0.1)
                self.users = tf.Variable(small((n_users, peer.embedding_dim)))
                self.items = tf.Variable(small((n_items, peer.embedding_dim)))
                layers = [
                    keras.layers.Dense(peer.hidden, "tanh"),
                    keras.layers.Dense(peer.embedding_dim),
                ]
                self.encoder = keras.Sequential(layers)
                self.encoder.build((None, inputs.shape[1]))
                self.inputs = tf.constant(inputs)
                self.weights = [self.users, self.items, *self.encoder.trainable_variables]
                self.adam = keras.optimizers.Adam(peer.learning_rate)

            def made(self, rows: np.ndarray) -> np.ndarray:
                return self.encoder(rows).numpy()

            @tf.function(reduce_retracing=True)
            def step(self, pairs: Any, negatives: Any) -> None:
                with tf.GradientTape() as tape:
                    u = tf.gather(self.users, pairs[:, 0])
                    own, said = self._both(pairs[:, 1])
                    others = tf.concat(self._both(negatives), 0)
                    use = tf.random.uniform((tf.shape(u)[0], 1)) < 0.5
                    item = tf.where(use, said, own)
                    right = tf.reduce_sum(u * item, 1, keepdims=True)
                    logits = tf.concat([right, u @ tf.transpose(others)], 1)
                    loss = tf.reduce_mean(-tf.nn.log_softmax(logits)[:, 0])
                    unit = [tf.math.l2_normalize(one, 1) for one in (own, said)]
                    same = unit[0] @ tf.transpose(unit[1]) / 0.2
                    labels = tf.range(tf.shape(same)[0])
                    contrast = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, same)
                    loss += peer.contrast * tf.reduce_mean(contrast)
                    loss += peer.l2 * sum(tf.reduce_sum(one**2) for one in (u, own, said))
                gradients = tape.gradient(loss, self.weights)
                self.adam.apply_gradients(zip(gradients, self.weights, strict=True))

            def _both(self, rows: Any) -> tuple[Any, Any]:
                own = tf.gather(self.items, rows)
                return own, self.encoder(tf.gather(self.inputs, rows))

        return Network()
