"""Numbers, dates and numeric text of a column as float64, with what is missing told apart."""

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.kinds import family
from simrec.data.memory import empty
from simrec.data.problems import bad_rows, null_mask

_UNITS_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


@dataclass(frozen=True)
class Context:
    """Where values come from, for error messages."""

    label: str
    column: str
    table: pa.Table | None = None

    def of_elements(self) -> "Context":
        """Give the context of values that are not one per row, so that no row is shown."""
        return replace(self, table=None)


def numbers(values: pa.ChunkedArray, context: Context) -> tuple[np.ndarray, np.ndarray | None]:
    """Take a column as float64: dates and times as days, booleans as 0 and 1, text parsed.

    Null is missing. NaN and infinity are refused: they are no numbers, and no way to say that
    there is none. (A pandas frame has no other way; its NaN are null by the time they are here.)

    Parameters
    ----------
    values : pyarrow.ChunkedArray
        The column.
    context : Context
        Where it comes from.

    Returns
    -------
    numbers : numpy.ndarray
        float64; what stands where a number is missing is not specified.
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
        raise bad_rows(
            context.label,
            context.column,
            nan if nan.any() else np.isinf(x),
            "are NaN" if nan.any() else "are infinite",
            "Correct them, or make them null where the value is not known.",
            context.table,
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
        raise bad_rows(
            context.label,
            context.column,
            bad,
            "are not numbers",
            "Correct them, or encode the column as 'category' or 'text'.",
            context.table,
        ) from error


def _is_number(text: str | None) -> bool:
    try:
        pa.scalar(text, pa.large_string()).cast(pa.float64())
    except pa.ArrowInvalid:
        return False
    return True
