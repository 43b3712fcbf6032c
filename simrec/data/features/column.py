"""What every kind of column offers: its encoding, its TensorFlow graph and its words.

A new kind is a subclass of `Column` in a module of its own, listed in `KINDS` of `features`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from simrec.data.arrays import is_list
from simrec.data.features.matrix import Block
from simrec.data.messages import bad_rows
from simrec.errors import InputError

LARGEST = 1e15
"""Largest encoded value: beyond it, products of features and weights leave the range of float32."""

Self = TypeVar("Self", bound="Column")

# Features of an encoder, at most: each takes memory whether or not a row has it.
MOST_FEATURES = 1 << 22


class ColumnSettings(NamedTuple):
    """The settings of a `FeatureEncoder` that kinds of columns look at."""

    min_count: int
    n_hash: int
    knots: int


@dataclass(frozen=True)
class Context:
    """Where values come from, for error messages."""

    label: str
    column: str
    table: pa.Table | None = None

    def of_elements(self) -> "Context":
        """Return the context of values that are not one per row: errors then show no row."""
        return replace(self, table=None)

    def bad(self, rows: np.ndarray, problem: str, remedy: str) -> InputError:
        """Make the error for some rows; see `bad_rows`."""
        return bad_rows(self.label, self.column, rows, problem, remedy, self.table)


class Graph(NamedTuple):
    """The encoding of a column in TensorFlow.

    Attributes
    ----------
    dtype, shape
        The tensor that it takes, one row per row of the table.
    encode : callable
        From this tensor to the features (int64, counted within the column) and their values
        (float32), both of shape (rows, slots). A value of 0 is no feature.
    resources : tuple
        Lookup tables, which have to be saved with the graph.
    """

    dtype: Any
    shape: list[int | None]
    encode: Callable[[Any], tuple[Any, Any]]
    resources: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Column(ABC):
    """The fitted encoder of one column.

    Attributes
    ----------
    family : str
        What the column held when fitting; see `family`.
    """

    kind: ClassVar[str]
    """Name of the kind, as in `FeatureEncoder(columns={"age": "category"})`."""

    families: ClassVar[tuple[str, ...]]
    """Families of columns that can be encoded this way."""

    family: str

    @classmethod
    def claim(cls, values: pa.ChunkedArray) -> bool | str:
        """Check whether to encode a column this way by default.

        Returns
        -------
        bool or str
            True to encode it. A text says why the column is ignored unless it is asked for.
        """
        return False

    @classmethod
    @abstractmethod
    def fit(
        cls: type[Self], values: pa.ChunkedArray, context: Context, settings: ColumnSettings
    ) -> Self:
        """Learn the encoding from a column."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Number of features."""

    @abstractmethod
    def names(self, column: str) -> list[str]:
        """Name the features of a column of this name."""

    @abstractmethod
    def encode(self, values: pa.ChunkedArray, context: Context) -> Block:
        """Encode some rows."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return what was learned, ready for JSON; without the family."""

    @classmethod
    @abstractmethod
    def from_dict(cls: type[Self], data: dict[str, Any]) -> Self:
        """Restore from `to_dict` and the family."""

    def words(self, features: Sequence[int], values: Sequence[float]) -> str:
        """Return in words what a row holds, for explanations.

        Parameters
        ----------
        features, values : sequences of int and float
            The features of the row, counted within the column, and their values.
        """
        return self.kind

    def graph(self, tf: Any, label: str) -> Graph:
        """Build the encoding in TensorFlow.

        Parameters
        ----------
        tf : module
            TensorFlow, which is not imported here.
        label : str
            The column, for error messages.

        Raises
        ------
        InputError
            If TensorFlow cannot encode it.
        """
        raise InputError(
            f"{label} is encoded as {self.kind!r}, which TensorFlow has no operation for: export "
            "vectors instead (format 'parquet' or 'faiss'), or train with the column ignored or "
            "given as a vector of your own."
        )


def family(type_: pa.DataType) -> str:
    """Return what a column of this Arrow type holds, as one of few families.

    Two types of one family can stand in for one another: a column may be int32 in one table and
    int64 (or, from pandas, float with gaps) in the next.

    Returns
    -------
    str
        "number", "boolean", "string", "time", "list of strings", "list of numbers", "nothing"
        (the null type), or the name of the type if no kind of column takes it.
    """
    types = pa.types
    if types.is_dictionary(type_):
        return family(type_.value_type)
    if types.is_integer(type_) or types.is_floating(type_) or types.is_decimal(type_):
        return "number"
    if types.is_boolean(type_):
        return "boolean"
    if types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_):
        return "string"
    if types.is_date(type_) or types.is_timestamp(type_) or types.is_duration(type_):
        return "time"
    if types.is_null(type_):
        return "nothing"
    if is_list(type_):
        inner = family(type_.value_type)
        if inner in ("string", "number"):
            return f"list of {inner}s"
        if inner == "nothing":
            return "nothing"  # a column of empty lists
    return str(type_)


def elements_of(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the elements of lists in one column; null lists have none."""
    return pa.chunked_array([c.flatten() for c in values.chunks], values.type.value_type)
