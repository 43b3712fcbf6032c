"""Fit implicit feedback: item embeddings, and the sums from which user encoders follow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from simrec.model.head import Encoder
from simrec.model.lists.axes import Axes, find_axes
from simrec.model.lists.item_encoder import feature_weights
from simrec.model.lists.pair_weight import PairWeight
from simrec.model.lists.user_encoder import UserRegression
from simrec.model.prepare import Prepared, pair_matrix

# Coordinates of users' features, at most.
_FEATURES = 128
# As many users as the features of an item count.
_ALIKE = 3.0


@dataclass(frozen=True, eq=False)
class UptakeModel:
    """What encoders of users follow from.

    Attributes
    ----------
    axes : Axes
        Item embeddings.
    users : UserRegression
        Sums over users.
    projection : numpy.ndarray
        Features of users x their coordinates.
    mean : float
        Mean weight of the users among those that embeddings are learned from.
    """

    axes: Axes
    users: UserRegression
    projection: np.ndarray
    mean: float

    @classmethod
    def of(
        cls,
        data: Prepared,
        weight: PairWeight,
        embedding_dim: int,
        power: float,
        rng: np.random.Generator,
    ) -> UptakeModel:
        """Find the embeddings, and prepare the sums."""
        ratings, workers = data.ratings, data.workers
        pairs, extra = pair_matrix(ratings), _rows_of_features(data)
        weights = np.maximum(np.diff(pairs.indptr), 1) ** -0.5
        mean = workers.total(float(weights.sum())) / workers.total(len(weights))
        by_user = sparse.diags_array(np.sqrt(weights / mean).astype(np.float32))
        rows = sparse.csr_matrix(by_user @ pairs)
        if extra is not None and workers.rank == 0:
            rows = sparse.vstack([rows, extra], format="csr")
        axes = find_axes(rows, data.sides.items.counts, embedding_dim, rng, workers, power)
        X = data.sides.users.X[:, :-1]
        projection = np.eye(X.shape[1], dtype=np.float32)
        if len(projection) > _FEATURES:
            projection = find_axes(X, np.ones(X.shape[1]), _FEATURES, rng, workers).V
        H = pair_matrix(ratings, weight(ratings.values))
        targets = {"taken": H if not weight.slope else pair_matrix(ratings)}
        if ratings.has_ratings:
            targets["liked"] = pair_matrix(ratings, ratings.values >= weight.liked)
        constant = np.ones((X.shape[0], 1), np.float32)
        features = np.hstack([np.asarray(X @ projection), constant])
        users = UserRegression(H, targets, features, axes, extra, workers)
        return cls(axes, users, projection, mean)


def _rows_of_features(data: Prepared) -> sparse.csr_matrix | None:
    """Return a row over items for each feature, as if a user had taken up all that have it.

    Items with features in common are alike, however few pairs they have: the features of an item
    count as much as `_ALIKE` users.
    """
    X = data.sides.items.X[:, :-1]
    if not X.shape[1]:
        return None
    weights = feature_weights(X, data.sides.items.groups[:-1], "rarity")
    unit = Encoder(np.empty((0, 0)), idf=weights).inputs(X)
    rows = unit.T.tocsr() * np.float32(np.sqrt(_ALIKE))
    return sparse.csr_matrix(rows[np.diff(rows.indptr) > 1])
