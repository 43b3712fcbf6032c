"""The feature encoder as a graph of TensorFlow: raw columns in, sparse feature rows out.

What `FeatureEncoder` does to a table, for programs that have TensorFlow and nothing of ours. Each
column is an input of one tensor, whose first axis are the rows; the graph of a column is built by
its kind (`simrec.data.features`):

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

import keyword
import re
from collections.abc import Iterable, Mapping
from typing import Any

from simrec.data.features import FeatureEncoder
from simrec.simec.keras import tf


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
        names = _identifiers(encoder.columns_, reserved)
        self.columns = dict(zip(names, encoder.columns_, strict=True))
        self.inputs: dict[str, Any] = {}
        self.resources: list[Any] = []
        self._encode: list[Any] = []
        start = 0
        for name, (column, fitted) in zip(names, encoder.encoders_.items(), strict=True):
            graph = fitted.graph(tf, f"{label}: column {column!r}")
            self.inputs[name] = tf.TensorSpec(graph.shape, graph.dtype, name=name)
            self.resources += graph.resources  # attributes of a module are saved with it
            self._encode.append((name, graph.encode, start))
            start += fitted.width

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """Encode rows: a SparseTensor of float32."""
        slots = [
            (indices + start, data)
            for name, encode, start in self._encode
            for indices, data in [encode(values[name])]
        ]
        indices = tf.concat([indices for indices, _ in slots], 1)
        data = tf.concat([data for _, data in slots], 1)
        shape = tf.shape(indices, tf.int64)
        rows = tf.repeat(tf.range(shape[0]), shape[1])
        places = tf.stack([rows, tf.reshape(indices, [-1])], 1)
        return tf.SparseTensor(places, tf.reshape(data, [-1]), [shape[0], self.n_features])


def _identifiers(columns: Iterable[str], reserved: Iterable[str]) -> list[str]:
    """Name inputs by their columns, in the letters that TensorFlow allows, each differently.

    Inputs are passed as keyword arguments, so Python's keywords do not do; and TensorFlow takes
    names that differ only in case for the same.
    """
    names: list[str] = []
    taken = {name.lower() for name in reserved} | {"self"}
    for column in columns:
        name = re.sub(r"\W", "_", column, flags=re.ASCII)
        name = name if re.match(r"[A-Za-z]", name) else f"c{name}"
        while name.lower() in taken or keyword.iskeyword(name):
            name += "_"
        taken.add(name.lower())
        names.append(name)
    return names
