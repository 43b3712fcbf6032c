"""Numbers: standardised, with an indicator where they are missing, and as piecewise curves.

Dates are numbers of days.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy import sparse

from simrec.data.features.column import (
    LARGEST,
    Column,
    ColumnSettings,
    Context,
    Graph,
    family,
    sparse_rows,
)
from simrec.data.features.strings import to_numbers
from simrec.data.tables import NUMBER, null_mask
from simrec.errors import InputError

_UNITS_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_N_PLAIN = 2  # the number and its indicator come before the knots


@dataclass(frozen=True)
class NumberColumn(Column):
    """A standardised number, an indicator where it is missing, and how near it is to some knots."""

    kind: ClassVar[str] = "number"
    families: ClassVar[tuple[str, ...]] = ("number", "time", "boolean", "string")

    mean: float
    scale: float  # standard deviation; 0 for a constant column, which always encodes to 0
    knots: np.ndarray  # ascending; the features of two neighbours add up to 1 between them

    @classmethod
    def claim(cls, values: pa.ChunkedArray) -> bool:
        """Take numbers, dates and times."""
        return family(values.type) in ("number", "time")

    @classmethod
    def fit(cls, values: pa.ChunkedArray, context: Context, settings: ColumnSettings) -> Self:
        """Learn mean and standard deviation, and put the knots at quantiles."""
        x, missing = numbers(values, context)
        x = x[~missing] if missing is not None else x
        mean, scale, knots = float(x[0]) if len(x) else 0.0, 0.0, np.empty(0)
        if len(x) and x.min() < x.max():
            with np.errstate(over="ignore", invalid="ignore"):
                mean, scale = float(x.mean()), float(x.std())
        if not np.isfinite(scale):
            raise InputError(
                f"{context.label}: column {context.column!r} has values up to "
                f"{np.abs(x).max():g}, too large to standardise. Rescale or ignore the column."
            )
        if settings.knots >= 3 and scale:
            # Values that occur, so that a number with two values gets no knot between them.
            places = np.linspace(0, 1, settings.knots)
            found = np.unique(np.quantile(x, places, method="inverted_cdf"))
            knots = found if len(found) >= 3 else knots
        return cls(family(values.type), mean, scale, knots)

    def names(self, column: str) -> list[str]:
        """Name the features: `year`, `year=missing`, `year~1985`."""
        short = [f"{knot:.6g}" for knot in self.knots]
        if len(set(short)) < len(short):
            short = [repr(knot) for knot in self.knots.tolist()]
        return [column, f"{column}=missing", *(f"{column}~{knot}" for knot in short)]

    def encode(self, values: pa.ChunkedArray, context: Context) -> sparse.csr_matrix:
        """Standardise and interpolate between knots; a missing value has only its indicator."""
        x, missing = numbers(values, context)
        there = np.ones(len(x), bool) if missing is None else ~missing
        with np.errstate(over="ignore", invalid="ignore"):
            z = ((x - self.mean) / self.scale if self.scale else x * 0).astype(np.float32)
        z[~there] = 1
        if not (np.abs(z) <= LARGEST).all():  # compared so that NaN fails, too
            problem = f"are too far from the mean of {self.mean:g} seen when fitting"
            raise context.bad(~(np.abs(z) <= LARGEST), problem, "Correct or drop them.")
        indices, data = [~there], [z]
        if len(self.knots):
            inside = np.clip(x, self.knots[0], self.knots[-1])
            left = np.searchsorted(self.knots, inside, "right") - 1
            left = np.clip(left, 0, len(self.knots) - 2)
            share = (inside - self.knots[left]) / (self.knots[left + 1] - self.knots[left])
            indices += [_N_PLAIN + left, _N_PLAIN + 1 + left]
            data += [1 - share, share]
        kept = np.ones((len(x), len(indices)), bool)
        kept[~there, 1:] = False
        entries = np.stack(indices, 1)[kept].astype(np.int32)
        numbers_ = np.stack(data, 1)[kept].astype(np.float32)
        return sparse_rows(entries, numbers_, kept.sum(axis=1), self.width)

    def to_dict(self) -> dict[str, Any]:
        knots = {"knots": self.knots.tolist()} if len(self.knots) else {}
        return {"mean": self.mean, "scale": self.scale, **knots}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        knots = np.array(data.get("knots", ()), np.float64)
        mean, scale = float(data["mean"]), float(data["scale"])
        finite = np.isfinite(mean) and 0 <= scale < np.inf and np.isfinite(knots).all()
        fits = knots.ndim == 1 and len(knots) not in (1, 2) and not (np.diff(knots) <= 0).any()
        if not (finite and fits):
            raise InputError(f"column {data['name']!r}: its mean, scale or knots are damaged")
        return cls(data["family"], mean, scale, knots)

    def takes(self, held: str) -> bool:
        return super().takes(held) or (self.family == "string" and held == "number")

    def reading(self) -> str:
        named = {"time": "date or time", "string": "number in text"}
        return named.get(self.family, self.kind)

    def words(self, features: Sequence[int], values: Sequence[float]) -> str:
        if 1 in features:
            return "missing"
        z = values[list(features).index(0)] if 0 in features else 0.0
        value = self.mean + z * self.scale
        return f"{0.0 if abs(value) < 1e-6 * abs(self.mean) else value:.6g}"  # not 5e-09

    def graph(self, tf: Any, label: str) -> Graph:
        """Build the encoding of float64 (also days), or of numbers in strings."""
        text = self.family == "string"

        def encode(x: Any) -> tuple[Any, Any]:
            if text:
                x = tf.strings.strip(x)
                number = tf.strings.regex_full_match(x, NUMBER)
                x = tf.strings.to_number(tf.where(number, x, "nan"), tf.float64)
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
    """Take a column as float64, and which rows are missing (then 0), None if none is.

    Dates and times are days, booleans 0 and 1, text is parsed. NaN and infinity are refused.
    """
    floats = _as_floats(values, context)
    missing = null_mask(floats) if floats.null_count else None
    x = np.array(floats.to_numpy(), np.float64)
    if missing is not None:
        x[missing] = 0
    if not np.isfinite(x).all():
        bad, problem = np.isnan(x), "are NaN"
        if not bad.any():
            bad, problem = np.isinf(x), "are infinite"
        remedy = "Correct them, or make them null where the value is not known."
        raise context.bad(bad, problem, remedy)
    return x, missing


def _as_floats(values: pa.ChunkedArray, context: Context) -> pa.ChunkedArray:
    type_ = values.type
    if pa.types.is_dictionary(type_):
        return _as_floats(values.cast(type_.value_type), context)
    if family(type_) == "string":
        return to_numbers(values, context)
    if pa.types.is_boolean(type_):
        values = values.cast(pa.uint8())
    elif pa.types.is_date32(type_):
        values = values.cast(pa.int32())
    elif family(type_) == "time":
        unit = "ms" if pa.types.is_date64(type_) else type_.unit
        whole = values.cast(pa.int64()).cast(pa.float64(), safe=False)
        return pc.divide(whole, float(_UNITS_PER_DAY[unit]))
    # Not safe: integers beyond 2**53 lose their last digits, which standardising forgives.
    return values.cast(pa.float64(), safe=False)
