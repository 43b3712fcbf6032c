"""The items table as it was given, kept beside the encoded features: for titles and filters."""

import html
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.features import FeatureEncoder
from simrec.data.features.column import family
from simrec.data.features.strings import lists
from simrec.data.id_columns import one_or_several
from simrec.data.ids import IdMap
from simrec.data.tables import is_list
from simrec.errors import InputError
from simrec.storage.arrays import Insertion
from simrec.storage.artifacts import Artifact

NAME, _SEPARATOR = "catalogue", b"separator"
TITLES = ("title", "name", "item_name", "label")
# Characters of a mean text from which it describes an item rather than names it.
_LONG = 100
# What no one reads as part of a name: parts with digits, addresses, files, codes with underscores.
_CODE = r"\S*(?:[\d/@_]|\w\.\w)\S*"


def described(table: pa.Table, ids: pa.ChunkedArray, known: IdMap, id_column: str) -> pa.Table:
    """Return what a table says of the entities of a tower, row by row of its ids.

    Columns of numbers without names (vectors, images) are left out: nobody filters by them.
    """
    kept = [
        name
        for name in table.column_names
        if name != id_column and not _is_payload(table.schema.field(name).type)
    ]
    rows = np.full(len(known), -1, np.int64)
    at = known.rows(ids, id_column)
    rows[at[at >= 0]] = np.flatnonzero(at >= 0)
    return table.select(kept).take(pa.array(rows, mask=rows < 0)).combine_chunks()


def _is_payload(kind: pa.DataType) -> bool:
    held = family(kind)
    if held == "list of numbers":
        return pa.types.is_fixed_size_list(kind) or not pa.types.is_integer(kind.value_type)
    return held not in ("string", "number", "time", "boolean", "list of strings")


def with_lists(table: pa.Table, encoder: FeatureEncoder) -> pa.Table:
    """Return a table with lists for strings that are read as some: of CSV files as of Parquet."""
    for place, name in enumerate(table.column_names):
        separator = getattr(encoder.encoders_.get(name), "separator", "")
        if separator and name.lower() not in TITLES:
            made = lists(table[name], separator)
            field = pa.field(name, made.type, metadata={_SEPARATOR: separator})
            table = table.set_column(place, field, made)
    return table


def grown(before: pa.Table | None, more: pa.Table | None, insert: Insertion) -> pa.Table | None:
    """Insert rows of new entities; the first have those of `more`, as types of training."""
    order = insert.order
    if before is None or order is None:
        return before
    n_new = int(order.max(initial=-1)) + 1 - len(before)
    columns = {}
    for field in before.schema:
        given = []
        if more is not None and field.name in more.column_names:
            # Of another type than in training: not known.
            with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
                values, separator = more[field.name], (field.metadata or {}).get(_SEPARATOR)
                if separator and not is_list(values.type):
                    values = pa.chunked_array([lists(values, separator.decode())])
                given = values.cast(field.type).chunks
        rest = pa.nulls(n_new - sum(map(len, given)), field.type)
        both = pa.chunked_array([*before[field.name].chunks, *given, rest], field.type)
        columns[field.name] = both.take(pa.array(order))
    return pa.table(columns, schema=before.schema)


def restored(artifact: Artifact, n: int) -> pa.Table | None:
    """Read the table of a model directory, mapped; None where there is none."""
    if NAME not in artifact.arrays:
        return None
    content = artifact.array(NAME, (None,), "u")
    try:
        table = pa.ipc.open_stream(pa.py_buffer(np.ascontiguousarray(content))).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{NAME}.npy: no Arrow table ({error})") from error
    if len(table) != n:
        raise InputError(f"{NAME}.npy: {len(table)} rows for {n} items")
    return table


def title_column(table: pa.Table | None) -> str | None:
    """Return the column that looks like a title: short text that nearly differs from row to row.

    In a column of any name, its words must differ: numbers, codes, addresses and dates do not name.
    """
    if table is None:
        return None
    named = [name for name in table.column_names if name.lower() in TITLES]
    alike = [name for name in table.column_names if name.lower().endswith(TITLES)]
    for name in dict.fromkeys([*named, *alike, *table.column_names]):
        if family(table.schema.field(name).type) != "string":
            continue
        texts = table[name].cast(pa.large_string())
        if name not in named:
            if (pc.mean(pc.utf8_length(texts)).as_py() or 0) > _LONG:
                continue  # a description, not a name
            texts = pc.utf8_trim_whitespace(pc.replace_substring_regex(texts, _CODE, ""))
        if pc.count_distinct(texts).as_py() > 0.8 * (len(table) - texts.null_count):
            return name
    return None


def names_at(table: pa.Table | None, rows: np.ndarray, column: str | None) -> list[str | None]:
    """Return the texts of the title column at some rows, with entities of HTML as characters."""
    if table is None or column is None:
        return [None] * len(rows)
    texts = table[column].take(pa.array(rows)).to_pylist()
    return [None if text is None else html.unescape(str(text)) for text in texts]


def titles(table: pa.Table | None, items: IdMap, ids: Any = None) -> dict[Any, str]:
    """Return the titles of items, of all by default, by a catalogue that has a row for each."""
    values = items.column if ids is None else one_or_several(ids, "item_id")
    rows = items.rows(values, "item_id")
    words = names_at(table, np.maximum(rows, 0), title_column(table))
    asked = zip(values.to_pylist(), rows, words, strict=True)
    return {one: word for one, row, word in asked if row >= 0 and word is not None}
