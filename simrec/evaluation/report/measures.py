"""All that a report shows in figures, measured once on the copy that was tested."""

import logging
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

from simrec.data.sides import SIDES, Side
from simrec.evaluation.baselines import fit_list_baselines
from simrec.evaluation.catalogue import Catalogue, times_listed
from simrec.evaluation.compare import compare, compare_with_baselines
from simrec.evaluation.evaluate import ListSettings, four_tasks
from simrec.evaluation.report.alerts import Alert, alerts, block, identifies, in_words
from simrec.evaluation.report.examples import Example, examples
from simrec.evaluation.report.newcomers import errors_on, pairs_of, reveal, sample, shuffle_features
from simrec.evaluation.report.tested_model import TestedModel, entities
from simrec.evaluation.tasks import Task

logger = logging.getLogger(__name__)

NOMINAL = (0.5, 0.8, 0.9, 0.95)
# Test ratings and members that a group needs; users whose lists are counted.
_GROUP, _MEMBERS, _USERS = 50, 5, 2000
# How often chance alone may call any group of a side badly served.
_CHANCE = 0.05


@dataclass(frozen=True, eq=False)
class Measures:
    """The tables behind the sections; those without a function here are as `evaluate` gives them.

    `gains` and `parent` set the copy beside the best baseline of each figure, and beside the copy
    of the parent, as the table of `compare` does. `listed` is about the saved model.
    """

    tested: TestedModel
    k: int
    baselines: tuple[str, ...]
    tasks: pd.DataFrame
    gains: pd.DataFrame
    parent: pd.DataFrame | None
    revealed: dict[Side, pd.DataFrame]
    importance: dict[Side, pd.DataFrame]
    calibration: pd.DataFrame
    groups: pd.DataFrame
    listed: dict[str, Any]
    examples: list[Example]
    alerts: list[Alert]


def measure(tested: TestedModel, k: int = 10) -> Measures:
    """Measure all that the sections show."""
    logger.info("measuring the four tasks")
    split, items, parent = tested.split, tested.tables.items, None
    settings = ListSettings(k, tested.threshold, random_state=tested.random_state)
    lists = fit_list_baselines(split.train, items, tested.threshold)
    how: dict[str, Any] = {"threshold": tested.threshold, "random_state": tested.random_state}
    if tested.parent_copy is not None:
        models = {"parent": tested.parent_copy, "model": tested.copy}
        parent = compare(models, split, k, **how).table
    logger.info("revealing ratings of new items and users, shuffling features")
    return Measures(
        tested,
        k,
        tuple(lists),
        four_tasks(tested.copy, split, settings, items, lists),
        compare_with_baselines(tested.copy, split, lists, k, **how),
        parent,
        {side: reveal(tested, side) for side in SIDES},
        {side: shuffle_features(tested, side) for side in SIDES},
        calibrate(tested),
        badly_served(tested),
        count_lists(tested, k),
        examples(tested),
        alerts(tested),
    )


def calibrate(tested: TestedModel) -> pd.DataFrame:
    """Count the held-out ratings in intervals that should hold 50, 80, ... percent of them.

    Returns task, nominal, observed; empty without ratings.
    """
    rng = np.random.default_rng(tested.random_state)
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
    found = [pd.DataFrame()]
    for side in SIDES:
        ratings, (names, X) = tested.new(side), groups(tested, side)
        if not len(ratings) or not names:
            continue
        error = errors_on(tested, ratings, "items")(tested.copy)
        ids, rows = entities(ratings, side)
        loss = error**2 if tested.rates else error
        # Sums of each entity, whose ratings are not independent; then of each group and all others.
        n, total, lean = (np.bincount(rows, w) for w in (np.ones(len(rows)), loss, error))
        sums = np.stack([n, total, lean, total**2, total * n, n**2, n > 0])
        places = tested.copy.towers_[side].ids.rows(ids.ids)
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
    weak = pd.concat(found, ignore_index=True)
    if not len(weak):
        return weak
    return weak.sort_values("error", ascending=False, ignore_index=True)


def groups(tested: TestedModel, side: Side) -> tuple[list[str], sparse.csr_matrix]:
    """Find entities with a feature in common: a category, an element of a list, a range.

    Returns the names of the groups, and entities x groups with a one for each member.
    """
    table: Any = tested.tables[side]
    encoder, found, members = tested.encoder(side), list[str](), []
    for column, kind in ({} if table is None or encoder is None else encoder.columns_).items():
        if kind not in ("category", "list", "number") or identifies(table[column], kind):
            continue
        names, X = block(tested, side, column)
        # The number itself is no group; being near to one of its knots is.
        use = [place for place, name in enumerate(names) if name != column]
        least = 0.5 if kind == "number" else 0
        members.append(sparse.csr_matrix(X[:, use] > least, dtype=np.float64))
        found += [in_words(column, names[place]) for place in use]
    return found, sparse.hstack(members, format="csr") if members else sparse.csr_matrix((0, 0))


def count_lists(tested: TestedModel, k: int) -> dict[str, Any]:
    """Count what the saved model recommends to its users, of all items it knows.

    Returns n_users, top (name, share of the lists it is in, ratings), top_share (share of all
    places that the ten most listed items take), and the figures of `Catalogue`.
    """
    model, ratings = tested.model, tested.ratings
    if not model.items_.contains(ratings.items.ids).all():
        ratings = ratings.select(model.items_.contains(ratings.items.ids)[ratings.item_rows])
    task = Task.of("lists", ratings, model.items_, ratings, -np.inf, _USERS, tested.random_state)
    ids = task.lists(model, k)
    times = times_listed(ids, len(model.items_))
    catalogue = Catalogue.of(ratings, tested.tables.items)
    figures = catalogue.figures(ids, model.items_, task.relevant.indices)
    most = np.argsort(-times, kind="stable")[:10]
    top = []
    for item in most[times[most] > 0]:
        name, times_rated = model.items_.ids[int(item)].as_py(), model.towers_.items.counts[item]
        row = {"share": times[item] / len(ids), "ratings": int(times_rated)}
        top.append({"name": tested.name_of(name), **row})
    top_share = float(times[most].sum() / max(times.sum(), 1))
    return {"n_users": len(ids), "top": top, "top_share": top_share, **figures}


def _means(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of groups, and its standard error, from the sums of `badly_served`."""
    mean = sums[1] / sums[0]
    squares = sums[3] - 2 * mean * sums[4] + mean**2 * sums[5]
    return mean, np.sqrt(np.maximum(squares, 0)) / sums[0]
