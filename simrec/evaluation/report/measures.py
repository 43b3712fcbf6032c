"""All that a report shows in figures, measured once on the copy that was tested."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.ratings import Ratings
from simrec.data.sides import ID_COLUMNS, SIDES, Side
from simrec.data.split import ColdStartSplit
from simrec.evaluation.baselines import (
    LIST_BASELINES,
    BiasBaseline,
    ListBaseline,
    MeanBaseline,
    fit_list_baselines,
)
from simrec.evaluation.compare import compare, in_words
from simrec.evaluation.evaluate import catalogue_figures, four_tasks
from simrec.evaluation.report.tested_model import Alert, TestedModel, alerts, entities
from simrec.evaluation.tasks import Task, has_ratings

logger = logging.getLogger(__name__)

# Users whose lists are counted.
_USERS = 2000
ALL = "(all features)"
# Ratings that are asked for, at most.
_SAMPLE = 20_000


@dataclass(frozen=True, eq=False)
class Measures:
    """The tables behind the sections; those without a function here are as `evaluate` gives them.

    `gains` sets the copy beside the best baseline of each figure, as the table of `compare` does.
    `listed` is about the saved model.
    """

    tested: TestedModel
    k: int
    baselines: tuple[str, ...]
    tasks: pd.DataFrame
    gains: pd.DataFrame
    importance: dict[Side, pd.DataFrame]
    listed: dict[str, Any]
    alerts: list[Alert]


def measure(tested: TestedModel, k: int = 10) -> Measures:
    """Measure all that the sections show."""
    logger.info("measuring the four tasks")
    split, items = tested.split, tested.tables.items
    lists = fit_list_baselines(split.train, items, tested.threshold)
    how: dict[str, Any] = {"threshold": tested.threshold, "random_state": tested.random_state}
    logger.info("shuffling features")
    return Measures(
        tested,
        k,
        tuple(lists),
        four_tasks(tested.copy, split, k, items=items, lists=lists, **how),
        compare_with_baselines(tested.copy, split, lists, k, **how),
        {side: shuffle_features(tested, side) for side in SIDES},
        count_lists(tested, k),
        alerts(tested),
    )


def compare_with_baselines(
    model: Any,
    split: ColdStartSplit,
    lists: Mapping[str, ListBaseline],
    k: int = 10,
    **settings: Any,
) -> pd.DataFrame:
    """Compare a model with the best baseline of each figure; `settings` are those of `compare`.

    Returns the table of `compare` for ``model`` against ``baseline``, and in the column rival which
    one that is.
    """
    if not any(map(len, split.tasks().values())):
        return pd.DataFrame()
    rivals: dict[str, Any] = {LIST_BASELINES[name]: rival for name, rival in lists.items()}
    if has_ratings(split.train):
        rivals |= {"biases": BiasBaseline.fit(split.train), "mean": MeanBaseline.fit(split.train)}
    best: dict[tuple[str, str], Any] = {}
    table = compare({"model": model, **rivals}, split, k, **settings)
    for row in table.to_dict("records"):
        key, errors = (row["task"], row["metric"]), row["metric"] == "rmse"
        if key in best and (row["value"] > best[key]["other_value"]) == errors:
            continue
        who = {"model": "model", row["model"]: "baseline"}.get(row["better"])
        turned = {"model": "model", "other": "baseline", "better": who}
        turned |= {"value": row["other_value"], "other_value": row["value"]}
        turned |= {"difference": -row["difference"], "low": -row["high"], "high": -row["low"]}
        rival = "simple averages" if errors else row["model"]
        best[key] = {**row, **turned, "rival": rival}
        best[key]["result"] = in_words(best[key])
    return pd.DataFrame(best.values())


def errors_on(tested: TestedModel, ratings: Ratings) -> Callable[..., np.ndarray]:
    """Return a function that says how wrong a model is about each rating.

    For ratings that is prediction minus rating. Otherwise the model is asked which of two items a
    user took up; one they did, the other is drawn at random: 1 for a wrong answer, 0 for a right
    one. Tables of features are for the model.
    """
    rng = np.random.default_rng(tested.random_state)
    # Without the ratings, which are to be predicted.
    pairs = ratings.to_arrow().select(["user_id", "item_id"])
    drawn = ratings.items.take(rng.integers(max(ratings.n_items, 1), size=len(ratings)))
    others = pairs.set_column(pairs.column_names.index("item_id"), "item_id", drawn)

    def errors(model: Any, **tables: Any) -> np.ndarray:
        predicted = np.asarray(model.predict(pairs, unknown="prior", **tables), np.float64)
        if tested.rates:
            return predicted - ratings.values
        theirs = model.predict(others, unknown="prior", **tables)
        return (theirs > predicted) + (theirs == predicted) / 2

    return errors


def mean_error(tested: TestedModel, errors: np.ndarray) -> float:
    """Return the RMSE of ratings, or the share of wrong choices between two."""
    return float(np.sqrt(np.mean(errors**2)) if tested.rates else np.mean(errors))


def shuffle_features(tested: TestedModel, side: Side, repeats: int = 5) -> pd.DataFrame:
    """Shuffle each feature among the held-out items (users); measure how much the error rises.

    Returns column, rise (mean over `repeats` shuffles), share (rise / error), missing (share of
    rows without a value); most important first. The last row, `ALL`, is for all features together.
    Empty if the side has no features.
    """
    table, encoder, ratings = tested.tables[side], tested.encoder(side), tested.new(side)
    if table is None or encoder is None or not encoder.columns_ or not len(ratings):
        return pd.DataFrame()
    ids = table[ID_COLUMNS[side]]
    held_out = table.filter(pc.is_in(ids, entities(ratings, side)[0].ids.cast(ids.type)))
    if held_out.num_rows < 2:
        return pd.DataFrame()
    rng = np.random.default_rng(tested.random_state)
    if len(ratings) > _SAMPLE:
        ratings = ratings.select(np.sort(rng.choice(len(ratings), _SAMPLE, replace=False)))
    errors = errors_on(tested, ratings)
    start = mean_error(tested, errors(tested.copy))
    rows: list[dict[str, Any]] = []
    for name in [*encoder.columns_, ALL]:
        rises = []
        for _ in range(repeats):
            order, changed = pa.array(rng.permutation(held_out.num_rows)), held_out
            for column in encoder.columns_ if name == ALL else [name]:
                place = changed.column_names.index(column)
                changed = changed.set_column(place, column, held_out[column].take(order))
            rises.append(mean_error(tested, errors(tested.copy, **{side: changed})) - start)
        missing = 0.0 if name == ALL else table[name].null_count / table.num_rows
        rise = float(np.mean(rises))
        rows.append({"column": name, "rise": rise, "share": rise / start, "missing": missing})
    return pd.DataFrame([*sorted(rows[:-1], key=lambda row: -row["rise"]), rows[-1]])


def count_lists(tested: TestedModel, k: int) -> dict[str, Any]:
    """Count what the saved model recommends to its users, of all items it knows.

    Returns n_users, top (name, share of the lists it is in, ratings), top_share (share of all
    places that the ten most listed items take), and `catalogue_figures`.
    """
    model, ratings = tested.model, tested.ratings
    if not model.items_.contains(ratings.items.ids).all():
        ratings = ratings.select(model.items_.contains(ratings.items.ids)[ratings.item_rows])
    task = Task.of("lists", ratings, model.items_, ratings, -np.inf, _USERS, tested.random_state)
    ids = task.lists(model, k)
    times = np.bincount(ids[ids >= 0], minlength=len(model.items_))
    figures = catalogue_figures(ratings, ids, model.items_, task.relevant.indices)
    most = np.argsort(-times, kind="stable")[:10]
    rows = most[times[most] > 0]
    items, rated = model.items_.take(rows), model.towers_.items.counts[rows]
    titles, top = model.titles(items), []
    for item, n, n_rated in zip(items.to_pylist(), times[rows], rated.tolist(), strict=True):
        name = titles.get(item) or f"item {item}"
        top.append({"name": name, "share": n / len(ids), "ratings": n_rated})
    top_share = float(times[most].sum() / max(times.sum(), 1))
    return {"n_users": len(ids), "top": top, "top_share": top_share, **figures}
