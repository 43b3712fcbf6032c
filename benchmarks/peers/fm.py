"""myFM: Bayesian factorization machines, sampled by Gibbs."""

import numpy as np
import pyarrow as pa
from scipy import sparse

from peers.base import Entities, Peer
from simrec import Ratings


class MyFm(Peer):
    """A factorization machine of ids and features.

    All new users share one id, and so do all new items. Some of the training ratings are there a
    second time under the latter, which is how the weights of a new item are learned: leaving its
    id out, or drawing its weights from the prior, gave errors that differed by 0.03 from chain to
    chain, as what ids and features share can move from one to the other. The id of new users is
    in no training rating: its weights are drawn from the prior of users, which has the taste that
    users share, and that is the better way for them.
    """

    name = "myfm"
    version = 2
    modules = ("myfm",)
    packages = ("myfm",)
    rank = 16
    n_iter = 200
    n_kept = 150
    repeated = 0.1

    def fit(self, train: Ratings, items: pa.Table | None, users: pa.Table | None) -> "MyFm":
        from myfm import MyFMRegressor, RelationBlock

        rng = np.random.default_rng(self.random_state)
        self.users_ = Entities(train.users, users, "user_id")
        self.items_ = Entities(train.items, items, "item_id")
        self._blocks = [_block(self.users_), _block(self.items_)]
        self.mean_ = train.mean
        grouping: list[int] = []  # each column of each table has a prior of its own
        for entities in (self.users_, self.items_):
            ids = len(set(grouping))
            grouping += [ids] * (entities.n_rated + 1) + (ids + 1 + entities.groups).tolist()
        n, some = len(train), int(self.repeated * len(train))
        rows = np.concatenate([np.arange(n), rng.choice(n, some, replace=False)])
        item_rows = train.item_rows[rows] + train.n_items * (np.arange(n + some) >= n)
        self.model_ = MyFMRegressor(rank=self.rank, random_seed=self.random_state)
        self.model_.fit(
            None,
            train.values[rows].astype(np.float64) - self.mean_,
            X_rel=[
                RelationBlock(train.user_rows[rows].astype(np.uint64), self._blocks[0]),
                RelationBlock(item_rows.astype(np.uint64), self._blocks[1]),
            ],
            n_iter=self.n_iter,
            n_kept_samples=self.n_kept,
            grouping=grouping,
        )
        return self

    def predict(self, pairs: pa.Table) -> np.ndarray:
        from myfm import RelationBlock

        relations = []
        for column, entities, block in zip(
            ("user_id", "item_id"), (self.users_, self.items_), self._blocks, strict=True
        ):
            rows = entities.rows(pairs.column(column))
            is_new = rows >= entities.n_rated
            rows = np.where(rows < 0, len(block.indptr) - 2, rows + entities.n_rated * is_new)
            relations.append(RelationBlock(rows.astype(np.uint64), block))
        return self.clip(self.mean_ + self.model_.predict(None, relations))


def _block(entities: Entities) -> sparse.csr_matrix:
    """Ids beside features.

    Rows: the rated entities, all of them as if they were new, one without features.
    """
    n_rated, n_all = entities.n_rated, len(entities)
    columns = np.minimum(np.arange(n_rated + n_all + 1), n_rated)
    ids = sparse.csr_matrix((np.ones(len(columns)), (np.arange(len(columns)), columns)))
    features = entities.features
    none = sparse.csr_matrix((1, features.shape[1]))
    return sparse.hstack(
        [ids, sparse.vstack([features[:n_rated], features, none])], format="csr", dtype=np.float64
    )
