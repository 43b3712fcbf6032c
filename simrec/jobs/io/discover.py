"""Find the files of a table: paths, directories, globs, URIs; their footers and partitions."""

import fnmatch
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from simrec.data.paths import CSV_ENDINGS, PARQUET_ENDINGS, filesystem_of
from simrec.errors import InputError
from simrec.jobs.io import partitions
from simrec.jobs.io.sources import File, Source, inode, schema_difference, unreadable
from simrec.jobs.options import Path

_URI = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+://")
_GLOB = re.compile(r"[*?\[]")


def open_source(path: Path, name: str = "input", skip_bad: bool = False) -> Source:
    """Find the files of a table and read their footers.

    Parameters
    ----------
    path : path
        A file, a directory, a glob, or a URI of one of these.
    name : str
        What the table is for, for messages.
    skip_bad : bool
        Leave out files that are no readable Parquet instead of raising.

    Raises
    ------
    InputError
        If nothing is found, a file is corrupt, or schemas differ.
    """
    text = str(path)
    filesystem, where = filesystem_of(text)
    base, infos = _find(filesystem, where, f"{name} {text}")
    opened: list[tuple[fs.FileInfo, _Footer]] = []
    bad: list[str] = []
    with ThreadPoolExecutor(8) as pool:
        footers = pool.map(lambda info: _footer(filesystem, info), infos)
        for info, footer in zip(infos, footers, strict=True):
            if isinstance(footer, str):
                if not skip_bad:
                    raise InputError(f"{footer} Or leave it out with --on-bad-fragment skip.")
                bad.append(footer)
            else:
                opened.append((info, footer))
    if not opened:
        raise InputError(
            f"{name} {text}: no readable Parquet or CSV file" + "".join(f"\n  {b}" for b in bad)
        )
    found = [partitions.of_path(base, info.path) for info, _ in opened]
    columns = tuple(key for key, _ in found[0])
    for info, footer in opened:
        twice = [n for n in footer.schema.names if footer.schema.names.count(n) > 1]
        if twice:
            raise InputError(
                f"{info.path}: more than one column is called {twice[0]!r}. Rename or drop one."
            )
    first = _schema(opened)
    files = []
    for (info, footer), partition in zip(opened, found, strict=True):
        if tuple(key for key, _ in partition) != columns:
            raise InputError(
                f"{info.path}: not partitioned by {list(columns)} like the other files"
            )
        is_csv = info.path.lower().endswith(CSV_ENDINGS)
        own = first if is_csv and footer.schema.names == first.names else footer.schema
        message = schema_difference(first, own)
        if message:
            message = f"{info.path}: {message} ({opened[0][0].path}). Give all files one schema."
            if not skip_bad:
                raise InputError(message)
            bad.append(message)
            continue
        files.append(
            File(
                info.path,
                info.size,
                str(info.mtime_ns or ""),
                footer.rows,
                footer.size,
                partition,
                inode(filesystem, info.path),
            )
        )
    # A column stored in the files wins over a directory of the same name, as in Spark.
    columns = tuple(name for name in columns if name not in first.names)
    kinds = [partitions.value_type(dict(p)[name] for p in found) for name in columns]
    schema = pa.schema([*first.remove_metadata(), *map(pa.field, columns, kinds)])
    return Source(text, filesystem, tuple(files), schema, columns, tuple(bad))


def local_path(path: Path) -> tuple[str, str | None] | None:
    """Return the real path of a local table, and its pattern if it is a glob; None for a URI."""
    text = str(path).removeprefix("file://")
    if _URI.match(text):
        return None
    if not _is_glob(text):
        return os.path.realpath(text), None
    base = _before_glob(text)
    real = os.path.realpath(base)
    return real, f"{real.rstrip('/')}/{text[len(base) :].lstrip('/')}"


def _is_glob(where: str) -> bool:
    """Tell whether a path is a pattern; a file that has such a name is just a file."""
    return bool(_GLOB.search(where)) and not os.path.exists(where)


def _before_glob(where: str) -> str:
    """Return the directory that a pattern starts from."""
    stem = _GLOB.split(where, maxsplit=1)[0]
    return stem.rpartition("/")[0] or ("/" if where[0] == "/" else ".")


def _find(filesystem: fs.FileSystem, where: str, label: str) -> tuple[str, list[fs.FileInfo]]:
    """Return the base directory and the files of a table under it, in the order of their paths."""
    pattern = _is_glob(where)
    base = _before_glob(where) if pattern else where
    info = filesystem.get_file_info(base)
    if info.type == fs.FileType.NotFound:
        raise InputError(f"{label}: no such file or directory")
    if info.type == fs.FileType.File:
        return base.rpartition("/")[0], [info]
    found = filesystem.get_file_info(fs.FileSelector(base, recursive=True))
    start = len(base.rstrip("/")) + 1
    files = [
        f
        for f in found
        if f.type == fs.FileType.File and not re.search(r"(^|/)[_.]", f.path[start:])
    ]
    if pattern:
        files = [f for f in files if matches(f.path, where)]
    if not files:
        raise InputError(f"{label}: no Parquet or CSV files there")
    for endings in (PARQUET_ENDINGS, CSV_ENDINGS):
        named = [f for f in files if f.path.lower().endswith(endings)]
        if named:
            files = named
            break
    return base, sorted(files, key=lambda f: f.path)


def matches(path: str, pattern: str) -> bool:
    """Tell whether a path, or a directory it lies in, matches a glob; ``**`` is any depth."""
    while pattern.startswith("./") and not path.startswith("./"):
        pattern = pattern[2:]
    if "**" in pattern:
        return fnmatch.fnmatchcase(path, pattern.replace("**/", "*")) or fnmatch.fnmatchcase(
            path, pattern
        )
    steps = pattern.rstrip("/").split("/")
    have = path.split("/")
    return len(have) >= len(steps) and all(map(fnmatch.fnmatchcase, have, steps))


class _Footer(NamedTuple):
    """What a file holds: columns, rows of each row group, and bytes in memory."""

    schema: pa.Schema
    rows: tuple[int, ...]
    size: int


def _footer(filesystem: fs.FileSystem, info: fs.FileInfo) -> _Footer | str:
    try:
        if info.path.lower().endswith(CSV_ENDINGS):
            from simrec.data.csv_files import look_through

            schema, rows = look_through(info.path, filesystem)
            return _Footer(schema, (rows,) if rows else (), info.size)
        footer = pq.read_metadata(info.path, filesystem=filesystem)
    except (pa.ArrowException, OSError) as error:
        return unreadable(info.path, error)
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    rows_of_groups = tuple(group.num_rows for group in groups)
    size = sum(group.total_byte_size for group in groups)
    return _Footer(footer.schema.to_arrow_schema(), rows_of_groups, size)


def _schema(opened: Sequence[tuple[fs.FileInfo, _Footer]]) -> pa.Schema:
    """Return the columns of the first file; of CSV files, with types that hold all of them."""
    first = opened[0][1].schema
    alike = [footer.schema for _, footer in opened if footer.schema.names == first.names]
    if len(alike) < 2 or not opened[0][0].path.lower().endswith(CSV_ENDINGS):
        return first
    from simrec.data.csv_files import common

    return common(alike)
