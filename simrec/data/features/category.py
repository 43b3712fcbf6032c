"""Categories: one feature per frequent value."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from simrec.data.arrays import null_mask
from simrec.data.features.column import Column, Context, Graph, Settings, family
from simrec.data.features.matrix import Block
from simrec.data.features.text import is_free_text
from simrec.data.features.vocabulary import Vocabulary
from simrec.errors import InputError


@dataclass(frozen=True)
class CategoryColumn(Column):
    """One feature per frequent value, and one for all others.

    Attributes
    ----------
    vocabulary : Vocabulary
        The frequent values.
    missing : bool
        Whether null was frequent too, and has a feature of its own; it is unknown otherwise.
    """

    kind: ClassVar[str] = "category"
    families: ClassVar[tuple[str, ...]] = ("string", "boolean", "number", "time")

    vocabulary: Vocabulary
    missing: bool

    @classmethod
    def claim(cls, values: pa.ChunkedArray) -> bool:
        """Take booleans, dictionaries and strings that are not free text."""
        held = family(values.type)
        return held == "boolean" or (held == "string" and not is_free_text(values))

    @classmethod
    def fit(cls, values: pa.ChunkedArray, context: Context, settings: Settings) -> "CategoryColumn":
        """Collect the values that occur at least `min_count` times."""
        vocabulary = Vocabulary.fit(values, context, settings.min_count)
        return cls(family(values.type), vocabulary, values.null_count >= settings.min_count)

    @property
    def width(self) -> int:
        """Number of features."""
        return len(self.vocabulary) + self.missing + 1

    def names(self, column: str) -> list[str]:
        """Name the features: `kind=drama`, `kind=<missing>`, `kind=<unknown>`."""
        names = self.vocabulary.names()
        names += ["<missing>"] * self.missing + ["<unknown>"]
        return [f"{column}={name}" for name in names]

    def encode(self, values: pa.ChunkedArray, context: Context) -> Block:
        """Give each row the feature of its value."""
        codes = self.vocabulary.codes(values, context)
        codes[codes < 0] = self.width - 1
        if self.missing and values.null_count:
            codes[null_mask(values)] = len(self.vocabulary)
        return Block(codes, None, 1)

    def to_dict(self) -> dict[str, Any]:
        """Return the values."""
        return {**self.vocabulary.to_dict(), "missing": self.missing}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "CategoryColumn":
        """Restore from `to_dict`."""
        return cls(data["family"], Vocabulary.from_dict(data), bool(data["missing"]))

    def words(self, features: Sequence[int], values: Sequence[float]) -> str:
        """Return the value."""
        names = self.names("")
        return ", ".join(names[feature][1:] for feature in features) or self.kind

    def graph(self, tf: Any, label: str) -> Graph:
        """Build the lookup of the value."""
        lookup = self.vocabulary.lookup(tf, self.family, label)
        if self.missing and "" in self.vocabulary:
            raise InputError(
                f"{label} has the empty string as a value beside missing ones, which the graph "
                "cannot tell apart: make one of them the other, and train again."
            )
        unknown, missing = self.width - 1, self.width - 2

        def encode(x: Any) -> tuple[Any, Any]:
            codes = lookup.codes(x)
            codes = tf.where(codes < 0, tf.constant(unknown, tf.int64), codes)
            if self.missing:
                codes = tf.where(lookup.is_missing(x), tf.constant(missing, tf.int64), codes)
            return codes[:, None], tf.ones_like(codes, tf.float32)[:, None]

        return Graph(lookup.dtype, [None], encode, lookup.resources)
