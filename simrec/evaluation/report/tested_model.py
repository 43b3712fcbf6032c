"""What a report is about: the saved model, a copy of it that was tested, and the data."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.features import family
from simrec.data.ids import IdMap
from simrec.data.ratings import Ratings
from simrec.data.split import ColdStartSplit, cold_start_split
from simrec.data.tables import TableLike, read_table
from simrec.errors import InputError
from simrec.evaluation.evaluate import unfitted_copy
from simrec.evaluation.tasks import has_ratings, liked_threshold, predicts_ratings

logger = logging.getLogger(__name__)

SIDES = ("item", "user")


@dataclass(frozen=True, eq=False)
class TestedModel:
    """A model with the data it is judged on.

    Attributes
    ----------
    model : TwoTower
        The model, which has seen all ratings.
    copy : TwoTower
        A model of the same settings, fitted on ``split.train`` alone: the figures are its.
    parent, parent_copy : TwoTower or None
        The model before this one, and a copy of its settings fitted on what it knew of
        ``split.train``.
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

    __test__ = False  # no class of tests, whatever its name

    model: Any
    copy: Any
    parent: Any
    parent_copy: Any
    ratings: Ratings
    split: ColdStartSplit
    items: pa.Table | None
    users: pa.Table | None
    item_name: str | None
    seed: int

    @property
    def name(self) -> str:
        """Id of the model, if it was saved."""
        return self.model.model_id_ or "not saved"

    @property
    def rates(self) -> bool:
        """Whether there are ratings, and the model predicts them."""
        return has_ratings(self.ratings) and predicts_ratings(self.model)

    @property
    def threshold(self) -> float:
        """Rating from which an item is liked."""
        return liked_threshold(self.split.train)

    def table(self, side: str) -> pa.Table | None:
        """Return the features of a side, ``"item"`` or ``"user"``."""
        return self.items if side == "item" else self.users

    def encoder(self, side: str) -> Any:
        """Return the copy's encoder of a side, None if it has none."""
        return (
            self.copy.towers_.items.encoder if side == "item" else self.copy.towers_.users.encoder
        )

    def new(self, side: str) -> Ratings:
        """Return the ratings of held-out items (users) by users (of items) the copy knows."""
        return self.split.new_items if side == "item" else self.split.new_users

    def name_of(self, item_id: Any) -> str:
        """Return the name of an item."""
        return self._names.get(item_id) or f"item {item_id}"

    @cached_property
    def _names(self) -> dict[Any, str]:
        if self.items is None or self.item_name is None:
            return {}
        columns = self.items.select(["item_id", self.item_name]).to_pydict()
        return {i: str(n) for i, n in zip(*columns.values(), strict=True) if n is not None}


def entity(ratings: Ratings, side: str) -> tuple[IdMap, np.ndarray]:
    """Return the ids of a side, and the row of each rating among them."""
    if side == "item":
        return ratings.items, ratings.item_rows
    return ratings.users, ratings.user_rows


def make_tested_model(
    model: Any,
    ratings: Ratings,
    *,
    items: TableLike | None = None,
    users: TableLike | None = None,
    parent: Any = None,
    item_name: str | None = None,
    seed: int = 0,
    cold_items: float = 0.2,
    cold_users: float = 0.2,
    warm: float = 0.1,
) -> TestedModel:
    """Split the ratings and fit a copy of the model, with its settings, on the training part."""
    read = {
        name: None if table is None else read_table(table, name=name)
        for name, table in {"items": items, "users": users}.items()
    }
    encoders = {"items": model.towers_.items.encoder, "users": model.towers_.users.encoder}
    for name, encoder in encoders.items():
        if encoder is not None and read[name] is None:
            raise InputError(
                f"the model was trained with features of {name}, and the report has to train a "
                f"copy of it: give the table with --{name}."
            )
    split = cold_start_split(ratings, cold_items, cold_users, warm, random_state=seed)
    logger.info("training a copy on %d of %d ratings, to test it", len(split.train), len(ratings))
    chosen = _name_column(read["items"], item_name)
    copies = [_copy(model, split.train, ratings, read), None]
    if parent is not None:
        known = _known_to(parent, split.train, len(ratings))
        logger.info("training a copy of the parent on %d ratings", len(known))
        copies[1] = _copy(parent, known, ratings, read)
    tables = (read["items"], read["users"])
    return TestedModel(model, copies[0], parent, copies[1], ratings, split, *tables, chosen, seed)


def _copy(
    model: Any, train: Ratings, ratings: Ratings, tables: Mapping[str, pa.Table | None]
) -> Any:
    """Fit a copy to a part of the ratings."""
    # A table that the model was not trained with is used for names alone.
    features = {
        "items": tables["items"] if model.towers_.items.encoder is not None else None,
        "users": tables["users"] if model.towers_.users.encoder is not None else None,
    }
    fresh = unfitted_copy(model, ratings=ratings)
    fresh.verbose = 0
    return fresh.fit(train, **features)


def _known_to(parent: Any, train: Ratings, n_now: int) -> Ratings:
    """Select the ratings a parent can have learned from: its users and items, the earliest."""
    known = np.ones(len(train), bool)
    for ids, rows, own, counts in (
        (train.items, train.item_rows, parent.items_, parent.towers_.items.counts),
        (train.users, train.user_rows, parent.users_, parent.towers_.users.counts),
    ):
        found = own.rows(ids.ids)
        known &= ((found >= 0) & (np.asarray(counts)[found] > 0))[rows]
    if train.timestamps is not None:
        share = min(1.0, float(np.sum(parent.towers_.items.counts)) / n_now)
        known &= train.timestamps <= np.quantile(train.timestamps, share, method="lower")
    return train.select(known)


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
