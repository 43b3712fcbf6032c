"""One table for a model and a split: a row for each task, the baselines beside every figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
from scipy import sparse

from simrec.data.ids import IdMap
from simrec.data.ratings import Ratings
from simrec.data.split import ColdStartSplit, TimeSplit, cold_start_split
from simrec.data.tables import TableLike
from simrec.errors import InputError
from simrec.evaluation import catalogue, metrics
from simrec.evaluation.baselines import (
    BiasBaseline,
    MeanBaseline,
    PopularityBaseline,
    item_features,
)
from simrec.evaluation.copies import unfitted_copy
from simrec.evaluation.processes import side_by_side
from simrec.evaluation.tasks import (
    TASK_NAMES,
    Task,
    has_ratings,
    liked_threshold,
    predicts_ratings,
    tasks_of,
    warn_of_unknown,
)

if TYPE_CHECKING:
    import pandas as pd

_NAN = float("nan")


class Predictor(Protocol):
    """What can be evaluated: anything that predicts. With `recommend`, its lists are too."""

    def predict(self, pairs: pa.Table) -> np.ndarray:
        """Return a prediction for each (user_id, item_id) row of a table."""


def evaluate(
    model: Predictor,
    split: ColdStartSplit | Ratings | TableLike | Callable[[int], ColdStartSplit],
    k: int = 10,
    threshold: float | None = None,
    *,
    items: TableLike | None = None,
    users: TableLike | None = None,
    max_users: int = 2000,
    random_state: int = 0,
    seeds: int | Sequence[int] | None = None,
    n_jobs: int = 1,
) -> pd.DataFrame:
    """Measure a model on the four tasks of a split.

    Errors are over all ratings of a task; there are none where the data are interactions without
    ratings, or the model has learned none. Lists are for the task's users who rated at
    least one item `threshold` or more (its relevant items), at most `max_users` of them, drawn at
    random with a fixed seed. The candidates:

    ========= ==================================================================
    warm      the kept items, without those the user rated in training
    new_items the held-out items
    new_users the kept items
    new_both  the held-out items
    ========= ==================================================================

    Kept items are those that were not held out whole. Items a user never rated count as not
    relevant, so the figures compare models; they are not the share of good recommendations. Ids
    with neither ratings nor features are answered as average ones by models that can do so (those
    whose methods take ``unknown``), and counted in the log.

    Parameters
    ----------
    model : Predictor
        Fitted on ``split.train``, e.g. a `TwoTower`: anything with ``predict(pairs)`` and, for
        lists, ``recommend(users, k, items, exclude)``, which gives a table with user_id, item_id
        and rank (from 1). Without the latter the figures of lists are NaN. With `seeds`, also
        ``fit(ratings, items=, users=)``; the model itself then stays as it is.
    split : ColdStartSplit, Ratings, table, path or callable
        As made by `cold_start_split` or `time_split`. With `seeds` also all ratings, which are
        then split by each seed, or a function from a seed to a split.
    k : int
        Length of the lists.
    threshold : float, optional
        Ratings from here on make an item relevant. Default: three quarters of the way from the
        lowest to the highest training rating, 4 on a scale of 1 to 5.
    items, users : table or path, optional
        Features. Those of items predict the popularity of new ones, for the baseline, and say how
        diverse lists are; both are what models are fitted with, given `seeds`.
    max_users : int
        Most users to make lists for in each task.
    random_state : int
        Seed of the draw of these users.
    seeds : int or sequence of int, optional
        Seeds of split and model, or how many (0, 1, ...): a copy of the model is fitted for each.
    n_jobs : int
        Processes that fit for `seeds` side by side, as far as there is memory for them: the first
        fit shows how much one takes. -1 for as many as there are processors. The figures are the
        same as one after the other.

    Returns
    -------
    pandas.DataFrame
        A row for each task; columns task, n (ratings); age_days (days from the end of training to
        a rating, the mean; of a split by time only); rmse, mae, with rmse_mean and rmse_bias, the
        errors of the mean and of the shrunk biases; n_ranked (users with a list), precision@k,
        recall@k, ndcg@k, map@k, mrr (means over users), each beside that of the most popular
        items (``..._popular``); and what lists show of the catalogue: coverage, distinct, gini,
        popularity (share of the training users who rated what is listed, the mean) beside
        popularity_rated (of the relevant items), novelty, diversity (by the features of `items`,
        else by who rated them) and new_share. NaN where there is nothing to measure. With
        `seeds`, means, and a column ``..._std`` (standard deviation) after each figure.

    Raises
    ------
    InputError
        If a test rating is in the training set too, or a prediction is missing.

    Examples
    --------
    >>> from simrec import TwoTower, cold_start_split, make_synthetic
    >>> data = make_synthetic(n_users=100, n_items=60, n_ratings=1500)
    >>> split = cold_start_split(data.ratings)
    >>> model = TwoTower(epochs=4).fit(split.train, items=data.items, users=data.users)
    >>> table = evaluate(model, split)
    >>> table["task"].tolist()
    ['warm', 'new_items', 'new_users', 'new_both']
    >>> bool((table["rmse"] < table["rmse_mean"]).all())
    True
    """
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise InputError(f"k must be a positive integer, got {k!r}")
    if seeds is None:
        if not isinstance(split, ColdStartSplit):
            raise InputError(
                "evaluate needs a split (see cold_start_split, time_split), or seeds=... to make "
                f"splits of all ratings and fit the model on each; got {type(split).__name__}."
            )
        return _table(model, split, int(k), threshold, items, max_users, random_state)
    chosen = list(range(seeds)) if isinstance(seeds, int | np.integer) else list(seeds)
    if not chosen or len(set(chosen)) < len(chosen):
        raise InputError(f"seeds: give at least one, and each once; got {chosen}.")
    make, seed_of = _splitter(split), {f"seed {seed}": seed for seed in chosen}

    def arguments(name: str) -> tuple[Any, ...]:
        seed = seed_of[name]
        fresh = unfitted_copy(model, seed, quiet=n_jobs != 1)
        return fresh, make(seed), int(k), threshold, items, users, max_users, random_state

    tables = side_by_side(_fitted_table, list(seed_of), arguments, n_jobs)
    return _spread(tables) if len(tables) > 1 else tables[0]


def verdicts(table: pd.DataFrame, k: int = 10) -> list[str]:
    """Say where the model is no better than a baseline: a sentence each, none if it always is."""
    found = []
    for row in table.to_dict("records"):
        name, own, popular = TASK_NAMES[row["task"]], row[f"ndcg@{k}"], row[f"ndcg@{k}_popular"]
        if own < popular:
            found.append(
                f"{name}: the lists are no better than the most popular items "
                f"(NDCG@{k} {own:.4f} against {popular:.4f})"
            )
        best = min(row["rmse_mean"], row["rmse_bias"])
        if row["rmse"] >= best:
            found.append(
                f"{name}: the predictions are no better than the best baseline "
                f"(RMSE {row['rmse']:.4f} against {best:.4f})"
            )
    return found


@dataclass(frozen=True, eq=False)
class Catalogue:
    """What figures beyond accuracy need to know of the items, by the training ratings."""

    train: Ratings
    ids: IdMap
    vectors: sparse.csr_matrix

    @classmethod
    def of(cls, train: Ratings, items: TableLike | None) -> Catalogue:
        """Compare items by their features, or by who rated them where there are none."""
        if items is None:
            return cls(train, train.items, sparse.csr_matrix(train.to_csr().astype(bool).T))
        return cls(train, *item_features(items))

    def figures(self, ids: np.ndarray, candidates: IdMap, rated: np.ndarray) -> dict[str, float]:
        """Measure lists (rows among `candidates`); `rated` are the rows of what users rated."""
        train, n = self.train, len(candidates)
        rows = train.items.rows(candidates.ids)
        per_item = np.bincount(train.item_rows, minlength=train.n_items + 1)
        counts = np.where(rows >= 0, per_item[rows], 0)
        share = counts / max(train.n_users, 1)
        rows = self.ids.rows(candidates.ids)
        known = bool((rows >= 0).any())
        # The row after the last is that of items without features.
        vectors = sparse.vstack([self.vectors, sparse.csr_matrix((1, self.vectors.shape[1]))])
        return {
            "coverage": catalogue.coverage(ids, n),
            "distinct": catalogue.distinct(ids, n),
            "gini": catalogue.gini(ids, n),
            "popularity": catalogue.popularity(ids, share),
            "popularity_rated": catalogue.popularity(rated[None], share),
            "novelty": catalogue.novelty(ids, counts, train.n_users),
            "diversity": catalogue.diversity(ids, vectors.tocsr()[rows]) if known else _NAN,
            "new_share": catalogue.share_new(ids, counts),
        }


def list_figures(task: Task, ids: np.ndarray) -> dict[str, np.ndarray]:
    """Give the figures of each user's list, by the names of the table without ``@k``."""
    hit, n_relevant = metrics.hits(ids, task.relevant), np.diff(task.relevant.indptr)
    return {
        "precision": metrics.precision_at_k(hit),
        "recall": metrics.recall_at_k(hit, n_relevant),
        "ndcg": metrics.ndcg_at_k(hit, n_relevant),
        "map": metrics.map_at_k(hit, n_relevant),
        "mrr": metrics.mrr(hit),
    }


def _fitted_table(
    model: Any,
    split: ColdStartSplit,
    k: int,
    threshold: float | None,
    items: TableLike | None,
    users: TableLike | None,
    max_users: int,
    random_state: int,
) -> pd.DataFrame:
    """Fit a model on the training part of a split, and measure it."""
    model.fit(split.train, items=items, users=users)
    return _table(model, split, k, threshold, items, max_users, random_state)


def _table(
    model: Any,
    split: ColdStartSplit,
    k: int,
    threshold: float | None,
    items: TableLike | None,
    max_users: int,
    random_state: int,
) -> pd.DataFrame:
    import pandas as pd

    train, threshold = split.train, liked_threshold(split.train, threshold)
    warn_of_unknown(model, split)
    mean, bias = MeanBaseline.fit(train), BiasBaseline.fit(train)
    popular = PopularityBaseline.fit(train, items, threshold)
    shown = Catalogue.of(train, items)
    ages = split.ages() if isinstance(split, TimeSplit) else None
    rated = has_ratings(train)
    rows = []
    for task in tasks_of(split, threshold, max_users, random_state):
        row: dict[str, Any] = {"task": task.name, "n": len(task.ratings)}
        if ages is not None:
            row["age_days"] = _average(ages[task.name])
        values = task.ratings.values
        own = rated and predicts_ratings(model)
        predicted = task.predictions(model) if own else None
        row |= {
            "rmse": _NAN if predicted is None else metrics.rmse(values, predicted),
            "mae": _NAN if predicted is None else metrics.mae(values, predicted),
            "rmse_mean": metrics.rmse(values, mean.predict(task.ratings)) if rated else _NAN,
            "rmse_bias": metrics.rmse(values, bias.predict(task.ratings)) if rated else _NAN,
        }
        lists = hasattr(model, "recommend") and len(task.users) > 0
        row["n_ranked"] = len(task.users) if lists else 0
        ids = task.lists(model, k) if lists else np.empty((0, k), np.int64)
        theirs = task.lists(popular, k)
        for name, per_user in list_figures(task, theirs).items():
            column = name if name == "mrr" else f"{name}@{k}"
            row[column] = _average(list_figures(task, ids)[name]) if lists else _NAN
            row[f"{column}_popular"] = _average(per_user)
        beyond = shown.figures(ids, task.candidates, task.relevant.indices)
        row |= beyond if lists else dict.fromkeys(beyond, _NAN)
        rows.append(row)
    return pd.DataFrame(rows)


def _splitter(
    split: ColdStartSplit | Ratings | TableLike | Callable[[int], ColdStartSplit],
) -> Callable[[int], ColdStartSplit]:
    if isinstance(split, ColdStartSplit):
        return lambda seed: split
    if callable(split):
        return split
    ratings = Ratings.from_table(split)
    return lambda seed: cold_start_split(ratings, random_state=seed)


def _spread(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Give the mean and the standard deviation of each figure over several tables."""
    import pandas as pd

    columns: dict[str, Any] = {"task": tables[0]["task"]}
    for name in tables[0].columns.drop("task"):
        values = np.stack([table[name].to_numpy(np.float64) for table in tables])
        columns[name], columns[f"{name}_std"] = values.mean(axis=0), values.std(axis=0, ddof=1)
    return pd.DataFrame(columns)


def _average(values: np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else _NAN
