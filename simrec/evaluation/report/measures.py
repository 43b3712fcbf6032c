"""All that a report shows in figures, measured once on the copy that was tested."""

from __future__ import annotations

import logging
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
from simrec.evaluation.report.alerts import Alert, alerts, block, identifies, in_words
from simrec.evaluation.report.examples import Example, examples
from simrec.evaluation.report.newcomers import (
    errors_on,
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

    found = [pd.DataFrame()]
    for side in SIDES:
        ratings, tower, (names, X) = (
            tested.new(side),
            tested.copy.towers_[side],
            groups(tested, side),
        )
        if not len(ratings) or not names:
            continue
        error, (ids, rows) = (
            errors_on(tested, ratings, "items")(tested.copy),
            entities(ratings, side),
        )
        loss = error**2 if tested.rates else error
        # Sums of each entity, whose ratings are not independent; then of each group and all others.
        n, total, lean = (np.bincount(rows, w) for w in (np.ones(len(rows)), loss, error))
        sums = np.stack([n, total, lean, total**2, total * n, n**2, n > 0])
        places = tower.ids.rows(ids.ids)
        own = sums[:, places >= 0] @ X[places[places >= 0]]
        rest = sums.sum(axis=1, keepdims=True) - own
        enough = (np.minimum(own[0], rest[0]) >= _GROUP) & (own[6] >= _MEMBERS)
        own, rest = own[:, enough], rest[:, enough]
        (mean, noise), (others, their_noise) = _means(own), _means(rest)
        clearly = NormalDist().inv_cdf(1 - _CHANCE / max(enough.sum(), 1))
        made = {
            "group": [f"{side} with {name}" for name in np.array(names)[enough]],
            "n": own[0].astype(int),
            "error": np.sqrt(mean) if tested.rates else mean,
            "error_others": np.sqrt(others) if tested.rates else others,
            "lean": own[2] / own[0],
        }
        found.append(pd.DataFrame(made)[mean - others > clearly * np.hypot(noise, their_noise)])
    made = pd.concat(found, ignore_index=True)
    return made.sort_values("error", ascending=False, ignore_index=True) if len(made) else made


def groups(tested: TestedModel, side: Side) -> tuple[list[str], sparse.csr_matrix]:
    """Find entities with a feature in common: a category, an element of a list, a range.

    Returns the names of the groups, and entities x groups with a one for each member.
    """
    table: Any = tested.tables[side]
    encoder, found = tested.encoder(side), list[str]()
    members = []
    columns = {} if table is None or encoder is None else encoder.columns_
    for column, kind in columns.items():
        if kind in ("vector", "text") or identifies(table[column], kind):
            continue
        names, X = block(tested, side, column)
        # The number itself is no group; being near to one of its knots is.
        use = [place for place, name in enumerate(names) if name != column]
        least = 0.5 if kind == "number" else 0
        members.append(sparse.csr_matrix(X[:, use] > least, dtype=np.float64))
        found += [in_words(column, names[place]) for place in use]
    return found, sparse.hstack(members, format="csr") if members else sparse.csr_matrix((0, 0))


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


def _means(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of groups, and its standard error, from the sums of `badly_served`."""
    mean = sums[1] / sums[0]
    squares = sums[3] - 2 * mean * sums[4] + mean**2 * sums[5]
    return mean, np.sqrt(np.maximum(squares, 0)) / sums[0]
