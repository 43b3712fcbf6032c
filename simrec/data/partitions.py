"""Hive partitions: values in the names of directories, quoted so that any value is one name."""

import re
import urllib.parse
from collections.abc import Iterable

import pyarrow as pa

_NULL = "__HIVE_DEFAULT_PARTITION__"

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
