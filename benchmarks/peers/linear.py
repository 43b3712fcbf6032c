"""Peers in closed form: the mean, shrunken biases, factors with ridge regression on features."""

import numpy as np
import pyarrow as pa
from scipy import sparse
from scipy.sparse import linalg

from peers.base import Entities, Peer
from simrec import Ratings
from simrec.evaluation.baselines import BiasBaseline


class Mean(Peer):
    """The mean of all ratings."""

    name = "mean"

    def fit(self, train: Ratings, items: pa.Table | None, users: pa.Table | None) -> "Mean":
        self.mean_ = train.mean
        return self

    def predict(self, pairs: pa.Table) -> np.ndarray:
        return np.full(pairs.num_rows, self.mean_)


class Bias(Peer):
    """Mean and shrunken biases of users and items; a new one has none."""

    name = "bias"

    def fit(self, train: Ratings, items: pa.Table | None, users: pa.Table | None) -> "Bias":
        self.biases_ = BiasBaseline.fit(train)
        return self

    def predict(self, pairs: pa.Table) -> np.ndarray:
        biases = self.biases_
        user_rows = biases.users.rows(pairs.column("user_id"))
        item_rows = biases.items.rows(pairs.column("item_id"))
        # A further zero at the end is what row -1 picks.
        user_bias = np.append(biases.user_bias, 0)[user_rows]
        item_bias = np.append(biases.item_bias, 0)[item_rows]
        return self.clip(biases.mean + user_bias + item_bias)


class RidgeSvd(Peer):
    """Truncated SVD of what biases leave, and biases and factors of new ones from features.

    The regressions weigh an entity by its number of ratings, n / (n + 10): a factor from two
    ratings says little about what features mean.
    """

    name = "ridge-svd"
    n_factors = 24
    damping = 30.0
    l2 = 10.0

    def fit(self, train: Ratings, items: pa.Table | None, users: pa.Table | None) -> "RidgeSvd":
        biases = BiasBaseline.fit(train)
        rest = train.values - biases.mean
        rest = rest - biases.user_bias[train.user_rows] - biases.item_bias[train.item_rows]
        n_by_user = np.bincount(train.user_rows, minlength=train.n_users)
        n_by_item = np.bincount(train.item_rows, minlength=train.n_items)
        # Dividing by the roots of the counts keeps heavy raters and hits from being all there is.
        by_user, by_item = np.sqrt(n_by_user + self.damping), np.sqrt(n_by_item + self.damping)
        scaled = rest / (by_user[train.user_rows] * by_item[train.item_rows])
        matrix = sparse.csr_matrix((scaled, (train.user_rows, train.item_rows)))
        n_factors = min(self.n_factors, min(matrix.shape) - 1)
        start = np.random.default_rng(self.random_state).standard_normal(min(matrix.shape))
        left, strength, right = linalg.svds(matrix, n_factors, v0=start)
        root = np.sqrt(strength)
        self.users_ = Entities(train.users, users, "user_id")
        self.items_ = Entities(train.items, items, "item_id")
        self.mean_ = biases.mean
        self.user_bias_, self.user_factors_ = self._complete(
            self.users_, biases.user_bias, left * root * by_user[:, None], n_by_user
        )
        self.item_bias_, self.item_factors_ = self._complete(
            self.items_, biases.item_bias, right.T * root * by_item[:, None], n_by_item
        )
        return self

    def predict(self, pairs: pa.Table) -> np.ndarray:
        user_rows = self.users_.rows(pairs.column("user_id"))
        item_rows = self.items_.rows(pairs.column("item_id"))
        product = np.einsum(
            "nd,nd->n", self.user_factors_[user_rows], self.item_factors_[item_rows]
        )
        return self.clip(
            self.mean_ + self.user_bias_[user_rows] + self.item_bias_[item_rows] + product
        )

    def _complete(
        self, entities: Entities, bias: np.ndarray, factors: np.ndarray, counts: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Add the entities without ratings, and a last row for those without features either."""
        targets = np.column_stack([bias, factors])
        weights = counts / (counts + 10.0)
        average = weights @ targets / weights.sum()
        new = np.repeat(average[None], len(entities) - len(bias) + 1, axis=0)
        if entities.features.shape[1]:
            known, unknown = entities.features[: len(bias)], entities.features[len(bias) :]
            new[:-1] += unknown @ ridge(known, targets - average, weights, self.l2)
        complete = np.vstack([targets, new])
        return complete[:, 0], complete[:, 1:]


def ridge(
    features: sparse.csr_matrix, targets: np.ndarray, weights: np.ndarray, l2: float
) -> np.ndarray:
    weighted = features.multiply(weights[:, None]).tocsr()
    if features.shape[1] <= features.shape[0]:
        gram = (features.T @ weighted).toarray() + l2 * np.eye(features.shape[1])
        return np.linalg.solve(gram, weighted.T @ targets)
    # More features than entities: the same answer from the smaller system.
    gram = (features @ weighted.T).toarray() + l2 * np.eye(features.shape[0])
    return weighted.T @ np.linalg.solve(gram, targets)
