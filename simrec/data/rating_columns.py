"""Columns of a ratings table as checked NumPy arrays, and pairs that were rated more than once."""

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.messages import bad_rows, show_row
from simrec.data.sides import Columns
from simrec.data.tables import TableLike, null_mask, read_table
from simrec.errors import InputError

if TYPE_CHECKING:
    from simrec.data.ratings import Ratings

logger = logging.getLogger(__name__)


def read_columns(source: TableLike, columns: Columns, name: str | None) -> pa.Table:
    """Read the columns of a ratings table that are used; see `Ratings.from_table`."""
    rating, extra = columns.rating, [columns.timestamp, columns.weight]
    named = [c for c in (columns.user_id, columns.item_id, rating, *extra) if c is not None]
    if len(set(named)) < len(named):
        raise InputError(
            "user_id, item_id, rating, timestamp and weight must be different columns."
        )
    optional = [c for c in ("timestamp", "weight") if c in extra]  # read if they are there
    ids = (columns.user_id, columns.item_id)
    needed = [c for c in named if c not in optional]
    try:
        return read_table(source, needed, optional=optional, dictionaries=ids, name=name)
    except InputError as error:
        if rating is None or f"no column {rating!r}" not in str(error):
            raise
        raise InputError(f"{error} For interactions without ratings pass rating=None.") from error


def finite_numbers(table: pa.Table, column: str, label: str, what: str) -> np.ndarray:
    """Take ratings or weights (`what`) as float32, refusing what is not a finite number."""
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
    if not np.isfinite(values).all():
        bad, problem, remedy = np.isnan(values), "are NaN", "Drop these rows."
        if not bad.any():
            bad, problem = np.isinf(values), "are infinite or too large for float32"
            remedy = "Drop or rescale them."
        raise bad_rows(label, column, bad, problem, remedy, table)
    if what == "weight" and (values < 0).any():
        remedy = "Weights say how much an interaction counts: drop or correct these rows."
        raise bad_rows(label, column, values < 0, "are below 0", remedy, table)
    return values


def timestamp_values(table: pa.Table, column: str, label: str) -> np.ndarray:
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


def check_bounds(bounds: tuple[float, float]) -> tuple[float, float]:
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


def positions(which: Any, n: int) -> np.ndarray:
    """Check booleans or positions that choose some of `n` ratings."""
    which = np.asarray(which)
    if which.dtype == bool:
        if which.shape != (n,):
            raise InputError(f"select: {n:,} ratings need as many booleans, got {which.shape}.")
        return which
    if not which.size:
        return np.empty(0, dtype=np.int64)
    if which.dtype.kind not in "iu" or which.ndim != 1:
        raise InputError(f"select: give booleans or integers, not {which.dtype} {which.shape}.")
    if which.min() < -n or which.max() >= n:
        raise InputError(f"select: positions go from {-n} to {n - 1}, got {which.max()}.")
    if len(np.unique(which % n)) < len(which):
        raise InputError("select: a position is given twice; give each rating once.")
    return which


def repeated_pairs(user_rows: np.ndarray, item_rows: np.ndarray, n_items: int) -> np.ndarray:
    """Find the ratings whose (user, item) pair occurs more than once: positions, ascending."""
    keys = _pair_keys(user_rows, item_rows, n_items)
    if (keys[1:] > keys[:-1]).all():  # many files are in order already
        return np.empty(0, dtype=np.int64)
    ordered = np.sort(keys)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    del ordered  # as large as the pairs
    return np.flatnonzero(np.isin(keys, repeated)) if len(repeated) else repeated


def _pair_keys(user_rows: np.ndarray, item_rows: np.ndarray, n_items: int) -> np.ndarray:
    """Make one number of each (user, item) pair, int64."""
    keys = np.multiply(user_rows, n_items, dtype=np.int64)
    keys += item_rows
    return keys


def merge_duplicates(
    ratings: "Ratings", rows: np.ndarray, duplicates: str, label: str
) -> "Ratings":
    """Keep one rating of each pair that occurs more than once, or refuse them.

    The latest is kept, and the mean where time does not decide. `rows` are the positions of all
    ratings of such pairs, ascending.
    """
    keys = _pair_keys(ratings.user_rows[rows], ratings.item_rows[rows], ratings.n_items)
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(keys[order]) != 0])
    counts, rows = np.diff(np.r_[starts, len(order)]), rows[order]
    first = rows[starts]
    if duplicates == "error":
        example = int(first.min())
        raise InputError(
            f"{label}: {len(rows) - len(first):,} of {len(ratings):,} rows repeat a (user, item) "
            f"pair that came before; row {example:,} is the first to be repeated: "
            f"{show_rating(ratings, example)}. Keep one row for each pair, or allow "
            "duplicates='resolve' (the latest, else the mean)."
        )
    times, weights, latest = ratings.timestamps, ratings.weights, None
    counted = np.ones(len(rows))
    if times is not None:
        latest = np.maximum.reduceat(times[rows], starts)
        counted = (times[rows] == np.repeat(latest, counts)).astype(np.float64)
    sums = np.add.reduceat(counted * ratings.values[rows].astype(np.float64), starts)
    kept_one = "the mean" if times is None else "the latest"
    logger.warning(
        "%s: %d of %d rows repeat a (user, item) pair; %s rating of each pair was kept",
        *(label, len(rows) - len(first), len(ratings), kept_one),
    )
    keep = np.ones(len(ratings), dtype=bool)
    keep[rows] = False
    keep[first] = True

    def kept(array: np.ndarray, values: Any) -> np.ndarray:
        array = array.copy()
        array[first] = values
        return array[keep]

    if weights is not None:
        totals = np.add.reduceat(weights[rows].astype(np.float64), starts)
        weights = kept(weights, np.minimum(totals, np.finfo(np.float32).max))
    return replace(
        ratings,
        user_rows=ratings.user_rows[keep],
        item_rows=ratings.item_rows[keep],
        values=kept(ratings.values, sums / np.add.reduceat(counted, starts)),
        timestamps=None if times is None else kept(times, latest),
        weights=weights,
        n_duplicates=len(rows) - len(first),
    )


def show_rating(ratings: "Ratings", row: int) -> str:
    """Show one rating in a message."""
    return show_row(ratings.select(np.array([row])).to_arrow(), 0)
