"""myFM: Bayesian factorization machines, sampled by Gibbs."""

import numpy as np
import pyarrow as pa
from scipy import sparse

from peers.base import Entities, Peer
from simrec import Ratings


class MyFm(Peer):
    """A factorization machine of ids and features.

    In every sample of the posterior, the id of a new user or item has the mean of the weights of
    all known ones, items counted as often as they are rated: what the item of a rating is like.
    Leaving the id out, or drawing its weights from the prior, is off by up to a third of a star:
    ids and features share what they have in common in ways that differ from chain to chain, and
    the prior is that of an item, not of a rating.
    """

    name = "myfm"
    version = 3
    modules = ("myfm",)
    packages = ("myfm",)
    rank = 16
    n_iter = 200
    n_kept = 150

    def fit(self, train: Ratings, items: pa.Table | None, users: pa.Table | None) -> "MyFm":
        from myfm import MyFMRegressor, RelationBlock

        self.users_ = Entities(train.users, users, "user_id")
        self.items_ = Entities(train.items, items, "item_id")
        self._blocks = [_block(self.users_), _block(self.items_)]
        self.mean_ = train.mean
        grouping: list[int] = []  # each column of each table has a prior of its own
        for entities in (self.users_, self.items_):
            ids = len(set(grouping))
            grouping += [ids] * (entities.n_rated + 1) + (ids + 1 + entities.groups).tolist()
        self.model_ = MyFMRegressor(rank=self.rank, random_seed=self.random_state)
        self.model_.fit(
            None,
            train.values.astype(np.float64) - self.mean_,
            X_rel=[
                RelationBlock(train.user_rows.astype(np.uint64), self._blocks[0]),
                RelationBlock(train.item_rows.astype(np.uint64), self._blocks[1]),
            ],
            n_iter=self.n_iter,
            n_kept_samples=self.n_kept,
            grouping=grouping,
        )
        self._set_new(0, np.ones(train.n_users))
        self._set_new(self._blocks[0].shape[1], np.bincount(train.item_rows))
        return self

    def predict(self, pairs: pa.Table) -> np.ndarray:
        from myfm import RelationBlock

        relations = []
        for column, entities, block in zip(
            ("user_id", "item_id"), (self.users_, self.items_), self._blocks, strict=True
        ):
            rows = entities.rows(pairs.column(column)) % block.shape[0]
            relations.append(RelationBlock(rows.astype(np.uint64), block))
        return self.clip(self.mean_ + self.model_.predict(None, relations))

    def _set_new(self, first: int, counts: np.ndarray) -> None:
        """Set the weights of the id of new entities, the last of the ids from `first` on."""
        shares, last = counts / counts.sum(), first + len(counts)
        for sample in self.model_.predictor_.samples:
            sample.w[last] = shares @ sample.w[first:last]
            sample.V[last] = shares @ sample.V[first:last]


def _block(entities: Entities) -> sparse.csr_matrix:
    """Ids beside features, one row per entity and a last one for those without features."""
    n_rated, n_all = entities.n_rated, len(entities)
    columns = np.minimum(np.arange(n_all + 1), n_rated)
    ids = sparse.csr_matrix((np.ones(n_all + 1), (np.arange(n_all + 1), columns)))
    features = sparse.vstack(
        [entities.features, sparse.csr_matrix((1, entities.features.shape[1]))]
    )
    return sparse.hstack([ids, features], format="csr", dtype=np.float64)
