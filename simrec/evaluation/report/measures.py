"""All that a report shows in figures, measured once on the copy that was tested."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from simrec.data.ratings import Ratings
from simrec.data.sides import SIDES, Side
from simrec.evaluation import catalogue
from simrec.evaluation.baselines import BiasBaseline, MeanBaseline, PopularityBaseline
from simrec.evaluation.compare import compare
from simrec.evaluation.evaluate import Catalogue, evaluate
from simrec.evaluation.report.alerts import Alert, alerts, block, identifies
from simrec.evaluation.report.examples import Example, examples
from simrec.evaluation.report.newcomers import pairs_of, reveal, sample, shuffle_features
from simrec.evaluation.report.tested_model import TestedModel, entities
from simrec.evaluation.tasks import Task

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)

NOMINAL = (0.5, 0.8, 0.9, 0.95)
# Test ratings a group, or an item, needs; members of a group; users whose lists are counted.
_GROUP, _ITEM, _MEMBERS, _USERS = 50, 8, 5, 2000
# Standard errors by which a group has to be worse than the others to be called badly served.
_CLEARLY = 2.5


@dataclass(frozen=True, eq=False)
class Measures:
    """The tables behind the sections.

    Attributes
    ----------
    tasks : pandas.DataFrame
        As `evaluate` gives it.
    gains : pandas.DataFrame
        The copy beside the best baseline of each figure: task, metric, value, other_value,
        difference, low, high, better ("model", "baseline" or None).
    parent : pandas.DataFrame or None
        The same beside the copy of the parent.
    revealed, importance : dict of Side to pandas.DataFrame
        The error when 0, 1, 2, ... ratings of newcomers are revealed; its rise when a feature is
        shuffled.
    calibration, groups, worst_items : pandas.DataFrame or None
        What intervals hold; groups and items that are served badly. None without ratings.
    listed : dict
        What the saved model's lists show of the catalogue.
    """

    tested: TestedModel
    k: int
    tasks: pd.DataFrame
    gains: pd.DataFrame
    parent: pd.DataFrame | None
    revealed: dict[Side, pd.DataFrame]
    importance: dict[Side, pd.DataFrame]
    calibration: pd.DataFrame | None
    groups: pd.DataFrame | None
    worst_items: pd.DataFrame | None
    listed: dict[str, Any]
    examples: list[Example]
    alerts: list[Alert]


def measure(tested: TestedModel, k: int = 10) -> Measures:
    """Measure all that the sections show."""
    logger.info("measuring the four tasks")
    settings: dict[str, Any] = {"k": k, "threshold": tested.threshold, "random_state": tested.seed}
    tasks = evaluate(tested.copy, tested.split, items=tested.tables.items, **settings)
    parent = None
    if tested.parent_copy is not None:
        models = {"parent": tested.parent_copy, "model": tested.copy}
        parent = compare(models, tested.split, **settings).table
    logger.info("revealing ratings of new items and users, shuffling features")
    importance = {side: shuffle_features(tested, side) for side in SIDES}
    return Measures(
        tested,
        k,
        tasks,
        compare_with_baselines(tested, settings),
        parent,
        {side: reveal(tested, side) for side in SIDES},
        importance,
        calibrate(tested) if tested.rates else None,
        badly_served(tested) if tested.rates else None,
        worst_items(tested) if tested.rates else None,
        count_lists(tested, k),
        examples(tested),
        alerts(tested, importance),
    )


def compare_with_baselines(tested: TestedModel, settings: dict[str, Any]) -> pd.DataFrame:
    """Compare the copy with popularity for lists, and with the better of mean and biases."""
    import pandas as pd

    if not any(map(len, tested.split.tasks().values())):
        return pd.DataFrame()
    train = tested.split.train
    others: list[Any] = [PopularityBaseline.fit(train, tested.tables.items, tested.threshold)]
    if tested.rates:
        others += [BiasBaseline.fit(train), MeanBaseline.fit(train)]
    found: dict[tuple[str, str], Any] = {}
    for rival in others:
        table = compare({"baseline": rival, "model": tested.copy}, tested.split, **settings).table
        for row in table.to_dict("records"):
            key = (row["task"], row["metric"])
            # Of two baselines the better one stays.
            if key not in found or row["other_value"] < found[key]["other_value"]:
                found[key] = row
    return pd.DataFrame(found.values())


def calibrate(tested: TestedModel) -> pd.DataFrame:
    """Count the held-out ratings in intervals that should hold 50, 80, ... percent of them.

    Returns task, nominal, observed.
    """
    import pandas as pd

    rng = np.random.default_rng(tested.seed)
    rows: list[dict[str, Any]] = []
    for task, all_ratings in tested.split.tasks().items():
        ratings = sample(all_ratings, rng)
        if not len(ratings):
            continue
        mean, std = tested.copy.predict(pairs_of(ratings), unknown="prior", return_std=True)
        for nominal in NOMINAL:
            half = NormalDist().inv_cdf(0.5 + nominal / 2) * std
            inside = float(np.mean(np.abs(ratings.values - mean) <= half))
            rows.append({"task": task, "nominal": nominal, "observed": inside})
    return pd.DataFrame(rows)


def badly_served(tested: TestedModel) -> pd.DataFrame:
    """Find groups of held-out items and users whose ratings are predicted clearly worse.

    Returns group, n, rmse, rmse_others (of all others on that side), lean (mean of prediction
    minus rating); the worst first.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for side in SIDES:
        ratings = tested.new(side)
        if not len(ratings):
            continue
        error, (ids, of_rating) = _errors(tested, ratings), entities(ratings, side)
        places = tested.copy.towers_[side].ids.rows(ids.ids)
        for name, members in groups(tested, side):
            inside = (places >= 0)[of_rating] & members[places][of_rating]
            n = int(inside.sum())
            if min(n, len(error) - n) < _GROUP or len(np.unique(of_rating[inside])) < _MEMBERS:
                continue
            own, others = error[inside] ** 2, error[~inside] ** 2
            noise = np.hypot(
                _standard_error(own, of_rating[inside]),
                _standard_error(others, of_rating[~inside]),
            )
            if own.mean() - others.mean() > _CLEARLY * noise:
                both = {"rmse": own.mean() ** 0.5, "rmse_others": others.mean() ** 0.5}
                group = {"group": f"{side} with {name}", "n": n}
                rows.append({**group, **both, "lean": float(error[inside].mean())})
    made = pd.DataFrame(rows)
    return made.sort_values("rmse", ascending=False, ignore_index=True) if len(made) else made


def groups(tested: TestedModel, side: Side) -> Iterator[tuple[str, np.ndarray]]:
    """Give entities with a feature in common: a category, an element of a list, a range."""
    table, encoder = tested.tables[side], tested.encoder(side)
    if table is None or encoder is None:
        return
    for column, kind in encoder.columns_.items():
        if kind in ("vector", "text") or identifies(table[column], kind):
            continue
        names, X = block(tested, side, column)
        for place, name in enumerate(names):
            # The number itself is no group; being near to one of its knots is.
            if name != column:
                level = name.removeprefix(column).replace("~", " about ").replace("=", ": ")
                level = level.replace("<unknown>", "a rare value").replace("<missing>", "missing")
                yield f"{column}{level}", X[:, [place]].toarray().ravel() > 0.5


def worst_items(tested: TestedModel, most: int = 8) -> pd.DataFrame:
    """Find the items whose mean rating is predicted worst.

    Returns name, n, predicted, rated (means), new; ordered by how sure it is that the two differ.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for new, ratings in ((False, tested.split.warm), (True, tested.split.new_items)):
        if not len(ratings):
            continue
        n = np.bincount(ratings.item_rows)
        lean = np.bincount(ratings.item_rows, _errors(tested, ratings)) / n
        rated = np.bincount(ratings.item_rows, ratings.values) / n
        for row in np.flatnonzero(n >= _ITEM):
            name = tested.name_of(ratings.items.ids[int(row)].as_py())
            means = {"predicted": rated[row] + lean[row], "rated": rated[row]}
            sure = abs(lean[row]) * np.sqrt(n[row])
            rows.append({"name": name, "n": int(n[row]), **means, "new": new, "sure": sure})
    made = pd.DataFrame(rows)
    return made.nlargest(most, "sure").reset_index(drop=True) if len(made) else made


def count_lists(tested: TestedModel, k: int) -> dict[str, Any]:
    """Count what the saved model recommends to its users, of all items it knows.

    Returns n_users, top (name, share of the lists it is in, ratings), top_share (share of all
    places that the ten most listed items take), and the figures of `Catalogue`.
    """
    model, ratings = tested.model, tested.ratings
    if not model.items_.contains(ratings.items.ids).all():
        ratings = ratings.select(model.items_.contains(ratings.items.ids)[ratings.item_rows])
    task = Task.of("lists", ratings, model.items_, ratings, -np.inf, _USERS, tested.seed)
    ids = task.lists(model, k)
    times = catalogue.times_listed(ids, len(model.items_))
    shown = Catalogue.of(ratings, tested.tables.items)
    figures = shown.figures(ids, model.items_, task.relevant.indices)
    most = np.argsort(-times, kind="stable")[:10]
    top = [
        {
            "name": tested.name_of(model.items_.ids[int(item)].as_py()),
            "share": times[item] / len(ids),
            "ratings": int(model.towers_.items.counts[item]),
        }
        for item in most[times[most] > 0]
    ]
    top_share = float(times[most].sum() / max(times.sum(), 1))
    return {"n_users": len(ids), "top": top, "top_share": top_share, **figures}


def _errors(tested: TestedModel, ratings: Ratings) -> np.ndarray:
    """Return prediction minus rating of the copy."""
    predicted = tested.copy.predict(pairs_of(ratings), unknown="prior")
    return np.asarray(predicted, np.float64) - ratings.values


def _standard_error(values: np.ndarray, groups: np.ndarray) -> float:
    """Return the standard error of a mean whose values come in groups that are not independent."""
    return float(np.sqrt((np.bincount(groups, values - values.mean()) ** 2).sum()) / len(values))
