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
from simrec.data.id_columns import one_or_several
from simrec.data.ids import IdMap
from simrec.data.messages import describe
from simrec.data.ratings import Ratings, liked_from
from simrec.data.sides import SINGULAR, USUAL, Columns, Side, Sides
from simrec.data.tables import TableLike, read_table
from simrec.errors import InputError
from simrec.model.catalogue import described, with_lists
from simrec.model.head import Encoder, StoredHead
from simrec.model.run.workers import ONE_WORKER, Workers
from simrec.model.tower import Tower, id_values, unique_ids
from simrec.scoring.threads import row_blocks

logger = logging.getLogger(__name__)


# Entities from which the encoding of features is learned, at most.
_MOST_ROWS = 1 << 18


@dataclass(eq=False)
class PreparedSide:
    """Items or users before fitting."""

    tower: Tower  # all of them: those with ratings and those known by their features alone
    rated_rows: np.ndarray  # of those with ratings in the tower, in the order of the rows of R
    X: sparse.csr_matrix  # features of those with ratings, and a constant as the last one
    groups: np.ndarray  # for each feature, the number of the column that it comes from
    words: np.ndarray  # which features are words of texts: for lists alone
    workers: Workers = ONE_WORKER  # the workers between whom the entities are divided

    def without_words(self) -> PreparedSide:
        """Return it without the features that are words: ratings are learned from the others."""
        if not self.words.any():
            return self
        kept = np.flatnonzero(~self.words)
        tower = replace(self.tower, features=self.tower.features[:, kept[:-1]])
        groups, none = self.groups[kept], np.zeros(len(kept), bool)
        return replace(self, tower=tower, X=self.X[:, kept], groups=groups, words=none)

    @property
    def counts(self) -> np.ndarray:
        """Ratings of those who have any, in the order of the rows of R."""
        return self.tower.counts[self.rated_rows]

    def head(
        self, vectors: np.ndarray, encoder: Encoder, prior: np.ndarray | None = None
    ) -> StoredHead:
        """Make a head from the vectors of the rated and the encoder of all others.

        Vectors are those of the rated, or of all, where those of the others are replaced. By
        default the prior is an average entity, as ratings meet it: everyone counts by the number
        of their ratings.
        """
        n, counts = len(self.tower.ids), self.counts
        vectors = vectors.astype(np.float32, copy=False)
        if n > len(vectors):
            joined = np.empty((n, vectors.shape[1]), np.float32)
            joined[self.rated_rows] = vectors
            vectors = joined
        if n > len(counts):
            unrated = self.tower.counts == 0
            vectors[unrated] = encoder(self.tower.features[unrated])
        if prior is not None:
            return StoredHead(vectors, encoder, prior.astype(np.float32))
        share = counts / self.workers.total(float(counts.sum()))
        prior = np.zeros(vectors.shape[1])
        for rows in row_blocks(len(share)):
            prior += share[rows] @ encoder(self.X[rows][:, :-1])
        prior = self.workers.sum(prior).astype(np.float32)
        return StoredHead(vectors, encoder, prior)


@dataclass(eq=False)
class Prepared:
    """All that a fit starts from: of the users, those of this worker."""

    ratings: Ratings
    bounds: tuple[float, float]
    sides: Sides[PreparedSide]
    workers: Workers = ONE_WORKER

    def rated(self, values: np.ndarray | None = None) -> sparse.csr_matrix:
        """Return users x items, all that are known: a value for each pair, 1 by default."""
        return self._placed(pair_matrix(self.ratings, values))

    def liked(self) -> sparse.csr_matrix | None:
        """Return users x items, all that are known: 1 for each pair that was rated as liked."""
        ratings = self.ratings
        if not ratings.has_ratings:
            return None
        rows = np.flatnonzero(ratings.values >= liked_from(self.bounds))
        places = np.ones(len(rows), np.int8), (ratings.user_rows[rows], ratings.item_rows[rows])
        shape = (ratings.n_users, ratings.n_items)
        return self._placed(sparse.csr_matrix(places, shape=shape))

    def _placed(self, matrix: sparse.csr_matrix) -> sparse.csr_matrix:
        """Put the rows and columns of rated entities among those of all that are known."""
        sides = self.sides
        rows = spread_rows(matrix, sides.users.tower.counts > 0)
        places = sides.items.rated_rows.astype(matrix.indices.dtype)
        shape = (rows.shape[0], len(sides.items.tower.ids))
        # Ids ascend in both, and hence columns do.
        parts = (rows.data, places[rows.indices], rows.indptr)
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
    spell: bool = False  # whether words of texts are features


def prepare(
    ratings: Ratings,
    bounds: tuple[float, float] | None,
    tables: Sides[TableLike | None],
    encoding: Encoding,
    workers: Workers = ONE_WORKER,
) -> Prepared:
    """Check the tables of a fit, and encode the features of its entities."""
    if not len(ratings):
        raise InputError("ratings: there is no rating to learn from.")
    ratings = _with_items_of_all(ratings, workers)
    counts = Sides(
        workers.sum(np.bincount(ratings.item_rows, minlength=ratings.n_items)),
        np.bincount(ratings.user_rows, minlength=ratings.n_users),
    )
    known, divided = Sides(ratings.items, ratings.users), Sides(ONE_WORKER, workers)

    def side_of(side: Side) -> PreparedSide:
        own, none = ratings.columns.of(side), sparse.csr_matrix((len(known[side]), 0), dtype="f4")
        tower = Tower(side, known[side], counts[side], None, none, own)
        return _side(tower, tables[side], encoding, divided[side])

    sides = Sides.of(side_of)
    ends = [np.array([ratings.values.min()]), np.array([ratings.values.max()])]
    low, high = (np.concatenate(workers.gather(end)) for end in ends)
    found = float(low.min()), float(high.max())
    if ratings.has_ratings and found[0] == found[1]:
        told = "ratings: all are %g, and so will predictions be; lists go by who rated what"
        logger.warning(told, found[0])
    for side, total in Sides(ratings.n_items, workers.total(ratings.n_users)).named():
        if total == 1:
            told = "ratings: all are of one %s; what sets %s apart cannot be learned"
            logger.warning(told, SINGULAR[side], side)
    return Prepared(ratings, found if bounds is None else bounds, sides, workers)


def _with_items_of_all(ratings: Ratings, workers: Workers) -> Ratings:
    """Return the ratings with the items that the users of any worker have rated."""
    if workers.size == 1:
        return ratings
    known = ratings.items
    for table in workers.gather_tables(pa.table({"id": ratings.items.ids})):
        known = known.union(IdMap(table["id"]))
    rows = known.rows(ratings.items.ids)[ratings.item_rows]
    return replace(ratings, items=known, item_rows=rows.astype(ratings.item_rows.dtype))


def read_ratings(
    source: Ratings | TableLike, bounds: tuple[float, float] | None, columns: Columns = USUAL
) -> Ratings:
    """Take ratings; a table without a column of ratings is one of interactions."""
    if isinstance(source, Ratings):
        return Ratings.from_table(source, bounds=bounds, name="ratings")
    name = describe(source, "ratings")
    more = ("rating", "timestamp")
    ids, own = ["user_id", "item_id"], columns.renaming()
    table = read_table(source, ids, optional=more, rename=own, name="ratings")
    if "rating" not in table.column_names:
        return Ratings.from_table(table, rating=None, name=name)
    return Ratings.from_table(table, bounds=bounds, name=name)


def read_pairs(pairs: Any, item_ids: Any, columns: Columns) -> pa.Table:
    """Take pairs: a table or ratings; or users and items, one or several, each with each."""
    if item_ids is None:
        source = pairs.to_arrow() if isinstance(pairs, Ratings) else pairs
        ids = ["user_id", "item_id"]
        own = columns.renaming(*ids)
        return read_table(source, ids, rename=own, name="pairs", allow_empty=True)
    users, items = one_or_several(pairs, "user_id"), one_or_several(item_ids, "item_id")
    n = max(len(users), len(items)) if len(users) and len(items) else 0
    if not {len(users), len(items)} <= {1, n}:
        raise InputError(
            f"predict: {len(users):,} users and {len(items):,} items; give as many of both, or "
            "one of either."
        )
    first = pa.array(np.zeros(n, np.int64))
    both = [ids if len(ids) == n else ids.take(first) for ids in (users, items)]
    return pa.table(both, names=["user_id", "item_id"])


def pair_matrix(ratings: Ratings, values: np.ndarray | None = None) -> sparse.csr_matrix:
    """Return users x items: a value for each pair, 1 by default."""
    data = np.ones(len(ratings), np.float32) if values is None else values.astype(np.float32)
    shape = (ratings.n_users, ratings.n_items)
    return sparse.csr_matrix((data, (ratings.user_rows, ratings.item_rows)), shape=shape)


def _side(
    tower: Tower, source: TableLike | None, encoding: Encoding, workers: Workers
) -> PreparedSide:
    """Encode the features of the rated entities, and add those known by their features alone."""
    side, rated, columns = tower.side, tower.ids, encoding.columns[tower.side]
    everyone = np.arange(len(rated))
    if source is None:
        if columns:
            raise InputError(f"{tower.singular}_columns were given, but no table of {side}.")
        X, groups = _with_constant(tower.features), np.zeros(1, np.int64)
        return PreparedSide(tower, everyone, X, groups, groups > 0, workers)
    label, id_column = describe(source, side), tower.id_column
    table = read_table(source, name=side, rename={tower.own_column: id_column})
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
        lacking = f"{int((~has_row).sum())} of {len(rated)} rated {side}"
        logger.warning("%s: %s have no row of features; they are taken as average", label, lacking)
    rows = table.take(pa.array(place[found[has_row]]))
    where = f"{side} ({source})" if isinstance(source, str | os.PathLike) else side
    encoder = FeatureEncoder(
        columns,
        min_count=encoding.min_count,
        knots=encoding.knots,
        id_column=id_column,
        spell=encoding.spell and side == "items",
    )
    encoder.fit(_sample(rows, workers), name=where)
    features = encoder.transform(rows)
    if not has_row.all():
        features = spread_rows(features, has_row)
    groups = np.append(encoder.groups_, encoder.groups_.max(initial=-1) + 1)
    X, rated_rows = _with_constant(features), everyone
    others = np.flatnonzero(~rated.contains(listed.ids))
    if len(others):
        unrated = IdMap(listed.take(others))
        known = rated.union(unrated)
        rated_rows = known.rows(rated.ids)
        order = np.concatenate([rated_rows, known.rows(unrated.ids)])
        more = encoder.transform(table.take(pa.array(place[others])))
        counts = np.zeros(len(known), np.int64)
        counts[rated_rows] = tower.counts
        features = sparse.vstack([features, more], format="csr")[np.argsort(order)]
        tower = replace(tower, ids=known, counts=counts)
    tower = replace(tower, encoder=encoder, features=features)
    if side == "items":
        tower.table = described(with_lists(table, encoder), ids, tower.ids, id_column)
    words = np.append(encoder.spelled_, False)
    return PreparedSide(tower, rated_rows, X, groups, words, workers)


def _sample(rows: pa.Table, workers: Workers) -> pa.Table:
    """Take every n-th row of all workers, at most about `_MOST_ROWS`."""
    step = max(-(-int(workers.total(len(rows))) // _MOST_ROWS), 1)
    first = -workers.places(len(rows)).start % step
    some = rows if step == 1 else rows.take(pa.array(np.arange(first, len(rows), step)))
    return pa.concat_tables(workers.gather_tables(some))


def _with_constant(features: sparse.csr_matrix) -> sparse.csr_matrix:
    constant = sparse.csr_matrix(np.ones((features.shape[0], 1), np.float32))
    return sparse.hstack([features, constant], format="csr", dtype=np.float32)


def spread_rows(matrix: sparse.csr_matrix, has_row: np.ndarray) -> sparse.csr_matrix:
    """Put rows where `has_row` says that there is one, and empty rows elsewhere."""
    lengths = np.zeros(len(has_row), np.int64)
    lengths[has_row] = np.diff(matrix.indptr)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    return sparse.csr_matrix(
        (matrix.data, matrix.indices, indptr), shape=(len(has_row), matrix.shape[1])
    )
