"""All that a report shows in figures, measured once on the copy that was tested."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from simrec.data.sides import SIDES, Side
from simrec.evaluation import catalogue
from simrec.evaluation.baselines import BiasBaseline, MeanBaseline, PopularityBaseline
from simrec.evaluation.compare import compare
from simrec.evaluation.evaluate import Catalogue, evaluate
from simrec.evaluation.report.alerts import Alert, alerts, block, identifies
from simrec.evaluation.report.examples import Example, examples
from simrec.evaluation.report.newcomers import (
    errors_on,
    mean_error,
    pairs_of,
    reveal,
    sample,
    shuffle_features,
)
from simrec.evaluation.report.tested_model import TestedModel, entities
from simrec.evaluation.tasks import Task

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)

NOMINAL = (0.5, 0.8, 0.9, 0.95)
# Test ratings a group, or an item, needs; members of a group; users whose lists are counted.
_GROUP, _ITEM, _MEMBERS, _USERS = 50, 8, 5, 2000
# How often chance alone may call any group of a side badly served.
_CHANCE = 0.05


@dataclass(frozen=True, eq=False)
class Measures:
    """The tables behind the sections.

    Attributes
    ----------
    tasks : pandas.DataFrame
        As `evaluate` gives it.
    gains, parent : pandas.DataFrame
        The copy beside the best baseline of each figure, and beside the copy of the parent: as
        the table of `compare`.
    revealed, importance : dict of Side to pandas.DataFrame
        As `reveal` and `shuffle_features` give them.
    calibration, groups, worst_items : pandas.DataFrame
        As the functions below give them.
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
    calibration: pd.DataFrame
    groups: pd.DataFrame
    worst_items: pd.DataFrame
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
        calibrate(tested),
        badly_served(tested),
        worst_items(tested),
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

    Returns task, nominal, observed; empty without ratings.
    """
    import pandas as pd

    rng = np.random.default_rng(tested.seed)
    rows: list[dict[str, Any]] = []
    for task, all_ratings in tested.split.tasks().items() if tested.rates else ():
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

    Returns group, n, error, error_others (of all others on that side), lean (mean of prediction
    minus rating); the worst first.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for side in SIDES:
        ratings, tower = tested.new(side), tested.copy.towers_[side]
        if not len(ratings):
            continue
        error, (ids, of_rating) = (
            errors_on(tested, ratings, "items")(tested.copy),
            entities(ratings, side),
        )
        loss = error**2 if tested.rates else error
        places = tower.ids.rows(ids.ids)[of_rating]
        counts = np.bincount(places[places >= 0], minlength=len(tower.ids))
        found = list(groups(tested, side, counts))
        clearly = NormalDist().inv_cdf(1 - _CHANCE / max(len(found), 1))
        for name, members in found:
            inside = members[places] & (places >= 0)
            own, others = (_mean(loss[part], of_rating[part]) for part in (inside, ~inside))
            if own[0] - others[0] > clearly * np.hypot(own[1], others[1]):
                both = {"error": error[inside], "error_others": error[~inside]}
                row = {key: mean_error(tested, part) for key, part in both.items()}
                row |= {"n": int(inside.sum()), "lean": float(error[inside].mean())}
                rows.append({"group": f"{side} with {name}", **row})
    made = pd.DataFrame(rows)
    return made.sort_values("error", ascending=False, ignore_index=True) if len(made) else made


def groups(tested: TestedModel, side: Side, counts: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Give entities with a feature in common: a category, an element of a list, a range.

    `counts` are the ratings of each entity; a group has to have enough of them, and members.
    """
    table, encoder = tested.tables[side], tested.encoder(side)
    if table is None or encoder is None:
        return
    for column, kind in encoder.columns_.items():
        if kind in ("vector", "text") or identifies(table[column], kind):
            continue
        names, X = block(tested, side, column)
        X = sparse.csc_matrix(X > 0.5, dtype=np.float64)
        n = counts @ X
        enough = (np.minimum(n, counts.sum() - n) >= _GROUP) & ((counts > 0) @ X >= _MEMBERS)
        for place in np.flatnonzero(enough):
            # The number itself is no group; being near to one of its knots is.
            if names[place] != column:
                level = names[place].removeprefix(column).replace("~", " about ").replace("=", ": ")
                rare = {": <unknown>": f"a rare {column}", ": <missing>": f"no {column}"}
                members = X[:, [place]].toarray().ravel() > 0
                yield rare.get(level, f"{column}{level}"), members


def worst_items(tested: TestedModel, most: int = 8) -> pd.DataFrame:
    """Find the items that are predicted worst: by their mean rating, or by wrong choices.

    Returns name, n, predicted, rated (means), new; ordered by how sure it is that the two differ.
    """
    import pandas as pd

    frames = [pd.DataFrame()]
    for new, ratings in ((False, tested.split.warm), (True, tested.split.new_items)):
        if not len(ratings):
            continue
        error = errors_on(tested, ratings, "items")(tested.copy)
        each = pd.DataFrame({"item": ratings.item_rows, "lean": error, "rated": ratings.values})
        found = each.groupby("item").mean().assign(n=each.groupby("item").size(), new=new)
        found["predicted"] = found["rated"] + found["lean"]
        found["name"] = [tested.name_of(ratings.items.ids[i].as_py()) for i in found.index]
        frames.append(found[found["n"] >= _ITEM])
    made = pd.concat(frames, ignore_index=True)
    if not len(made):
        return made
    # A choice by chance is wrong in half of the cases.
    sure = made["lean"].abs() if tested.rates else made["lean"] - 0.5
    made["sure"] = sure * np.sqrt(made["n"])
    return made[made["sure"] > 0].nlargest(most, "sure").reset_index(drop=True)


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


def _mean(values: np.ndarray, groups: np.ndarray) -> tuple[float, float]:
    """Return a mean and its standard error; values of the same group are not independent."""
    mean, n = float(values.mean()), len(values)
    return mean, float(np.sqrt((np.bincount(groups, values - mean) ** 2).sum()) / n)
