"""Categories and lists: one feature per frequent value or element."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy import sparse

from simrec.data.features import strings
from simrec.data.features.column import (
    Column,
    ColumnSettings,
    Context,
    Graph,
    elements_of,
    family,
    restored_array,
    sparse_rows,
    word_table,
)
from simrec.data.features.number import numbers
from simrec.data.tables import is_list, null_mask
from simrec.errors import InputError

_TYPES = {"string": pa.large_string(), "integer": pa.int64(), "real": pa.float64()}
_RESERVED = ("<missing>", "<unknown>")
_ENDS = r"^[ \t\r\n\[\]]+|[ \t\r\n\[\]]+$"  # of lists in brackets
_EXACT = 2.0**53  # up to here a float64 says which integer it is


class Lookup(NamedTuple):
    """A vocabulary in TensorFlow: the type of values, the way to their places, what is missing."""

    dtype: Any
    codes: Callable[[Any], Any]
    is_missing: Callable[[Any], Any]
    resources: tuple[Any, ...] = ()


@dataclass(frozen=True)
class _VocabularyColumn(Column):
    """One feature per value of a vocabulary, and a last one for all others.

    Values are in ascending order: large_string, int64 or float64, without nulls.
    """

    vocabulary: pa.Array

    def names(self, column: str) -> list[str]:
        """Name the features: `kind=drama`, `kind=<unknown>`; a name of our own is quoted."""
        values = [f'"{v}"' if v in _RESERVED else v for v in self.vocabulary.to_pylist()]
        return [f"{column}={value}" for value in (*values, "<unknown>")]

    def words(self, features: Sequence[int], values: Sequence[float]) -> str:
        names = self.names("")
        return ", ".join(names[feature][1:] for feature in features) or "none"

    def codes(self, values: pa.ChunkedArray, context: Context) -> np.ndarray:
        """Find the feature of each value, int32; the last for those not in the vocabulary."""
        if pa.types.is_null(values.type) or not len(values):
            return np.full(len(values), self.width - 1, dtype=np.int32)
        plain, type_ = _plain(values, context), self.vocabulary.type
        if plain.type != type_ and not pa.types.is_string(plain.type):
            plain = _like(plain, type_)
        known = self.vocabulary.cast(plain.type)
        found = pc.index_in(plain, value_set=known, skip_nulls=True)
        return np.array(pc.fill_null(found, self.width - 1).to_numpy(), dtype=np.int32)

    def to_dict(self) -> dict[str, Any]:
        holds = next(name for name, type_ in _TYPES.items() if type_ == self.vocabulary.type)
        return {"holds": holds, "values": self.vocabulary.to_pylist()}

    def lookup(self, tf: Any, label: str) -> Lookup:
        """Build the way from values to features in TensorFlow."""
        holds, values = _VocabularyColumn.to_dict(self).values()
        unknown = tf.constant(self.width - 1, tf.int64)
        if self.family == "time" and holds != "string":
            raise InputError(
                f"{label} holds durations as categories, which the graph has no type for: encode "
                "it as 'number', or ignore it."
            )
        if self.family == "boolean":
            # The encoder spells booleans out; the graph takes them as 0 and 1.
            values, holds = [["false", "true"].index(value) for value in values], "integer"
        if holds == "string":
            table = word_table(tf, values)

            def codes_of_words(x: Any) -> Any:
                codes = table.lookup(x)
                return tf.where(codes < 0, unknown, codes)

            return Lookup(tf.string, codes_of_words, lambda x: x == "", (table,))
        known = np.array(values, np.float64)
        if holds == "integer" and (np.abs(known) > _EXACT).any():
            raise InputError(
                f"{label} has integers beyond 2**53 as categories, which the graph's numbers "
                "cannot tell apart: make them strings, and train again."
            )

        def codes(x: Any) -> Any:
            if not len(known):
                return tf.fill(tf.shape(x), unknown)
            flat = tf.reshape(x, [-1])
            places = tf.searchsorted(known, flat, "left", tf.int64)
            places = tf.minimum(places, len(known) - 1)
            found = tf.gather(known, places) == flat
            return tf.reshape(tf.where(found, places, unknown), tf.shape(x))

        return Lookup(tf.float64, codes, tf.math.is_nan)


@dataclass(frozen=True)
class CategoryColumn(_VocabularyColumn):
    """One feature per frequent value, and one for all others.

    `missing` says whether null was frequent too, and has a feature of its own; it is unknown
    otherwise.
    """

    kind: ClassVar[str] = "category"
    families: ClassVar[tuple[str, ...]] = ("string", "boolean", "number", "time")

    missing: bool

    @classmethod
    def claim(cls, values: pa.ChunkedArray) -> bool:
        """Take booleans, dictionaries and strings that are not free text."""
        held = family(values.type)
        return held == "boolean" or (held == "string" and not strings.is_free_text(values))

    @classmethod
    def fit(cls, values: pa.ChunkedArray, context: Context, settings: ColumnSettings) -> Self:
        """Collect the values that occur at least `min_count` times."""
        vocabulary = _frequent(values, context, settings.min_count)
        return cls(family(values.type), vocabulary, values.null_count >= settings.min_count)

    def names(self, column: str) -> list[str]:
        """Name the features: `kind=drama`, `kind=<missing>`, `kind=<unknown>`."""
        names = super().names(column)
        return [*names[:-1], *[f"{column}=<missing>"] * self.missing, names[-1]]

    def encode(self, values: pa.ChunkedArray, context: Context) -> sparse.csr_matrix:
        """Give each row the feature of its value."""
        codes = self.codes(values, context)
        if self.missing and values.null_count:
            codes[null_mask(values)] = len(self.vocabulary)
        return sparse_rows(codes, None, np.ones(len(codes), np.int64), self.width)

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "missing": self.missing}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        return cls(data["family"], _restored(data), bool(data["missing"]))

    def graph(self, tf: Any, label: str) -> Graph:
        lookup = self.lookup(tf, label)
        if self.missing and "" in self.vocabulary.to_pylist():
            raise InputError(
                f"{label} has the empty string as a value beside missing ones, which the graph "
                "cannot tell apart: make one of them the other, and train again."
            )

        def encode(x: Any) -> tuple[Any, Any]:
            codes = lookup.codes(x)
            if self.missing:
                missing = tf.constant(self.width - 2, tf.int64)
                codes = tf.where(lookup.is_missing(x), missing, codes)
            return codes[:, None], tf.ones_like(codes, tf.float32)[:, None]

        return Graph(lookup.dtype, [None], encode, lookup.resources)


@dataclass(frozen=True)
class ListColumn(_VocabularyColumn):
    """One feature per frequent element, and one that says that the list has others.

    `separator` is what separates the elements of lists in strings; empty for columns of lists.
    """

    kind: ClassVar[str] = "list"
    families: ClassVar[tuple[str, ...]] = ("list of strings", "list of numbers", "string")

    separator: str = ""

    @classmethod
    def claim(cls, values: pa.ChunkedArray) -> bool:
        """Take lists of strings, and what `VectorColumn` leaves of lists of numbers."""
        return is_list(values.type) and family(values.type) in cls.families

    @classmethod
    def fit(cls, values: pa.ChunkedArray, context: Context, settings: ColumnSettings) -> Self:
        """Collect the elements that occur at least `min_count` times."""
        held, separator = family(values.type), ""
        if held == "string":
            texts = pc.unique(values.drop_null()).cast(pa.large_string())
            separator = settings.argument or strings.separator_of(texts) or ""
            if not separator:
                raise InputError(
                    f"{context.label}: column {context.column!r}: what separates the elements of "
                    "its lists was not found. Give it, as in 'list:|'."
                )
        elements = _elements(values, separator, context)[1]
        without_rows = Context(context.label, context.column)
        vocabulary = _frequent(elements, without_rows, settings.min_count)
        return cls(held, vocabulary, separator)

    def takes(self, held: str) -> bool:
        """Take lists for strings that are lists, and the reverse: CSV and Parquet of one table."""
        either = ("list of strings", "string")
        return super().takes(held) or (self.family in either and held in either)

    def encode(self, values: pa.ChunkedArray, context: Context) -> sparse.csr_matrix:
        """Give each row the features of its elements, each once; null and empty lists have none."""
        if pa.types.is_null(values.type):  # no list anywhere
            return sparse.csr_matrix((len(values), self.width), dtype=np.float32)
        if is_list(values.type):
            return self._encode(values, "", context)
        if self.separator:
            return self._encode(values, self.separator, context)
        # Strings where lists were: each is split such that most elements are known. Those in
        # brackets come first, which are also those with commas.
        ways = [
            self._encode(values, separator, context) for separator in (strings.BRACKETS, "|", ";")
        ]
        best = np.argmax([np.asarray(X[:, :-1].sum(axis=1)).ravel() for X in ways], axis=0)
        return sparse.vstack(ways, format="csr")[best * len(values) + np.arange(len(values))]

    def _encode(
        self, values: pa.ChunkedArray, separator: str, context: Context
    ) -> sparse.csr_matrix:
        lengths, elements = _elements(values, separator, context)
        codes = self.codes(elements, Context(context.label, context.column))
        keys = np.repeat(np.arange(len(values)) * self.width, lengths) + codes
        keys = np.sort(keys[~null_mask(elements)] if elements.null_count else keys)
        keys = keys[np.r_[True, keys[1:] > keys[:-1]][: len(keys)]]  # quicker than np.unique
        rows, indices = np.divmod(keys, self.width)
        counts = np.bincount(rows, minlength=len(values))
        return sparse_rows(indices.astype(np.int32), None, counts, self.width)

    def to_dict(self) -> dict[str, Any]:
        separator = {"separator": self.separator} if self.separator else {}
        return {**super().to_dict(), **separator}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        separator = data.get("separator", "")
        if not isinstance(separator, str) or bool(separator) != (data["family"] == "string"):
            raise InputError(f"column {data['name']!r}: what separates its elements is damaged")
        return cls(data["family"], _restored(data), separator)

    def reading(self) -> str:
        return f"list split at {self.separator!r}" if self.separator else self.kind

    def graph(self, tf: Any, label: str) -> Graph:
        """Build the lookup of the elements; shorter lists are filled up with missing values."""
        lookup = self.lookup(tf, label)
        if "" in self.vocabulary.to_pylist():
            raise InputError(
                f"{label} has the empty string as an element, with which the graph's lists are "
                "filled up: remove it from the lists, and train again."
            )

        def encode(x: Any) -> tuple[Any, Any]:
            if self.separator:
                x = _split_in_graph(tf, x, self.separator)
            codes, there = lookup.codes(x), ~lookup.is_missing(x)
            # An element counts once: not where an earlier one of its list is the same feature.
            same = (codes[:, :, None] == codes[:, None, :]) & there[:, None, :]
            earlier = tf.linalg.band_part(tf.ones_like(same[0], tf.float32), -1, 0)
            earlier = tf.cast(earlier - tf.linalg.band_part(earlier, 0, 0), tf.bool)
            again = tf.reduce_any(same & earlier, 2)
            return codes, tf.cast(there & ~again, tf.float32)

        shape: list[int | None] = [None] if self.separator else [None, None]
        return Graph(lookup.dtype, shape, encode, lookup.resources)


def _frequent(values: pa.ChunkedArray, context: Context, min_count: int) -> pa.Array:
    """Collect the values that occur at least `min_count` times; null is none."""
    counted = pc.value_counts(_plain(values, context))
    frequent = pc.greater_equal(counted.field("counts"), min_count)
    found = counted.field("values").filter(frequent).drop_null()
    found = found.take(pc.sort_indices(found))
    return found.cast(pa.large_string()) if pa.types.is_string(found.type) else found


def _restored(data: dict[str, Any]) -> pa.Array:
    values = data["values"]
    if any(b <= a for a, b in itertools.pairwise(values)):
        raise InputError(f"column {data['name']!r}: its values are not in ascending order")
    return restored_array(values, _TYPES[data["holds"]])


def _plain(values: pa.ChunkedArray, context: Context) -> pa.ChunkedArray:
    """Bring values to one of few types: strings, int64, or float64 if not all are integers."""
    type_ = values.type
    if pa.types.is_dictionary(type_):
        return _plain(values.cast(type_.value_type), context)
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return values
    signed = pa.types.is_integer(type_) and not pa.types.is_uint64(type_)
    if signed or pa.types.is_duration(type_):
        return values.cast(pa.int64())
    if not pa.types.is_floating(type_):
        return values.cast(pa.string()).cast(pa.large_string())
    x, missing = numbers(values, context)
    reals = pa.chunked_array([pa.array(x, mask=missing)])
    whole = bool(np.all((x == np.floor(x)) & (np.abs(x) <= _EXACT)))
    # pandas makes floats of integers with gaps: they are the same categories as without.
    return reals.cast(pa.int64()) if whole else reals


def _like(values: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """Make numbers comparable with the vocabulary's; what cannot be in it becomes null."""
    if type_ == pa.int64() and values.type == pa.float64():
        whole = pc.and_(pc.equal(values, pc.floor(values)), pc.less_equal(pc.abs(values), _EXACT))
        values = pc.if_else(whole, values, pa.scalar(None, pa.float64()))
    return values.cast(type_, safe=type_ != pa.float64())


def _elements(
    values: pa.ChunkedArray, separator: str, context: Context
) -> tuple[np.ndarray, pa.ChunkedArray]:
    """Return the number of elements of each list, and all elements."""
    if separator:
        cut = pc.match_substring_regex(values.cast(pa.large_string()), strings.CUT_SHORT)
        if separator == strings.BRACKETS and pc.any(cut).as_py():
            problem = "hold a list that NumPy has cut short with '...'"
            remedy = "Write whole lists: apply .tolist() to the arrays before the table is saved."
            raise context.bad(np.asarray(pc.fill_null(cut, False), bool), problem, remedy)
        lengths, elements = strings.split(values, separator)
        return lengths, pa.chunked_array([elements])
    lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy().astype(np.int64)
    return lengths, elements_of(values)


def _split_in_graph(tf: Any, x: Any, separator: str) -> Any:
    blanks = r"^[ \t\r\n]+|[ \t\r\n]+$"
    if separator == strings.BRACKETS:
        x, separator = tf.strings.regex_replace(x, _ENDS, ""), ","
        for _ in range(2):
            x = tf.strings.regex_replace(x, strings.NO_COMMA, r"\1,\2")
        commas = tf.strings.regex_replace(x, r"\s+", separator)
        x = tf.where(tf.strings.regex_full_match(x, strings.BARE_NUMBERS), commas, x)
        blanks = rf"""{strings.NO_ELEMENT}|^[ \t\r\n'"]+|[ \t\r\n'"]+$"""
    pieces = tf.strings.split(x, separator).to_tensor("")
    return tf.strings.regex_replace(pieces, blanks, "")
