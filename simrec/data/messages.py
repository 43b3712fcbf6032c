"""Error messages about bad rows: table, column, count, an example row and the remedy."""

import os
from collections.abc import Sequence
from contextvars import ContextVar

import numpy as np
import pyarrow as pa

from simrec.errors import InputError, listing, nearest

_MAX_SHOWN = 60

ROWS_BEFORE: ContextVar[int] = ContextVar("rows of a file before those that are read", default=0)


def describe(source: object, name: str | None = None) -> str:
    """Name a table for error messages: `ratings.parquet`, or `items (DataFrame)`."""
    if name and name.endswith(")"):
        return name  # it was described before
    if isinstance(source, str | os.PathLike):
        where = os.fspath(source).partition("#columns=")[0]
    elif isinstance(source, pa.Table | pa.RecordBatch):
        where = "Arrow table"
    else:
        where = type(source).__name__
    return f"{name} ({where})" if name else str(where)


def bad_rows(
    label: str,
    column: str,
    rows: np.ndarray,
    problem: str,
    remedy: str,
    table: pa.Table | None = None,
    *,
    numbered: bool = True,
) -> InputError:
    """Make the error for some rows of a column that cannot be used: those where `rows` is True.

    `problem` follows "3 of 100 rows": "are null"; the example row is taken from `table`. Rows are
    counted from 0, without a row of names; rows in another order than the user's have no number.
    """
    first = int(np.argmax(rows))
    parts = [f"row {first + ROWS_BEFORE.get():,}"] if numbered else []
    parts += [show_row(table, first)] if table is not None else []
    example = f", the first is {': '.join(parts)}" if parts else ""
    return InputError(
        f"{label}: column {column!r}: {int(np.count_nonzero(rows)):,} of {len(rows):,} rows "
        f"{problem}{example}. {remedy}"
    )


def show_row(table: pa.Table, row: int) -> str:
    """Show one row as `column=value` pairs, long values cut short."""
    shown = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            text = repr(column[row].as_py())
        except (ValueError, OverflowError):  # a date that Python does not have
            text = f"a {column.type} that Python cannot show"
        shown.append(f"{name}={text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + '...'}")
    return ", ".join(shown)


def no_column(missing: Sequence[str], present: Sequence[str], label: str) -> InputError:
    """Make the error for columns that a table lacks, with the nearest names."""
    hints = "".join(dict.fromkeys(nearest(column, present) for column in missing[:3]))
    lacking = listing([repr(name) for name in missing])
    if any(name.isdigit() for name in present):
        hints = " If a file has no row of names, say them: #columns=NAME,NAME,... after its path."
    return InputError(f"{label}: no column {lacking}.{hints} The columns are: {listing(present)}.")
