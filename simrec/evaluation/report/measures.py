"""All that a report shows in figures, measured once on the copy that was tested."""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.ids import IdMap
from simrec.data.ratings import Ratings
from simrec.evaluation import catalogue
from simrec.evaluation.baselines import BiasBaseline, MeanBaseline, PopularityBaseline
from simrec.evaluation.compare import compare
from simrec.evaluation.evaluate import Catalogue, evaluate
from simrec.evaluation.metrics import rmse
from simrec.evaluation.report.alerts import Alert, alerts, identifies, levels
from simrec.evaluation.report.examples import Example, examples
from simrec.evaluation.report.tested_model import SIDES, TestedModel, entity

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
    revealed : dict of str to pandas.DataFrame
        By side: the error when 0, 1, 2, ... ratings of newcomers are revealed.
    calibration : pandas.DataFrame or None
        What intervals hold.
    groups, worst_items : pandas.DataFrame or None
        Groups and items that are served badly.
    importance : dict of str to pandas.DataFrame
        By side: the rise of the error when a feature is shuffled.
    listed : dict
        What the saved model's lists show of the catalogue.
    """

    tested: TestedModel
    k: int
    tasks: pd.DataFrame
    gains: pd.DataFrame
    parent: pd.DataFrame | None
    revealed: dict[str, pd.DataFrame]
    calibration: pd.DataFrame | None
    groups: pd.DataFrame | None
    worst_items: pd.DataFrame | None
    importance: dict[str, pd.DataFrame]
    listed: dict[str, Any]
    examples: list[Example] = field(default_factory=list)
    alerts: list[Alert] = field(default_factory=list)


def measure(tested: TestedModel, k: int = 10) -> Measures:
    """Measure all that the sections show."""
    logger.info("measuring the four tasks")
    settings: dict[str, Any] = {"k": k, "threshold": tested.threshold, "random_state": tested.seed}
    tasks = evaluate(tested.copy, tested.split, items=tested.items, **settings)
    gains = compare_with_baselines(tested, settings)
    parent = None
    if tested.parent_copy is not None:
        models = {"parent": tested.parent_copy, "model": tested.copy}
        parent = compare(models, tested.split, **settings).table
    logger.info("revealing ratings of new items and users")
    revealed = {side: reveal(tested, side) for side in SIDES}
    logger.info("shuffling features")
    importance = {side: shuffle_features(tested, side) for side in SIDES}
    return Measures(
        tested=tested,
        k=k,
        tasks=tasks,
        gains=gains,
        parent=parent,
        revealed=revealed,
        calibration=calibrate(tested) if tested.rates else None,
        groups=badly_served(tested) if tested.rates else None,
        worst_items=worst_items(tested) if tested.rates else None,
        importance=importance,
        listed=count_lists(tested, k),
        examples=examples(tested),
        alerts=alerts(tested, importance),
    )


def compare_with_baselines(tested: TestedModel, settings: dict[str, Any]) -> pd.DataFrame:
    """Compare the copy with popularity for lists, and with the better of mean and biases."""
    import pandas as pd

    if not any(map(len, tested.split.tasks().values())):
        return pd.DataFrame()
    train, items = tested.split.train, tested.items
    popular = PopularityBaseline.fit(train, items, tested.threshold)
    others: list[Any] = [popular]
    if tested.rates:
        others += [BiasBaseline.fit(train), MeanBaseline.fit(train)]
    found: dict[tuple[str, str], Any] = {}
    for other in others:
        table = compare({"baseline": other, "model": tested.copy}, tested.split, **settings).table
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
    def of(cls, tested: TestedModel, ratings: Ratings, draw: str, most: int = 20_000) -> Probe:
        """Make a probe of ratings, of a sample where there are many."""
        rng = np.random.default_rng(tested.seed)
        if not tested.rates:
            ratings = ratings.select(ratings.values >= tested.threshold)
        if len(ratings) > most:
            ratings = ratings.select(np.sort(rng.choice(len(ratings), most, replace=False)))
        pairs = ratings.to_arrow().select(["user_id", "item_id"])
        if tested.rates or not len(ratings):
            return cls(pairs, ratings.values, None)
        ids = entity(ratings, draw)[0]
        drawn = ids.take(rng.integers(len(ids), size=len(ratings)))
        place = pairs.column_names.index(f"{draw}_id")
        return cls(pairs, ratings.values, pairs.set_column(place, f"{draw}_id", drawn))

    def error(self, model: Any, **tables: Any) -> float:
        """Say how wrong a model is, with other features of new items or users if given."""
        if not len(self.values):
            return float("nan")
        predicted = model.predict(self.pairs, unknown="prior", **tables)
        if self.others is None:
            return rmse(self.values, predicted)
        others = model.predict(self.others, unknown="prior", **tables)
        return float(np.mean(others > predicted) + np.mean(others == predicted) / 2)


def reveal(tested: TestedModel, side: str) -> pd.DataFrame:
    """Measure the error on held-out users (items) of whom 0, 1, 2, ... ratings are revealed.

    The same ratings are predicted each time: those that are never revealed. Returns revealed,
    error, entities; empty if too few entities have enough ratings.
    """
    import pandas as pd

    places, shown, rest, steps = divide(tested.new(side), side, tested.seed)
    probe = Probe.of(tested, rest, draw="user" if side == "item" else "item")
    rows = []
    for step in steps:
        model = tested.copy
        if step:
            model = copy.copy(model).fold_in(shown.select(places < step))
        entities = len(entity(rest, side)[0])
        rows.append({"revealed": step, "error": probe.error(model), "entities": entities})
    return pd.DataFrame(rows)


def divide(
    ratings: Ratings, side: str, seed: int
) -> tuple[np.ndarray, Ratings, Ratings, tuple[int, ...]]:
    """Choose entities with enough ratings, and put the ratings of each in a random order.

    Returns the places (from 0) of the ratings that may be revealed, these ratings, those that are
    predicted, and the steps that enough entities allow.
    """
    rng = np.random.default_rng(seed)
    rows = entity(ratings, side)[1]
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
    if len(enough) > _ENTITIES:
        enough = rng.choice(enough, _ENTITIES, replace=False)
    chosen = np.isin(rows, enough)
    early = chosen & (place < steps[-1])
    return place[early], ratings.select(early), ratings.select(chosen & ~early), steps


def shuffle_features(tested: TestedModel, side: str, repeats: int = 5) -> pd.DataFrame:
    """Shuffle each feature among the held-out items (users); measure how much the error rises.

    Returns column, rise (mean over `repeats` shuffles), spread (their standard deviation), share
    (of the error), missing (share of rows without a value); most important first. The last row,
    `ALL`, is for all features together. Empty if the side has no features.
    """
    import pandas as pd

    table, encoder, ratings = tested.table(side), tested.encoder(side), tested.new(side)
    if table is None or encoder is None or not encoder.columns_ or not len(ratings):
        return pd.DataFrame()
    column = table[f"{side}_id"]
    held_out = table.filter(pc.is_in(column, entity(ratings, side)[0].ids.cast(column.type)))
    if held_out.num_rows < 2:
        return pd.DataFrame()
    probe = Probe.of(tested, ratings, draw="item")
    start = probe.error(tested.copy)
    rng = np.random.default_rng(tested.seed)
    columns = list(encoder.columns_)
    rows: list[dict[str, Any]] = []
    for shuffled in [*([name] for name in columns), columns]:
        rises = []
        for _ in range(repeats):
            order = pa.array(rng.permutation(held_out.num_rows))
            changed = held_out
            for name in shuffled:
                place = changed.column_names.index(name)
                changed = changed.set_column(place, name, held_out[name].take(order))
            rises.append(probe.error(tested.copy, **{f"{side}s": changed}) - start)
        rise = float(np.mean(rises))
        name = shuffled[0] if len(rows) < len(columns) else ALL
        missing = table[name].null_count / table.num_rows if name != ALL else 0.0
        measured = {"rise": rise, "spread": float(np.std(rises)), "share": rise / start}
        rows.append({"column": name, **measured, "missing": missing})
    return pd.DataFrame([*sorted(rows[:-1], key=lambda row: -row["rise"]), rows[-1]])


def calibrate(tested: TestedModel, most: int = 50_000) -> pd.DataFrame:
    """Count the held-out ratings in intervals that should hold 50, 80, ... percent of them.

    Returns task, nominal, observed.
    """
    import pandas as pd

    rng = np.random.default_rng(tested.seed)
    rows: list[dict[str, Any]] = []
    for task, ratings in tested.split.tasks().items():
        if not len(ratings):
            continue
        if len(ratings) > most:
            ratings = ratings.select(np.sort(rng.choice(len(ratings), most, replace=False)))
        pairs = ratings.to_arrow().select(["user_id", "item_id"])
        mean, std = tested.copy.predict(pairs, unknown="prior", return_std=True)
        for nominal in NOMINAL:
            half = NormalDist().inv_cdf(0.5 + nominal / 2) * std
            inside = float(np.mean(np.abs(ratings.values - mean) <= half))
            rows.append({"task": task, "nominal": nominal, "observed": inside})
    return pd.DataFrame(rows)


def badly_served(tested: TestedModel) -> pd.DataFrame:
    """Find groups of held-out items and users whose ratings are predicted clearly worse.

    Returns side, column, level, n, rmse, rmse_others (of all others on that side), lean (mean of
    prediction minus rating); the worst first.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for side in SIDES:
        table, ratings, encoder = tested.table(side), tested.new(side), tested.encoder(side)
        if table is None or encoder is None or not len(ratings):
            continue
        error = _errors(tested, ratings)
        ids, of_rating = entity(ratings, side)
        places = IdMap.from_values(table[f"{side}_id"])
        order = np.argsort(places.rows(table[f"{side}_id"]))
        found = places.rows(ids.ids)
        row_of = np.where(found >= 0, order[found], -1)[of_rating]
        for column, kind in encoder.columns_.items():
            groups = {} if identifies(table[column], kind) else levels(table[column], kind)
            for level, mask in groups.items():
                inside = (row_of >= 0) & mask[row_of]
                n, members = int(inside.sum()), len(np.unique(of_rating[inside]))
                if min(n, len(error) - n) < _GROUP or members < _MEMBERS:
                    continue
                own, others = error[inside] ** 2, error[~inside] ** 2
                noise = np.hypot(
                    _standard_error(own, of_rating[inside]),
                    _standard_error(others, of_rating[~inside]),
                )
                if own.mean() - others.mean() > _CLEARLY * noise:
                    label = {"side": side, "column": column, "level": level, "n": n}
                    both = {"rmse": own.mean() ** 0.5, "rmse_others": others.mean() ** 0.5}
                    rows.append({**label, **both, "lean": float(error[inside].mean())})
    made = pd.DataFrame(rows)
    return made.sort_values("rmse", ascending=False, ignore_index=True) if len(made) else made


def worst_items(tested: TestedModel, most: int = 8) -> pd.DataFrame:
    """Find the items whose mean rating is predicted worst.

    Returns name, n, predicted, rated (means), new; ordered by how sure it is that the two differ.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for new, ratings in ((False, tested.split.warm), (True, tested.split.new_items)):
        if not len(ratings):
            continue
        error = _errors(tested, ratings)
        n = np.bincount(ratings.item_rows)
        lean = np.bincount(ratings.item_rows, error) / n
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
    rows = np.flatnonzero(np.asarray(model.towers_.users.counts) > 0)
    if not len(rows):
        return {}
    if len(rows) > _USERS:
        rng = np.random.default_rng(tested.seed)
        rows = np.sort(rng.choice(rows, _USERS, replace=False))
    users = model.users_.take(rows)
    found = model.recommend(users, k=k, exclude=ratings, unknown="prior", output="arrow")
    ids = np.full((len(users), k), -1, np.int64)
    where = IdMap(users).rows(found["user_id"])
    ids[where, found["rank"].to_numpy() - 1] = model.items_.rows(found["item_id"])
    times = catalogue.times_listed(ids, len(model.items_))
    rated = model.items_.rows(ratings.items.ids)[ratings.item_rows]
    figures = Catalogue.of(ratings, tested.items).figures(ids, model.items_, rated[rated >= 0])
    counts = np.asarray(model.towers_.items.counts)
    top = [
        {
            "name": tested.name_of(model.items_.ids[int(item)].as_py()),
            "share": times[item] / len(users),
            "ratings": int(counts[item]),
        }
        for item in np.argsort(-times, kind="stable")[:10]
        if times[item]
    ]
    top_share = float(np.sort(times)[::-1][:10].sum() / max(times.sum(), 1))
    return {"n_users": len(users), "top": top, "top_share": top_share, **figures}


def _errors(tested: TestedModel, ratings: Ratings) -> np.ndarray:
    """Return prediction minus rating of the copy."""
    pairs = ratings.to_arrow().select(["user_id", "item_id"])
    predicted = tested.copy.predict(pairs, unknown="prior")
    return np.asarray(predicted, np.float64) - ratings.values


def _standard_error(values: np.ndarray, groups: np.ndarray) -> float:
    """Return the standard error of a mean whose values come in groups that are not independent."""
    return float(np.sqrt((np.bincount(groups, values - values.mean()) ** 2).sum()) / len(values))
