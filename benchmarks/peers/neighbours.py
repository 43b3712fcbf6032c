"""EASE for new items: the weights of a new one are those of the items most like it."""

import numpy as np
import pyarrow as pa
from scipy import sparse

from peers.base import Entities
from peers.histories import Ease
from simrec import Ratings


class EaseNeighbours(Ease):
    """EASE whose new items take the weights of their neighbours by content.

    Neighbours are the `n_neighbours` known items of the largest cosine of TF-IDF features, where
    there are vectors the mean of that and of their cosine, and count in proportion to it. So do the
    neighbours themselves: who has one of them is likely to want the new item.
    """

    name = "ease-neighbours"
    answers = ("known_users", "new_items", "few_ratings")
    n_neighbours = 20

    def fit(self, train: Ratings, items: pa.Table | None, users: pa.Table | None) -> "Ease":
        super().fit(train, items, users)
        self.items_ = Entities(train.items, items, "item_id", texts="words")
        blocks = [self.items_.terms()[0], self.items_.features[:, self.items_.is_vector]]
        self.blocks_ = [_of_length_one(block) for block in blocks if block.shape[1]]
        return self

    def score(self, users: pa.Array, items: pa.Array) -> np.ndarray:
        rows, n = self.items_.rows(items), len(self.known_items_)
        known = (rows >= 0) & (rows < n)
        histories = self.histories_[self.users_.rows(users)]
        scores = np.zeros((len(users), len(items)), np.float32)
        scores[:, known] = histories @ self.weights_[:, rows[known]]
        new = np.flatnonzero(rows >= n)
        if len(new):
            similar = self._similar(rows[new])
            weights = self.weights_ @ similar.T + similar.T
            scores[:, new] = np.asarray(histories @ weights)
        return scores

    def _similar(self, rows: np.ndarray) -> np.ndarray:
        """Give the shares of known items in new ones; each row sums up to 1, or is 0."""
        n = len(self.known_items_)
        similar = np.zeros((len(rows), n), np.float32)
        for block in self.blocks_:
            similar += np.maximum((block[rows] @ block[:n].T).toarray(), 0)
        k = min(self.n_neighbours, n)
        least = np.partition(similar, -k, axis=1)[:, -k][:, None]
        similar = np.where(similar >= np.maximum(least, 1e-9), similar, 0)
        return similar / np.maximum(similar.sum(axis=1, keepdims=True), 1e-9)


def _of_length_one(block: sparse.csr_matrix) -> sparse.csr_matrix:
    length = np.sqrt(np.asarray(block.power(2).sum(axis=1)).ravel())
    return sparse.csr_matrix(sparse.diags_array(1 / np.maximum(length, 1e-9)) @ block)
