"""Hive partitions: values in the names of directories, quoted so that any value is one name."""

import re
import urllib.parse
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from simrec.data.arrays import as_arrow, as_numpy
from simrec.errors import InputError

_NULL = "__HIVE_DEFAULT_PARTITION__"
# The longest name of a file or directory, in bytes, on all file systems in use.
_LONGEST = 255

Pairs = tuple[tuple[str, str | None], ...]


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
                f"partition_by: {key!r} has the value {value[:40] if value else value!r}..., too "
                "long for the name of a directory. Partition by another column."
            )
    return "/".join(steps)


def of_path(base: str, path: str) -> Pairs:
    """Read columns and values off the directories between `base` and a file."""
    steps = path[len(base) :].strip("/").split("/")[:-1]
    pairs = [step.partition("=") for step in steps if "=" in step]
    unquote = urllib.parse.unquote
    return tuple((unquote(k), None if v == _NULL else unquote(v)) for k, _, v in pairs)


def value_type(values: Iterable[str | None]) -> pa.DataType:
    """Return the type of a partition column: numbers if all its values are."""
    numbers = all(re.fullmatch(r"-?(0|[1-9]\d{0,8})", v) for v in values if v is not None)
    return pa.int32() if numbers else pa.string()


def divide(table: pa.Table, keys: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """Divide rows by the values of some columns; yield directories and their rows in order."""
    if not len(table):
        return
    codes, paths = np.zeros(len(table), np.int64), [""]
    for key in keys:
        steps, places = _steps(table[key], key)
        found, codes = np.unique(codes * len(steps) + places, return_inverse=True)
        paths = [f"{paths[code // len(steps)]}/{steps[code % len(steps)]}" for code in found]
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes))
    for path, rows in zip(paths, np.split(order, ends[:-1]), strict=True):
        yield path.lstrip("/"), table.take(as_arrow(rows))


def _steps(column: pa.ChunkedArray, key: str) -> tuple[list[str], np.ndarray]:
    """Return the directories that the values of a column make, and which of them each row is in."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_null(column.type) or str(column.type) == "string_view":
        column = column.cast(pa.large_string())
    try:
        encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    except (pa.ArrowException, AttributeError):
        raise InputError(
            f"partition_by: {key!r} holds {column.type} values, which make no directories. "
            "Partition by another column."
        ) from None
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.unify_dictionaries().combine_chunks()
    values = [None if v is None else str(v) for v in encoded.dictionary.to_pylist()]
    # Values that are written alike share a directory.
    steps = [to_directory([(key, value)]) for value in values]
    distinct = sorted(set(steps))
    number = {step: n for n, step in enumerate(distinct)}
    places = np.array([number[step] for step in steps], np.int64)
    return distinct, places[as_numpy(encoded.indices)]
