"""All that a report shows in figures, measured once on the copy that was tested."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.ratings import Ratings
from simrec.data.sides import ID_COLUMNS, SIDES, Side, other
from simrec.evaluation import catalogue
from simrec.evaluation.baselines import BiasBaseline, MeanBaseline, PopularityBaseline
from simrec.evaluation.compare import compare
from simrec.evaluation.evaluate import Catalogue, evaluate
from simrec.evaluation.metrics import rmse
from simrec.evaluation.report.alerts import Alert, alerts, block, identifies
from simrec.evaluation.report.examples import Example, examples
from simrec.evaluation.report.tested_model import TestedModel, entities
from simrec.evaluation.tasks import Task

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)

STEPS = (0, 1, 2, 5, 10, 20)
NOMINAL = (0.5, 0.8, 0.9, 0.95)
ALL = "(all features)"
# Ratings of an entity that stay hidden at least, and how many entities to follow.
_TO_MEASURE, _ENTITIES, _FEW = 5, 500, 10
# Test ratings a group, or an item, needs; members of a group; users whose lists are counted.
_GROUP, _ITEM, _MEMBERS, _USERS = 50, 8, 5, 2000
# Standard errors by which a group has to be worse than the others to be called badly served.
_CLEARLY = 2.5
# Ratings that are asked for, at most, where a sample does.
_SAMPLE = 20_000


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


@dataclass(frozen=True, eq=False)
class Probe:
    """Pairs of which the answer is known, and how wrong a model is about them.

    For ratings the error is the RMSE. Otherwise a model is asked which of two items a user took
    up, or (`draw`) which of two users took up an item; one did, the other is drawn at random. The
    error is then the share of wrong answers.
    """

    pairs: pa.Table
    values: np.ndarray
    others: pa.Table | None

    @classmethod
    def of(cls, tested: TestedModel, ratings: Ratings, draw: Side) -> Probe:
        """Make a probe of ratings, of a sample where there are many."""
        rng = np.random.default_rng(tested.seed)
        if not tested.rates:
            ratings = ratings.select(ratings.values >= tested.threshold)
        ratings = _sample(ratings, _SAMPLE, rng)
        pairs = _pairs(ratings)
        if tested.rates or not len(ratings):
            return cls(pairs, ratings.values, None)
        ids, column = entities(ratings, draw)[0], ID_COLUMNS[draw]
        drawn = ids.take(rng.integers(len(ids), size=len(ratings)))
        place = pairs.column_names.index(column)
        return cls(pairs, ratings.values, pairs.set_column(place, column, drawn))

    def error(self, model: Any, **tables: Any) -> float:
        """Say how wrong a model is, with other features of new items or users if given."""
        if not len(self.values):
            return float("nan")
        predicted = model.predict(self.pairs, unknown="prior", **tables)
        if self.others is None:
            return rmse(self.values, predicted)
        others = model.predict(self.others, unknown="prior", **tables)
        return float(np.mean(others > predicted) + np.mean(others == predicted) / 2)


def reveal(tested: TestedModel, side: Side) -> pd.DataFrame:
    """Measure the error on held-out users (items) of whom 0, 1, 2, ... ratings are revealed.

    The same ratings are predicted each time: those that are never revealed. Returns revealed,
    error, entities; empty if too few entities have enough ratings.
    """
    import pandas as pd

    places, shown, rest, steps = divide(tested.new(side), side, tested.seed)
    probe = Probe.of(tested, rest, draw=other(side))
    rows = []
    for step in steps:
        model = tested.copy
        if step:
            model = copy.copy(model).fold_in(shown.select(places < step))
        n = len(entities(rest, side)[0])
        rows.append({"revealed": step, "error": probe.error(model), "entities": n})
    return pd.DataFrame(rows)


def divide(
    ratings: Ratings, side: Side, seed: int
) -> tuple[np.ndarray, Ratings, Ratings, tuple[int, ...]]:
    """Choose entities with enough ratings, and put the ratings of each in a random order.

    Returns the places (from 0) of the ratings that may be revealed, these ratings, those that are
    predicted, and the steps that enough entities allow.
    """
    rng = np.random.default_rng(seed)
    rows = entities(ratings, side)[1]
    order = np.lexsort((rng.random(len(rows)), rows))
    counts = np.bincount(rows) if len(rows) else np.zeros(0, np.int64)
    place = np.empty(len(rows), np.int64)
    place[order] = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    # As many steps as at least half of the entities, or ten of them, have ratings for.
    wanted = max(min(_FEW, len(counts) // 2), 2)
    steps = tuple(s for s in STEPS if (counts >= s + _TO_MEASURE).sum() >= wanted)
    if len(steps) < 2:
        nothing = ratings.select(place[:0])
        return place[:0], nothing, nothing, ()
    enough = np.flatnonzero(counts >= steps[-1] + _TO_MEASURE)
    chosen = np.isin(rows, rng.permutation(enough)[:_ENTITIES])
    early = chosen & (place < steps[-1])
    return place[early], ratings.select(early), ratings.select(chosen & ~early), steps


def shuffle_features(tested: TestedModel, side: Side, repeats: int = 5) -> pd.DataFrame:
    """Shuffle each feature among the held-out items (users); measure how much the error rises.

    Returns column, rise (mean over `repeats` shuffles), spread (their standard deviation), share
    (of the error), missing (share of rows without a value); most important first. The last row,
    `ALL`, is for all features together. Empty if the side has no features.
    """
    import pandas as pd

    table, encoder, ratings = tested.tables[side], tested.encoder(side), tested.new(side)
    if table is None or encoder is None or not encoder.columns_ or not len(ratings):
        return pd.DataFrame()
    ids = table[ID_COLUMNS[side]]
    held_out = table.filter(pc.is_in(ids, entities(ratings, side)[0].ids.cast(ids.type)))
    if held_out.num_rows < 2:
        return pd.DataFrame()
    probe = Probe.of(tested, ratings, draw="items")
    start = probe.error(tested.copy)
    rng = np.random.default_rng(tested.seed)
    rows: list[dict[str, Any]] = []
    for name in [*encoder.columns_, ALL]:
        rises = []
        for _ in range(repeats):
            order, changed = pa.array(rng.permutation(held_out.num_rows)), held_out
            for column in encoder.columns_ if name == ALL else [name]:
                place = changed.column_names.index(column)
                changed = changed.set_column(place, column, held_out[column].take(order))
            rises.append(probe.error(tested.copy, **{side: changed}) - start)
        rise, spread = float(np.mean(rises)), float(np.std(rises))
        missing = 0.0 if name == ALL else table[name].null_count / table.num_rows
        row = {"column": name, "rise": rise, "spread": spread, "share": rise / start}
        rows.append({**row, "missing": missing})
    return pd.DataFrame([*sorted(rows[:-1], key=lambda row: -row["rise"]), rows[-1]])


def calibrate(tested: TestedModel) -> pd.DataFrame:
    """Count the held-out ratings in intervals that should hold 50, 80, ... percent of them.

    Returns task, nominal, observed.
    """
    import pandas as pd

    rng = np.random.default_rng(tested.seed)
    rows: list[dict[str, Any]] = []
    for task, all_ratings in tested.split.tasks().items():
        ratings = _sample(all_ratings, _SAMPLE, rng)
        if not len(ratings):
            continue
        mean, std = tested.copy.predict(_pairs(ratings), unknown="prior", return_std=True)
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


def _pairs(ratings: Ratings) -> pa.Table:
    return ratings.to_arrow().select(["user_id", "item_id"])


def _sample(ratings: Ratings, most: int, rng: np.random.Generator) -> Ratings:
    if len(ratings) <= most:
        return ratings
    return ratings.select(np.sort(rng.choice(len(ratings), most, replace=False)))


def _errors(tested: TestedModel, ratings: Ratings) -> np.ndarray:
    """Return prediction minus rating of the copy."""
    predicted = tested.copy.predict(_pairs(ratings), unknown="prior")
    return np.asarray(predicted, np.float64) - ratings.values


def _standard_error(values: np.ndarray, groups: np.ndarray) -> float:
    """Return the standard error of a mean whose values come in groups that are not independent."""
    return float(np.sqrt((np.bincount(groups, values - values.mean()) ** 2).sum()) / len(values))
