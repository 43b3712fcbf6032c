"""From tables to what is learned from: ratings, and a feature row for each of their entities."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from scipy import sparse

from simrec.data.features import FeatureEncoder
from simrec.data.ids import IdMap
from simrec.data.ratings import Ratings
from simrec.data.sides import ID_COLUMNS, SINGULAR, Side, Sides
from simrec.data.tables import TableLike, describe, read_table
from simrec.errors import InputError
from simrec.model.head import Encoder, StoredHead
from simrec.model.run.scratch import IN_MEMORY, Scratch, slices
from simrec.model.tower import Tower, id_values, unique_ids

logger = logging.getLogger(__name__)


# Sum of weights beyond which single precision would not do.
_MOST_WEIGHT = 1e15


@dataclass(eq=False)
class PreparedSide:
    """Items or users before fitting.

    Attributes
    ----------
    tower : Tower
        All of them: those with ratings and those known by their features alone.
    rated_rows : numpy.ndarray
        Where those with ratings stand in the tower, in the order of the rows of R.
    X : csr_matrix
        Features of those with ratings, and a constant as the last one.
    groups : numpy.ndarray
        For each feature, the number of the column that it comes from.
    """

    tower: Tower
    rated_rows: np.ndarray
    X: sparse.csr_matrix
    groups: np.ndarray

    @property
    def counts(self) -> np.ndarray:
        """Ratings of those who have any, in the order of the rows of R."""
        return self.tower.counts[self.rated_rows]

    def head(
        self, vectors: np.ndarray, encoder: Encoder, scratch: Scratch = IN_MEMORY
    ) -> StoredHead:
        """Make a head from the vectors of the rated and the encoder of all others."""
        n, counts = len(self.tower.ids), self.counts
        if n > len(vectors):
            unrated = self.tower.counts == 0
            joined = scratch.empty((n, vectors.shape[1]))
            joined[self.rated_rows] = vectors
            joined[unrated] = encoder(self.tower.features[unrated])
            vectors = joined
        # An average entity, as ratings meet it: everyone counts by the number of their ratings.
        share = counts / counts.sum()
        prior = np.zeros(vectors.shape[1])
        for rows in slices(len(share)):
            prior += share[rows] @ encoder(self.X[rows][:, :-1])
        prior = prior.astype(np.float32)
        return StoredHead(vectors.astype(np.float32, copy=False), encoder, prior)


@dataclass(eq=False)
class Prepared:
    """All that a fit starts from."""

    ratings: Ratings
    bounds: tuple[float, float]
    sides: Sides[PreparedSide]
    scratch: Scratch = IN_MEMORY

    @property
    def schema(self) -> dict[str, dict[str, str]]:
        """Kind of each column of features, by side."""
        return {
            side: {} if one.tower.encoder is None else dict(one.tower.encoder.columns_)
            for side, one in self.sides.named()
        }


@dataclass(frozen=True)
class Encoding:
    """How features are encoded; see the arguments of `TwoTower`."""

    columns: Sides[Mapping[str, str] | None]
    min_count: int
    knots: int


def prepare(
    ratings: Ratings,
    bounds: tuple[float, float] | None,
    tables: Sides[TableLike | None],
    encoding: Encoding,
) -> Prepared:
    """Check the tables of a fit, and encode the features of its entities."""
    if not len(ratings):
        raise InputError("ratings: there is no rating to learn from.")
    rated = Sides(
        (ratings.items, np.bincount(ratings.item_rows, minlength=ratings.n_items)),
        (ratings.users, np.bincount(ratings.user_rows, minlength=ratings.n_users)),
    )
    sides = Sides.of(lambda side: _side(side, *rated[side], tables[side], encoding))
    low_high = bounds or (float(ratings.values.min()), float(ratings.values.max()))
    return Prepared(ratings, low_high, sides)


def read_ratings(source: Ratings | TableLike, bounds: tuple[float, float] | None) -> Ratings:
    """Take ratings; a table without a column of ratings is one of interactions."""
    if isinstance(source, Ratings):
        return Ratings.from_table(source, bounds=bounds, name="ratings")
    name = describe(source, "ratings")
    table = read_table(source, name="ratings")
    if "rating" not in table.column_names:
        return Ratings.from_table(table, rating=None, name=name)
    return Ratings.from_table(table, bounds=bounds, name=name)


def rated_pairs(pairs: Ratings | TableLike, y: Any) -> Ratings | TableLike:
    """Put pairs and their ratings together, which scikit-learn gives apart."""
    if y is None:
        return pairs
    source = pairs.to_arrow() if isinstance(pairs, Ratings) else pairs
    table = read_table(source, name="ratings")
    values = np.asarray(y)
    if values.shape != (len(table),):
        raise InputError(
            f"y: expected a rating for each of {len(table):,} pairs, got {values.shape}."
        )
    if "rating" in table.column_names:
        table = table.drop_columns(["rating"])
    return table.append_column("rating", pa.array(values))


def pair_matrix(ratings: Ratings) -> sparse.csr_matrix:
    """Return users x items with the confidence in each pair, 1 without weights."""
    values = np.ones(len(ratings), np.float32) if ratings.weights is None else ratings.weights
    total = float(values.sum(dtype=np.float64))
    if not 0 < total < _MOST_WEIGHT:
        raise InputError(
            f"weight: the weights sum to {total:.3g}, expected a number above 0 and below "
            f"{_MOST_WEIGHT:.0e}. Give them in another unit, or leave the column out."
        )
    entries = (values.astype(np.float32), (ratings.user_rows, ratings.item_rows))
    return sparse.csr_matrix(entries, shape=(ratings.n_users, ratings.n_items))


def _side(
    side: Side, rated: IdMap, counts: np.ndarray, source: TableLike | None, encoding: Encoding
) -> PreparedSide:
    columns, singular, id_column = encoding.columns[side], SINGULAR[side], ID_COLUMNS[side]
    if source is None:
        if columns:
            raise InputError(f"{singular}_columns were given, but no table of {side}.")
        none = sparse.csr_matrix((len(rated), 0), dtype=np.float32)
        tower = Tower(side, rated, counts, None, none)
        return PreparedSide(
            tower, np.arange(len(rated)), _with_constant(none), np.zeros(1, np.int64)
        )
    label = describe(source, side)
    table = read_table(source, name=side)
    ids = id_values(table, id_column, label)
    listed, place = unique_ids(ids, side, label)
    found = listed.rows(rated.ids, id_column)
    has_row = found >= 0
    if not has_row.any():
        raise InputError(
            f"{label}: no {id_column} of the ratings is in this table (the ratings have "
            f"{rated.ids[0].as_py()!r}, the table {ids[0].as_py()!r}). Are these the right tables?"
        )
    if not has_row.all():
        logger.warning(
            "%s: %d of %d rated %s have no row of features; they are taken as average",
            label,
            int((~has_row).sum()),
            len(rated),
            side,
        )
    rows = table.take(pa.array(place[found[has_row]]))
    where = f"{side} {source}" if isinstance(source, str | os.PathLike) else side
    encoder = FeatureEncoder(
        columns, min_count=encoding.min_count, knots=encoding.knots, id_column=id_column
    )
    encoder.fit(rows, name=where)
    features = encoder.transform(rows)
    if not has_row.all():
        features = _spread(features, has_row)
    groups = np.append(encoder.groups_, encoder.groups_.max(initial=-1) + 1)
    X = _with_constant(features)
    others = np.flatnonzero(~rated.contains(listed.ids))
    if not len(others):
        tower = Tower(side, rated, counts, encoder, features)
        return PreparedSide(tower, np.arange(len(rated)), X, groups)
    unrated = IdMap(listed.take(others))
    known = rated.union(unrated)
    rated_rows = known.rows(rated.ids)
    order = np.concatenate([rated_rows, known.rows(unrated.ids)])
    more = encoder.transform(table.take(pa.array(place[others])))
    all_counts = np.zeros(len(known), np.int64)
    all_counts[rated_rows] = counts
    everyone = sparse.vstack([features, more], format="csr")[np.argsort(order)]
    return PreparedSide(Tower(side, known, all_counts, encoder, everyone), rated_rows, X, groups)


def _with_constant(features: sparse.csr_matrix) -> sparse.csr_matrix:
    constant = sparse.csr_matrix(np.ones((features.shape[0], 1), np.float32))
    return sparse.hstack([features, constant], format="csr", dtype=np.float32)


def _spread(features: sparse.csr_matrix, has_row: np.ndarray) -> sparse.csr_matrix:
    """Put feature rows where they belong, and empty rows where there are none."""
    lengths = np.zeros(len(has_row), np.int64)
    lengths[has_row] = np.diff(features.indptr)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    return sparse.csr_matrix(
        (features.data, features.indices, indptr), shape=(len(has_row), features.shape[1])
    )
