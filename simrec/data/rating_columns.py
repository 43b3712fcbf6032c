"""The columns of a ratings table, read and checked."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.id_columns import id_kind
from simrec.data.messages import bad_rows
from simrec.data.sides import Columns
from simrec.data.tables import NUMBER, TableLike, null_mask, read_table
from simrec.errors import InputError


def read_columns(source: TableLike, columns: Columns, name: str | None) -> pa.Table:
    """Read the columns of a ratings table that are used."""
    rating, ids = columns.rating, (columns.user_id, columns.item_id)
    named = [c for c in (*ids, rating, columns.timestamp) if c is not None]
    if len(set(named)) < len(named):
        raise InputError("user_id, item_id, rating and timestamp must be different columns.")
    optional = [c for c in named if c == "timestamp"]  # read if it is there
    needed = [c for c in named if c not in optional]
    try:
        return read_table(source, needed, optional=optional, name=name)
    except InputError as error:
        if rating is None or f"no column {rating!r}" not in str(error):
            raise
        hint = "For interactions without ratings pass rating=None (--rating none)."
        raise InputError(f"{error} {hint}") from error


def finite_numbers(table: pa.Table, column: str, label: str) -> np.ndarray:
    """Take ratings as float32, refusing what is not a finite number."""
    numbers = table.column(column)
    kind = numbers.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        _refuse_words(table, column, label)
        example = numbers[0].as_py() if len(numbers) else None
        raise InputError(
            f"{label}: column {column!r} holds {kind} values, such as {example!r}; ratings must "
            f"be numbers. Convert the column, for example with .astype('float32') in pandas."
        )
    if numbers.null_count:
        problem = "have no rating (null)"
        raise bad_rows(label, column, null_mask(numbers), problem, "Drop these rows.", table)
    if pa.types.is_decimal(kind):
        numbers = numbers.cast(pa.float64())
    with np.errstate(over="ignore"):  # reported below
        values = _joined(numbers, np.float32)
    if not np.isfinite(values).all():
        bad, problem, remedy = np.isnan(values), "are NaN", "Drop these rows."
        if not bad.any():
            bad, problem = np.isinf(values), "are infinite or too large for float32"
            remedy = "Drop or rescale them."
        raise bad_rows(label, column, bad, problem, remedy, table)
    return values


def _refuse_words(table: pa.Table, column: str, label: str) -> None:
    """Name the first of strings that is no number: one makes strings of a whole CSV column."""
    if id_kind(table.schema.field(column).type) != "string":
        return
    texts = pc.utf8_trim_whitespace(table.column(column).cast(pa.large_string()))
    words = pc.invert(pc.fill_null(pc.match_substring_regex(texts, NUMBER), True))
    bad = np.asarray(words.to_numpy(), dtype=bool)
    if bad.any():
        remedy = "Ratings must be numbers: correct or drop these rows."
        raise bad_rows(label, column, bad, "are not numbers", remedy, table)


def timestamps(table: pa.Table, column: str, label: str) -> np.ndarray:
    """Take times as int64 (numbers), float64 or datetime64 (dates and times, in UTC)."""
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
        bad = ~np.isfinite(seconds)
        if bad.any():
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


def _joined(values: pa.ChunkedArray, dtype: type) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype), *(c.to_numpy() for c in values.chunks)], dtype=dtype)


def checked_bounds(bounds: tuple[float, float]) -> tuple[float, float]:
    """Refuse bounds that are not two finite numbers in ascending order."""
    try:
        low, high = (float(bound) for bound in bounds)
    except (TypeError, ValueError):
        low = high = np.nan
    if not -np.inf < low < high < np.inf:
        raise InputError(
            f"bounds must be the lowest and the highest possible rating, such as (1, 5); "
            f"got {bounds!r}."
        )
    return low, high
