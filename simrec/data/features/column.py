"""What every kind of column offers: its encoding, its TensorFlow graph and its words.

A new kind is a subclass of `Column`, listed in `_COLUMNS` of `encoder`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import pyarrow as pa
from scipy import sparse

from simrec.data.messages import bad_rows
from simrec.data.tables import is_list
from simrec.errors import InputError

LARGEST = 1e15
"""Largest encoded value: beyond it, products of features and weights leave the range of float32."""

MOST_FEATURES = 1 << 22
"""Features of an encoder, at most: each takes memory whether or not a row has it."""


class ColumnSettings(NamedTuple):
    """The settings of a `FeatureEncoder` that kinds of columns look at."""

    min_count: int
    components: int
    knots: int
    spell: bool = False
    argument: str = ""  # what follows a kind after a colon, as in "list:|"


@dataclass(frozen=True)
class Context:
    """Where values come from, for error messages; without a table they show no row.

    A table with a column of ids may be in any order: its rows are shown, and not numbered.
    """

    label: str
    column: str
    table: pa.Table | None = None
    id_column: str | None = None

    def bad(self, rows: np.ndarray, problem: str, remedy: str) -> InputError:
        """Make the error for some rows; see `bad_rows`."""
        where = self.label, self.column, rows, problem, remedy, self.table
        return bad_rows(*where, numbered=self.table is not None and self.id_column is None)


class Graph(NamedTuple):
    """The encoding of a column in TensorFlow.

    `encode` returns the features (int64, counted within the column) and their values (float32),
    both of shape (rows, slots); a value of 0 is no feature. `resources` are lookup tables.
    """

    dtype: Any
    shape: list[int | None]
    encode: Callable[[Any], tuple[Any, Any]]
    resources: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Column(ABC):
    """The fitted encoder of one column; `family` is what the column held when fitting."""

    kind: ClassVar[str]  # its name, as in `FeatureEncoder(columns={"age": "category"})`
    families: ClassVar[tuple[str, ...]]  # of columns that can be encoded this way

    family: str

    @classmethod
    def claim(cls, values: pa.ChunkedArray) -> bool | str:
        """Whether to encode a column this way by default; a text says why it is ignored."""
        return False

    @classmethod
    @abstractmethod
    def fit(cls, values: pa.ChunkedArray, context: Context, settings: ColumnSettings) -> Self:
        """Learn the encoding from a column."""

    @property
    def n_words(self) -> int:
        """The number of features, the last ones, that are words of a text."""
        return 0

    @cached_property
    def width(self) -> int:
        """Number of features."""
        return len(self.names(""))

    @abstractmethod
    def names(self, column: str) -> list[str]:
        """Name the features of a column of this name."""

    @abstractmethod
    def encode(self, values: pa.ChunkedArray, context: Context) -> sparse.csr_matrix:
        """Encode some rows: float32, indices ascending within each row."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return what was learned, ready for JSON; without the family."""

    @classmethod
    @abstractmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Restore from `to_dict` and the family."""

    def takes(self, held: str) -> bool:
        """Check whether a later column of this family can be encoded."""
        return held in (self.family, "nothing")

    def reading(self) -> str:
        """Describe how the column is read, for `FeatureEncoder.describe`."""
        return self.kind

    @abstractmethod
    def words(self, features: Sequence[int], values: Sequence[float]) -> str:
        """Describe a row in words: its features, counted within the column, and their values."""

    @abstractmethod
    def graph(self, tf: Any, label: str) -> Graph:
        """Build the encoding in TensorFlow, the module `tf`; `label` is for error messages."""


def family(type_: pa.DataType) -> str:
    """Return what a column of this Arrow type holds: types of one family replace one another."""
    types = pa.types
    if types.is_dictionary(type_):
        return family(type_.value_type)
    if is_list(type_):
        inner = family(type_.value_type)
        if inner in ("string", "number"):
            return f"list of {inner}s"
        return inner if inner == "nothing" else str(type_)  # nothing: a column of empty lists
    for name, tests in {
        "number": (types.is_integer, types.is_floating, types.is_decimal),
        "boolean": (types.is_boolean,),
        "string": (types.is_string, types.is_large_string, types.is_string_view),
        "time": (types.is_date, types.is_timestamp, types.is_duration),
        "bytes": (types.is_binary, types.is_large_binary),
        "nothing": (types.is_null,),
    }.items():
        if any(test(type_) for test in tests):
            return name
    return str(type_)


def sparse_rows(
    indices: np.ndarray, data: np.ndarray | None, counts: np.ndarray, width: int
) -> sparse.csr_matrix:
    """Make a matrix of entries row after row, `counts` in each; without data, all are 1."""
    data = np.ones(len(indices), np.float32) if data is None else data
    indptr = np.concatenate([[0], np.cumsum(counts)])
    return sparse.csr_matrix((data, indices, indptr), shape=(len(counts), width))


def restored_array(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Make an array of values that are all there; `pa.array` of a list would import pandas."""
    if not pa.types.is_large_string(type_):
        numbers = np.array(values, np.int64 if pa.types.is_integer(type_) else np.float64)
        return pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(numbers)])
    words = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, words)], dtype=np.int64)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(words))]
    return pa.Array.from_buffers(type_, len(values), buffers)


def word_table(tf: Any, words: Sequence[str]) -> Any:
    """Build the lookup of words in TensorFlow: from each to its place, -1 for others."""
    words = words or ("\0",)  # a table has an entry; no word is this one
    keys, places = tf.constant(words, tf.string, [len(words)]), tf.range(len(words), dtype=tf.int64)
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, places), -1)


def elements_of(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the elements of lists in one column; null lists have none."""
    return pa.chunked_array([c.flatten() for c in values.chunks], values.type.value_type)
