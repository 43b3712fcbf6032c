"""The feature encoder as a graph of TensorFlow: raw columns in, sparse feature rows out.

What `FeatureEncoder` does to a table, for programs that have TensorFlow and nothing of ours. Each
column is an input of one tensor, whose first axis are the rows:

============================  =====================  ===================================
column                        tensor                 missing
============================  =====================  ===================================
number, boolean               float64, (rows,)       NaN
date, time, duration          float64, (rows,)       NaN; days, from 1970-01-01 for dates
text, as category or number   string, (rows,)        the empty string
list of strings               string, (rows, any)    filled up with the empty string
list of numbers               float64, (rows, any)   filled up with NaN
vector                        float32, (rows, size)  a row of NaN
============================  =====================  ===================================
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from simrec.data.features import FeatureEncoder
from simrec.errors import InputError
from simrec.simec.keras import tf

# A feature's place and its value, each of shape (rows, slots); a value of 0 is no feature.
Slots = tuple[Any, Any]

_EXACT = 2.0**53  # up to here a float64 says which integer it is


class EncoderGraph(tf.Module):
    """The columns of a fitted encoder.

    Parameters
    ----------
    encoder : FeatureEncoder
        The fitted encoder.
    label : str
        Whose features these are, for error messages.
    reserved : iterable of str
        Names that inputs of the graph cannot have.

    Attributes
    ----------
    inputs : dict of str to tf.TensorSpec
        The inputs by name.
    columns : dict of str to str
        The column of each input; names differ where the column's is no identifier.
    """

    def __init__(self, encoder: FeatureEncoder, label: str, reserved: Iterable[str] = ()) -> None:
        super().__init__()
        self.n_features = encoder.n_features_
        self.parts = []
        start = 0
        for column in encoder.to_dict()["columns"]:
            part = _part(column, f"{label}: column {column['name']!r}")
            self.parts.append((part, start))
            start += part.width
        names = _identifiers(encoder.columns_, reserved)
        self.columns = dict(zip(names, encoder.columns_, strict=True))
        self.inputs = {
            name: tf.TensorSpec(part.shape, part.dtype, name=name)
            for name, (part, _) in zip(names, self.parts, strict=True)
        }

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """Encode rows: a SparseTensor of float32."""
        slots = [
            (indices + start, data)
            for name, (part, start) in zip(self.inputs, self.parts, strict=True)
            for indices, data in [part(values[name])]
        ]
        indices = tf.concat([indices for indices, _ in slots], 1)
        data = tf.concat([data for _, data in slots], 1)
        shape = tf.shape(indices, tf.int64)
        rows = tf.repeat(tf.range(shape[0]), shape[1])
        places = tf.stack([rows, tf.reshape(indices, [-1])], 1)
        return tf.SparseTensor(places, tf.reshape(data, [-1]), [shape[0], self.n_features])


class _Number(tf.Module):
    """A standardised number, an indicator where it is missing, and the knots around it."""

    def __init__(self, column: Mapping[str, Any]) -> None:
        super().__init__()
        self.mean, self.scale = column["mean"], column["scale"]
        self.knots = np.array(column.get("knots", ()), np.float64)
        self.shape = [None]
        self.dtype = tf.string if column["family"] == "string" else tf.float64
        self.width = 2 + len(self.knots)

    def __call__(self, x: Any) -> Slots:
        if self.dtype == tf.string:
            x = tf.strings.to_number(tf.where(x == "", "nan", x), tf.float64)
        missing = tf.math.is_nan(x)
        z = (x - self.mean) / self.scale if self.scale else tf.zeros_like(x)
        indices = [tf.cast(missing, tf.int64)]
        data = [tf.where(missing, tf.ones_like(x), z)]
        if len(self.knots):
            inside = tf.clip_by_value(x, self.knots[0], self.knots[-1])
            left = tf.searchsorted(self.knots, inside, "right", tf.int64) - 1
            left = tf.clip_by_value(left, 0, len(self.knots) - 2)
            low, high = tf.gather(self.knots, left), tf.gather(self.knots, left + 1)
            share = (inside - low) / (high - low)
            none = tf.zeros_like(x)
            indices += [2 + left, 3 + left]
            data += [tf.where(missing, none, 1 - share), tf.where(missing, none, share)]
        return tf.stack(indices, 1), tf.cast(tf.stack(data, 1), tf.float32)


class _Category(tf.Module):
    """One feature per known value, one for missing where that was frequent, one for the rest."""

    def __init__(self, column: Mapping[str, Any], label: str) -> None:
        super().__init__()
        self.values = _Values(column, label)
        self.missing = column["missing"]
        if self.missing and "" in column["values"]:
            raise InputError(
                f"{label} has the empty string as a value beside missing ones, which the graph "
                "cannot tell apart: make one of them the other, and train again."
            )
        self.shape, self.dtype = [None], self.values.dtype
        self.width = len(column["values"]) + self.missing + 1

    def __call__(self, x: Any) -> Slots:
        codes = self.values(x)
        codes = tf.where(codes < 0, tf.constant(self.width - 1, tf.int64), codes)
        if self.missing:
            place = tf.constant(self.width - 2, tf.int64)
            codes = tf.where(self.values.is_missing(x), place, codes)
        return codes[:, None], tf.ones_like(codes, tf.float32)[:, None]


class _List(tf.Module):
    """One feature per known element, and one that says that there are others."""

    def __init__(self, column: Mapping[str, Any], label: str) -> None:
        super().__init__()
        self.values = _Values(column, label)
        if "" in column["values"]:
            raise InputError(
                f"{label} has the empty string as an element, with which the graph's lists are "
                "filled up: remove it from the lists, and train again."
            )
        self.shape, self.dtype = [None, None], self.values.dtype
        self.width = len(column["values"]) + 1

    def __call__(self, x: Any) -> Slots:
        codes = self.values(x)
        codes = tf.where(codes < 0, tf.constant(self.width - 1, tf.int64), codes)
        there = ~self.values.is_missing(x)
        # An element counts once: not where an earlier one of its list is the same feature.
        same = (codes[:, :, None] == codes[:, None, :]) & there[:, None, :]
        earlier = tf.linalg.band_part(tf.ones_like(same[0], tf.float32), -1, 0)
        earlier = tf.cast(earlier - tf.linalg.band_part(earlier, 0, 0), tf.bool)
        again = tf.reduce_any(same & earlier, 2)
        return codes, tf.cast(there & ~again, tf.float32)


class _Vector(tf.Module):
    """Coordinates as they are, and an indicator where there are none."""

    def __init__(self, column: Mapping[str, Any]) -> None:
        super().__init__()
        self.missing = column["missing"]
        self.shape, self.dtype = [None, column["size"]], tf.float32
        self.width = column["size"] + self.missing

    def __call__(self, x: Any) -> Slots:
        none = tf.reduce_any(tf.math.is_nan(x), 1, keepdims=True)
        data = tf.where(none, tf.zeros_like(x), x)
        if self.missing:
            data = tf.concat([data, tf.cast(none, tf.float32)], 1)
        indices = tf.range(self.width, dtype=tf.int64)[None]
        return tf.broadcast_to(indices, tf.shape(data, tf.int64)), data


class _Values(tf.Module):
    """From values to their places in a vocabulary, -1 for others."""

    def __init__(self, column: Mapping[str, Any], label: str) -> None:
        super().__init__()
        holds, values, family = column["holds"], column["values"], column["family"]
        if family == "time" and holds != "string":
            raise InputError(
                f"{label} holds durations as categories, which the graph has no type for: encode "
                "it as 'number', or ignore it."
            )
        if family == "boolean":
            # The encoder spells booleans out; people have them as 0 and 1.
            values, holds = [["false", "true"].index(value) for value in values], "integer"
        self.dtype = tf.string if holds == "string" else tf.float64
        if self.dtype == tf.string:
            keys = tf.constant(values, tf.string, [len(values)])
            places = tf.range(len(values), dtype=tf.int64)
            pairs = tf.lookup.KeyValueTensorInitializer(keys, places)
            self.table = tf.lookup.StaticHashTable(pairs, -1)
            return
        self.sorted = np.array(values, np.float64)
        if holds == "integer" and (np.abs(self.sorted) > _EXACT).any():
            raise InputError(
                f"{label} has integers beyond 2**53 as categories, which the graph's numbers "
                "cannot tell apart: make them strings, and train again."
            )

    def __call__(self, x: Any) -> Any:
        if self.dtype == tf.string:
            return self.table.lookup(x)
        if not len(self.sorted):
            return tf.fill(tf.shape(x), tf.constant(-1, tf.int64))
        flat = tf.reshape(x, [-1])
        places = tf.searchsorted(self.sorted, flat, "left", tf.int64)
        places = tf.minimum(places, len(self.sorted) - 1)
        found = tf.gather(self.sorted, places) == flat
        codes = tf.where(found, places, tf.constant(-1, tf.int64))
        return tf.reshape(codes, tf.shape(x))

    def is_missing(self, x: Any) -> Any:
        return x == "" if self.dtype == tf.string else tf.math.is_nan(x)


def _part(column: Mapping[str, Any], label: str) -> Any:
    kind = column["kind"]
    if kind == "number":
        return _Number(column)
    if kind == "category":
        return _Category(column, label)
    if kind == "list":
        return _List(column, label)
    if kind == "vector":
        return _Vector(column)
    raise InputError(
        f"{label} is encoded as {kind!r}, which TensorFlow has no operation for: export vectors "
        "instead (format 'parquet' or 'faiss'), or train with the column ignored or given as a "
        "vector of your own."
    )


def _identifiers(columns: Iterable[str], reserved: Iterable[str]) -> list[str]:
    """Name inputs by their columns, in the letters that TensorFlow allows, each differently."""
    names: list[str] = []
    taken = set(reserved)
    for column in columns:
        name = re.sub(r"\W", "_", column, flags=re.ASCII)
        name = name if re.match(r"[A-Za-z]", name) else f"c{name}"
        while name in taken:
            name += "_"
        taken.add(name)
        names.append(name)
    return names
