"""Error messages about bad rows: table, column, count, an example row and the remedy."""

import numpy as np
import pyarrow as pa

from simrec.errors import InputError

_MAX_SHOWN = 60


def bad_rows(
    label: str,
    column: str,
    rows: np.ndarray,
    problem: str,
    remedy: str,
    table: pa.Table | None = None,
) -> InputError:
    """Make the error for some rows of a column that cannot be used.

    Parameters
    ----------
    label : str
        The table as the user knows it, a file name for instance.
    column : str
        The column at fault.
    rows : numpy.ndarray
        One boolean per row, True where the row is bad.
    problem : str
        What is wrong, to follow "3 of 100 rows": "are null", "are below 1".
    remedy : str
        What to do about it, a sentence.
    table : pyarrow.Table, optional
        Where the example row is taken from.
    """
    first = int(np.argmax(rows))
    example = f": {show_row(table, first)}" if table is not None else ""
    return InputError(
        f"{label}: column {column!r}: {int(np.count_nonzero(rows)):,} of {len(rows):,} rows "
        f"{problem}, the first is row {first:,}{example}. {remedy}"
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
