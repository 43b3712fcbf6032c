"""The files of a table: a path, a directory (Hive-partitioned or not), a glob or a URI of these.

Hive partitions are values in the names of directories, quoted so that any value is one name.
"""

import fnmatch
import os
import re
import urllib.parse
from collections.abc import Iterable

import pyarrow as pa
from pyarrow import fs

from simrec.errors import InputError, nearest

CSV_ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
PARQUET_ENDINGS = (".parquet", ".parq", ".pq")
_URI = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+://")
_GLOB = re.compile(r"[*?\[]")
_NULL = "__HIVE_DEFAULT_PARTITION__"
# The longest name of a file or directory, in bytes, on all file systems in use.
_LONGEST = 255

Pairs = tuple[tuple[str, str | None], ...]
"""Columns and values of a partition."""


def reading_options(path: str | os.PathLike[str]) -> tuple[str, dict[str, str]]:
    """Return a path without what it says after `#` of how its files are written, and that.

    Examples
    --------
    >>> reading_options("u.data#delimiter=tab&columns=user_id,item_id,rating,timestamp")
    ('u.data', {'delimiter': 'tab', 'columns': 'user_id,item_id,rating,timestamp'})
    """
    text = os.fspath(path)
    where, _, options = text.rpartition("#")
    if not where or "=" not in options or os.path.exists(text):
        return text, {}
    pairs = (option.partition("=") for option in options.split("&"))
    return where, {name: urllib.parse.unquote(value) for name, _, value in pairs}


def find_files(
    path: str | os.PathLike[str], label: str
) -> tuple[fs.FileSystem, str, list[fs.FileInfo]]:
    """Return the filesystem of a table, the directory that partitions are below, and its files.

    In a directory, names that start with `_` or `.` are skipped. If some names end like Parquet
    files (else: like CSV files), only those count: notes beside the data are no data, but part
    files without an ending, as Hive writes them, are. Files are in the order of their paths, which
    is the order of the rows.
    """
    filesystem, where = _filesystem_of(os.fspath(path))
    pattern = _is_glob(where)
    base = _before_glob(where) if pattern else where
    info = filesystem.get_file_info(base)
    if info.type == fs.FileType.NotFound:
        folder, name = os.path.split(base.rstrip("/"))
        there = os.listdir(folder or ".") if os.path.isdir(folder or ".") else []
        raise InputError(f"{label}: no such file or directory.{nearest(name, there)}")
    if info.type != fs.FileType.Directory:
        return filesystem, base.rpartition("/")[0], [info]
    start = len(base.rstrip("/")) + 1
    files = [
        file
        for file in filesystem.get_file_info(fs.FileSelector(base, recursive=True))
        if file.type == fs.FileType.File
        and not re.search(r"(^|/)[_.]", file.path[start:])
        and (not pattern or matches(file.path, where))
    ]
    for endings in (PARQUET_ENDINGS, CSV_ENDINGS):
        files = [file for file in files if file.path.lower().endswith(endings)] or files
    if not files:
        why = "nothing matches the pattern" if pattern else "the directory holds none"
        raise InputError(f"{label}: no Parquet or CSV files: {why}. Check the path.")
    return filesystem, base, sorted(files, key=lambda file: file.path)


def local_path(path: str | os.PathLike[str]) -> tuple[str, str | None] | None:
    """Return the real path of a local table, and its pattern if it is a glob; None for a URI."""
    text = reading_options(path)[0].removeprefix("file://")
    if _URI.match(text):
        return None
    if not _is_glob(text):
        return os.path.realpath(text), None
    base = _before_glob(text)
    real = os.path.realpath(base)
    return real, f"{real.rstrip('/')}/{text[len(base) :].lstrip('/')}"


def matches(path: str, pattern: str) -> bool:
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


def _is_glob(where: str) -> bool:
    """Check whether a path is a pattern; a file named `x[1].parquet` is not."""
    return bool(_GLOB.search(where)) and not os.path.exists(where)


def _before_glob(where: str) -> str:
    """Return the directory that a pattern starts from."""
    stem = _GLOB.split(where, maxsplit=1)[0]
    return stem.rpartition("/")[0] or ("/" if where[0] == "/" else ".")


def _filesystem_of(text: str) -> tuple[fs.FileSystem, str]:
    """Return the filesystem of a path, a glob or a URI, and the path on it."""
    if not _URI.match(text):
        return fs.LocalFileSystem(), text
    scheme, _, rest = text.partition("://")
    # The part before a pattern is what the filesystem is asked for.
    stem = _GLOB.split(text, maxsplit=1)[0]
    try:
        filesystem, _ = fs.FileSystem.from_uri(stem)
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"{text}: {error}. Give a local path, or a URI of a file system that pyarrow knows: "
            "file, s3, gs, hdfs."
        ) from None
    return filesystem, "/" + rest.lstrip("/") if scheme == "file" else rest


def to_directory(pairs: Iterable[tuple[str, str | None]]) -> str:
    """Write columns and values as a relative path, empty for none.

    Examples
    --------
    >>> to_directory([("day", "1/2"), ("_shop", None)])
    'day=1%2F2/%5Fshop=__HIVE_DEFAULT_PARTITION__'
    """
    steps = []
    for key, value in pairs:
        text = _NULL if value is None else urllib.parse.quote(value, safe="")
        if value == _NULL:
            text = "%5F" + text[1:]
        name = urllib.parse.quote(key, safe="")
        if name[:1] in ("_", "."):
            # Such directories are hidden from readers.
            name = f"%{ord(name[0]):02X}{name[1:]}"
        steps.append(f"{name}={text}")
        if len(steps[-1].encode()) > _LONGEST:
            raise InputError(
                f"partition {key!r}: the value {value[:40] if value else value!r}... is too long "
                "for the name of a directory of the output. Shorten it."
            )
    return "/".join(steps)


def partition_of(base: str, path: str) -> Pairs:
    """Read columns and values off the directories between `base` and a file."""
    steps = path[len(base) :].strip("/").split("/")[:-1]
    pairs = [step.partition("=") for step in steps if "=" in step]
    unquote = urllib.parse.unquote
    return tuple((unquote(k), None if v == _NULL else unquote(v)) for k, _, v in pairs)


def partition_type(values: Iterable[str | None]) -> pa.DataType:
    """Return the type of a partition column: numbers if all its values are."""
    numbers = all(re.fullmatch(r"-?(0|[1-9]\d{0,8})", v) for v in values if v is not None)
    return pa.int32() if numbers else pa.string()
