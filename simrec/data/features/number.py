"""Numbers: standardised, with an indicator where they are missing, and as piecewise curves."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.arrays import empty, null_mask
from simrec.data.features.column import LARGEST, Column, ColumnSettings, Context, Graph, family
from simrec.data.features.matrix import Block
from simrec.errors import InputError

_UNITS_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_N_PLAIN = 2  # the number and its indicator come before the knots


@dataclass(frozen=True)
class NumberColumn(Column):
    """A standardised number, an indicator where it is missing, and how near it is to some knots.

    A linear model of the features of knots is a piecewise linear curve over the number, constant
    beyond the outer knots.

    Attributes
    ----------
    mean, scale : float
        Mean and standard deviation; a scale of 0 stands for a constant column, which always
        encodes to 0.
    knots : numpy.ndarray
        Ascending; the features of two neighbouring knots add up to 1 between them. Often empty.
    """

    kind: ClassVar[str] = "number"
    families: ClassVar[tuple[str, ...]] = ("number", "time", "boolean", "string")

    mean: float
    scale: float
    knots: np.ndarray

    @classmethod
    def claim(cls, values: pa.ChunkedArray) -> bool:
        """Take numbers, dates and times."""
        return family(values.type) in ("number", "time")

    @classmethod
    def fit(
        cls, values: pa.ChunkedArray, context: Context, settings: ColumnSettings
    ) -> "NumberColumn":
        """Learn mean and standard deviation, and put the knots at quantiles."""
        held, no_knots = family(values.type), np.empty(0)
        x, missing = numbers(values, context)
        x = x[~missing] if missing is not None else x
        if not len(x) or x.min() == x.max():
            return cls(held, float(x[0]) if len(x) else 0.0, 0.0, no_knots)
        with np.errstate(over="ignore", invalid="ignore"):
            mean, scale = float(x.mean()), float(x.std())
        if not np.isfinite(scale):
            raise InputError(
                f"{context.label}: column {context.column!r} has values up to "
                f"{np.abs(x).max():g}, too large to standardise. Rescale or ignore the column."
            )
        if settings.knots < 3 or not scale:
            return cls(held, mean, scale, no_knots)
        # Values that occur, so that a number with two values gets no knot between them.
        places = np.linspace(0, 1, settings.knots)
        knots = np.unique(np.quantile(x, places, method="inverted_cdf"))
        return cls(held, mean, scale, knots if len(knots) >= 3 else no_knots)

    @property
    def width(self) -> int:
        """Number of features."""
        return _N_PLAIN + len(self.knots)

    def names(self, column: str) -> list[str]:
        """Name the features: `year`, `year=missing`, `year~1985`."""
        short = [f"{knot:.6g}" for knot in self.knots]
        if len(set(short)) < len(short):
            short = [repr(knot) for knot in self.knots.tolist()]
        return [column, f"{column}=missing", *(f"{column}~{knot}" for knot in short)]

    def encode(self, values: pa.ChunkedArray, context: Context) -> Block:
        """Standardise and interpolate between knots; a missing value has only its indicator."""
        x, missing = numbers(values, context)
        z = self._standardised(x, missing, context)
        straight = np.zeros(1, np.int32) if missing is None else missing.astype(np.int32)
        if not len(self.knots):
            return Block(straight, z, 1)
        left, share = self._between(x)
        own = _N_PLAIN + left
        first = np.broadcast_to(straight, len(x))
        indices = np.stack([first, own, own + 1], axis=1).astype(np.int32)
        data = np.stack([z, 1 - share, share], axis=1).astype(np.float32)
        if missing is None:
            return Block(indices.ravel(), data.ravel(), 3)
        kept = np.ones(indices.shape, bool)
        kept[missing, 1:] = False
        return Block(indices[kept], data[kept], kept.sum(axis=1))

    def _standardised(
        self, x: np.ndarray, missing: np.ndarray | None, context: Context
    ) -> np.ndarray:
        if self.scale:
            with np.errstate(over="ignore", invalid="ignore"):
                z = ((x - self.mean) / self.scale).astype(np.float32)
        else:
            z = np.zeros(len(x), dtype=np.float32)
        if missing is not None:
            z[missing] = 1
        # Compared so that NaN fails, too.
        if len(z) and not (z.min() >= -LARGEST and z.max() <= LARGEST):
            problem = f"are too far from the mean of {self.mean:g} seen when fitting"
            raise context.bad(~(np.abs(z) <= LARGEST), problem, "Correct or drop them.")
        return z

    def _between(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find the knot to the left of each number, and the share of the knot to its right."""
        inside = np.clip(x, self.knots[0], self.knots[-1])
        left = np.clip(np.searchsorted(self.knots, inside, "right") - 1, 0, len(self.knots) - 2)
        return left, (inside - self.knots[left]) / (self.knots[left + 1] - self.knots[left])

    def to_dict(self) -> dict[str, Any]:
        """Return mean, scale and knots."""
        knots = {"knots": self.knots.tolist()} if len(self.knots) else {}
        return {"mean": self.mean, "scale": self.scale, **knots}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "NumberColumn":
        """Restore from `to_dict`."""
        knots = np.array(data.get("knots", ()), np.float64)
        mean, scale = float(data["mean"]), float(data["scale"])
        numbers_fit = np.isfinite(mean) and 0 <= scale < np.inf and np.isfinite(knots).all()
        if (
            not numbers_fit
            or knots.ndim != 1
            or len(knots) in (1, 2)
            or (np.diff(knots) <= 0).any()
        ):
            raise InputError(f"column {data['name']!r}: its mean, scale or knots are damaged")
        return cls(data["family"], mean, scale, knots)

    def words(self, features: Sequence[int], values: Sequence[float]) -> str:
        """Return the number before it was standardised, or "missing"."""
        if 1 in features:
            return "missing"
        z = values[list(features).index(0)] if 0 in features else 0.0
        return f"{self.mean + z * self.scale:.6g}"

    def graph(self, tf: Any, label: str) -> Graph:
        """Build the encoding of float64, or of strings if the column held those."""
        text = self.family == "string"

        def encode(x: Any) -> tuple[Any, Any]:
            if text:
                x = tf.strings.to_number(tf.where(x == "", "nan", x), tf.float64)
            missing = tf.math.is_nan(x)
            z = (x - self.mean) / self.scale if self.scale else tf.zeros_like(x)
            indices = [tf.cast(missing, tf.int64)]
            data = [tf.where(missing, tf.ones_like(x), z)]
            if len(self.knots):
                inside = tf.clip_by_value(x, self.knots[0], self.knots[-1])
                left = tf.searchsorted(self.knots, inside, "right", tf.int64) - 1
                left = tf.clip_by_value(left, 0, len(self.knots) - 2)
                low, high = tf.gather(self.knots, left), tf.gather(self.knots, left + 1)
                share = (inside - low) / (high - low)
                none = tf.zeros_like(x)
                indices += [_N_PLAIN + left, _N_PLAIN + 1 + left]
                data += [tf.where(missing, none, 1 - share), tf.where(missing, none, share)]
            return tf.stack(indices, 1), tf.cast(tf.stack(data, 1), tf.float32)

        return Graph(tf.string if text else tf.float64, [None], encode)


def numbers(values: pa.ChunkedArray, context: Context) -> tuple[np.ndarray, np.ndarray | None]:
    """Take a column as float64: dates and times as days, booleans as 0 and 1, text parsed.

    Null is missing. NaN and infinity are refused. (In a pandas frame NaN means missing; it has
    become null by the time it is here.)

    Parameters
    ----------
    values : pyarrow.ChunkedArray
        The column.
    context : Context
        Where it comes from.

    Returns
    -------
    numbers : numpy.ndarray
        float64; 0 where a number is missing.
    missing : numpy.ndarray or None
        One boolean per row; None if none is missing.
    """
    missing = null_mask(values) if values.null_count else None
    floats = _as_floats(values, context)
    x = empty(len(floats), np.float64)
    start = 0
    for chunk in floats.chunks:
        x[start : start + len(chunk)] = chunk.to_numpy(zero_copy_only=False)
        start += len(chunk)
    if missing is not None:
        x[missing] = 0
    if len(x) and not (np.isfinite(x.min()) and np.isfinite(x.max())):
        nan = np.isnan(x)
        raise context.bad(
            nan if nan.any() else np.isinf(x),
            "are NaN" if nan.any() else "are infinite",
            "Correct them, or make them null where the value is not known.",
        )
    return x, missing


def _as_floats(values: pa.ChunkedArray, context: Context) -> pa.ChunkedArray:
    type_ = values.type
    if pa.types.is_dictionary(type_):
        return _as_floats(values.cast(type_.value_type), context)
    if pa.types.is_boolean(type_):
        values = values.cast(pa.uint8())
    elif family(type_) == "string":
        values = _parsed(values, context)
    elif pa.types.is_date32(type_):
        values = values.cast(pa.int32())
    elif family(type_) == "time":
        unit = "ms" if pa.types.is_date64(type_) else type_.unit
        whole = values.cast(pa.int64()).cast(pa.float64(), safe=False)
        return pc.divide(whole, float(_UNITS_PER_DAY[unit]))
    # Not safe: integers beyond 2**53 lose their last digits, which standardising forgives.
    return values.cast(pa.float64(), safe=False)


def _parsed(values: pa.ChunkedArray, context: Context) -> pa.ChunkedArray:
    try:
        return values.cast(pa.float64())
    except pa.ArrowInvalid as error:
        bad = np.array([not _is_number(text) for text in values.to_pylist()])
        raise context.bad(
            bad,
            "are not numbers",
            "Correct them, or encode the column as 'category' or 'text'.",
        ) from error


def _is_number(text: str | None) -> bool:
    try:
        pa.scalar(text, pa.large_string()).cast(pa.float64())
    except pa.ArrowInvalid:
        return False
    return True
