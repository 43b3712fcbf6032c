"""A model, and a copy of it that is tested: it has not seen the ratings it is asked for.

And what to look at before trusting it: leaks, missing rows.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy import sparse

from simrec.data.ids import IdMap
from simrec.data.ratings import Ratings
from simrec.data.sides import ID_COLUMNS, SIDES, SINGULAR, Side, Sides
from simrec.data.split import ColdStartSplit, cold_start_split
from simrec.data.tables import TableLike, read_table, with_usual_ids
from simrec.evaluation import tasks

logger = logging.getLogger(__name__)

KINDS = {"leak": "Leakage suspect", "data": "Data"}
# Correlation with the mean rating (or the number of ratings) that is too good to be known before.
_TOO_GOOD = 0.9
# Entities a correlation needs; ratings an entity needs for its mean to mean something; features
# of a column, such as its words, that are too many for one.
_ENOUGH, _FOR_MEAN, _WIDEST = 20, 5, 300


@dataclass(frozen=True, eq=False)
class TestedModel:
    """A model that has seen all ratings, and a copy of it that has seen only ``split.train``.

    The figures of the copy are shown.
    """

    __test__ = False  # no class of tests, whatever its name

    model: Any
    copy: Any
    ratings: Ratings
    split: ColdStartSplit
    tables: Sides[pa.Table | None]
    random_state: int

    @property
    def rates(self) -> bool:
        """Whether there are ratings, and the model predicts them."""
        return tasks.has_ratings(self.ratings) and tasks.predicts_ratings(self.model)

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
        return tasks.liked_threshold(self.split.train)

    def encoder(self, side: Side) -> Any:
        """Return the copy's encoder of features of a side, None if it has none."""
        return self.copy.towers_[side].encoder

    def new(self, side: Side) -> Ratings:
        """Return the ratings of held-out items (users) by users (of items) the copy knows."""
        return self.split.new_items if side == "items" else self.split.new_users


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
    random_state: int = 0,
    **shares: float,
) -> TestedModel:
    """Hold out `shares` of the ratings, see `cold_start_split`; fit a copy on the rest."""
    given = Sides(items, users)
    usual = Sides.of(lambda side: with_usual_ids(given[side], model.columns_, side))
    tables = usual.map(lambda table: None if table is None else read_table(table))
    tasks.check_tables(model, tables)
    split = cold_start_split(ratings, random_state=random_state, **shares)
    logger.info("training a copy on %d of %d ratings, to test it", len(split.train), len(ratings))
    fresh = tasks.unfitted_copy(model, ratings=ratings, quiet=True)
    copy = tasks.fitted_copy(fresh, model, split.train, tables)
    return TestedModel(model, copy, ratings, split, tables, random_state)


@dataclass(frozen=True)
class Alert:
    """Something to look at: of which of `KINDS`, about what, what was found, what to do."""

    kind: str
    about: str
    what: str
    remedy: str


def alerts(tested: TestedModel) -> list[Alert]:
    """Find all there is, the most serious first."""
    found: list[Alert] = []
    for side in SIDES:
        table = tested.tables[side]
        if table is None or tested.encoder(side) is None:
            what = f"no features of {side}: a new {SINGULAR[side]} gets the answer for an average "
            found.append(Alert("data", side, f"{what}one.", f"Train with --{side}."))
            continue
        found += leaks(tested, side)
        ids = entities(tested.ratings, side)[0]
        listed = pc.is_in(ids.ids, table[ID_COLUMNS[side]].cast(ids.type))
        if absent := len(ids) - pc.sum(listed).as_py():
            what = f"{absent:,} of {len(ids):,} rated {side} are not in the table of {side}."
            found.append(Alert("data", side, what, "Add their rows."))
    if tested.ratings.n_duplicates:
        what = f"{tested.ratings.n_duplicates:,} rows repeat a pair; the latest, or the mean, "
        found.append(Alert("data", "ratings", f"{what}was kept.", "Make sure you mean this."))
    return sorted(found, key=lambda alert: list(KINDS).index(alert.kind))


def leaks(tested: TestedModel, side: Side) -> Iterator[Alert]:
    """Find features that know what the ratings of an entity will be."""
    one, (ids, rows) = SINGULAR[side], entities(tested.ratings, side)
    count = np.bincount(rows, minlength=len(ids))
    mean = np.bincount(rows, tested.ratings.values, minlength=len(ids)) / count
    tower = tested.copy.towers_[side]
    places, groups = tower.ids.rows(ids.ids), tower.encoder.groups_
    steady = (places >= 0) & (count >= _FOR_MEAN)
    targets = {"the mean rating": mean[steady], "the number of ratings": np.log(count[steady])}
    for place, column in enumerate(tower.encoder.columns_):
        own = tower.features[:, np.flatnonzero(groups == place)]
        X = sparse.csr_matrix(own, dtype=np.float64)[places[steady]]
        for name, target in targets.items():
            if (strength := correlation(X, target)) > _TOO_GOOD:
                what = f"follows {name} of the {one} closely (correlation {strength:.2f})."
                remedy = "Make sure that it is known before the first rating comes in, and was not "
                yield Alert("leak", f"{one}: {column}", what, f"{remedy}computed from the ratings.")


def correlation(X: sparse.csr_matrix, target: np.ndarray) -> float:
    """Return how well a linear function of features follows a target: adjusted multiple R."""
    n, k = X.shape
    total = float(((target - target.mean()) ** 2).sum()) if n else 0.0
    if n < max(_ENOUGH, 3 * k) or k > _WIDEST or not total:
        return 0.0
    inputs = np.hstack([X.toarray(), np.ones((n, 1))])
    left = target - inputs @ np.linalg.lstsq(inputs, target, rcond=None)[0]
    return float(np.sqrt(max(0.0, 1 - (left @ left) / (n - k - 1) * (n - 1) / total)))
