"""The files of a table: a path, a directory (Hive-partitioned or not), a glob or a URI of these."""

import fnmatch
import os
import re
import urllib.parse
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
from pyarrow import fs

from simrec.errors import InputError, nearest

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
CSV_ENDINGS = (".csv", ".csv.gz")
PARQUET_ENDINGS = (".parquet", ".parq", ".pq")
_URI = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+://")
_GLOB = re.compile(r"[*?\[]")


class FoundFiles(NamedTuple):
    """The files of a table.

    Attributes
    ----------
    filesystem : pyarrow.fs.FileSystem
        Where they are.
    base : str
        The directory below which directories such as `year=2024` are partitions.
    files : list of pyarrow.fs.FileInfo
        In the order of their paths, which is the order of the rows.
    """

    filesystem: fs.FileSystem
    base: str
    files: list[fs.FileInfo]


def is_glob(path: str | os.PathLike[str]) -> bool:
    """Check whether a path is a pattern; a file named `x[1].parquet` is not."""
    text = os.fspath(path)
    return bool(_GLOB.search(text)) and (bool(_URI.match(text)) or not os.path.exists(text))


def find_files(path: str | os.PathLike[str], label: str) -> FoundFiles:
    """Find the files of a table.

    In a directory, names that start with `_` or `.` are skipped. If some names end like Parquet
    files (else: like CSV files), only those count: notes beside the data are no data, but part
    files without an ending, as Hive writes them, are.

    Parameters
    ----------
    path : str or path
        A file, a directory, a glob, or a URI of one of these.
    label : str
        The table, for error messages.

    Raises
    ------
    InputError
        If nothing is found, with the nearest name.
    """
    filesystem, where = filesystem_of(os.fspath(path))
    base, pattern = where, None
    if is_glob(path):
        start = _GLOB.search(where)
        assert start is not None
        base = where[: start.start()].rpartition("/")[0] or ("/" if where[0] == "/" else ".")
        pattern = where
    info = filesystem.get_file_info(base)
    if info.type == fs.FileType.NotFound:
        raise InputError(f"{label}: no such file or directory.{_nearest_path(base)}")
    if info.type != fs.FileType.Directory:
        return FoundFiles(filesystem, base.rpartition("/")[0], [info])
    start_of_name = len(base.rstrip("/")) + 1
    files = [
        file
        for file in filesystem.get_file_info(fs.FileSelector(base, recursive=True))
        if file.type == fs.FileType.File
        and not re.search(r"(^|/)[_.]", file.path[start_of_name:])
        and (pattern is None or _matches(file.path, pattern))
    ]
    for endings in (PARQUET_ENDINGS, CSV_ENDINGS):
        named = [file for file in files if file.path.lower().endswith(endings)]
        if named:
            files = named
            break
    if not files:
        where = "nothing matches the pattern" if pattern else "the directory holds no Parquet file"
        raise InputError(f"{label}: {where}. Check the path.")
    return FoundFiles(filesystem, base, sorted(files, key=lambda file: file.path))


def partition_of(base: str, path: str) -> dict[str, str]:
    """Return the Hive partition of a file: names and values of directories such as `year=2024`."""
    steps = path[len(base) :].strip("/").split("/")[:-1]
    pairs = [step.partition("=") for step in steps if "=" in step]
    return {key: urllib.parse.unquote(value) for key, _, value in pairs}


def partition_type(values: Sequence[str]) -> pa.DataType:
    """Choose the type of a partition column: int32 if all values are plain integers, or string."""
    numbers = all(re.fullmatch(r"-?(0|[1-9]\d{0,8})", v) for v in values if v != NULL_PARTITION)
    return pa.int32() if numbers else pa.string()


def filesystem_of(text: str) -> tuple[fs.FileSystem, str]:
    """Return the filesystem of a path, a glob or a URI, and the path on it."""
    if not _URI.match(text):
        return fs.LocalFileSystem(), text
    scheme, _, rest = text.partition("://")
    # The part before a pattern is what the filesystem is asked for.
    stem = _GLOB.split(text, maxsplit=1)[0]
    try:
        filesystem, _ = fs.FileSystem.from_uri(stem)
        return filesystem, "/" + rest.lstrip("/") if scheme == "file" else rest
    except (pa.ArrowException, OSError) as error:
        reason = error
    try:
        import fsspec
    except ImportError:
        raise InputError(
            f"{text}: {reason}. Other schemes need fsspec: pip install fsspec and the package "
            f"for {scheme}://"
        ) from None
    try:
        found, where = fsspec.core.url_to_fs(text)
    except (ValueError, ImportError) as error:
        raise InputError(f"{text}: {error}") from None
    return fs.PyFileSystem(fs.FSSpecHandler(found)), where


def _nearest_path(path: str) -> str:
    folder, name = os.path.split(path.rstrip("/"))
    folder = folder or "."
    return nearest(name, os.listdir(folder)) if os.path.isdir(folder) else ""


def _matches(path: str, pattern: str) -> bool:
    """Check whether a path, or a directory it lies in, matches a glob; `**` is any depth."""
    while pattern.startswith("./") and not path.startswith("./"):
        pattern = pattern[2:]
    if "**" in pattern:
        return fnmatch.fnmatchcase(path, pattern.replace("**/", "*")) or fnmatch.fnmatchcase(
            path, pattern
        )
    steps = pattern.rstrip("/").split("/")
    have = path.split("/")
    return len(have) >= len(steps) and all(map(fnmatch.fnmatchcase, have, steps))
