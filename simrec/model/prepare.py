"""From tables to what is learned from: ratings, and a feature row for each of their entities."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
from simrec.mapped import release
from simrec.model.head import Encoder, StoredHead
from simrec.model.run.arrange import arranged, counted, pieces
from simrec.model.run.scratch import IN_MEMORY, Scratch, slices
from simrec.model.run.workers import ONE_WORKER, Workers
from simrec.model.tower import Tower, id_values, unique_ids

logger = logging.getLogger(__name__)


# Sum of weights beyond which single precision would not do.
_MOST_WEIGHT = 1e15
# Entities from which the encoding of features is learned, at most.
_MOST_ROWS = 1 << 18


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
    workers : Workers
        The workers between whom the entities are divided.
    """

    tower: Tower
    rated_rows: np.ndarray
    X: sparse.csr_matrix
    groups: np.ndarray
    workers: Workers = ONE_WORKER

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
        share = counts / self.workers.total(float(counts.sum()))
        prior = np.zeros(vectors.shape[1])
        for rows in slices(len(share)):
            prior += share[rows] @ encoder(self.X[rows][:, :-1])
        prior = self.workers.sum(prior).astype(np.float32)
        return StoredHead(vectors.astype(np.float32, copy=False), encoder, prior)


@dataclass(eq=False)
class Prepared:
    """All that a fit starts from: of the users, those of this worker."""

    ratings: Ratings
    bounds: tuple[float, float]
    sides: Sides[PreparedSide]
    workers: Workers = ONE_WORKER
    scratch: Scratch = IN_MEMORY

    def rated(self) -> sparse.csr_matrix:
        """Return users x items, all that are known: confidence in each pair, 1 without weights."""
        matrix, sides = pair_matrix(self.ratings, scratch=self.scratch), self.sides
        lengths = np.zeros(len(sides.users.tower.ids), matrix.indptr.dtype)
        lengths[sides.users.rated_rows] = np.diff(matrix.indptr)
        places = sides.items.rated_rows.astype(matrix.indices.dtype)
        for at in pieces(matrix.nnz):  # ids ascend in both, and hence columns do
            matrix.indices[at] = places[matrix.indices[at]]
            release(matrix.indices[at])
        indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(matrix.indptr.dtype)
        shape = (len(lengths), len(sides.items.tower.ids))
        parts = (matrix.data, matrix.indices, indptr)
        return sparse.csr_matrix(parts, shape=shape, copy=False)

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
    workers: Workers = ONE_WORKER,
) -> Prepared:
    """Check the tables of a fit, and encode the features of its entities.

    Parameters
    ----------
    ratings : Ratings
        The ratings of this worker's users.
    bounds : (float, float) or None
        Lowest and highest rating; None for those that occur.
    tables : Sides of table-like or None
        Features of all items, and of this worker's users.
    encoding : Encoding
        How features are encoded.
    workers : Workers
        The workers between whom the users are divided.
    """
    if not len(ratings):
        raise InputError("ratings: there is no rating to learn from.")
    ratings = _with_items_of_all(ratings, workers)
    rated = Sides(
        (
            ratings.items,
            workers.sum(counted(ratings.item_rows, ratings.n_items)),
        ),
        (ratings.users, counted(ratings.user_rows, ratings.n_users)),
    )
    divided = Sides(ONE_WORKER, workers)
    sides = Sides.of(lambda side: _side(side, *rated[side], tables[side], encoding, divided[side]))
    if bounds is None:
        ends = [np.array([ratings.values.min()]), np.array([ratings.values.max()])]
        low, high = (np.concatenate(workers.gather(end)) for end in ends)
        bounds = float(low.min()), float(high.max())
    return Prepared(ratings, bounds, sides, workers)


def _with_items_of_all(ratings: Ratings, workers: Workers) -> Ratings:
    """Return the ratings with the items that the users of any worker have rated."""
    if workers.size == 1:
        return ratings
    known = ratings.items
    for table in workers.gather_tables(pa.table({"id": ratings.items.ids})):
        known = known.union(IdMap(table["id"]))
    rows = known.rows(ratings.items.ids)[ratings.item_rows]
    return replace(ratings, items=known, item_rows=rows.astype(ratings.item_rows.dtype))


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


def pair_matrix(
    ratings: Ratings, unit: float = 1.0, scratch: Scratch = IN_MEMORY
) -> sparse.csr_matrix:
    """Return users x items with the confidence in each pair, 1 without weights, over `unit`."""
    rows, weights = ratings.user_rows, ratings.weights

    def values(at: slice | np.ndarray) -> np.ndarray:
        one = np.ones(len(rows[at]), np.float32) if weights is None else weights[at]
        return (one / np.float32(unit)).astype(np.float32)

    shape = (ratings.n_users, ratings.n_items)
    return arranged(rows, ratings.item_rows, values, shape, scratch)


def mean_confidence(ratings: Ratings, workers: Workers) -> float:
    """Return the mean confidence in the pairs of all workers, 1 without weights."""
    if ratings.weights is None:
        return 1.0
    total = workers.total(float(ratings.weights.sum(dtype=np.float64)))
    return total / max(workers.total(len(ratings)), 1)


def check_weights(data: Prepared) -> None:
    """Refuse weights that nothing can be learned from."""
    if data.ratings.weights is None:
        return
    total = data.workers.total(float(data.ratings.weights.sum(dtype=np.float64)))
    if not 0 < total < _MOST_WEIGHT:
        raise InputError(
            f"weight: the weights sum to {total:.3g}, expected a number above 0 and below "
            f"{_MOST_WEIGHT:.0e}. Give them in another unit, or leave the column out."
        )


def _side(
    side: Side,
    rated: IdMap,
    counts: np.ndarray,
    source: TableLike | None,
    encoding: Encoding,
    workers: Workers,
) -> PreparedSide:
    columns, singular, id_column = encoding.columns[side], SINGULAR[side], ID_COLUMNS[side]
    if source is None:
        if columns:
            raise InputError(f"{singular}_columns were given, but no table of {side}.")
        none = sparse.csr_matrix((len(rated), 0), dtype=np.float32)
        tower = Tower(side, rated, counts, None, none)
        return PreparedSide(
            tower, np.arange(len(rated)), _with_constant(none), np.zeros(1, np.int64), workers
        )
    label = describe(source, side)
    table = read_table(source, name=side)
    ids = id_values(table, id_column, label)
    listed, place = unique_ids(ids, side, label)
    found = listed.rows(rated.ids, id_column)
    has_row = found >= 0
    if not workers.total(int(has_row.sum())):
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
    encoder.fit(_sample(rows, workers), name=where)
    features = encoder.transform(rows)
    if not has_row.all():
        features = _spread(features, has_row)
    groups = np.append(encoder.groups_, encoder.groups_.max(initial=-1) + 1)
    X = _with_constant(features)
    others = np.flatnonzero(~rated.contains(listed.ids))
    if not len(others):
        tower = Tower(side, rated, counts, encoder, features)
        return PreparedSide(tower, np.arange(len(rated)), X, groups, workers)
    unrated = IdMap(listed.take(others))
    known = rated.union(unrated)
    rated_rows = known.rows(rated.ids)
    order = np.concatenate([rated_rows, known.rows(unrated.ids)])
    more = encoder.transform(table.take(pa.array(place[others])))
    all_counts = np.zeros(len(known), np.int64)
    all_counts[rated_rows] = counts
    everyone = sparse.vstack([features, more], format="csr")[np.argsort(order)]
    tower = Tower(side, known, all_counts, encoder, everyone)
    return PreparedSide(tower, rated_rows, X, groups, workers)


def _sample(rows: pa.Table, workers: Workers) -> pa.Table:
    """Take every so-manieth row of all workers' rows, all where they are not too many."""
    step = max(-(-int(workers.total(len(rows))) // _MOST_ROWS), 1)
    first = -workers.places(len(rows)).start % step
    some = rows if step == 1 else rows.take(pa.array(np.arange(first, len(rows), step)))
    return pa.concat_tables(workers.gather_tables(some))


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
