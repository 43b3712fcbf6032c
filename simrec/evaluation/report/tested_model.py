"""A model, and a copy of it that is tested: it has not seen the ratings it is asked for."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from simrec.data.ids import IdMap
from simrec.data.ratings import Ratings
from simrec.data.sides import Side, Sides
from simrec.data.split import ColdStartSplit, cold_start_split
from simrec.data.tables import TableLike, read_table, with_usual_ids
from simrec.errors import InputError
from simrec.evaluation.tasks import (
    check_tables,
    fitted_copy,
    has_ratings,
    liked_threshold,
    predicts_ratings,
    unfitted_copy,
)
from simrec.model.catalogue import title_column

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class TestedModel:
    """A model that has seen all ratings, and a copy of it that has seen ``split.train`` alone.

    The figures of the copy are shown. `item_name` is the column of items that names them.
    """

    __test__ = False  # no class of tests, whatever its name

    model: Any
    copy: Any
    ratings: Ratings
    split: ColdStartSplit
    tables: Sides[pa.Table | None]
    item_name: str | None
    random_state: int

    @property
    def rates(self) -> bool:
        """Whether there are ratings, and the model predicts them."""
        return has_ratings(self.ratings) and predicts_ratings(self.model)

    @property
    def unit(self) -> str:
        """What one pair of the data is called."""
        return "rating" if self.rates else "interaction"

    @property
    def error_name(self) -> str:
        """What the error on newcomers is called, see `mean_error`."""
        return "error" if self.rates else "share of wrong choices"

    @property
    def threshold(self) -> float:
        """Rating from which an item is liked."""
        return liked_threshold(self.split.train)

    def encoder(self, side: Side) -> Any:
        """Return the copy's encoder of features of a side, None if it has none."""
        return self.copy.towers_[side].encoder

    def new(self, side: Side) -> Ratings:
        """Return the ratings of held-out items (users) by users (of items) the copy knows."""
        return self.split.new_items if side == "items" else self.split.new_users

    def name_of(self, item_id: Any) -> str:
        """Return the name of an item."""
        return self._names.get(item_id) or f"item {item_id}"

    @cached_property
    def _names(self) -> dict[Any, str]:
        if self.tables.items is None or self.item_name is None:
            return {}
        columns = self.tables.items.select(["item_id", self.item_name]).to_pydict()
        return {i: str(n) for i, n in zip(*columns.values(), strict=True) if n is not None}


def entities(ratings: Ratings, side: Side) -> tuple[IdMap, np.ndarray]:
    """Return the ids of a side, and the row of each rating among them."""
    both = Sides((ratings.items, ratings.item_rows), (ratings.users, ratings.user_rows))
    return both[side]


def make_tested_model(
    model: Any,
    ratings: Ratings,
    *,
    items: TableLike | None = None,
    users: TableLike | None = None,
    item_name: str | None = None,
    random_state: int = 0,
    **shares: float,
) -> TestedModel:
    """Hold out `shares` of the ratings, see `cold_start_split`; fit a copy on the rest."""
    given = Sides(items, users)
    usual = Sides.of(lambda side: with_usual_ids(given[side], model.columns_, side))
    tables = usual.map(lambda table: None if table is None else read_table(table))
    check_tables(model, tables)
    if item_name is None:
        item_name = title_column(tables.items and tables.items.drop_columns("item_id"))
    elif tables.items is not None and item_name not in tables.items.column_names:
        names = ", ".join(tables.items.column_names)
        raise InputError(
            f"items: no column {item_name!r} for their names; the columns are {names}."
        )
    split = cold_start_split(ratings, random_state=random_state, **shares)
    logger.info("training a copy on %d of %d ratings, to test it", len(split.train), len(ratings))
    fresh = unfitted_copy(model, ratings=ratings, quiet=True)
    copy = fitted_copy(fresh, model, split.train, tables)
    return TestedModel(model, copy, ratings, split, tables, item_name, random_state)
