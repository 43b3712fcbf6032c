"""Tables of features to sparse matrices."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from scipy import sparse

from simrec.data.blocks import assemble
from simrec.data.columns import CategoryColumn, Column, ListColumn, VectorColumn
from simrec.data.curves import CurveColumn, number_from_dict
from simrec.data.kinds import KINDS, allowed, default_kind, family
from simrec.data.numbers import Context
from simrec.data.problems import listing, nearest
from simrec.data.tables import TableLike, describe, read_table
from simrec.data.text import TextColumn
from simrec.errors import InputError

logger = logging.getLogger(__name__)

_FORMAT = 1
_RESTORE: dict[str, Callable[[dict[str, Any]], Column]] = {
    "number": number_from_dict,
    "category": CategoryColumn.from_dict,
    "list": ListColumn.from_dict,
    "vector": VectorColumn.from_dict,
    "text": TextColumn.from_dict,
}


class FeatureEncoder:
    """Encodes the columns of a table as sparse float32 features with readable names.

    The Arrow type of a column decides how, unless `columns` says otherwise:

    - numbers, dates and times are standardised (dates and times as days), with an indicator
      `year=missing` where they are null;
    - strings, booleans and dictionaries get one feature per value that occurs at least
      `min_count` times, such as `gender=F`, and `gender=<unknown>` for all other values, also
      those that come up only later. Null is one of the values, `gender=<missing>`;
    - free text (strings that mostly differ from row to row and mostly have spaces) is ignored;
      as "text" it is hashed by words and pairs of words to `n_hash` features;
    - lists of strings or integers get one feature per element, 1 where the list has it. A null
      list is an empty one;
    - fixed-size lists of numbers, and lists of floats of one length, are vectors taken as they
      are: `poster[0]`, `poster[1]`, ... Null vectors are zeros, with an indicator if there were
      any when fitting.

    Null is how a value is missing. In a pandas frame NaN is missing, too; in an Arrow table or a
    Parquet file (pandas writes its NaN as null there) NaN is an error, as infinity is everywhere.

    Parameters
    ----------
    columns : mapping of str to str, optional
        How to encode columns about which the type says too little: "number", "category", "list",
        "vector", "text" or "ignore", as in `{"age": "category"}`.
    ignore : sequence of str
        Columns to leave out.
    min_count : int
        How often a value has to occur to get a feature of its own.
    n_hash : int
        Number of features for each column of text.
    id_column : str, optional
        The column of ids, which is no feature.
    knots : int
        Points at quantiles of a number whose nearness are features too (`year~1985`), so that a
        linear model can learn a piecewise linear curve; fewer than 3 for none.

    Attributes
    ----------
    columns_ : dict of str to str
        The encoded columns and how, in the order of the table's columns.
    ignored_ : dict of str to str
        The columns that are not encoded, and why.
    feature_names_ : list of str
        Name of each feature.
    groups_ : numpy.ndarray
        For each feature the place of its column in `columns_`.
    n_features_ : int
        Number of features.

    Examples
    --------
    >>> import pyarrow as pa
    >>> films = pa.table({"year": [1990, None, 2000], "genres": [["War"], ["War", "Drama"], []]})
    >>> encoder = FeatureEncoder().fit(films)
    >>> encoder.feature_names_
    ['year', 'year=missing', 'genres=War', 'genres=<unknown>']
    >>> encoder.transform(films).toarray()
    array([[-1.,  0.,  1.,  0.],
           [ 0.,  1.,  1.,  1.],
           [ 1.,  0.,  0.,  0.]], dtype=float32)
    """

    def __init__(
        self,
        columns: Mapping[str, str] | None = None,
        ignore: Sequence[str] = (),
        min_count: int = 2,
        n_hash: int = 4096,
        id_column: str | None = None,
        knots: int = 0,
    ) -> None:
        self.columns = columns
        self.ignore = ignore
        self.min_count = min_count
        self.n_hash = n_hash
        self.id_column = id_column
        self.knots = knots

    def fit(self, table: TableLike, name: str = "features") -> "FeatureEncoder":
        """Learn means, values and words from a table; forgets what was learned before.

        Parameters
        ----------
        table : pandas.DataFrame, pyarrow.Table, str or path
            The table, one row per item or user.
        name : str
            The table's part in the call, for error messages.

        Returns
        -------
        FeatureEncoder
            Itself.
        """
        return self._fit(read_table(table, name=name), describe(table, name))

    def transform(self, table: TableLike, name: str = "features") -> sparse.csr_matrix:
        """Encode a table by what was learned.

        Parameters
        ----------
        table : pandas.DataFrame, pyarrow.Table, str or path
            A table with the columns that were encoded when fitting, of the same sorts of types.
            Further columns do not matter.
        name : str
            The table's part in the call, for error messages.

        Returns
        -------
        scipy.sparse.csr_matrix
            One row per row of the table, float32.

        Raises
        ------
        InputError
            If a column is missing or of another type, or has NaN or infinity.
        """
        if not hasattr(self, "columns_"):
            raise InputError("FeatureEncoder: transform was called before fit.")
        # With nothing to encode, the number of rows still has to come from somewhere.
        wanted = list(self.columns_) or None
        data = read_table(table, wanted, name=name, allow_empty=True)
        return self._transform(data, describe(table, name))

    def fit_transform(self, table: TableLike, name: str = "features") -> sparse.csr_matrix:
        """Fit to a table and encode it."""
        data, label = read_table(table, name=name), describe(table, name)
        return self._fit(data, label)._transform(data, label)

    def to_dict(self) -> dict[str, Any]:
        """Give all that the encoder is and has learned, ready for JSON."""
        if not hasattr(self, "columns_"):
            raise InputError("FeatureEncoder: to_dict was called before fit.")
        return {
            "format": _FORMAT,
            "parameters": {
                "columns": None if self.columns is None else dict(self.columns),
                "ignore": list(self.ignore),
                "min_count": self.min_count,
                "n_hash": self.n_hash,
                "id_column": self.id_column,
                "knots": self.knots,
            },
            "columns": [
                {
                    "name": column,
                    "kind": kind,
                    "family": self._families[column],
                    **self._fitted[column].to_dict(),
                }
                for column, kind in self.columns_.items()
            ],
            "ignored": dict(self.ignored_),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "FeatureEncoder":
        """Restore an encoder from `to_dict`; it encodes exactly as the one that was saved."""
        if data.get("format") != _FORMAT:
            raise InputError(
                f"FeatureEncoder: format {data.get('format')!r} is not known, only {_FORMAT}. "
                "It was saved by another version of SimRec."
            )
        encoder = cls(**data["parameters"])
        columns = data["columns"]
        encoder._learn(
            {c["name"]: c["kind"] for c in columns},
            {c["name"]: c["family"] for c in columns},
            {c["name"]: _RESTORE[c["kind"]](c) for c in columns},
            dict(data["ignored"]),
        )
        return encoder

    def _fit(self, data: pa.Table, label: str) -> "FeatureEncoder":
        self._check_parameters()
        chosen, ignored = self._choose(data, label)
        fitted = {}
        for column, kind in chosen.items():
            context = Context(label, column, data)
            fitted[column] = self._fit_column(kind, data.column(column), context)
        families = {column: family(data.column(column).type) for column in chosen}
        self._learn(chosen, families, fitted, ignored)
        for column, reason in ignored.items():
            if column != self.id_column and column not in self.ignore:
                logger.info("%s: column %r is ignored: %s", label, column, reason)
        if not chosen:
            logger.warning("%s: no column is left to encode", label)
        return self

    def _transform(self, data: pa.Table, label: str) -> sparse.csr_matrix:
        blocks = []
        for column, encoder in self._fitted.items():
            values = data.column(column)
            held = family(values.type)
            if held not in (self._families[column], "nothing"):
                raise InputError(
                    f"{label}: column {column!r} holds {values.type} values ({held}), but was "
                    f"{self._families[column]} when the encoder was fitted. Convert the column."
                )
            if held == "nothing" and not pa.types.is_null(values.type):
                values = pa.chunked_array([pa.nulls(len(values))])
            blocks.append(encoder.encode(values, Context(label, column, data)))
        widths = [encoder.width for encoder in self._fitted.values()]
        return assemble(blocks, widths, data.num_rows)

    def _check_parameters(self) -> None:
        for name in ("min_count", "n_hash"):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or value < 1:
                raise InputError(f"{name} must be a positive integer, got {value!r}.")
        for column, kind in (self.columns or {}).items():
            if kind not in KINDS:
                raise InputError(
                    f"columns: {kind!r} (for {column!r}) is not a way to encode a column."
                    f"{nearest(str(kind), KINDS)} Choose from {', '.join(KINDS)}."
                )
        if isinstance(self.ignore, str):
            raise InputError(f"ignore must be a list of columns, got {self.ignore!r}.")

    def _choose(self, data: pa.Table, label: str) -> tuple[dict[str, str], dict[str, str]]:
        present = data.column_names
        for column in [*(self.columns or {}), *self.ignore]:
            if column not in present:
                raise InputError(
                    f"{label}: no column {column!r}, which is named in the feature settings."
                    f"{nearest(column, present)} The columns are: {listing(present)}."
                )
        chosen, ignored = {}, {}
        for column in present:
            kind = (self.columns or {}).get(column)
            if column == self.id_column:
                kind, reason = "ignore", "the id"
            elif column in self.ignore or kind == "ignore":
                kind, reason = "ignore", "as asked"
            elif kind is None:
                kind, reason = default_kind(data.column(column))
            elif kind not in allowed(data.column(column).type):
                possible = allowed(data.column(column).type) or ("ignore",)
                raise InputError(
                    f"{label}: column {column!r} holds {data.column(column).type} values and "
                    f"cannot be encoded as {kind!r}. Possible: {', '.join(possible)}."
                )
            if kind == "ignore":
                ignored[column] = reason
            else:
                chosen[column] = kind
        return chosen, ignored

    def _fit_column(self, kind: str, values: pa.ChunkedArray, context: Context) -> Column:
        if kind == "number":
            return CurveColumn.fit(values, context, self.knots)
        if kind == "category":
            return CategoryColumn.fit(values, context, self.min_count)
        if kind == "list":
            return ListColumn.fit(values, context, self.min_count)
        if kind == "vector":
            return VectorColumn.fit(values, context)
        return TextColumn.fit(values, context, self.n_hash)

    def _learn(
        self,
        columns: dict[str, str],
        families: dict[str, str],
        fitted: dict[str, Column],
        ignored: dict[str, str],
    ) -> None:
        self.columns_ = columns
        self.ignored_ = ignored
        self._families = families
        self._fitted = fitted
        self.feature_names_ = [n for c, encoder in fitted.items() for n in encoder.names(c)]
        widths = [encoder.width for encoder in fitted.values()]
        self.groups_ = np.repeat(np.arange(len(fitted)), widths)
        self.n_features_ = len(self.feature_names_)
