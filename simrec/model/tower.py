"""One fitted tower: ids, vectors of what it knows, and the encoder for what it does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from scipy import sparse

from simrec.data.features import FeatureEncoder
from simrec.data.ids import IdMap, check_ids
from simrec.data.tables import TableLike, describe, read_table
from simrec.errors import InputError
from simrec.model.fit.networks import Network

Unknown = Literal["error", "prior"]


class Found(NamedTuple):
    """Vectors, the row in them of each id that was looked up, and who is taken as average."""

    vectors: np.ndarray
    rows: np.ndarray
    average: np.ndarray


@dataclass(eq=False)
class Tower:
    """Items or users of a fitted model.

    Attributes
    ----------
    name : str
        ``"item"`` or ``"user"``.
    ids : IdMap
        All entities the model knows, rated or known by their features alone.
    counts : numpy.ndarray
        Ratings of each in training; 0 for an entity known by its features alone.
    vectors : numpy.ndarray
        Their vectors, float32.
    weights : numpy.ndarray
        The linear encoder: a new entity with features x has the vector [x, 1] @ weights.
    prior : numpy.ndarray
        The vector of an average entity.
    encoder : FeatureEncoder or None
        From a table to x; None if the model was fitted without features of this side.
    features : csr_matrix
        Encoded features of all entities; empty rows where there are none.
    networks : list of Network
        Encoders with hidden layers, whose parts are added to those of the linear one.
    """

    name: str
    ids: IdMap
    counts: np.ndarray
    vectors: np.ndarray
    weights: np.ndarray
    prior: np.ndarray
    encoder: FeatureEncoder | None
    features: sparse.csr_matrix
    networks: list[Network] = field(default_factory=list)

    @property
    def id_column(self) -> str:
        """The name of the column of ids."""
        return f"{self.name}_id"

    def own_rows(self, ids: Any, features: bool) -> np.ndarray:
        """Return the row of each id that keeps its own vector, -1 where features decide.

        Rated entities keep their vector. One without ratings takes what a table of features says of
        it now, if there is one; without, it keeps the vector it has.

        Parameters
        ----------
        ids : ids
            The ids, in any form that `IdMap` takes.
        features : bool
            Whether there is a table with features of these ids.
        """
        rows = self.ids.rows(ids, self.id_column)
        if features and self.encoder is not None and len(self.ids):
            rows = np.where(self.counts[rows] > 0, rows, -1)
        return rows

    def embed(
        self, source: TableLike, unknown: Unknown = "error"
    ) -> tuple[pa.ChunkedArray, np.ndarray]:
        """Return ids and vectors of a table's rows: rated entities as known, others by features."""
        table = read_table(source, name=f"{self.name}s", allow_empty=True)
        ids = id_values(table, self.id_column, describe(source, f"{self.name}s"))
        features = self.encoder is not None and len(table.column_names) > 1
        rows = self.own_rows(ids, features)
        other = rows < 0
        vectors = np.empty((len(ids), self.vectors.shape[1]), np.float32)
        vectors[~other] = self.vectors[rows[~other]]
        if other.any():
            if features:
                vectors[other] = self.encode(table.filter(pa.array(other)))
            elif unknown == "prior":
                vectors[other] = self.prior
            else:
                first = ids[int(np.argmax(other))].as_py()
                raise InputError(self._no_features(int(other.sum()), first))
        return ids, vectors

    def vector_table(self, source: TableLike) -> pa.Table:
        """Give ids and vectors of a table's rows as a table."""
        ids, vectors = self.embed(source)
        flat = pa.array(np.ascontiguousarray(vectors).reshape(-1))
        lists = pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
        return pa.table({self.id_column: ids, "vector": lists})

    def encode(self, table: pa.Table) -> np.ndarray:
        """Give the vectors of new entities from their features."""
        assert self.encoder is not None
        return self.encode_features(self.encoder.transform(table))

    def encode_features(self, X: sparse.csr_matrix) -> np.ndarray:
        """Give the vectors of new entities whose features are encoded already."""
        return encode_rows(X, self.weights, self.networks)

    def find(
        self, values: Any, extra: TableLike | None = None, unknown: Unknown = "error"
    ) -> Found:
        """Look ids up: give vectors, and the row in them of each id.

        Parameters
        ----------
        values : ids
            The ids, in any form that `IdMap` takes.
        extra : table-like, optional
            Features of ids the model may not know.
        unknown : {"error", "prior"}
            What to do with an id that has neither ratings nor features.
        """
        if unknown not in ("error", "prior"):
            raise InputError(f"unknown must be 'error' or 'prior', got {unknown!r}.")
        rows = self.ids.rows(values, self.id_column)
        vectors = self.vectors
        if extra is not None:
            ids, extra_vectors = self.embed(extra)
            extra_ids, place = once(ids, self.name, describe(extra, f"{self.name}s"))
            fresh = self.own_rows(values, True) < 0
            found = np.full(len(rows), -1, np.int64)
            found[fresh] = extra_ids.rows(_take(values, fresh), self.id_column)
            rows = np.where(found >= 0, len(vectors) + place[found], rows)
            vectors = np.concatenate([vectors, extra_vectors])
        missing = rows < 0
        if missing.any():
            if unknown == "error":
                first = _take(values, missing)[0]
                first = first.as_py() if isinstance(first, pa.Scalar) else first
                raise InputError(self._no_features(int(missing.sum()), first))
            rows = np.where(missing, len(vectors), rows)
            vectors = np.concatenate([vectors, self.prior[None]])
        return Found(vectors, rows, missing)

    def _no_features(self, count: int, example: Any) -> str:
        what = f"{self.id_column}: {count:,} ids have neither ratings nor features in this model"
        remedy = (
            f"pass a table with their features as {self.name}s="
            if self.encoder is not None
            else f"the model was fitted without features of {self.name}s"
        )
        return (
            f"{what}, for example {example!r}; {remedy}, "
            f"or unknown='prior' for the answer for an average {self.name}."
        )


def encode_rows(
    X: sparse.csr_matrix, weights: np.ndarray, networks: Sequence[Network] = ()
) -> np.ndarray:
    """Apply a linear encoder whose last row of weights is the constant, and networks beside it."""
    vectors = X @ weights[:-1] + weights[-1]
    for network in networks:
        vectors += network.encode(X)
    return vectors.astype(np.float32, copy=False)


def once(ids: pa.ChunkedArray, name: str, label: str) -> tuple[IdMap, np.ndarray]:
    """Give ids that occur once each as a map, and where each of them stands."""
    known = IdMap.from_values(ids, f"{name}_id")
    if len(known) < len(ids):
        raise InputError(
            f"{label}: {len(ids) - len(known):,} of {len(ids):,} rows repeat a {name}_id. "
            f"Keep one row for each {name}."
        )
    place = np.empty(len(ids), np.int64)
    place[known.rows(ids)] = np.arange(len(ids))
    return known, place


def id_values(table: pa.Table, column: str, label: str) -> pa.ChunkedArray:
    """Give the checked ids of a table."""
    if column not in table.column_names:
        raise InputError(
            f"{label}: no column {column!r}, it has {', '.join(table.column_names)}. "
            "Rename the column of ids."
        )
    return check_ids(table.column(column), column, label, table=table)


def _take(values: Any, mask: np.ndarray) -> Any:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values.filter(pa.array(mask))
    if isinstance(values, Sequence):
        return [value for value, keep in zip(values, mask, strict=True) if keep]
    return np.asarray(values)[mask]
