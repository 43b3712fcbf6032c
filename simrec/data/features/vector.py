"""Vectors: coordinates as they are, such as embeddings of texts or images."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.arrays import null_mask
from simrec.data.features.column import (
    LARGEST,
    MOST_FEATURES,
    Column,
    ColumnSettings,
    Context,
    Graph,
    elements_of,
    family,
)
from simrec.data.features.matrix import Block
from simrec.errors import InputError


@dataclass(frozen=True)
class VectorColumn(Column):
    """Vectors of one length as they are.

    Attributes
    ----------
    size : int
        Their length.
    missing : bool
        Whether there were nulls when fitting, and therefore an indicator for them.
    """

    kind: ClassVar[str] = "vector"
    families: ClassVar[tuple[str, ...]] = ("list of numbers",)

    size: int
    missing: bool

    @classmethod
    def claim(cls, values: pa.ChunkedArray) -> bool:
        """Take fixed-size lists of numbers and lists of floats.

        Lists of integers are taken for ids of something (tags), floats for coordinates. pandas
        has no fixed-size lists: embeddings come from there as lists of floats.
        """
        if family(values.type) != "list of numbers":
            return False
        inner = values.type.value_type
        inner = inner.value_type if pa.types.is_dictionary(inner) else inner
        return pa.types.is_fixed_size_list(values.type) or not pa.types.is_integer(inner)

    @classmethod
    def fit(
        cls, values: pa.ChunkedArray, context: Context, settings: ColumnSettings
    ) -> "VectorColumn":
        """Learn the length of the vectors."""
        lengths = pc.list_value_length(values)
        common = pc.max(lengths).as_py() or 0
        _check_length(lengths, common, context)
        vector = cls(family(values.type), common, values.null_count > 0)
        vector.encode(values, context)  # refuses what is not finite
        return vector

    @property
    def width(self) -> int:
        """Number of features."""
        return self.size + self.missing

    def names(self, column: str) -> list[str]:
        """Name the features: `poster[0]`, `poster[1]`, `poster=missing`."""
        names = [f"{column}[{place}]" for place in range(self.size)]
        return names + [f"{column}=missing"] * self.missing

    def encode(self, values: pa.ChunkedArray, context: Context) -> Block:
        """Return the coordinates; a missing vector is all zeros."""
        n_rows = len(values)
        there = ~null_mask(values) if values.null_count else np.ones(n_rows, dtype=bool)
        dense = np.zeros((n_rows, self.width), dtype=np.float32)
        if there.any():
            _check_length(pc.list_value_length(values), self.size, context)
            flat = elements_of(values).cast(pa.float32(), safe=False).to_numpy()  # null to NaN
            vectors = flat.reshape(np.count_nonzero(there), self.size)
            _check_range(vectors, there, context)
            dense[there, : self.size] = vectors
        if self.missing:
            dense[~there, self.size] = 1
        places = np.arange(self.width, dtype=np.int32)
        stored = dense != 0
        if stored.all():
            return Block(places, dense.ravel(), self.width)
        indices = np.broadcast_to(places, dense.shape)[stored]
        return Block(indices, dense[stored], np.count_nonzero(stored, axis=1))

    def to_dict(self) -> dict[str, Any]:
        """Return the length."""
        return {"size": self.size, "missing": self.missing}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "VectorColumn":
        """Restore from `to_dict`."""
        size = int(data["size"])
        if not 0 <= size <= MOST_FEATURES:
            raise InputError(f"column {data['name']!r}: vectors of {size:,} numbers")
        return cls(data["family"], size, bool(data["missing"]))

    def words(self, features: Sequence[int], values: Sequence[float]) -> str:
        """Return "vector" or "missing"."""
        return "missing" if self.size in features else self.kind

    def graph(self, tf: Any, label: str) -> Graph:
        """Build the encoding of vectors; a missing one is a row of NaN."""

        def encode(x: Any) -> tuple[Any, Any]:
            none = tf.reduce_any(tf.math.is_nan(x), 1, keepdims=True)
            data = tf.where(none, tf.zeros_like(x), x)
            if self.missing:
                data = tf.concat([data, tf.cast(none, tf.float32)], 1)
            indices = tf.range(self.width, dtype=tf.int64)[None]
            return tf.broadcast_to(indices, tf.shape(data, tf.int64)), data

        return Graph(tf.float32, [None, self.size], encode)


def _check_length(lengths: pa.ChunkedArray, size: int, context: Context) -> None:
    other = np.asarray(pc.fill_null(pc.not_equal(lengths, size), False), dtype=bool)
    if other.any():
        raise context.bad(
            other,
            f"have a vector whose length is not {size}",
            "Give vectors of one length, or encode the column as 'list' or 'ignore' it.",
        )


def _check_range(vectors: np.ndarray, there: np.ndarray, context: Context) -> None:
    for usable, problem, remedy in (
        (
            np.isfinite,
            "have NaN, null or infinity in their vector",
            "Correct the vectors, or make them null where they are not known.",
        ),
        (
            lambda x: np.abs(x) <= LARGEST,
            f"have a coordinate beyond {LARGEST:g} in their vector",
            "Rescale the vectors, for example to length 1.",
        ),
    ):
        good = usable(vectors).all(axis=1)
        if not good.all():
            bad = np.zeros(len(there), dtype=bool)
            bad[there] = ~good
            raise context.bad(bad, problem, remedy)
