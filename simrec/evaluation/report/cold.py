"""How the cold start goes: what a few ratings add, what features carry, how sure the model is."""

import copy
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.ratings import Ratings
from simrec.evaluation.baselines import BiasBaseline
from simrec.evaluation.metrics import rmse
from simrec.evaluation.report.subject import Probe, Subject

if TYPE_CHECKING:
    import pandas as pd

STEPS = (0, 1, 2, 5, 10, 20)
ALL = "(all features)"
NOMINAL = (0.5, 0.8, 0.9, 0.95)
# Ratings of an entity that stay hidden at least, to measure on, and how many entities to follow.
_TO_MEASURE, _ENTITIES, _FEW = 5, 500, 10


def revealed(subject: Subject, side: str) -> "pd.DataFrame":
    """Give the error on held-out users (items) of whom 0, 1, 2, ... ratings are revealed.

    The same ratings are predicted each time: those that are never revealed.

    Returns
    -------
    pandas.DataFrame
        revealed, error, error_bias (biases, which learn from the revealed ratings too; NaN for
        ranking), entities, n (ratings predicted). Empty if too few entities have enough ratings.
    """
    import pandas as pd

    shown, rest, steps = _divide(subject.new(side), side, subject.seed)
    if not steps:
        return pd.DataFrame()
    # The partner is drawn: newcomers who have equally many ratings revealed look equally popular.
    probe = Probe.of(subject, rest, subject.seed, draw="user" if side == "item" else "item")
    biases = BiasBaseline.fit(subject.split.train)
    entities = rest.n_users if side == "user" else rest.n_items
    rows = []
    for step in steps:
        model, seen = subject.tested, shown[1].select(shown[0] < step)
        if step:
            model = copy.copy(model).fold_in(seen)
        rows.append(
            {
                "revealed": step,
                "error": probe.error(model),
                "error_bias": float("nan")
                if subject.ranks
                else rmse(rest.values, _with_bias(biases, seen, rest, side)),
                "entities": entities,
                "n": len(probe.values),
            }
        )
    return pd.DataFrame(rows)


def _divide(
    ratings: Ratings, side: str, seed: int
) -> tuple[tuple[np.ndarray, Ratings], Ratings, tuple[int, ...]]:
    """Choose entities with enough ratings; order the ratings of each by chance.

    Gives the places (from 0) of the ratings that may be revealed with these ratings, those that
    are predicted, and the steps that enough entities allow.
    """
    rng = np.random.default_rng(seed)
    rows = ratings.user_rows if side == "user" else ratings.item_rows
    order = np.lexsort((rng.random(len(rows)), rows))
    counts = np.bincount(rows) if len(rows) else np.zeros(0, np.int64)
    place = np.empty(len(rows), np.int64)
    place[order] = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    # As many steps as at least half of the entities, or ten of them, have ratings for.
    wanted = max(min(_FEW, len(counts) // 2), 2)
    steps = tuple(s for s in STEPS if (counts >= s + _TO_MEASURE).sum() >= wanted)
    if len(steps) < 2:
        return (place[:0], ratings.select(place[:0])), ratings.select(place[:0]), ()
    enough = np.flatnonzero(counts >= steps[-1] + _TO_MEASURE)
    if len(enough) > _ENTITIES:
        enough = rng.choice(enough, _ENTITIES, replace=False)
    chosen = np.isin(rows, enough)
    early = chosen & (place < steps[-1])
    return (place[early], ratings.select(early)), ratings.select(chosen & ~early), steps


def _with_bias(biases: BiasBaseline, seen: Ratings, rest: Ratings, side: str) -> np.ndarray:
    """Predict by biases, those of the entities on `side` from what was seen of them."""
    predicted = biases.predict(rest).astype(np.float64)
    if not len(seen):
        return predicted
    left = seen.values - biases.predict(seen)
    own, rows, shrinkage = (
        (seen.users, seen.user_rows, 10) if side == "user" else (seen.items, seen.item_rows, 2)
    )
    bias = np.bincount(rows, left, minlength=len(own)) / (
        np.bincount(rows, minlength=len(own)) + shrinkage
    )
    ids, of_rating = (
        (rest.users, rest.user_rows) if side == "user" else (rest.items, rest.item_rows)
    )
    found = own.rows(ids.ids)[of_rating]
    return predicted + np.where(found >= 0, bias[found], 0)


def importance(subject: Subject, side: str, repeats: int = 5) -> "pd.DataFrame":
    """Shuffle each feature among the held-out items (users); say how much the error rises.

    Returns
    -------
    pandas.DataFrame
        column, rise (of the error, mean over `repeats` shuffles), spread (their standard
        deviation), share (of the error); most important first. The last row, column `ALL`, is
        for all features shuffled together. Empty if the side has no features.
    """
    import pandas as pd

    table, encoder, ratings = subject.table(side), subject.encoder(side), subject.new(side)
    if table is None or encoder is None or not encoder.columns_ or not len(ratings):
        return pd.DataFrame()
    ids = ratings.items.ids if side == "item" else ratings.users.ids
    held_out = table.filter(pc.is_in(table[f"{side}_id"], ids.cast(table[f"{side}_id"].type)))
    if held_out.num_rows < 2:
        return pd.DataFrame()
    probe = Probe.of(subject, ratings, subject.seed, most=20_000)
    start = probe.error(subject.tested)
    rng = np.random.default_rng(subject.seed)
    columns = list(encoder.columns_)
    rows: list[dict[str, Any]] = []
    for shuffled in [*([column] for column in columns), columns]:
        rises = []
        for _ in range(repeats):
            order = pa.array(rng.permutation(held_out.num_rows))
            changed = held_out
            for column in shuffled:
                place = changed.column_names.index(column)
                changed = changed.set_column(place, column, held_out[column].take(order))
            rises.append(probe.error(subject.tested, **{f"{side}s": changed}) - start)
        rise = float(np.mean(rises))
        name = shuffled[0] if len(rows) < len(columns) else ALL
        spread = float(np.std(rises))
        rows.append({"column": name, "rise": rise, "spread": spread, "share": rise / start})
    each = sorted(rows[:-1], key=lambda row: -row["rise"])
    return pd.DataFrame([*each, rows[-1]])


def calibration(subject: Subject, most: int = 50_000) -> "pd.DataFrame":
    """Say how many of the held-out ratings lie in intervals that should hold 50, 80, ... percent.

    Returns
    -------
    pandas.DataFrame
        task, nominal, observed, width (mean width of the interval), n.
    """
    import pandas as pd

    rng = np.random.default_rng(subject.seed)
    rows: list[dict[str, Any]] = []
    for task, ratings in subject.split.tasks().items():
        if not len(ratings):
            continue
        if len(ratings) > most:
            ratings = ratings.select(np.sort(rng.choice(len(ratings), most, replace=False)))
        pairs = ratings.to_arrow().select(["user_id", "item_id"])
        mean, std = subject.tested.predict(pairs, unknown="prior", return_std=True)
        for nominal in NOMINAL:
            half = NormalDist().inv_cdf(0.5 + nominal / 2) * std
            inside = np.abs(ratings.values - mean) <= half
            rows.append(
                {
                    "task": task,
                    "nominal": nominal,
                    "observed": float(inside.mean()),
                    "width": float(2 * half.mean()),
                    "n": len(ratings),
                }
            )
    return pd.DataFrame(rows)
