"""Vectors such as embeddings of texts or images: their coordinates or principal components."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy import sparse

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
from simrec.data.tables import null_mask
from simrec.errors import InputError

# Rows from which components are computed, at most: every n-th row beyond.
_MOST_ROWS = 20_000
# The randomised range finder (Halko, Martinsson, Tropp 2011): further directions, power iterations.
_FURTHER, _ITERATIONS = 16, 5
# Directions with less than this share of the largest standard deviation carry nothing.
_LEAST = 1e-3
# Components beyond this are cut: their variances sum up to 1, and one stray row must not overflow.
_LARGEST_COMPONENT = 1e3
# Rows that are multiplied at once, in double precision: the order in which BLAS sums depends on the
# number of rows, and a row must be encoded the same in any table.
_ROWS = 4096


@dataclass(frozen=True, eq=False)
class Components:
    """The leading principal components of rows, all scaled by one factor.

    A ridge penalty on their weights is thus one on the weights of the original numbers, and means
    the same for every column: the variances of all components sum up to 1.
    """

    axes: np.ndarray  # unit vectors as columns, exact in half precision, in which they are saved
    offset: np.ndarray  # components of the mean row
    scale: float

    @classmethod
    def fit(cls, rows: np.ndarray | sparse.csr_matrix, most: int) -> "Components":
        """Find components of float32 rows: `most`, or fewer if rows differ in fewer directions."""
        sample = rows[:: max(-(-rows.shape[0] // _MOST_ROWS), 1)]
        n, width = sample.shape
        most = min(most, n - 1, width)
        if most < 1:
            return cls(np.zeros((width, 0), np.float32), np.zeros(0, np.float32), 0.0)
        mean = np.asarray(sample.mean(axis=0), np.float64).ravel()
        # A power of two brings numbers of any size near 1 without rounding them.
        largest = float(abs(sample).max())
        unit = np.float32(2.0 ** -np.round(np.log2(largest))) if largest > 0 else np.float32(1)
        sample, center = sample * unit, (mean * unit).astype(np.float32)

        def times(directions: np.ndarray) -> np.ndarray:
            return np.asarray(sample @ directions) - center @ directions

        def transposed(left: np.ndarray) -> np.ndarray:
            return np.asarray(sample.T @ left) - np.outer(center, left.sum(axis=0))

        # Iterations are done where matrices are smaller: among rows, or among their numbers.
        there, back = (times, transposed) if width < n else (transposed, times)
        size = (min(width, n), min(most + _FURTHER, n, width))
        basis = np.random.default_rng(0).normal(size=size).astype(np.float32)
        for _ in range(_ITERATIONS):
            basis = np.linalg.qr(back(there(basis)))[0]
        image = there(basis)
        squares, turn = np.linalg.eigh(image.T.astype(np.float64) @ image)
        squares, turn = squares[::-1][:most], turn[:, ::-1][:, :most].astype(np.float32)
        kept = np.count_nonzero(squares > _LEAST**2 * max(squares[0], 1e-24))
        squares, turn = squares[:kept], turn[:, :kept]
        axes = basis @ turn if width < n else image @ turn / np.sqrt(squares).astype(np.float32)
        # The sign of a component is arbitrary; this one does not depend on the machine.
        axes = axes * np.where(axes[np.abs(axes).argmax(0), np.arange(kept)] < 0, -1, 1)
        axes = axes.astype(np.float16).astype(np.float32)
        scale = float(unit) / np.sqrt(float(squares.sum()) / n) if kept else 0.0
        offset = (mean @ axes).astype(np.float32)
        return cls(np.ascontiguousarray(axes), offset, float(scale))

    @property
    def width(self) -> int:
        """Number of components."""
        return self.axes.shape[1]

    def __call__(self, rows: np.ndarray | sparse.csr_matrix) -> np.ndarray:
        """Return the components of rows, float32."""
        if sparse.issparse(rows):
            found = np.asarray(rows @ self.axes)
        else:
            axes = self.axes.astype(np.float64)
            found = np.empty((rows.shape[0], self.width), np.float32)
            for start in range(0, len(found), _ROWS):
                piece = slice(start, start + _ROWS)
                found[piece] = rows[piece].astype(np.float64) @ axes
        found = (found - self.offset) * np.float32(self.scale)
        return np.clip(found, -_LARGEST_COMPONENT, _LARGEST_COMPONENT).astype(np.float32)

    def scaled(self, tf: Any, products: Any) -> Any:
        """Return components in TensorFlow, given products of rows and axes."""
        found = (products - self.offset) * self.scale
        return tf.clip_by_value(found, -_LARGEST_COMPONENT, _LARGEST_COMPONENT)

    def back(self, components: np.ndarray) -> np.ndarray:
        """Return how a row with these components differs from the mean row."""
        return self.axes @ (components / (self.scale or 1.0))

    def to_dict(self) -> dict[str, Any]:
        """Return the components, ready for JSON."""
        axes = base64.b64encode(self.axes.astype("<f2").tobytes()).decode("ascii")
        return {"axes": axes, "offset": self.offset.tolist(), "scale": self.scale}

    @classmethod
    def from_dict(cls, data: dict[str, Any], size: int, column: str) -> "Components":
        """Restore from `to_dict`, for rows of `size` numbers."""
        try:
            offset = np.array(data["offset"], np.float32)
            axes = np.frombuffer(base64.b64decode(data["axes"], validate=True), "<f2")
            scale = float(data["scale"])
            fits = offset.ndim == 1 and len(offset) <= MOST_FEATURES
            fits = fits and len(axes) == size * len(offset) and 0 <= scale < np.inf
        except (KeyError, TypeError, ValueError):
            fits = False
        if not fits or not (np.isfinite(axes).all() and np.isfinite(offset).all()):
            raise InputError(f"column {column!r}: its principal components are damaged")
        return cls(axes.reshape(size, len(offset)).astype(np.float32), offset, scale)


@dataclass(frozen=True, eq=False)
class VectorColumn(Column):
    """Vectors of one length, `size`: as they are, or the principal components of long ones.

    `missing` says whether an indicator of nulls follows them.
    """

    kind: ClassVar[str] = "vector"
    families: ClassVar[tuple[str, ...]] = ("list of numbers",)

    missing: bool
    size: int
    components: Components | None

    @property
    def n_coordinates(self) -> int:
        """Number of features without the indicator."""
        return self.size if self.components is None else self.components.width

    def names(self, column: str) -> list[str]:
        """Name the features: `poster[0]`, `poster[1]`, `poster=missing`."""
        names = [f"{column}[{place}]" for place in range(self.n_coordinates)]
        return names + [f"{column}=missing"] * self.missing

    def encode_dense(self, vectors: Any, there: np.ndarray) -> sparse.csr_matrix:
        """Encode the vectors of the rows that have one; the others are all zeros."""
        width = self.n_coordinates + self.missing
        dense = np.zeros((len(there), width), dtype=np.float32)
        found = vectors if self.components is None else self.components(vectors)
        dense[there, : self.n_coordinates] = found
        if self.missing:
            dense[~there, -1] = 1
        return sparse.csr_matrix(dense)

    def slots(self, tf: Any, found: Any, there: Any) -> tuple[Any, Any]:
        """Do in TensorFlow what `encode_dense` does, with coordinates of all rows."""
        there = there[:, None]
        found = tf.where(there, found, tf.zeros_like(found))
        if self.missing:
            found = tf.concat([found, tf.cast(~there, tf.float32)], 1)
        indices = tf.range(self.n_coordinates + self.missing, dtype=tf.int64)[None]
        return tf.broadcast_to(indices, tf.shape(found, tf.int64)), found

    def words(self, features: Sequence[int], values: Sequence[float]) -> str:
        return "missing" if self.missing and self.width - 1 in features else self.kind

    @classmethod
    def claim(cls, values: pa.ChunkedArray) -> bool | str:
        """Take fixed-size lists of numbers and lists of floats; lists of integers hold tags."""
        if family(values.type) != "list of numbers":
            return False
        inner = values.type.value_type
        inner = inner.value_type if pa.types.is_dictionary(inner) else inner
        return pa.types.is_fixed_size_list(values.type) or not pa.types.is_integer(inner)

    @classmethod
    def fit(cls, values: pa.ChunkedArray, context: Context, settings: ColumnSettings) -> Self:
        """Learn the length of the vectors, and the components of long ones."""
        lengths = pc.list_value_length(values)
        common = pc.max(lengths).as_py() or 0
        _check_length(lengths, common, context)
        vectors, there = dense_vectors(values, common, context)  # refuses what is not finite
        return cls.of(family(values.type), vectors, there, settings)

    @classmethod
    def of(
        cls, held: str, vectors: np.ndarray, there: np.ndarray, settings: ColumnSettings, *more: Any
    ) -> Self:
        """Fit to the vectors of the rows that have one; `more` are attributes of subclasses."""
        wide = vectors.shape[1] > settings.components
        components = Components.fit(vectors, settings.components) if wide else None
        return cls(held, not there.all(), vectors.shape[1], components, *more)

    def encode(self, values: pa.ChunkedArray, context: Context) -> sparse.csr_matrix:
        """Return coordinates or components; a missing vector is all zeros."""
        return self.encode_dense(*dense_vectors(values, self.size, context))

    def to_dict(self) -> dict[str, Any]:
        reduced = {} if self.components is None else {"components": self.components.to_dict()}
        return {"size": self.size, "missing": self.missing, **reduced}

    @classmethod
    def from_dict(cls, data: dict[str, Any], *more: Any) -> Self:
        size, components = int(data["size"]), data.get("components")
        if not 0 <= size <= MOST_FEATURES:
            raise InputError(f"column {data['name']!r}: vectors of {size:,} numbers")
        if components is not None:
            components = Components.from_dict(components, size, data["name"])
        return cls(data["family"], bool(data["missing"]), size, components, *more)

    def reading(self) -> str:
        reduced = f", as {self.components.width} components" if self.components else ""
        return f"vector of {self.size:,}{reduced}"

    def graph(self, tf: Any, label: str) -> Graph:
        """Build the encoding of vectors; a missing one is a row of NaN."""

        def encode(x: Any) -> tuple[Any, Any]:
            there = ~tf.reduce_any(tf.math.is_nan(x), 1)
            found = tf.where(there[:, None], x, tf.zeros_like(x))
            if self.components is not None:
                products = tf.matmul(found, tf.constant(self.components.axes))
                found = self.components.scaled(tf, products)
            return self.slots(tf, found, there)

        return Graph(tf.float32, [None, self.size], encode)


def dense_vectors(
    values: pa.ChunkedArray, size: int, context: Context
) -> tuple[np.ndarray, np.ndarray]:
    """Return the vectors of the rows that have one, float32, and which rows have one."""
    there = ~null_mask(values)
    if not there.any():
        return np.zeros((0, size), np.float32), there
    _check_length(pc.list_value_length(values), size, context)
    flat = elements_of(values).cast(pa.float32(), safe=False).to_numpy()  # null to NaN
    vectors = flat.reshape(np.count_nonzero(there), size)
    bad = np.zeros(len(there), dtype=bool)
    bad[there] = ~np.isfinite(vectors).all(axis=1)
    if bad.any():
        remedy = "Correct the vectors, or make them null where they are not known."
        raise context.bad(bad, "have NaN, null or infinity in their vector", remedy)
    bad[there] = (np.abs(vectors) > LARGEST).any(axis=1)
    if bad.any():
        problem = f"have a coordinate beyond {LARGEST:g} in their vector"
        raise context.bad(bad, problem, "Rescale the vectors, for example to length 1.")
    return vectors, there


def _check_length(lengths: pa.ChunkedArray, size: int, context: Context) -> None:
    other = np.asarray(pc.fill_null(pc.not_equal(lengths, size), False), dtype=bool)
    if other.any():
        raise context.bad(
            other,
            f"have a vector whose length is not {size}",
            "Give vectors of one length, or encode the column as 'list' or 'ignore' it.",
        )
