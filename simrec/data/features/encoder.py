"""The encoder of a table: chooses a kind for each column, fits it and joins the features."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy import sparse

from simrec.data.features.category import CategoryColumn
from simrec.data.features.column import MOST_FEATURES, Column, ColumnSettings, Context, family
from simrec.data.features.lists import ListColumn
from simrec.data.features.matrix import assemble
from simrec.data.features.number import NumberColumn
from simrec.data.features.text import TextColumn
from simrec.data.features.vector import VectorColumn
from simrec.data.tables import TableLike, describe, read_table
from simrec.errors import InputError, listing, nearest

logger = logging.getLogger(__name__)

# In the order in which they are asked whether they take a column by default.
_COLUMNS: tuple[type[Column], ...] = (
    NumberColumn,
    CategoryColumn,
    VectorColumn,
    ListColumn,
    TextColumn,
)
KINDS: dict[str, type[Column]] = {column.kind: column for column in _COLUMNS}
"""The kinds of columns by name. A column of kind "ignore" is not encoded."""

_NAMES = (*KINDS, "ignore")
_FORMAT = 1
# A column of whole numbers is taken for an id if this share of enough rows has a value of its own.
_OWN_VALUE, _ENOUGH = 0.95, 20


class FeatureEncoder:
    """Encode the columns of a table as sparse float32 features with readable names.

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
    encoders_ : dict of str to Column
        The fitted encoder of each column.
    warnings_ : list of str
        What was suspicious when fitting, one sentence for each column. Not saved.

    Examples
    --------
    Those of the methods go on from this one.

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

        Examples
        --------
        >>> FeatureEncoder().fit(films).columns_
        {'year': 'number', 'genres': 'list'}
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

        Examples
        --------
        >>> encoder.transform(films).shape == (films.num_rows, encoder.n_features_)
        True
        """
        if not hasattr(self, "columns_"):
            raise InputError("FeatureEncoder: transform was called before fit.")
        # With nothing to encode, the number of rows still has to come from somewhere.
        wanted = list(self.columns_) or None
        data = read_table(table, wanted, name=name, allow_empty=True)
        return self._transform(data, describe(table, name))

    def fit_transform(self, table: TableLike, name: str = "features") -> sparse.csr_matrix:
        """Fit to a table and encode it.

        Examples
        --------
        >>> FeatureEncoder(min_count=1).fit_transform(films).shape[0] == films.num_rows
        True
        """
        data, label = read_table(table, name=name), describe(table, name)
        return self._fit(data, label)._transform(data, label)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings and all that was learned, ready for JSON.

        Examples
        --------
        >>> sorted(encoder.to_dict())
        ['columns', 'format', 'ignored', 'parameters']
        """
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
                    "kind": encoder.kind,
                    "family": encoder.family,
                    **encoder.to_dict(),
                }
                for column, encoder in self.encoders_.items()
            ],
            "ignored": dict(self.ignored_),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "FeatureEncoder":
        """Restore an encoder from `to_dict`; it encodes exactly as the one that was saved.

        Examples
        --------
        >>> again = FeatureEncoder.from_dict(encoder.to_dict())
        >>> (again.transform(films) != encoder.transform(films)).nnz
        0
        """
        if data.get("format") != _FORMAT:
            raise InputError(
                f"FeatureEncoder: format {data.get('format')!r} is not known, only {_FORMAT}. "
                "It was saved by another version of SimRec."
            )
        encoder = cls(**data["parameters"])
        encoder._check_parameters()
        columns = {str(c["name"]): KINDS[c["kind"]].from_dict(c) for c in data["columns"]}
        n_features = sum(column.width for column in columns.values())
        if n_features > MOST_FEATURES:
            raise InputError(f"FeatureEncoder: {n_features:,} features are too many to be true.")
        encoder._learn(columns, dict(data["ignored"]), [])
        return encoder

    def words(self, row: sparse.csr_matrix) -> dict[str, str]:
        """Return in words what each column of an encoded row holds, for explanations.

        Parameters
        ----------
        row : csr_matrix
            One row of the result of `transform`.

        Examples
        --------
        >>> import pyarrow as pa
        >>> films = pa.table({"year": [1990, None], "genres": [["War"], ["War"]]})
        >>> encoder = FeatureEncoder().fit(films)
        >>> encoder.words(encoder.transform(films)[1])
        {'year': 'missing', 'genres': 'War'}
        """
        groups, start, said = self.groups_[row.indices], 0, {}
        for place, (name, column) in enumerate(self.encoders_.items()):
            own = groups == place
            features = (row.indices[own] - start).tolist()
            said[name] = column.words(features, row.data[own].tolist())
            start += column.width
        return said

    def _fit(self, data: pa.Table, label: str) -> "FeatureEncoder":
        self._check_parameters()
        chosen, ignored = self._choose(data, label)
        settings = ColumnSettings(self.min_count, self.n_hash, self.knots)
        encoders, warnings = {}, []
        for column, kind in chosen.items():
            values = data.column(column)
            encoders[column] = KINDS[kind].fit(values, Context(label, column, data), settings)
            if kind == "number" and _is_identifier(values):
                warnings.append(
                    f"{label}: column {column!r} has another whole number in nearly every row. "
                    "If it is an id or a row number, it can leak what it was sorted by: "
                    f"ignore it ({column}=ignore)."
                )
        self._learn(encoders, ignored, warnings)
        for column, reason in ignored.items():
            if column != self.id_column and column not in self.ignore:
                logger.info("%s: column %r is ignored: %s", label, column, reason)
        for warning in warnings:
            logger.warning("%s", warning)
        if not chosen:
            logger.warning("%s: no column is left to encode", label)
        return self

    def _transform(self, data: pa.Table, label: str) -> sparse.csr_matrix:
        blocks = []
        for column, encoder in self.encoders_.items():
            values = data.column(column)
            held = family(values.type)
            if held not in (encoder.family, "nothing"):
                raise InputError(
                    f"{label}: column {column!r} holds {values.type} values ({held}), but was "
                    f"{encoder.family} when the encoder was fitted. Convert the column."
                )
            if held == "nothing" and not pa.types.is_null(values.type):
                values = pa.chunked_array([pa.nulls(len(values))])
            blocks.append(encoder.encode(values, Context(label, column, data)))
        widths = [encoder.width for encoder in self.encoders_.values()]
        return assemble(blocks, widths, data.num_rows)

    def _check_parameters(self) -> None:
        for name in ("min_count", "n_hash"):
            value = getattr(self, name)
            whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
            if not whole or not 1 <= value <= MOST_FEATURES:
                raise InputError(
                    f"{name} must be a whole number from 1 to {MOST_FEATURES:,}, got {value!r}."
                )
        for column, kind in (self.columns or {}).items():
            if kind not in _NAMES:
                raise InputError(
                    f"columns: {kind!r} (for {column!r}) is not a way to encode a column."
                    f"{nearest(str(kind), _NAMES)} Choose from {', '.join(_NAMES)}."
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
                kind, reason = _default_kind(data.column(column))
            elif kind not in _possible(data.column(column).type):
                possible = _possible(data.column(column).type) or ["ignore"]
                raise InputError(
                    f"{label}: column {column!r} holds {data.column(column).type} values and "
                    f"cannot be encoded as {kind!r}. Possible: {', '.join(possible)}."
                )
            if kind == "ignore":
                ignored[column] = reason
            else:
                chosen[column] = kind
        return chosen, ignored

    def _learn(
        self, encoders: dict[str, Column], ignored: dict[str, str], warnings: list[str]
    ) -> None:
        self.encoders_ = encoders
        self.columns_ = {name: column.kind for name, column in encoders.items()}
        self.ignored_ = ignored
        self.warnings_ = warnings
        self.feature_names_ = [n for c, encoder in encoders.items() for n in encoder.names(c)]
        widths = [encoder.width for encoder in encoders.values()]
        self.groups_ = np.repeat(np.arange(len(encoders)), widths)
        self.n_features_ = len(self.feature_names_)


def _possible(type_: pa.DataType) -> list[str]:
    """List the kinds that a column of this type can be encoded as."""
    held = family(type_)
    return [name for name, kind in KINDS.items() if held in kind.families]


def _default_kind(values: pa.ChunkedArray) -> tuple[str, str]:
    """Choose the kind of a column about which nothing was said, or "ignore" and the reason."""
    if values.null_count == len(values) or family(values.type) == "nothing":
        return "ignore", "no row has a value"
    for name, kind in KINDS.items():
        claim = kind.claim(values)
        if claim is True:
            return name, ""
        if claim:
            return "ignore", str(claim)
    return "ignore", f"columns of type {values.type} are not supported"


def _is_identifier(values: pa.ChunkedArray) -> bool:
    """Check for whole numbers, also as floats of pandas, that differ in nearly every row."""
    known = values.drop_null()
    if len(known) < _ENOUGH or family(values.type) != "number":
        return False
    if pa.types.is_floating(values.type):
        start = known.slice(0, 1000).cast(pa.float64())
        if not pc.all(pc.equal(start, pc.floor(start))).as_py():
            return False  # measurements differ from one another without naming anyone
    elif not pa.types.is_integer(values.type):
        return False
    return len(pc.unique(known)) > _OWN_VALUE * len(known)
