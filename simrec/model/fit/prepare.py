"""From tables to what is learned from: ratings, and a feature row for each of their entities."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from scipy import sparse

from simrec.data.features import FeatureEncoder
from simrec.data.ids import IdMap
from simrec.data.ratings import Ratings
from simrec.data.tables import TableLike, describe, read_table
from simrec.errors import InputError
from simrec.model.fit.networks import Network
from simrec.model.tower import Tower, encode_rows, id_values, once

if TYPE_CHECKING:
    from simrec.model.two_tower import TwoTower

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class PreparedSide:
    """Items or users before fitting.

    Attributes
    ----------
    name : str
        ``"item"`` or ``"user"``.
    rated : IdMap
        Those with ratings, in the order of the rows of R.
    counts : numpy.ndarray
        Their ratings.
    X : csr_matrix
        Their features, and a constant as the last one.
    groups : numpy.ndarray
        The column that each feature comes from.
    encoder : FeatureEncoder or None
        How the features were made.
    others : IdMap or None
        Those known by their features alone.
    others_X : csr_matrix or None
        Their features, without the constant.
    """

    name: str
    rated: IdMap
    counts: np.ndarray
    X: sparse.csr_matrix
    groups: np.ndarray
    encoder: FeatureEncoder | None
    others: IdMap | None
    others_X: sparse.csr_matrix | None

    def _features(self, ids: IdMap) -> sparse.csr_matrix:
        """Give the features of the rated and of the others, in the order of all ids."""
        X = self.X[:, :-1]
        if self.others is None or self.others_X is None:
            return X
        order = np.concatenate([ids.rows(self.rated.ids), ids.rows(self.others.ids)])
        return sparse.vstack([X, self.others_X], format="csr")[np.argsort(order)]

    def tower(
        self, vectors: np.ndarray, weights: np.ndarray, networks: Sequence[Network] = ()
    ) -> Tower:
        """Make the tower from the vectors of the rated and the encoder of new entities."""
        ids, counts = self.rated, self.counts
        if self.others is not None and self.others_X is not None:
            ids = self.rated.union(self.others)
            joined = np.empty((len(ids), vectors.shape[1]), np.float32)
            rated_rows = ids.rows(self.rated.ids)
            joined[rated_rows] = vectors
            joined[ids.rows(self.others.ids)] = encode_rows(self.others_X, weights, networks)
            vectors, counts = joined, np.zeros(len(ids), np.int64)
            counts[rated_rows] = self.counts
        # An average entity, as ratings meet it: everyone counts by the number of their ratings.
        share = self.counts / self.counts.sum()
        prior = (share @ encode_rows(self.X[:, :-1], weights, networks)).astype(np.float32)
        vectors = vectors.astype(np.float32, copy=False)
        return Tower(
            self.name,
            ids,
            counts,
            vectors,
            weights,
            prior,
            self.encoder,
            self._features(ids),
            list(networks),
        )


@dataclass(eq=False)
class Prepared:
    """All that a fit starts from."""

    ratings: Ratings
    bounds: tuple[float, float]
    items: PreparedSide
    users: PreparedSide
    schema: dict[str, Any]


def prepare(
    model: TwoTower,
    ratings: Ratings | TableLike,
    items: TableLike | None,
    users: TableLike | None,
) -> Prepared:
    """Read and check the tables of a fit, and encode the features of its entities."""
    taken = read_ratings(ratings, model.objective, model.bounds)
    if not len(taken):
        raise InputError("ratings: there is no rating to learn from.")
    low, high = model.bounds or (float(taken.values.min()), float(taken.values.max()))
    sides = []
    for name, ids, rows, table, columns in (
        ("item", taken.items, taken.item_rows, items, model.item_columns),
        ("user", taken.users, taken.user_rows, users, model.user_columns),
    ):
        counts = np.bincount(rows, minlength=len(ids))
        sides.append(_side(name, ids, counts, table, columns, model.min_count, model.knots))
    schema = {
        f"{side.name}s": {} if side.encoder is None else dict(side.encoder.columns_)
        for side in sides
    }
    return Prepared(taken, (low, high), sides[0], sides[1], schema)


def read_ratings(
    source: Ratings | TableLike, objective: str, bounds: tuple[float, float] | None
) -> Ratings:
    """Take ratings; for ranking, a table without a column of ratings is one of interactions."""
    if objective == "ranking" and not isinstance(source, Ratings):
        table = read_table(source, name="ratings")
        if "rating" not in table.column_names:
            return Ratings.from_table(table, rating=None, name="ratings")
    return Ratings.from_table(source, bounds=bounds, name="ratings")


def _side(
    name: str,
    rated: IdMap,
    counts: np.ndarray,
    source: TableLike | None,
    columns: Mapping[str, str] | None,
    min_count: int,
    knots: int,
) -> PreparedSide:
    if source is None:
        if columns:
            raise InputError(f"{name}_columns were given, but no table of {name}s.")
        constant = sparse.csr_matrix(np.ones((len(rated), 1), np.float32))
        return PreparedSide(name, rated, counts, constant, np.zeros(1, np.int64), None, None, None)
    label = describe(source, f"{name}s")
    table = read_table(source, name=f"{name}s")
    ids = id_values(table, f"{name}_id", label)
    known, place = once(ids, name, label)
    found = known.rows(rated.ids, f"{name}_id")
    has_row = found >= 0
    if not has_row.any():
        raise InputError(
            f"{label}: no {name}_id of the ratings is in this table (the ratings have "
            f"{rated.ids[0].as_py()!r}, the table {ids[0].as_py()!r}). Are these the right tables?"
        )
    if not has_row.all():
        logger.warning(
            "%s: %d of %d rated %ss have no row of features; they are taken as average",
            label,
            int((~has_row).sum()),
            len(rated),
            name,
        )
    rows = table.take(pa.array(place[found[has_row]]))
    where = f"{name}s {source}" if isinstance(source, str | os.PathLike) else f"{name}s"
    encoder = FeatureEncoder(columns, min_count=min_count, knots=knots, id_column=f"{name}_id")
    encoder.fit(rows, name=where)
    features = encoder.transform(rows)
    if not has_row.all():
        features = _spread(features, has_row)
    constant = sparse.csr_matrix(np.ones((len(rated), 1), np.float32))
    X = sparse.hstack([features, constant], format="csr", dtype=np.float32)
    groups = np.append(encoder.groups_, encoder.groups_.max(initial=-1) + 1)
    others = np.flatnonzero(~rated.contains(known.ids))
    return PreparedSide(
        name,
        rated,
        counts,
        X,
        groups,
        encoder,
        IdMap(known.take(others)) if len(others) else None,
        encoder.transform(table.take(pa.array(place[others]))) if len(others) else None,
    )


def _spread(features: sparse.csr_matrix, has_row: np.ndarray) -> sparse.csr_matrix:
    """Put feature rows where they belong, and empty rows where there are none."""
    lengths = np.zeros(len(has_row), np.int64)
    lengths[has_row] = np.diff(features.indptr)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    return sparse.csr_matrix(
        (features.data, features.indices, indptr), shape=(len(has_row), features.shape[1])
    )
