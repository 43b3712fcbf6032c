"""What a copy makes of newcomers: by how many ratings they have, and by their features."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.ratings import Ratings
from simrec.data.sides import ID_COLUMNS, Side, other
from simrec.evaluation.metrics import rmse
from simrec.evaluation.report.tested_model import TestedModel, entities

if TYPE_CHECKING:
    import pandas as pd

STEPS = (0, 1, 2, 5, 10, 20)
ALL = "(all features)"
# Ratings of an entity that stay hidden at least, and how many entities to follow.
_TO_MEASURE, _ENTITIES, _FEW = 5, 500, 10
# Ratings that are asked for, at most.
_SAMPLE = 20_000


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
        ratings = sample(ratings, rng)
        pairs = pairs_of(ratings)
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


def pairs_of(ratings: Ratings) -> pa.Table:
    """Return the pairs alone, without what is to be predicted."""
    return ratings.to_arrow().select(["user_id", "item_id"])


def sample(ratings: Ratings, rng: np.random.Generator) -> Ratings:
    """Draw some ratings where there are many."""
    if len(ratings) <= _SAMPLE:
        return ratings
    return ratings.select(np.sort(rng.choice(len(ratings), _SAMPLE, replace=False)))
