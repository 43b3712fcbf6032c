"""One table for a model and a split: a row for each task, the baselines beside every figure."""

import html
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa

from simrec import console
from simrec.data.ids import IdMap
from simrec.data.ratings import Ratings
from simrec.data.split import ColdStartSplit, TimeSplit, cold_start_split, days
from simrec.data.tables import TableLike, with_usual_ids
from simrec.errors import InputError
from simrec.evaluation import tasks
from simrec.evaluation.baselines import (
    LIST_BASELINES,
    BiasBaseline,
    ListBaseline,
    MeanBaseline,
    fit_list_baselines,
)
from simrec.scoring import metrics

logger = logging.getLogger(__name__)

LIST_FIGURES = ("precision", "recall", "ndcg", "map", "mrr")
"""Figures of lists, by the names of their columns without ``@k``."""

CATALOGUE_FIGURES = ("coverage", "popularity", "popularity_rated", "new_share")
"""Figures of lists beyond accuracy: what of the catalogue they show."""

BEST = "No baseline is better than the model."
_NAN = float("nan")
# Ratings, and users with a list, from which on a task has a verdict.
_ENOUGH = 20


class Predictor(Protocol):
    """What can be evaluated: anything that predicts. With `recommend`, its lists are too."""

    def predict(self, pairs: pa.Table) -> np.ndarray:
        """Return a prediction for each (user_id, item_id) row of a table."""


def evaluate(
    model: Predictor | str | os.PathLike[str],
    split: ColdStartSplit | Ratings | TableLike | Callable[[int], ColdStartSplit],
    k: int = 10,
    threshold: float | None = None,
    *,
    items: TableLike | None = None,
    users: TableLike | None = None,
    max_users: int = 2000,
    seeds: int | Sequence[int] | None = None,
) -> "Figures":
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
    model : Predictor or path
        Fitted on ``split.train``: a `TwoTower`, the directory of one, or anything with
        ``predict(pairs)`` and, for lists, ``recommend(users, k, items, exclude)``, which gives a
        table with user_id, item_id and rank (from 1). Without the latter the figures of lists are
        NaN. With `seeds`, also ``fit(ratings, items=, users=)``; the model itself then stays as it
        is.
    split : ColdStartSplit, Ratings, table, path or callable
        As made by `cold_start_split` or `time_split`. With `seeds` also all ratings, which are
        then split by each seed, or a function from a seed to a split.
    k : int
        Length of the lists.
    threshold : float, optional
        Ratings from here on make an item relevant. Default: 55% of the way from the lowest
        to the highest training rating, which is 4 of whole numbers from 1 to 5.
    items, users : table or path, optional
        Features. Those of items are for the baselines (popularity of new items, TF-IDF profile);
        both are what models are fitted with, given `seeds`.
    max_users : int
        Most users to make lists for in each task, drawn with a fixed seed.
    seeds : int or sequence of int, optional
        Seeds of split and model, or how many (0, 1, ...): a copy of the model is fitted for each.

    Returns
    -------
    pandas.DataFrame
        A row for each task; printed, a line for each figure. Columns: task, n (ratings); age_days
        (days from the end of training to a rating, the mean; of a split by time only); rmse, mae,
        with rmse_mean and rmse_bias, the errors of the mean and of the shrunk biases; n_ranked
        (users with a list), precision@k, recall@k, ndcg@k, map@k, mrr (means over users), each
        beside those of the most popular items (``..._popular``), of EASE (``..._ease``; known
        users and items only, up to 20,000 items) and of a TF-IDF profile (``..._content``; known
        users, by the features of `items`); and what lists show of the catalogue: coverage,
        popularity (share of the training users who rated what is listed, the mean) beside
        popularity_rated (of the relevant items) and new_share. NaN where there is nothing to
        measure. With `seeds`, means, and a column ``..._std`` (standard deviation) after each
        figure.

    Raises
    ------
    InputError
        If a test rating is in the training set too, a prediction is missing, or `model` is none.

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
    model = tasks.as_model(model, "evaluate")
    settings: dict[str, Any] = {"threshold": threshold, "max_users": max_users, "items": items}
    settings["k"] = int(k)
    if seeds is None:
        if not isinstance(split, ColdStartSplit):
            raise InputError(
                "evaluate needs a split (see cold_start_split, time_split), or seeds=... to make "
                f"splits of all ratings and fit the model on each; got {type(split).__name__}."
            )
        return four_tasks(model, split, **settings)
    chosen = list(range(seeds)) if isinstance(seeds, int | np.integer) else list(seeds)
    if not chosen or len(set(chosen)) < len(chosen):
        raise InputError(f"seeds: give at least one, and each once; got {chosen}.")
    make, tables = _splitter(split), []
    for place, seed in enumerate(chosen, start=1):
        logger.info("seed %d (%d of %d)", seed, place, len(chosen))
        fresh, parts = tasks.unfitted_copy(model, seed), make(seed)
        fresh.fit(parts.train, items=items, users=users)
        tables.append(four_tasks(fresh, parts, **settings))
    return spread(tables) if len(tables) > 1 else tables[0]


def four_tasks(
    model: Any,
    split: ColdStartSplit,
    k: int = 10,
    threshold: float | None = None,
    *,
    items: TableLike | None = None,
    max_users: int = 2000,
    random_state: int = 0,
    lists: Mapping[str, ListBaseline] | None = None,
) -> "Figures":
    """Measure a fitted model as `evaluate`; `lists` are list baselines that are fitted already."""
    train, threshold = split.train, tasks.liked_threshold(split.train, threshold)
    tasks.warn_about(model, split)
    items = with_usual_ids(items, train.columns, "items")
    mean, bias = MeanBaseline.fit(train), BiasBaseline.fit(train)
    lists = fit_list_baselines(train, items, threshold) if lists is None else lists
    rated = tasks.has_ratings(train)
    rows = []
    for task in tasks.tasks_of(split, threshold, max_users, random_state):
        row: dict[str, Any] = {"task": task.name, "n": len(task.ratings)}
        if isinstance(split, TimeSplit):
            times: Any = task.ratings.timestamps
            row["age_days"] = _average(days(times - split.at))
        values = task.ratings.values
        own = rated and tasks.predicts_ratings(model)
        predicted = task.predictions(model) if own else None
        row |= {
            "rmse": _NAN if predicted is None else metrics.rmse(values, predicted),
            "mae": _NAN if predicted is None else metrics.mae(values, predicted),
            "rmse_mean": metrics.rmse(values, task.predictions(mean)) if rated else _NAN,
            "rmse_bias": metrics.rmse(values, task.predictions(bias)) if rated else _NAN,
        }
        ids = task.lists(model, k) if task.has_lists(model) else None
        row["n_ranked"] = 0 if ids is None else len(ids)
        ranked = {"": ids}
        for name in LIST_BASELINES:
            rival = lists.get(name)
            ranked[f"_{name}"] = task.lists(rival, k) if task.has_lists(rival) else None
        figures = {end: list_figures(task, found) for end, found in ranked.items()}
        for name in LIST_FIGURES:
            column = name if name == "mrr" else f"{name}@{k}"
            row |= {f"{column}{end}": means[name] for end, means in figures.items()}
        row |= catalogue_figures(train, ids, task.candidates, task.relevant.indices)
        rows.append(row)
    return Figures(rows)


def _splitter(
    split: ColdStartSplit | Ratings | TableLike | Callable[[int], ColdStartSplit],
) -> Callable[[int], ColdStartSplit]:
    if isinstance(split, ColdStartSplit):
        return lambda seed: split
    if callable(split):
        return split
    ratings = Ratings.from_table(split)
    return lambda seed: cold_start_split(ratings, random_state=seed)


def list_figures(task: tasks.Task, ids: np.ndarray | None) -> dict[str, float]:
    """Average the figures of lists over users, by their columns without ``@k``; NaN without lists.

    The hits are found once for all of them.
    """
    if ids is None:
        return dict.fromkeys(LIST_FIGURES, _NAN)
    hit, n_relevant = task.hits(ids)
    found = {
        "precision": metrics.precision_at_k(hit),
        "recall": metrics.recall_at_k(hit, n_relevant),
        "ndcg": metrics.ndcg_at_k(hit, n_relevant),
        "map": metrics.map_at_k(hit, n_relevant),
        "mrr": metrics.mrr(hit),
    }
    return {name: _average(values) for name, values in found.items()}


def _average(values: np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else _NAN


def catalogue_figures(
    train: Ratings, ids: np.ndarray | None, candidates: IdMap, rated: np.ndarray
) -> dict[str, float]:
    """Measure what lists (rows among `candidates`) show of the catalogue.

    `rated` are the rows of what users rated.
    """
    if ids is None:
        return dict.fromkeys(CATALOGUE_FIGURES, _NAN)
    rows, listed = train.items.rows(candidates.ids), ids[ids >= 0]
    per_item = np.bincount(train.item_rows, minlength=train.n_items + 1)
    counts = np.where(rows >= 0, per_item[rows], 0)
    share = counts / max(train.n_users, 1)
    values = (
        len(np.unique(listed)) / len(candidates) if len(candidates) else _NAN,
        _average(share[listed]),
        _average(share[rated]),
        _average(counts[listed] == 0),
    )
    return dict(zip(CATALOGUE_FIGURES, values, strict=True))


class Figures(pd.DataFrame):
    """A row for each task, as a pandas frame; printed, a line for each figure, and the verdict.

    Of list baselines only the NDCG is printed, and what was not measured is left out.
    """

    def __str__(self) -> str:
        if "task" not in self:
            return super().__str__()
        lists = [name for name in map(str, self) if name.startswith("ndcg@")]
        verdict = verdicts(self, int(lists[0].removeprefix("ndcg@"))) or [BEST]
        records: Any = self.astype(object).where(self.notna(), None).to_dict("records")
        return "\n".join([console.four_tasks(records), "", *verdict])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def verdicts(table: pd.DataFrame, k: int = 10) -> list[str]:
    """Say where the model is no better than a baseline: a sentence each, none if it always is.

    Last are the tasks with too little for a verdict.
    """
    found, few = [], []
    for row in table.to_dict("records"):
        name, own = tasks.TASK_NAMES[row["task"]], row[f"ndcg@{k}"]
        if row["n"] < _ENOUGH or 0 < row["n_ranked"] < _ENOUGH:
            few.append(name)
            continue
        theirs = {end: row.get(f"ndcg@{k}_{end}", np.nan) for end in LIST_BASELINES}
        best = max(theirs, key=lambda end: np.nan_to_num(theirs[end], nan=-1.0))
        if own < theirs[best]:
            rival = "the most popular items" if best == "popular" else LIST_BASELINES[best]
            found.append(
                f"{name}: the lists are no better than {rival} "
                f"(NDCG@{k} {own:.4f} against {theirs[best]:.4f})"
            )
        error = min(row["rmse_mean"], row["rmse_bias"])
        if row["rmse"] >= error:
            found.append(
                f"{name}: the predictions are no better than the best baseline "
                f"(RMSE {row['rmse']:.4f} against {error:.4f})"
            )
    if few:
        least = f"fewer than {_ENOUGH} held-out ratings or users with a list"
        found.append(f"{'; '.join(few)}: too little to tell ({least})")
    return found


def spread(tables: Sequence[pd.DataFrame]) -> "Figures":
    """Give the mean and the standard deviation of each figure over several tables."""
    columns: dict[str, Any] = {"task": tables[0]["task"]}
    for name in tables[0].columns.drop("task"):
        values = np.stack([table[name].to_numpy(np.float64) for table in tables])
        columns[name], columns[f"{name}_std"] = values.mean(axis=0), values.std(axis=0, ddof=1)
    return Figures(columns)
