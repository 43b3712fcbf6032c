"""Encoders of single columns: what each learns from a table, and the entries it then makes."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.blocks import Block
from simrec.data.kinds import is_list
from simrec.data.numbers import Context, numbers
from simrec.data.problems import bad_rows, null_mask
from simrec.data.vocabulary import Vocabulary
from simrec.errors import InputError


class Column(Protocol):
    """What the encoder of a column offers; it is made by a function `fit_<kind>`."""

    @property
    def width(self) -> int:
        """Number of features."""

    def names(self, column: str) -> list[str]:
        """Name the features of a column of this name."""

    def encode(self, values: pa.ChunkedArray, context: Context) -> Block:
        """Make the entries for some rows."""

    def to_dict(self) -> dict[str, Any]:
        """Give what was learned, ready for JSON."""


@dataclass(frozen=True)
class NumberColumn:
    """A standardised number and an indicator for where it is missing.

    Attributes
    ----------
    mean, scale : float
        Mean and standard deviation; a scale of 0 stands for a column that is constant, which
        tells nothing and always encodes to 0.
    """

    mean: float
    scale: float

    @classmethod
    def fit(cls, values: pa.ChunkedArray, context: Context) -> "NumberColumn":
        """Learn mean and standard deviation of the values that are there."""
        x, missing = numbers(values, context)
        x = x[~missing] if missing is not None else x
        if not len(x) or x.min() == x.max():
            return cls(float(x[0]) if len(x) else 0.0, 0.0)
        with np.errstate(over="ignore", invalid="ignore"):
            mean, scale = float(x.mean()), float(x.std())
        if not np.isfinite(scale):
            raise InputError(
                f"{context.label}: column {context.column!r} has values up to "
                f"{np.abs(x).max():g}, too large to standardise. Rescale or ignore the column."
            )
        return cls(mean, scale)

    @property
    def width(self) -> int:
        """Number of features."""
        return 2

    def names(self, column: str) -> list[str]:
        """Name the features."""
        return [column, f"{column}=missing"]

    def encode(self, values: pa.ChunkedArray, context: Context) -> Block:
        """Standardise; a missing value has the indicator instead."""
        x, missing = numbers(values, context)
        if self.scale:
            with np.errstate(over="ignore", invalid="ignore"):
                z = ((x - self.mean) / self.scale).astype(np.float32)
        else:
            z = np.zeros(len(x), dtype=np.float32)
        if missing is not None:
            z[missing] = 1
        if len(z) and not (np.isfinite(z.min()) and np.isfinite(z.max())):
            problem = f"are too far from the mean of {self.mean:g} seen when fitting"
            raise bad_rows(
                context.label,
                context.column,
                ~np.isfinite(z),
                problem,
                "Correct or drop them.",
                context.table,
            )
        if missing is None:
            return Block(np.zeros(1, dtype=np.int32), z, 1)
        return Block(missing.astype(np.int32), z, 1)

    def to_dict(self) -> dict[str, Any]:
        """Give mean and scale."""
        return {"mean": self.mean, "scale": self.scale}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "NumberColumn":
        """Restore from `to_dict`."""
        return cls(float(data["mean"]), float(data["scale"]))


@dataclass(frozen=True)
class CategoryColumn:
    """One feature per frequent value, and one for all others.

    Attributes
    ----------
    vocabulary : Vocabulary
        The frequent values.
    missing : bool
        Whether null was frequent too, and has a feature of its own; it is unknown otherwise.
    """

    vocabulary: Vocabulary
    missing: bool

    @classmethod
    def fit(cls, values: pa.ChunkedArray, context: Context, min_count: int) -> "CategoryColumn":
        """Collect the values that occur at least `min_count` times."""
        vocabulary = Vocabulary.fit(values, context, min_count)
        return cls(vocabulary, values.null_count >= min_count)

    @property
    def width(self) -> int:
        """Number of features."""
        return len(self.vocabulary) + self.missing + 1

    def names(self, column: str) -> list[str]:
        """Name the features."""
        names = self.vocabulary.names(column)
        return names + [f"{column}=<missing>"] * self.missing + [f"{column}=<unknown>"]

    def encode(self, values: pa.ChunkedArray, context: Context) -> Block:
        """Give each row the feature of its value."""
        codes = self.vocabulary.codes(values, context)
        codes[codes < 0] = self.width - 1
        if self.missing and values.null_count:
            codes[null_mask(values)] = len(self.vocabulary)
        return Block(codes, None, 1)

    def to_dict(self) -> dict[str, Any]:
        """Give the values."""
        return {**self.vocabulary.to_dict(), "missing": self.missing}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "CategoryColumn":
        """Restore from `to_dict`."""
        return cls(Vocabulary.from_dict(data), bool(data["missing"]))


@dataclass(frozen=True)
class ListColumn:
    """One feature per frequent element, and one that says that the list has others.

    Attributes
    ----------
    vocabulary : Vocabulary
        The frequent elements.
    """

    vocabulary: Vocabulary

    @classmethod
    def fit(cls, values: pa.ChunkedArray, context: Context, min_count: int) -> "ListColumn":
        """Collect the elements that occur in at least `min_count` places."""
        elements = pa.chunked_array([c.flatten() for c in values.chunks], values.type.value_type)
        return cls(Vocabulary.fit(elements, context.of_elements(), min_count))

    @property
    def width(self) -> int:
        """Number of features."""
        return len(self.vocabulary) + 1

    def names(self, column: str) -> list[str]:
        """Name the features."""
        return [*self.vocabulary.names(column), f"{column}=<unknown>"]

    def encode(self, values: pa.ChunkedArray, context: Context) -> Block:
        """Give each row the features of its elements, each once; null and empty lists have none."""
        if not is_list(values.type):  # the null type: no list anywhere
            return Block(np.empty(0, np.int32), None, np.zeros(len(values), np.int64))
        lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy().astype(np.int64)
        elements = pa.chunked_array([c.flatten() for c in values.chunks], values.type.value_type)
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
        """Give the elements."""
        return self.vocabulary.to_dict()

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "ListColumn":
        """Restore from `to_dict`."""
        return cls(Vocabulary.from_dict(data))


@dataclass(frozen=True)
class VectorColumn:
    """Vectors as they are, such as embeddings of texts or images.

    Attributes
    ----------
    size : int
        Their length.
    missing : bool
        Whether there were nulls when fitting, and so is an indicator for them.
    """

    size: int
    missing: bool

    @classmethod
    def fit(cls, values: pa.ChunkedArray, context: Context) -> "VectorColumn":
        """Learn the length of the vectors."""
        lengths = pc.list_value_length(values)
        common = pc.max(lengths).as_py() or 0
        _same_length(lengths, common, context)
        vector = cls(common, values.null_count > 0)
        vector.encode(values, context)  # refuses what is not finite
        return vector

    @property
    def width(self) -> int:
        """Number of features."""
        return self.size + self.missing

    def names(self, column: str) -> list[str]:
        """Name the features."""
        names = [f"{column}[{place}]" for place in range(self.size)]
        return names + [f"{column}=missing"] * self.missing

    def encode(self, values: pa.ChunkedArray, context: Context) -> Block:
        """Give the coordinates; a missing vector is all zeros."""
        n_rows = len(values)
        there = ~null_mask(values) if values.null_count else np.ones(n_rows, dtype=bool)
        dense = np.zeros((n_rows, self.width), dtype=np.float32)
        if there.any():
            _same_length(pc.list_value_length(values), self.size, context)
            elements = pa.chunked_array(
                [c.flatten() for c in values.chunks], values.type.value_type
            )
            flat = elements.cast(pa.float32(), safe=False).to_numpy()  # a null becomes NaN
            vectors = flat.reshape(np.count_nonzero(there), self.size)
            finite = np.isfinite(vectors).all(axis=1)
            if not finite.all():
                bad = np.zeros(n_rows, dtype=bool)
                bad[there] = ~finite
                raise bad_rows(
                    context.label,
                    context.column,
                    bad,
                    "have NaN, null or infinity in their vector",
                    "Correct the vectors, or make them null where they are not known.",
                    context.table,
                )
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
        """Give the length."""
        return {"size": self.size, "missing": self.missing}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "VectorColumn":
        """Restore from `to_dict`."""
        return cls(int(data["size"]), bool(data["missing"]))


def _same_length(lengths: pa.ChunkedArray, size: int, context: Context) -> None:
    other = np.asarray(pc.fill_null(pc.not_equal(lengths, size), False), dtype=bool)
    if other.any():
        raise bad_rows(
            context.label,
            context.column,
            other,
            f"have a vector whose length is not {size}",
            "Give vectors of one length, or encode the column as 'list' or 'ignore' it.",
            context.table,
        )
