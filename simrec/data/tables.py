"""Reading a table from whatever holds it: pandas, Arrow, a Parquet file or a directory of them."""

import glob
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from simrec.data.problems import listing, nearest, show_row
from simrec.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow.dataset as ds

TableLike: TypeAlias = "pd.DataFrame | pa.Table | str | os.PathLike[str]"
"""Wherever SimRec takes a table it takes any of these; a path is a Parquet file or directory."""

_PARQUET_ENDINGS = (".parquet", ".parq", ".pq")


def describe(source: object, name: str | None = None) -> str:
    """Name a table for error messages.

    Parameters
    ----------
    source : table-like
        A pandas DataFrame, an Arrow table, or a path.
    name : str, optional
        The table's part in the call, such as `"items"`.

    Returns
    -------
    str
        For example `ratings.parquet`, or `items (DataFrame)`.
    """
    if isinstance(source, str | os.PathLike):
        where = os.fspath(source)
    elif isinstance(source, pa.Table | pa.RecordBatch):
        where = "Arrow table"
    else:
        where = type(source).__name__
    return f"{name} ({where})" if name else str(where)


def read_table(
    source: TableLike,
    columns: Sequence[str] | None = None,
    *,
    optional: Sequence[str] = (),
    name: str | None = None,
    allow_empty: bool = False,
) -> pa.Table:
    """Read a table, or only some of its columns.

    Missing values of a pandas frame (NaN, None, NaT) become Arrow nulls; in an Arrow table or a
    Parquet file a NaN stays a NaN, which is not the same as a null.

    Parameters
    ----------
    source : pandas.DataFrame, pyarrow.Table, str or path
        The table, or a Parquet file, or a directory or a glob of Parquet files (Hive partitions,
        such as `year=2024/part-0.parquet`, become columns). Files are read in the order of their
        paths; names that start with `_` or `.` are skipped.
    columns : sequence of str, optional
        The columns to read, in this order. All of them by default.
    optional : sequence of str
        Columns to read as well where the table has them. Used together with `columns`.
    name : str, optional
        The table's part in the call (`"items"`), for error messages.
    allow_empty : bool
        Whether a table without rows is fine.

    Returns
    -------
    pyarrow.Table

    Raises
    ------
    InputError
        If the path does not exist, a file cannot be read as Parquet (the message names the file),
        a column is missing, or there are no rows.
    """
    label = describe(source, name)
    if isinstance(source, str | os.PathLike):
        dataset = open_dataset(source, name)
        wanted = _choose(dataset.schema.names, columns, optional, label)
        try:
            table = _load(dataset, wanted)
        except (pa.ArrowException, OSError) as error:
            raise _blame(dataset, wanted, error, label) from error
    elif isinstance(source, pa.Table | pa.RecordBatch):
        table = source if isinstance(source, pa.Table) else pa.Table.from_batches([source])
        table = table.select(_choose(table.column_names, columns, optional, label))
    elif _is_frame(source):
        table = _from_pandas(source, columns, optional, label)
    else:
        raise InputError(
            f"{label}: not a table. Give a pandas DataFrame, an Arrow table, or the path of a "
            "Parquet file or directory."
        )
    if not table.num_rows and not allow_empty:
        raise InputError(f"{label}: the table is empty (no rows). Give one with at least one row.")
    return table


def open_dataset(path: str | os.PathLike[str], name: str | None = None) -> "ds.Dataset":
    """Open a Parquet file or directory for scanning in batches, without reading its rows.

    Parameters
    ----------
    path : str or path
        See `read_table`.
    name : str, optional
        The table's part in the call, for error messages.

    Returns
    -------
    pyarrow.dataset.Dataset
        With the files in the order of their paths and the schema they share: integer widths that
        differ between files are widened, columns that some file lacks are null there.
    """
    # Imports pandas, which takes long and which reading known files does without.
    import pyarrow.dataset as ds

    label = describe(path, name)
    files, root = _find(Path(path), label)
    shared = _unify(files, label)
    partitioned = root is not None
    options: dict[str, Any] = {
        "format": ds.ParquetFileFormat(
            default_fragment_scan_options=ds.ParquetFragmentScanOptions(pre_buffer=True)
        ),
        "partitioning": "hive" if partitioned else None,
        "partition_base_dir": None if root is None else str(root),
    }
    try:
        if partitioned:
            # Opened by itself it has the partition columns, and else those of the first file.
            for field in ds.dataset(files, **options).schema:
                if field.name not in shared.names:
                    shared = shared.append(field)
        return ds.dataset(files, schema=shared, **options)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{label}: cannot be opened: {error}") from error


def _find(path: Path, label: str) -> tuple[list[str], Path | None]:
    """Return the files of a path, and the directory under which there may be Hive partitions."""
    if path.is_dir():
        return _parquet_files(path, label), path
    if path.exists():
        return [str(path)], None
    if not glob.has_magic(str(path)):
        close = nearest(path.name, os.listdir(path.parent)) if path.parent.is_dir() else ""
        raise InputError(f"{label}: no such file or directory.{close}")
    files: list[str] = []
    for match in glob.glob(str(path), recursive=True):
        files += _parquet_files(Path(match), label) if os.path.isdir(match) else [match]
    parquet = [file for file in files if file.lower().endswith(_PARQUET_ENDINGS)] or files
    parquet = [file for file in parquet if not os.path.basename(file).startswith(("_", "."))]
    if not parquet:
        raise InputError(f"{label}: no Parquet files there. Check the pattern.")
    base = path
    while glob.has_magic(str(base)):
        base = base.parent
    return sorted(set(parquet)), base


def _parquet_files(root: Path, label: str) -> list[str]:
    files = []
    for folder, folders, names in os.walk(root, followlinks=True):
        folders[:] = [f for f in folders if not f.startswith(("_", "."))]
        files += [os.path.join(folder, n) for n in names if not n.startswith(("_", "."))]
    # Notes beside the data (a README, a checksum list) are no reason to fail, but part files
    # without an ending, as Hive writes them, are data.
    parquet = [file for file in files if file.lower().endswith(_PARQUET_ENDINGS)] or files
    if not parquet:
        raise InputError(f"{label}: the directory holds no Parquet file. Check the path.")
    return sorted(parquet)


def _schema_of(file: str) -> pa.Schema:
    try:
        return pq.read_schema(file).remove_metadata()
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(file, error) from error


def _unreadable(file: str, error: Exception) -> InputError:
    size = os.path.getsize(file) if os.path.exists(file) else 0
    return InputError(
        f"{file}: cannot be read as Parquet ({size:,} bytes; {str(error).rstrip('. ')}). "
        "The file is cut short, damaged or of another format: write it again as Parquet."
    )


def _unify(files: list[str], label: str) -> pa.Schema:
    shared = _schema_of(files[0])
    for file in files[1:]:
        schema = _schema_of(file)
        try:
            shared = pa.unify_schemas([shared, schema], promote_options="permissive")
        except pa.ArrowException as error:
            raise InputError(
                f"{label}: {file} does not fit the files before it: {error}. "
                "Write all parts with the same column types."
            ) from error
    return shared


def _load(dataset: "ds.Dataset", columns: list[str]) -> pa.Table:
    if len(dataset.files) == 1:
        # A file comes in one piece this way, which spares NumPy a copy of every column.
        with pq.ParquetFile(dataset.files[0], pre_buffer=True) as file:
            if set(columns) <= set(file.schema_arrow.names):  # no partition column among them
                return file.read(columns=columns).select(columns)
    return dataset.to_table(columns=columns)


def _blame(
    dataset: "ds.Dataset", columns: Sequence[str], error: Exception, label: str
) -> InputError:
    """Find the file that cannot be read: Arrow's own message often does not name it."""
    for file in getattr(dataset, "files", []):
        try:
            present = set(pq.read_schema(file).names)
            pq.ParquetFile(file).read(columns=[c for c in columns if c in present])
        except (pa.ArrowException, OSError) as cause:
            return _unreadable(file, cause)
    return InputError(f"{label}: cannot be read: {error}")


def _choose(
    present: Sequence[str], columns: Iterable[str] | None, optional: Sequence[str], label: str
) -> list[str]:
    wanted = list(dict.fromkeys(present if columns is None else columns))
    missing = [column for column in wanted if column not in present]
    if missing:
        hints = "".join(dict.fromkeys(nearest(column, present) for column in missing))
        raise InputError(
            f"{label}: no column {' and no column '.join(map(repr, missing))}.{hints} "
            f"The columns are: {listing(present)}."
        )
    wanted += [column for column in optional if column in present and column not in wanted]
    twice = [column for column in wanted if list(present).count(column) > 1]
    if twice:
        raise InputError(
            f"{label}: more than one column is called {twice[0]!r}. Rename or drop one."
        )
    return wanted


def _is_frame(source: object) -> bool:
    # Looked up, not imported: reading Parquet needs no pandas, and importing it takes long.
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(source, pandas.DataFrame)


def _from_pandas(
    frame: Any, columns: Sequence[str] | None, optional: Sequence[str], label: str
) -> pa.Table:
    names = [str(name) for name in frame.columns]
    in_index = [n for n in frame.index.names if n in (columns or ()) and n not in names]
    if in_index:
        raise InputError(
            f"{label}: {in_index[0]!r} is the frame's index, not a column. "
            "Make it a column with frame.reset_index()."
        )
    wanted = _choose(names, columns, optional, label)
    arrays = []
    for name in wanted:
        series = frame.iloc[:, names.index(name)]
        try:
            arrays.append(pa.Array.from_pandas(series))
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise _mixed(name, series, error, label) from error
    return pa.table(arrays, names=wanted) if wanted else pa.table({})


def _mixed(name: str, series: Any, error: Exception, label: str) -> InputError:
    """Say which types an object column mixes, and show a row of the rarer one."""
    types = np.array([type(value).__name__ for value in series], dtype=object)
    kinds, counts = np.unique(types.astype(str), return_counts=True)
    if len(kinds) < 2:
        return InputError(f"{label}: column {name!r} cannot be converted to Arrow: {error}.")
    rare = kinds[np.argmin(counts)]
    row = int(np.argmax(types == rare))
    mix = ", ".join(f"{count:,} {kind}" for kind, count in zip(kinds, counts, strict=True))
    try:
        example = f": {show_row(pa.Table.from_pylist([{name: series.iloc[row]}]), 0)}"
    except (pa.ArrowException, ValueError, OverflowError):
        example = ""
    return InputError(
        f"{label}: column {name!r} mixes types ({mix}); the first {rare} is in row {row:,}"
        f"{example}. Give the column one type, for example "
        f"frame[{name!r}] = frame[{name!r}].astype(str)."
    )
