"""Columns of a ratings table as checked NumPy arrays: ratings, weights, times."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.arrays import empty, null_mask
from simrec.data.messages import bad_rows
from simrec.errors import InputError


def rating_values(table: pa.Table, column: str, label: str) -> np.ndarray:
    """Take the ratings as float32, refusing what is not a finite number.

    Parameters
    ----------
    table : pyarrow.Table
        The ratings table.
    column : str
        The ratings' column.
    label : str
        The table's name, for error messages.
    """
    return _finite_numbers(table, column, label, "rating")


def weight_values(table: pa.Table, column: str, label: str) -> np.ndarray:
    """Take the weights as float32, refusing what is not a finite number of at least 0.

    Parameters
    ----------
    table, column, label
        As of `rating_values`.
    """
    weights = _finite_numbers(table, column, label, "weight")
    if len(weights) and weights.min() < 0:
        remedy = "Weights say how much an interaction counts: drop or correct these rows."
        raise bad_rows(label, column, weights < 0, "are below 0", remedy, table)
    return weights


def _finite_numbers(table: pa.Table, column: str, label: str, what: str) -> np.ndarray:
    numbers = table.column(column)
    kind = numbers.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        example = numbers[0].as_py() if len(numbers) else None
        raise InputError(
            f"{label}: column {column!r} holds {kind} values, such as {example!r}; {what}s must "
            f"be numbers. Convert the column, for example with .astype('float32') in pandas."
        )
    if numbers.null_count:
        problem = f"have no {what} (null)"
        raise bad_rows(label, column, null_mask(numbers), problem, "Drop these rows.", table)
    if pa.types.is_decimal(kind):
        numbers = numbers.cast(pa.float64())
    with np.errstate(over="ignore"):  # reported below
        values = _joined(numbers, np.float32)
    if len(values) and not (np.isfinite(values.min()) and np.isfinite(values.max())):
        raise _not_finite(values, table, column, label)
    return values


def _not_finite(values: np.ndarray, table: pa.Table, column: str, label: str) -> InputError:
    nan = np.isnan(values)
    if nan.any():
        return bad_rows(label, column, nan, "are NaN", "Drop these rows.", table)
    problem = "are infinite or too large for float32"
    return bad_rows(label, column, np.isinf(values), problem, "Drop or rescale them.", table)


def outside(values: np.ndarray, low: float, high: float) -> np.ndarray | None:
    """Find the ratings outside of the bounds; None if there are none.

    The bounds are rounded as the ratings were: 0.7 is within (0.7, 1) though its float32 is less.
    """
    below, above = np.float32(low), np.float32(high)
    if not len(values) or (values.min() >= below and values.max() <= above):
        return None
    return (values < below) | (values > above)


def check_bounds(bounds: tuple[float, float]) -> tuple[float, float]:
    """Refuse bounds that are not two finite numbers in ascending order."""
    try:
        low, high = (float(bound) for bound in bounds)
    except (TypeError, ValueError):
        low, high = np.nan, np.nan
    if not (np.isfinite(low) and np.isfinite(high) and low < high):
        raise InputError(
            f"bounds must be the lowest and the highest possible rating, such as (1, 5); "
            f"got {bounds!r}."
        )
    return low, high


def timestamp_values(table: pa.Table, column: str, label: str) -> np.ndarray:
    """Take times as int64 (numbers), float64 or datetime64 (dates and times, in UTC).

    Parameters
    ----------
    table : pyarrow.Table
        The ratings table.
    column : str
        The column of times.
    label : str
        The table's name, for error messages.
    """
    times = table.column(column)
    kind = times.type
    remedy = "Drop these rows, or pass timestamp=None to leave times aside."
    if times.null_count:
        raise bad_rows(label, column, null_mask(times), "have no time (null)", remedy, table)
    if pa.types.is_integer(kind):
        try:
            return _joined(times.cast(pa.int64()), np.int64)
        except pa.ArrowInvalid as error:
            raise InputError(f"{label}: column {column!r}: {error}. {remedy}") from error
    if pa.types.is_floating(kind):
        seconds = _joined(times, np.float64)
        if not np.isfinite(seconds).all():
            bad = ~np.isfinite(seconds)
            raise bad_rows(label, column, bad, "are NaN or infinite", remedy, table)
        return seconds
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        unit = kind.unit if pa.types.is_timestamp(kind) else "s"
        whole = pc.cast(times, pa.timestamp(unit))
        return _joined(whole.cast(pa.int64()), np.int64).view(f"datetime64[{unit}]")
    raise InputError(
        f"{label}: column {column!r} holds {kind} values, such as {times[0].as_py()!r}; times "
        "must be numbers, dates or timestamps. Convert the column, or pass timestamp=None to "
        "leave times aside."
    )


def as_seconds(times: np.ndarray) -> np.ndarray:
    """Take times as float64: seconds since 1970 of datetime64, numbers as they are."""
    if times.dtype.kind == "M":
        return (times - np.datetime64(0, "s")) / np.timedelta64(1, "s")
    return times.astype(np.float64)


def _joined(values: pa.ChunkedArray, dtype: type) -> np.ndarray:
    if values.num_chunks == 1:
        return values.chunk(0).to_numpy().astype(dtype, copy=False)  # Arrow's memory, no copy
    joined = empty(len(values), dtype)
    start = 0
    for chunk in values.chunks:
        joined[start : start + len(chunk)] = chunk.to_numpy()
        start += len(chunk)
    return joined
