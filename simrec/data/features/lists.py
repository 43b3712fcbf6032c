"""Lists of strings or numbers: one feature per frequent element."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.arrays import is_list, null_mask
from simrec.data.features.category import Vocabulary
from simrec.data.features.column import Column, ColumnSettings, Context, Graph, elements_of, family
from simrec.data.features.matrix import Block
from simrec.errors import InputError


@dataclass(frozen=True)
class ListColumn(Column):
    """One feature per frequent element, and one that says that the list has others.

    Attributes
    ----------
    vocabulary : Vocabulary
        The frequent elements.
    """

    kind: ClassVar[str] = "list"
    families: ClassVar[tuple[str, ...]] = ("list of strings", "list of numbers")

    vocabulary: Vocabulary

    @classmethod
    def claim(cls, values: pa.ChunkedArray) -> bool:
        """Take lists of strings, and what `VectorColumn` leaves of lists of numbers."""
        return family(values.type) in cls.families

    @classmethod
    def fit(
        cls, values: pa.ChunkedArray, context: Context, settings: ColumnSettings
    ) -> "ListColumn":
        """Collect the elements that occur at least `min_count` times."""
        elements = elements_of(values)
        vocabulary = Vocabulary.fit(elements, context.of_elements(), settings.min_count)
        return cls(family(values.type), vocabulary)

    @property
    def width(self) -> int:
        """Number of features."""
        return len(self.vocabulary) + 1

    def names(self, column: str) -> list[str]:
        """Name the features: `genres=War`, `genres=<unknown>`."""
        return [f"{column}={name}" for name in (*self.vocabulary.names(), "<unknown>")]

    def encode(self, values: pa.ChunkedArray, context: Context) -> Block:
        """Give each row the features of its elements, each once; null and empty lists have none."""
        if not is_list(values.type):  # the null type: no list anywhere
            return Block(np.empty(0, np.int32), None, np.zeros(len(values), np.int64))
        lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy().astype(np.int64)
        elements = elements_of(values)
        codes = self.vocabulary.codes(elements, context.of_elements())
        codes[codes < 0] = self.width - 1
        keys = np.repeat(np.arange(len(values)) * self.width, lengths)
        keys += codes
        if elements.null_count:
            keys = keys[~null_mask(elements)]
        if not (keys[1:] > keys[:-1]).all():
            keys.sort()
            keys = keys[np.r_[True, keys[1:] > keys[:-1]]]
        rows, indices = np.divmod(keys, self.width)
        counts = np.bincount(rows, minlength=len(values))
        return Block(indices.astype(np.int32), None, counts)

    def to_dict(self) -> dict[str, Any]:
        """Return the elements."""
        return self.vocabulary.to_dict()

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "ListColumn":
        """Restore from `to_dict`."""
        return cls(data["family"], Vocabulary.from_dict(data))

    def words(self, features: Sequence[int], values: Sequence[float]) -> str:
        """Return the elements."""
        names = self.names("")
        return ", ".join(names[feature][1:] for feature in features) or self.kind

    def graph(self, tf: Any, label: str) -> Graph:
        """Build the lookup of the elements; shorter lists are filled up with missing values."""
        lookup = self.vocabulary.lookup(tf, self.family, label)
        if "" in self.vocabulary:
            raise InputError(
                f"{label} has the empty string as an element, with which the graph's lists are "
                "filled up: remove it from the lists, and train again."
            )

        def encode(x: Any) -> tuple[Any, Any]:
            codes = lookup.codes(x)
            codes = tf.where(codes < 0, tf.constant(self.width - 1, tf.int64), codes)
            there = ~lookup.is_missing(x)
            # An element counts once: not where an earlier one of its list is the same feature.
            same = (codes[:, :, None] == codes[:, None, :]) & there[:, None, :]
            earlier = tf.linalg.band_part(tf.ones_like(same[0], tf.float32), -1, 0)
            earlier = tf.cast(earlier - tf.linalg.band_part(earlier, 0, 0), tf.bool)
            again = tf.reduce_any(same & earlier, 2)
            return codes, tf.cast(there & ~again, tf.float32)

        return Graph(lookup.dtype, [None, None], encode, lookup.resources)
