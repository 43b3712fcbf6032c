"""What a report is about: the saved model, a copy that was tested, and the data."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.features import family
from simrec.data.ratings import Ratings
from simrec.data.split import ColdStartSplit, cold_start_split
from simrec.data.tables import TableLike, read_table
from simrec.errors import InputError
from simrec.evaluation import metrics
from simrec.model.two_tower import TwoTower

logger = logging.getLogger(__name__)

# Beyond that many ratings an error hardly changes any more, but takes longer.
_ENOUGH = 30_000


@dataclass(frozen=True, eq=False)
class Subject:
    """A model with the data it is judged on.

    Attributes
    ----------
    model : TwoTower
        The saved model, which has seen all ratings.
    tested : TwoTower
        A model of the same settings that was fitted on ``split.train`` alone: errors are its.
    manifest : mapping
        The manifest of the saved model.
    ratings : Ratings
        All of them.
    split : ColdStartSplit
        How they were divided.
    items, users : pyarrow.Table or None
        The tables of features.
    item_name : str or None
        The column of `items` that names them.
    seed : int
        Seed of the split and of all samples.
    """

    model: TwoTower
    tested: TwoTower
    manifest: Mapping[str, Any]
    ratings: Ratings
    split: ColdStartSplit
    items: pa.Table | None
    users: pa.Table | None
    item_name: str | None
    seed: int

    @property
    def ranks(self) -> bool:
        """Whether the model predicts who likes what rather than ratings."""
        return self.model.objective == "ranking"

    def table(self, side: str) -> pa.Table | None:
        """Give the features of a side, ``"item"`` or ``"user"``."""
        return self.items if side == "item" else self.users

    def encoder(self, side: str) -> Any:
        """Give the tested model's encoder of a side, None if it has none."""
        return self.tested.item_encoder_ if side == "item" else self.tested.user_encoder_

    def new(self, side: str) -> Ratings:
        """Give the ratings of held-out items (users) by users (of items) the copy knows."""
        return self.split.new_items if side == "item" else self.split.new_users

    def name_of(self, item_id: Any) -> str:
        """Name an item."""
        return self.names.get(item_id) or str(item_id)

    @cached_property
    def names(self) -> dict[Any, str]:
        """Names by item id."""
        if self.items is None or self.item_name is None:
            return {}
        columns = self.items.select(["item_id", self.item_name]).to_pydict()
        return {i: str(n) for i, n in zip(*columns.values(), strict=True) if n is not None}


def make_subject(
    model: TwoTower,
    manifest: Mapping[str, Any],
    ratings: Ratings,
    items: TableLike | None,
    users: TableLike | None,
    *,
    seed: int = 0,
    item_name: str | None = None,
    cold_items: float = 0.2,
    cold_users: float = 0.2,
    warm: float = 0.1,
) -> Subject:
    """Split the ratings and fit a copy of the model, with its settings, on the training part."""
    tables = {"items": items, "users": users}
    read = {
        name: None if table is None else read_table(table, name=name)
        for name, table in tables.items()
    }
    encoders = {"items": model.item_encoder_, "users": model.user_encoder_}
    for name, encoder in encoders.items():
        if encoder is not None and read[name] is None:
            raise InputError(
                f"the model was trained with features of {name}, and the report has to train a "
                f"copy of it: give the table with --{name}."
            )
    split = cold_start_split(ratings, cold_items, cold_users, warm, random_state=seed)
    logger.info("training a copy on %d of %d ratings, to test it", len(split.train), len(ratings))
    tested = TwoTower(**{**model.get_params(), "verbose": 0})
    # A table that the model was not trained with is used for names alone.
    features = {name: read[name] if encoders[name] is not None else None for name in read}
    tested.fit(split.train, items=features["items"], users=features["users"])
    chosen = _name_column(read["items"], item_name)
    return Subject(
        model, tested, manifest, ratings, split, read["items"], read["users"], chosen, seed
    )


def _name_column(items: pa.Table | None, asked: str | None) -> str | None:
    """Choose the column that looks like a title: text that is nearly different for each item."""
    if items is None:
        return None
    if asked is not None:
        if asked not in items.column_names:
            raise InputError(
                f"items: no column {asked!r} for the names of items; the columns are "
                f"{', '.join(items.column_names)}."
            )
        return asked
    usual = ("title", "name", "item_name", "label")
    texts = [
        name
        for name in items.column_names
        if name != "item_id" and family(items.schema.field(name).type) == "string"
    ]
    for name in sorted(texts, key=lambda n: (n.lower() not in usual, texts.index(n))):
        if pc.count_distinct(items[name]).as_py() > 0.8 * items.num_rows:
            return name
    return None


@dataclass(frozen=True, eq=False)
class Probe:
    """Pairs of which the answer is known, and how wrong a model is about them.

    For ratings the error is the RMSE. A ranking model is asked which of two items a user liked:
    one they did like, or one drawn at random; or, by `draw`, which of two users liked an item. The
    error is the share of wrong answers.
    """

    pairs: pa.Table
    values: np.ndarray
    others: pa.Table | None = None

    @classmethod
    def of(
        cls,
        subject: Subject,
        ratings: Ratings,
        seed: int,
        most: int = _ENOUGH,
        draw: Literal["item", "user"] = "item",
    ) -> Probe:
        """Make a probe of ratings, of a sample where there are many."""
        rng = np.random.default_rng(seed)
        if subject.ranks:
            ratings = ratings.select(ratings.values >= liked_from(subject))
        if len(ratings) > most:
            ratings = ratings.select(np.sort(rng.choice(len(ratings), most, replace=False)))
        pairs = ratings.to_arrow().select(["user_id", "item_id"])
        if not subject.ranks or not len(ratings):
            return cls(pairs, ratings.values)
        place, ids = (1, ratings.items) if draw == "item" else (0, ratings.users)
        drawn = ids.take(rng.integers(len(ids), size=len(ratings)))
        return cls(pairs, ratings.values, pairs.set_column(place, f"{draw}_id", drawn))

    def error(self, model: TwoTower, items: Any = None, users: Any = None) -> float:
        """Say how wrong a model is, with other features of new items or users if given."""
        if not len(self.values):
            return float("nan")
        predicted = model.predict(self.pairs, items=items, users=users, unknown="prior")
        if self.others is None:
            return metrics.rmse(self.values, predicted)
        others = model.predict(self.others, items=items, users=users, unknown="prior")
        return float(np.mean(others > predicted) + np.mean(others == predicted) / 2)


def liked_from(subject: Subject) -> float:
    """Give the rating from which an item counts as liked."""
    if subject.model.threshold is not None:
        return subject.model.threshold
    values = subject.split.train.values
    low, high = float(values.min()), float(values.max())
    return low + 0.75 * (high - low)
