"""The files of a table: a path, a directory or a URI of these; and how CSV files are written.

Values in the names of Hive's directories (`day=2026-01-31`) are columns. How a CSV file is written
is found in its first bytes; the types of its columns are those of all rows.
"""

import csv
import io
import os
import re
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv
from pyarrow import fs

from simrec.errors import InputError, nearest

CSV_ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
PARQUET_ENDINGS = (".parquet", ".parq", ".pq")
# Bytes that are parsed at once; pyarrow reads 32 such blocks ahead.
BLOCK = 1 << 20
# Bytes and lines from which the dialect is found.
_SAMPLE, _LINES = 1 << 18, 100
_DELIMITERS = {"comma": ",", "tab": "\t", "semicolon": ";", "pipe": "|", r"\t": "\t"}
_NUMBER = re.compile(r"-?\d+([.,]\d+)?")
_URI = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+://")
_NULL = "__HIVE_DEFAULT_PARTITION__"

Pairs = tuple[tuple[str, str | None], ...]
"""Columns and values in the names of directories."""


def reading_options(path: str | os.PathLike[str]) -> tuple[str, dict[str, str]]:
    """Return a path without what it says after `#` of how its files are written, and that.

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
    filesystem, base = _filesystem_of(os.fspath(path))
    info = filesystem.get_file_info(base)
    if info.type == fs.FileType.NotFound:
        folder, name = os.path.split(base.rstrip("/"))
        there = os.listdir(folder or ".") if os.path.isdir(folder or ".") else []
        remedy = " Patterns are not expanded: give the directory." if "*" in base else ""
        raise InputError(f"{label}: no such file or directory.{nearest(name, there)}{remedy}")
    if info.type != fs.FileType.Directory:
        return filesystem, base.rpartition("/")[0], [info]
    start = len(base.rstrip("/")) + 1
    files = [
        file
        for file in filesystem.get_file_info(fs.FileSelector(base, recursive=True))
        if file.type == fs.FileType.File and not re.search(r"(^|/)[_.]", file.path[start:])
    ]
    for endings in (PARQUET_ENDINGS, CSV_ENDINGS):
        files = [file for file in files if file.path.lower().endswith(endings)] or files
    if not files:
        raise InputError(
            f"{label}: no Parquet or CSV files: the directory holds none. Check the path."
        )
    return filesystem, base, sorted(files, key=lambda file: file.path)


def local_path(path: str | os.PathLike[str]) -> str | None:
    """Return the real path of a local table; None for a URI."""
    text = reading_options(path)[0].removeprefix("file://")
    return None if _URI.match(text) else os.path.realpath(text)


def _filesystem_of(text: str) -> tuple[fs.FileSystem, str]:
    """Return the filesystem of a path or a URI, and the path on it."""
    if not _URI.match(text):
        return fs.LocalFileSystem(), text
    try:
        return fs.FileSystem.from_uri(text)
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"{text}: {error}. Give a local path, or a URI of a file system that pyarrow knows: "
            "file, s3, gs, hdfs."
        ) from None


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


class Dialect(NamedTuple):
    """How a CSV file is written.

    Quoted fields may go over several lines; columns are named where the file has no row of names.
    """

    delimiter: str
    decimal: str
    encoding: str
    quotes: bool
    columns: tuple[str, ...] = ()


def find_dialect(path: str, filesystem: fs.FileSystem, given: Mapping[str, str]) -> Dialect:
    """Find how a file is written, but for what is given; see `reading_options`."""
    unknown = [name for name in given if name not in Dialect._fields or name == "quotes"]
    if unknown:
        raise InputError(
            f"{path}: {unknown[0]!r} does not say how a CSV file is written. Give delimiter, "
            "decimal, encoding or columns, such as ratings.csv#delimiter=tab."
        )
    with filesystem.open_input_stream(path) as stream:
        start = stream.read(_SAMPLE)
    encoding = given.get("encoding") or "utf-8"
    if "encoding" not in given and start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        encoding = "utf-16"
    elif "encoding" not in given:
        try:
            start[: start.rfind(b"\n") + 1].decode("utf-8")
        except UnicodeDecodeError:
            encoding = "cp1252"
    text = start.decode(encoding, errors="ignore").lstrip("\ufeff")
    delimiter = given.get("delimiter", "")
    delimiter = _DELIMITERS.get(delimiter, delimiter) or _delimiter(text)
    columns = tuple(name.strip() for name in given.get("columns", "").split(",") if name.strip())
    first = next(csv.reader(io.StringIO(text), delimiter=delimiter), [])
    if columns and len(columns) != len(first):
        raise InputError(
            f"{path}: {len(columns)} names in #columns={','.join(columns)}, but {len(first)} "
            f"columns: {', '.join(first[:6])}{', ...' if len(first) > 6 else ''}. Name all of them."
        )
    decimal = given.get("decimal") or _decimal(text, delimiter)
    return Dialect(delimiter, decimal, encoding, '"' in text, columns)


def _delimiter(text: str) -> str:
    """Choose what occurs in the row of names, and equally often in the rows that follow."""
    bare = re.sub(r'(?<![^,;\t|\n])"(?:[^"]|"")*"', "", text)
    lines = [line for line in bare.splitlines()[:_LINES] if line]
    if len(text) >= _SAMPLE // 4:
        lines = lines[:-1] or lines  # the last one may be cut short
    counts = {d: [line.count(d) for line in lines] for d in ",\t;|"}
    found = {d: n for d, n in counts.items() if n and n[0]}
    even = {d: n for d, n in found.items() if min(n) == max(n)} or found
    return max(even, key=lambda d: even[d][0], default=",")


def _decimal(text: str, delimiter: str) -> str:
    """Find a decimal comma: in some column all values are numbers, some of them with a comma."""
    if delimiter == ",":
        return "."
    rows = list(csv.reader(io.StringIO(text), delimiter=delimiter))[1:_LINES]
    for values in zip(*(row for row in rows if len(row) == len(rows[0])), strict=False):
        known = [value for value in values if value]
        if any("," in v for v in known) and all(_NUMBER.fullmatch(v) for v in known):
            return "." if any("." in v for v in known) else ","
    return "."


def infer_schema(path: str, filesystem: fs.FileSystem, dialect: Dialect) -> tuple[pa.Schema, int]:
    """Return the columns of a file, with types that all of its rows have, and how many rows.

    Types are inferred from the first block, and widened where a later row has another: whole
    numbers to numbers, all else to text. Whole numbers with leading zeros are text: `010526` is
    another id than `10526`.
    """
    with _open(path, filesystem, dialect, {}) as reader:
        types = {field.name: field.type for field in reader.schema}
    _check_names(path, reader.schema.names)
    numbers = [n for n, t in types.items() if t in (pa.int64(), pa.float64())]
    types |= dict.fromkeys(numbers, pa.null())
    rows, texts = 0, dict.fromkeys(types, pa.string())
    with _open(path, filesystem, dialect, texts) as reader:
        for batch in reader:
            rows += batch.num_rows
            for name, kind in types.items():
                types[name] = _widened(kind, batch[name], dialect.decimal)
    return pa.schema(list(types.items())), rows


def _check_names(path: str, names: list[str]) -> None:
    twice = [name for name in names if names.count(name) > 1]
    if names and all(_NUMBER.fullmatch(name) for name in names):
        problem = f"the first row holds numbers ({', '.join(names[:4])}), not names of columns"
    elif twice:
        problem = f"more than one column is called {twice[0]!r}. Rename or drop one"
    else:
        return
    n, usual = len(names), ["user_id", "item_id", "rating", "timestamp"]
    say = ",".join(usual[:n]) if n <= len(usual) and not twice else "item_id,title,..."
    raise InputError(
        f"{path}: {problem}; where there is no row of names, say all {n}: {path}#columns={say}"
    )


def _widened(kind: pa.DataType, texts: pa.Array, decimal: str) -> pa.DataType:
    """Return the type of a column with some more of its values, given as text."""
    if pa.types.is_string(kind) or texts.null_count == len(texts):
        return kind
    if kind not in (pa.null(), pa.int64(), pa.float64()):
        try:
            texts.cast(kind)
            return kind
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return pa.string()
    if not pa.types.is_floating(kind):
        zeros = (pc.any(pc.starts_with(texts, start)).as_py() for start in ("0", "-0"))
        if any(zeros) and pc.any(pc.match_substring_regex(texts, "^-?0[0-9]+$")).as_py():
            return pa.string()
        try:
            texts.cast(pa.int64())
            return pa.int64()
        except pa.ArrowInvalid:
            if pc.all(pc.match_substring_regex(texts, "^-?[0-9]+$")).as_py():
                return pa.string()  # too long for numbers, which would lose digits
    try:
        pc.replace_substring(pc.utf8_trim_whitespace(texts), decimal, ".").cast(pa.float64())
        return pa.float64()
    except pa.ArrowInvalid:
        return pa.string()


def stream(
    path: str, filesystem: fs.FileSystem, dialect: Dialect, schema: pa.Schema, rows: int
) -> Iterator[pa.RecordBatch]:
    """Read the columns of a schema, at most so many rows at a time."""
    types = {field.name: field.type for field in schema}
    with _open(path, filesystem, dialect, types, schema.names) as reader:
        for batch in reader:
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)


def _open(
    path: str,
    filesystem: fs.FileSystem,
    dialect: Dialect,
    types: Mapping[str, pa.DataType],
    columns: Sequence[str] = (),
) -> arrow_csv.CSVStreamingReader:
    return arrow_csv.open_csv(
        filesystem.open_input_stream(path),
        read_options=arrow_csv.ReadOptions(
            block_size=BLOCK, encoding=dialect.encoding, column_names=list(dialect.columns)
        ),
        parse_options=arrow_csv.ParseOptions(
            delimiter=dialect.delimiter, newlines_in_values=dialect.quotes
        ),
        convert_options=arrow_csv.ConvertOptions(
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            decimal_point=dialect.decimal,
            column_types=dict(types),
            include_columns=list(columns),
        ),
    )
