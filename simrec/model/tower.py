"""One side of a fitted model: its ids, their numbers of ratings and their features."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from scipy import sparse

from simrec.data.features import FeatureEncoder
from simrec.data.id_columns import check_ids
from simrec.data.ids import IdMap, encode_ids
from simrec.data.messages import describe
from simrec.data.sides import ID_COLUMNS, SINGULAR, Side
from simrec.data.tables import TableLike, read_table
from simrec.errors import InputError, listing
from simrec.model.head import Found
from simrec.storage.arrays import Array, Sparse

logger = logging.getLogger(__name__)

Unknown = Literal["error", "prior"]


@dataclass(eq=False)
class Tower:
    """Ids, rating counts and features of one side; its vectors are in the heads of the parts."""

    side: Side
    ids: IdMap  # all entities the model knows, rated or known by their features alone
    counts: Array  # ratings of each in training; 0 for an entity known by its features alone
    # From a table to feature rows; None if the model was fitted without features of this side.
    encoder: FeatureEncoder | None
    features: Sparse  # encoded features of all entities; empty rows where there are none
    own_column: str = ""  # what the column of ids is called in tables, if not as usual
    # Columns of features that tables lack, and that a warning has named.
    warned: set[str] = field(default_factory=set, repr=False)
    # Columns of the table of features as given, row by row of the ids: for titles and filters.
    table: pa.Table | None = field(default=None, repr=False)

    @property
    def singular(self) -> str:
        """What one entity is called: "item" or "user"."""
        return SINGULAR[self.side]

    @property
    def id_column(self) -> str:
        """Name of the column of ids."""
        return ID_COLUMNS[self.side]

    @property
    def table_column(self) -> str:
        """Name of the column of ids in the tables of the person who trained the model."""
        return self.own_column or self.id_column

    def find(
        self, values: Any, features: TableLike | None = None, unknown: Unknown = "error"
    ) -> Found:
        """Resolve ids to vectors, features or the prior.

        An entity with ratings keeps the vector that it was given by them. Any other is answered
        for by its row in `features`; failing that by what the model knows of it; failing that, on
        request, as an average entity.
        """
        if unknown not in ("error", "prior"):
            raise InputError(f"unknown must be 'error' or 'prior', got {unknown!r}.")
        rows = self.ids.rows(values, self.id_column)
        n_known, fresh = len(self.ids), None
        if features is not None:
            table, ids = self.read(features)
            listed, place = unique_ids(ids, self.side, describe(features, self.side))
            if self.encoder is not None and len(table.column_names) > 1:
                described = self.described(rows, table)
                at = np.full(len(rows), -1, np.int64)
                at[described] = listed.rows(_take(values, described), self.id_column)
                used, position = np.unique(place[at[at >= 0]], return_inverse=True)
                if len(used):
                    some = table.take(pa.array(used))
                    fresh = self.encoded(some, describe(features, self.side))
                    rows = rows.copy()
                    rows[at >= 0] = n_known + position
        average = rows < 0
        if average.any():
            if unknown == "error":
                first = _take(values, average)[0]
                first = first.as_py() if isinstance(first, pa.Scalar) else first
                count, who = int(average.sum()), f"{self.singular} {first!r} has"
                if count > 1:
                    who = f"{count:,} {self.side}, for example {first!r}, have"
                table = f"a table with their features as {self.side}=, or " if self.encoder else ""
                raise InputError(
                    f"{who} neither ratings nor features in this model. Pass {table}"
                    f"unknown='prior' for the answer for an average {self.singular}."
                )
            rows = np.where(average, n_known + (0 if fresh is None else fresh.shape[0]), rows)
        return Found(rows, n_known, fresh, average)

    def described(self, rows: np.ndarray, table: pa.Table) -> np.ndarray:
        """Tell which of some rows, -1 for nobody, a table of features describes.

        Who has ratings keeps the vector that they gave; and what the model knows of an entity
        counts more than a table that lacks some of its columns, such as one of names.
        """
        columns = () if self.encoder is None else self.encoder.columns_
        return self.unrated(rows) if set(columns) <= set(table.column_names) else rows < 0

    def everyone(self) -> Found:
        """Return all entities the tower knows."""
        return self.known(np.arange(len(self.ids)))

    def known(self, rows: np.ndarray) -> Found:
        """Return some of the entities the tower knows, by their rows."""
        return Found(rows, len(self.ids), None, np.zeros(len(rows), bool))

    def unrated(self, rows: np.ndarray) -> np.ndarray:
        """Tell which of some rows, -1 for nobody, have no ratings."""
        unrated = rows < 0
        unrated[~unrated] = self.counts[rows[~unrated]] == 0
        return unrated

    def read(self, source: TableLike) -> tuple[pa.Table, pa.ChunkedArray]:
        """Read a table of this side; return it and its ids."""
        rename = {self.own_column: self.id_column} if self.own_column else {}
        table = read_table(source, name=self.side, rename=rename, allow_empty=True)
        label = describe(source, self.side)
        ids = id_values(table, self.id_column, label)
        return table, ids

    def encoded(self, table: pa.Table, label: str) -> sparse.csr_matrix:
        """Encode features; columns that a table lacks, if it has others, are missing values."""
        if self.encoder is None:
            raise InputError(f"{label}: the model was fitted without features of {self.side}.")
        trained = list(self.encoder.columns_)
        lacking = [name for name in trained if name not in table.column_names]
        if len(lacking) == len(trained):
            lacking = []  # the encoder says what is missing
        if not set(lacking) <= self.warned:  # of the many batches of a job, the first
            logger.warning(
                "%s: no column %s, which the model has learned from: all values count as missing",
                label,
                listing([repr(name) for name in lacking]),
            )
            self.warned.update(lacking)
        for name in lacking:
            table = table.append_column(name, pa.nulls(len(table)))
        return self.encoder.transform(table, self.side)


def unique_ids(ids: pa.ChunkedArray, side: Side, label: str) -> tuple[IdMap, np.ndarray]:
    """Return ids that occur once each as a map, and the position of each of its rows in `ids`."""
    known, rows = encode_ids(ids, ID_COLUMNS[side])
    if len(known) < len(ids):
        example = known.ids[int(np.argmax(np.bincount(rows)))].as_py()
        raise InputError(
            f"{label}: {len(ids) - len(known):,} rows repeat the {ID_COLUMNS[side]} of another, "
            f"such as {example!r}. Keep one row for each {SINGULAR[side]}."
        )
    place = np.empty(len(ids), np.int64)
    place[rows] = np.arange(len(ids))
    return known, place


def id_values(table: pa.Table, column: str, label: str) -> pa.ChunkedArray:
    """Return the checked ids of a table."""
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
