"""The encoder of a table: chooses a kind for each column, fits it and joins the features."""

import logging
from collections.abc import Mapping
from copy import copy
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy import sparse

from simrec.data.features.category import CategoryColumn, ListColumn
from simrec.data.features.column import (
    MOST_FEATURES,
    Column,
    ColumnSettings,
    Context,
    elements_of,
    family,
)
from simrec.data.features.content import ImageColumn, SentenceColumn
from simrec.data.features.number import NumberColumn
from simrec.data.features.strings import reading
from simrec.data.features.text import WORDS, TextColumn
from simrec.data.features.vector import VectorColumn
from simrec.data.messages import describe, listing
from simrec.data.tables import TableLike, read_table
from simrec.errors import InputError, is_whole, nearest

logger = logging.getLogger(__name__)

# In the order in which they are asked whether they take a column by default.
_COLUMNS: tuple[type[Column], ...] = (
    *(NumberColumn, CategoryColumn, VectorColumn, ListColumn),
    *(TextColumn, SentenceColumn, ImageColumn),
)
KINDS: dict[str, type[Column]] = {column.kind: column for column in _COLUMNS}
"""The kinds of columns by name. A column of kind "ignore" is not encoded."""

_FORMAT = 6
_PLAIN = ("min_count", "components", "id_column", "knots", "spell")
_THE_ID, _AS_ASKED = "the id", "as asked"
_NOTHING = "no word of it is in several texts but not in many"
_SHORT = "short free text; ask for it as 'text' to use its words"
# Characters of an example, at most.
_LONGEST = 40


class ColumnSummary(NamedTuple):
    """A row of `FeatureEncoder.describe`: a column, how it was read, its values, and its use.

    Values are counted once each, those of lists by element, those of vectors and images not at
    all; `missing` are rows without one; `used` is "yes", or why it is not.
    """

    column: str
    read_as: str
    example: str
    values: int | None
    missing: int
    used: str


class FeatureEncoder:
    """Encode the columns of a table as sparse float32 features with readable names.

    Each column is read by its Arrow type and its values unless `columns` says otherwise; how, and
    what becomes of missing values, is in docs/content.md. Missing values are null, and NaN in a
    pandas frame; NaN in Arrow tables and Parquet files (pandas writes its NaN as null there) is an
    error, as infinity is everywhere.

    Parameters
    ----------
    columns : mapping of str to str, optional
        How to encode columns about which the type says too little: "number", "category", "list",
        "vector", "text", "sentences", "image" or "ignore", as in `{"age": "category"}`.
        Some take an argument after a colon: "list:|", "sentences:MODEL", "image:MODEL.keras".
    min_count : int
        How often a value has to occur to get a feature of its own.
    components : int
        Principal components for each column of long vectors, at most; half as many for text.
    id_column : str, optional
        The column of ids, which is no feature.
    knots : int
        Points at quantiles of a number whose nearness are features too (`year~1985`), so that a
        linear model can learn a piecewise linear curve; fewer than 3 for none.
    spell : bool
        Whether the words of texts are features beside their principal components.

    Attributes
    ----------
    columns_, ignored_ : dict of str to str
        The encoded columns and how, in the order of the table; the others, and why not.
    feature_names_, n_features_ : list of str, int
        Names and number of the features.
    groups_ : numpy.ndarray
        For each feature the place of its column in `columns_`.
    spelled_ : numpy.ndarray of bool
        Which features are words of texts.
    encoders_ : dict of str to Column
        The fitted encoder of each column.

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
        min_count: int = 2,
        components: int = 64,
        id_column: str | None = None,
        knots: int = 0,
        spell: bool = False,
    ) -> None:
        self.columns = columns
        self.min_count = min_count
        self.components = components
        self.id_column = id_column
        self.knots = knots
        self.spell = spell

    def fit(self, table: TableLike, name: str = "features") -> "FeatureEncoder":
        """Learn from a table, one row per item or user; `name` is its part in error messages.

        >>> FeatureEncoder().fit(films).columns_
        {'year': 'number', 'genres': 'list'}
        """
        return self._fit(read_table(table, name=name), describe(table, name))

    def transform(self, table: TableLike, name: str = "features") -> sparse.csr_matrix:
        """Encode a table that has the columns that were encoded when fitting, and any others.

        >>> encoder.transform(films).shape == (films.num_rows, encoder.n_features_)
        True
        """
        if not hasattr(self, "columns_"):
            raise InputError("FeatureEncoder: transform was called before fit.")
        # With nothing to encode, the number of rows still has to come from somewhere.
        wanted = list(self.columns_) or None
        ids = [self.id_column] if self.id_column else []
        data = read_table(table, wanted, optional=ids, name=name, allow_empty=True)
        return self._transform(data, describe(table, name))

    def fit_transform(self, table: TableLike, name: str = "features") -> sparse.csr_matrix:
        """Fit to a table and encode it.

        >>> FeatureEncoder(min_count=1).fit_transform(films).shape[0] == films.num_rows
        True
        """
        data, label = read_table(table, name=name), describe(table, name)
        return self._fit(data, label)._transform(data, label)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings and all that was learned, ready for JSON.

        >>> sorted(encoder.to_dict())
        ['columns', 'format', 'ignored', 'parameters', 'seen']
        """
        if not hasattr(self, "columns_"):
            raise InputError("FeatureEncoder: to_dict was called before fit.")
        return {
            "format": _FORMAT,
            "parameters": {
                "columns": None if self.columns is None else dict(self.columns),
                **{name: getattr(self, name) for name in _PLAIN},
            },
            "columns": [
                {"name": column, "kind": own.kind, "family": own.family, **own.to_dict()}
                for column, own in self.encoders_.items()
            ],
            "ignored": dict(self.ignored_),
            "seen": [[column, *seen] for column, seen in self._seen.items()],  # in their order
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "FeatureEncoder":
        """Restore an encoder from `to_dict`; it encodes exactly as the one that was saved.

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
        seen: dict[str, Any] = {}
        for column, example, values, missing in data["seen"]:
            if [type(v) for v in (column, example, missing, values or 0)] != [str, str, int, int]:
                raise InputError(f"FeatureEncoder: an example of a column is damaged: {column!r}")
            seen[column] = example, values, missing
        encoder._learn(columns, dict(data["ignored"]), seen)
        return encoder

    def without(self, reasons: Mapping[str, str]) -> "FeatureEncoder":
        """Return an encoder that ignores some columns, each for a reason.

        >>> encoder.without({"year": "it tells nothing"}).feature_names_
        ['genres=War', 'genres=<unknown>']
        """
        other = copy(self)
        kept = {name: own for name, own in self.encoders_.items() if name not in reasons}
        other._learn(kept, {**self.ignored_, **reasons}, self._seen)
        return other

    def words(self, row: sparse.csr_matrix) -> dict[str, str]:
        """Return in words what each column holds in one row of the result of `transform`.

        >>> encoder.words(encoder.transform(films)[1])
        {'year': 'missing', 'genres': 'War, <unknown>'}
        """
        groups, start, found = self.groups_[row.indices], 0, {}
        for place, (name, column) in enumerate(self.encoders_.items()):
            own = groups == place
            features = (row.indices[own] - start).tolist()
            found[name] = column.words(features, row.data[own].tolist())
            start += column.width
        return found

    def describe(self) -> list[ColumnSummary]:
        """Return for each column of the table how it is read and used.

        >>> for row in encoder.describe():
        ...     print(row.column, row.read_as, row.example, row.values, row.missing, row.used)
        year number 1990 2 1 yes
        genres list ['War'] 2 0 yes
        """
        read = {column: encoder.reading() for column, encoder in self.encoders_.items()}
        return [
            ColumnSummary(column, read.get(column, ""), *seen, self.ignored_.get(column, "yes"))
            for column, seen in self._seen.items()
        ]

    def _fit(self, data: pa.Table, label: str) -> "FeatureEncoder":
        self._check_parameters()
        chosen, ignored = self._choose(data, label)
        settings = ColumnSettings(self.min_count, self.components, self.knots, bool(self.spell))
        encoders = {}
        for column, (kind, argument) in chosen.items():
            values, own = data.column(column), settings._replace(argument=argument)
            context = Context(label, column, data, self.id_column)
            encoder = KINDS[kind].fit(values, context, own)
            if encoder.width:
                encoders[column] = encoder
            else:
                ignored[column] = _NOTHING
        seen = {column: _seen(data.column(column)) for column in data.column_names}
        self._learn(encoders, ignored, seen)
        for column, reason in ignored.items():
            if reason not in (_THE_ID, _AS_ASKED):
                logger.warning("%s: column %r is ignored: %s", label, column, reason)
        if not encoders:
            logger.warning("%s: no column is left to encode", label)
        return self

    def _transform(self, data: pa.Table, label: str) -> sparse.csr_matrix:
        blocks = []
        for column, encoder in self.encoders_.items():
            values = data.column(column)
            held = family(values.type)
            if not encoder.takes(held):
                raise InputError(
                    f"{label}: column {column!r} holds values of type {held}, but was "
                    f"{encoder.family} when the encoder was fitted. Convert the column."
                )
            if held == "nothing" and not pa.types.is_null(values.type):
                values = pa.chunked_array([pa.nulls(len(values))])
            context = Context(label, column, data, self.id_column)
            blocks.append(encoder.encode(values, context))
        none = sparse.csr_matrix((data.num_rows, 0), dtype=np.float32)
        return sparse.hstack([none, *blocks], format="csr", dtype=np.float32)

    def _choose(
        self, data: pa.Table, label: str
    ) -> tuple[dict[str, tuple[str, str]], dict[str, str]]:
        """Choose kind and argument of each column, or the reason why it is ignored."""
        columns, present = self.columns or {}, data.column_names
        for column in columns:
            if column not in present:
                raise InputError(
                    f"{label}: no column {column!r}, which is named in the feature settings."
                    f"{nearest(column, present)} The columns are: {listing(present)}."
                )
        chosen, ignored = {}, {}
        for column in present:
            values = data.column(column)
            kind, _, argument = columns.get(column, "").partition(":")
            if column == self.id_column:
                kind, reason = "ignore", _THE_ID
            elif kind == "ignore":
                reason = _AS_ASKED
            elif not kind:
                kind, argument, reason = _default_kind(values, bool(self.spell))
                if reason and kind != "ignore":
                    logger.info(
                        "%s: column %r is read as %s: %s. To read it otherwise: %s=category.",
                        *(label, column, kind, reason, column),
                    )
            elif family(values.type) not in KINDS[kind].families:
                held = family(values.type)
                possible = [name for name, own in KINDS.items() if held in own.families]
                raise InputError(
                    f"{label}: column {column!r} holds {values.type} values and cannot be encoded "
                    f"as {kind!r}. Possible: {', '.join([*possible, 'ignore'])}."
                )
            if kind == "ignore":
                ignored[column] = reason
            else:
                chosen[column] = kind, argument
        return chosen, ignored

    def _check_parameters(self) -> None:
        for name in ("min_count", "components"):
            value = getattr(self, name)
            if not is_whole(value, 1) or value > MOST_FEATURES:
                raise InputError(
                    f"{name} must be a whole number from 1 to {MOST_FEATURES:,}, got {value!r}."
                )
        names = (*KINDS, "ignore")
        for column, kind in (self.columns or {}).items():
            if str(kind).partition(":")[0] not in names:
                raise InputError(
                    f"columns: {kind!r} (for {column!r}) is not a way to encode a column."
                    f"{nearest(str(kind), names)} Choose from {', '.join(names)}."
                )

    def _learn(
        self,
        encoders: dict[str, Column],
        ignored: dict[str, str],
        seen: dict[str, tuple[str, int | None, int]],
    ) -> None:
        self.encoders_ = encoders
        self.columns_ = {name: column.kind for name, column in encoders.items()}
        self.ignored_ = ignored
        self._seen = seen  # see `_seen`
        self.feature_names_ = [n for c, encoder in encoders.items() for n in encoder.names(c)]
        widths = [encoder.width for encoder in encoders.values()]
        self.groups_ = np.repeat(np.arange(len(encoders)), widths)
        words = [np.arange(one.width) >= one.width - one.n_words for one in encoders.values()]
        self.spelled_ = np.concatenate([np.zeros(0, bool), *words])
        self.n_features_ = len(self.feature_names_)


def _default_kind(values: pa.ChunkedArray, spell: bool) -> tuple[str, str, str]:
    """Choose the kind of a column that is not in the settings, its argument, and the reason."""
    if values.null_count == len(values) or family(values.type) == "nothing":
        return "ignore", "", "no row has a value"
    found = reading(values) if family(values.type) == "string" else None
    if found is not None:
        return found
    for name, kind in KINDS.items():
        claim = kind.claim(values)
        if claim is True:
            return name, "", ""
        if claim == WORDS:
            return (name, WORDS, "") if spell else ("ignore", "", _SHORT)
        if claim:
            return "ignore", "", str(claim)
    return "ignore", "", f"columns of type {values.type} are not supported"


def _seen(values: pa.ChunkedArray) -> tuple[str, int | None, int]:
    """Return example, number of different values and of missing ones; see `ColumnSummary`."""
    known, distinct, held = values.drop_null(), None, family(values.type)
    example = ""
    if len(known):
        try:
            example = " ".join(str(known[0].as_py()).split())
        except (OverflowError, ValueError):  # a time that Python has no type for
            example = str(getattr(known[0], "value", ""))
    if held in ("number", "boolean", "string", "time"):
        distinct = len(pc.unique(known))
    elif held.startswith("list of ") and not pa.types.is_floating(values.type.value_type):
        distinct = len(pc.unique(elements_of(values).drop_null()))  # tags, not vectors
    if len(example) > _LONGEST:
        example = f"{example[: _LONGEST - 3]}..."
    return example, distinct, values.null_count
