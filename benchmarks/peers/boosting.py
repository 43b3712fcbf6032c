"""LightGBM on features and on statistics of the ratings."""

import numpy as np
import pyarrow as pa
from scipy import sparse

from peers.base import Entities, Peer
from peers.linear import ridge
from simrec import Ratings
from simrec.evaluation.baselines import BiasBaseline

_FOLDS = 5
# Raw features that trees get to see, the most frequent ones; the rest speaks through statistics.
_RAW = 64
# Shrinkage of a user's mean over similar items, in ratings.
_SHRINKAGE = 3.0


class LightGbm(Peer):
    """Boosted trees on what biases leave.

    A training rating's statistics come from the other folds of the ratings, and those of its
    user and its item are hidden for a fifth of the rows each, which is how new users and items
    look. What features say of a bias (ridge regression) comes from other entities, always.
    """

    name = "lightgbm"
    modules = ("lightgbm",)
    packages = ("lightgbm",)
    hidden = 0.2
    parameters = {
        "objective": "l2",
        "learning_rate": 0.05,
        "num_leaves": 63,
        "min_data_in_leaf": 50,
        "feature_fraction": 0.5,
        "bagging_fraction": 0.8,
        "bagging_freq": 1,
        "lambda_l2": 10.0,
        "verbose": -1,
    }
    rounds = 1500

    def fit(self, train: Ratings, items: pa.Table | None, users: pa.Table | None) -> "LightGbm":
        import lightgbm

        rng = np.random.default_rng(self.random_state)
        self.users_ = Entities(train.users, users, "user_id")
        self.items_ = Entities(train.items, items, "item_id")
        self._all = _Statistics(train, np.ones(len(train), bool), self.users_, self.items_)
        self._priors(rng)
        fold = rng.integers(_FOLDS, size=len(train))
        inputs, base = None, np.empty(len(train), np.float32)
        for k in range(_FOLDS):
            rows = np.flatnonzero(fold == k)
            rest = _Statistics(train, fold != k, self.users_, self.items_)
            part, base[rows] = self._inputs(
                rest,
                train.user_rows[rows].astype(np.int64),
                train.item_rows[rows].astype(np.int64),
                rng.random(len(rows)) >= self.hidden,
                rng.random(len(rows)) >= self.hidden,
                self._user_prior_out,
                self._item_prior_out,
            )
            if inputs is None:
                inputs = np.empty((len(train), part.shape[1]), np.float32)
            inputs[rows] = part
        check = rng.random(len(train)) < 0.05
        targets = train.values - base
        data = lightgbm.Dataset(inputs[~check], targets[~check])
        self.model_ = lightgbm.train(
            {**self.parameters, "seed": self.random_state},
            data,
            self.rounds,
            valid_sets=[lightgbm.Dataset(inputs[check], targets[check], reference=data)],
            callbacks=[lightgbm.early_stopping(50, verbose=False)],
        )
        return self

    def predict(self, pairs: pa.Table) -> np.ndarray:
        user_rows = self.users_.rows(pairs.column("user_id"))
        item_rows = self.items_.rows(pairs.column("item_id"))
        predictions = np.empty(len(user_rows))
        for first in range(0, len(user_rows), 200_000):
            u, i = user_rows[first : first + 200_000], item_rows[first : first + 200_000]
            inputs, base = self._inputs(
                self._all,
                u,
                i,
                (u >= 0) & (u < self.users_.n_rated),
                (i >= 0) & (i < self.items_.n_rated),
                self._user_prior,
                self._item_prior,
            )
            predictions[first : first + 200_000] = base + self.model_.predict(inputs)
        return self.clip(predictions)

    def _priors(self, rng: np.random.Generator) -> None:
        """Biases by features: from all rated entities, and for each from the other folds'."""
        for side, entities, bias, counts in (
            ("user", self.users_, self._all.user_bias, self._all.n_by_user),
            ("item", self.items_, self._all.item_bias, self._all.n_by_item),
        ):
            n, weights = entities.n_rated, counts / (counts + 10.0)
            prior = np.full(len(entities) + 1, weights @ bias / weights.sum())
            out = prior[:n].copy()
            if entities.features.shape[1]:
                known = entities.features[:n]
                rest = bias - prior[-1]
                prior[:-1] += entities.features @ ridge(known, rest, weights, 10.0)
                fold = rng.integers(_FOLDS, size=n)
                for k in range(_FOLDS):
                    others = fold != k
                    weight = ridge(known[others], rest[others], weights[others], 10.0)
                    out[~others] += known[~others] @ weight
            setattr(self, f"_{side}_prior", prior)
            setattr(self, f"_{side}_prior_out", out)

    def _inputs(
        self,
        statistics: "_Statistics",
        user_rows: np.ndarray,
        item_rows: np.ndarray,
        user_known: np.ndarray,
        item_known: np.ndarray,
        user_prior: np.ndarray,
        item_prior: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Give the inputs of the trees, and the prediction of biases that they improve."""
        columns = [user_prior[user_rows], item_prior[item_rows]]
        base = np.full(len(user_rows), statistics.mean)
        for rows, known, bias, counts, prior in (
            (user_rows, user_known, statistics.user_bias, statistics.n_by_user, columns[0]),
            (item_rows, item_known, statistics.item_bias, statistics.n_by_item, columns[1]),
        ):
            rows = np.where(known, rows, 0)
            own = np.where(known, bias[rows], np.nan)
            base += np.where(known, own, prior)
            columns += [own, np.where(known, counts[rows], 0)]
        columns.append(base)
        columns += statistics.user_tastes(user_rows, item_rows, user_known)
        columns += statistics.item_tastes(user_rows, item_rows, item_known)
        columns += [_raw(self.users_, user_rows), _raw(self.items_, item_rows)]
        return np.column_stack(columns).astype(np.float32), base.astype(np.float32)


class _Statistics:
    """Biases of some of the ratings, and what each user makes of each feature of items."""

    def __init__(self, train: Ratings, chosen: np.ndarray, users: Entities, items: Entities):
        # Not `train.select`: rows must stay those of all ratings.
        some = Ratings(
            train.users,
            train.items,
            train.user_rows[chosen],
            train.item_rows[chosen],
            train.values[chosen],
        )
        biases = BiasBaseline.fit(some)
        self.mean, self.user_bias, self.item_bias = biases.mean, biases.user_bias, biases.item_bias
        self.n_by_user = np.bincount(some.user_rows, minlength=some.n_users)
        self.n_by_item = np.bincount(some.item_rows, minlength=some.n_items)
        rest = some.values - self.mean
        rest -= (self.user_bias[some.user_rows] + self.item_bias[some.item_rows]).astype(np.float32)
        shape = (some.n_users, some.n_items)
        where = (some.user_rows, some.item_rows)
        self._rest = sparse.csr_matrix((rest, where), shape=shape)
        self._seen = sparse.csr_matrix((np.ones_like(rest), where), shape=shape)
        self._users, self._items = users, items

    def user_tastes(self, u: np.ndarray, i: np.ndarray, known: np.ndarray) -> list[np.ndarray]:
        """Mean of what biases leave of the user's ratings of items that share features."""
        return _tastes(self._rest, self._seen, self._items, u, i, known)

    def item_tastes(self, u: np.ndarray, i: np.ndarray, known: np.ndarray) -> list[np.ndarray]:
        """Mean of what biases leave of the item's ratings by users that share features."""
        return _tastes(self._rest.T, self._seen.T, self._users, i, u, known)


def _tastes(
    rest: sparse.csr_matrix,
    seen: sparse.csr_matrix,
    entities: Entities,
    rows: np.ndarray,
    others: np.ndarray,
    known: np.ndarray,
) -> list[np.ndarray]:
    tastes = []
    for group in np.unique(entities.groups):
        features = abs(entities.features[:, entities.groups == group])
        rated = features[: entities.n_rated]
        total, weight = (rest @ rated).toarray(), (seen @ rated).toarray()
        some = np.flatnonzero(known & (others >= 0))
        pairs = features[others[some]]
        at = np.repeat(rows[some], np.diff(pairs.indptr)), pairs.indices
        value = np.full(len(rows), np.nan)
        sums = [
            np.bincount(
                np.repeat(np.arange(len(some)), np.diff(pairs.indptr)),
                pairs.data * table[at],
                len(some),
            )
            for table in (total, weight)
        ]
        value[some] = sums[0] / (sums[1] + _SHRINKAGE)
        tastes.append(value)
    return tastes


def _raw(entities: Entities, rows: np.ndarray) -> np.ndarray:
    often = np.diff(entities.features[: entities.n_rated].tocsc().indptr)
    columns = np.sort(np.argsort(-often, kind="stable")[:_RAW])
    table = entities.features[:, columns].toarray()
    return np.vstack([table, np.full((1, len(columns)), np.nan, np.float32)])[rows]
