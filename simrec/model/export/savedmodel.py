"""Towers and the item index as SavedModels, which plain TensorFlow loads with nothing of ours.

A graph encodes raw columns as `FeatureEncoder` encodes a table: each column is an input of one
tensor, whose first axis are the rows; docs/export.md lists types and what stands for missing ones.
"""

import keyword
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from simrec.data.features import FeatureEncoder
from simrec.data.id_columns import id_kind
from simrec.errors import InputError
from simrec.model.export.formats import last_coordinate
from simrec.model.head import Encoder, Head
from simrec.model.tower import Tower, Unknown
from simrec.simec.keras import tf, tfrs

# Ids are part of the graph, which TensorFlow limits to 2 GB.
_GRAPH_BYTES = 3 << 29


class ItemIndex(tfrs.layers.factorized_top_k.BruteForce):
    """Exact search of TFRS, with exclusions that are known only when it is called."""

    def query_with_exclusions(self, queries: Any, exclusions: Any, k: Any = None) -> Any:
        """Give scores and rows of the k best items, without those at the excluded rows.

        TFRS needs the number of exclusions when the graph is made, and gives excluded items back
        where no others are left; here those places have a score of -inf.
        """
        scores = self._compute_score(queries, self._candidates)
        at = tf.where(exclusions >= 0)
        pairs = tf.stack([at[:, 0], tf.gather_nd(exclusions, at)], 1)
        none = tf.fill([tf.shape(pairs)[0]], tf.constant(-np.inf, tf.float32))
        scores = tf.tensor_scatter_nd_update(scores, pairs, none)
        values, rows = tf.math.top_k(scores, k=tf.minimum(k, tf.shape(scores)[1]))
        return values, tf.gather(self._identifiers, rows)


class IdTable(tf.Module):
    """From ids to rows, -1 for others."""

    def __init__(self, ids: pa.Array | pa.ChunkedArray, name: str) -> None:
        super().__init__()
        integers = id_kind(ids.type) == "integer"
        if ids.nbytes + 8 * len(ids) > _GRAPH_BYTES:
            raise InputError(
                f"{name}: {len(ids):,} ids are too many for a SavedModel, whose graph TensorFlow "
                "limits to 2 GB. Export vectors instead: format 'parquet' or 'faiss'."
            )
        self.dtype = tf.int64 if integers else tf.string
        try:
            values = ids.cast(pa.int64() if integers else pa.large_string()).to_pylist()
        except pa.ArrowInvalid as error:
            raise InputError(
                f"{name}: ids are beyond int64, the largest integers of a SavedModel ({error})."
            ) from error
        self.ids = tf.constant(values, self.dtype, [len(values)])
        rows = tf.range(len(values), dtype=tf.int64)
        pairs = tf.lookup.KeyValueTensorInitializer(self.ids, rows)
        self.table = tf.lookup.StaticHashTable(pairs, -1)

    def __call__(self, ids: Any) -> Any:
        """Find rows."""
        return self.table.lookup(ids)


class EncoderGraph(tf.Module):
    """The columns of a fitted encoder."""

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


class TowerGraph(tf.Module):
    """From raw feature columns to vectors."""

    def __init__(self, tower: Tower, head: Head, reserved: tuple[str, ...] = ()) -> None:
        super().__init__()
        assert tower.encoder is not None
        self.encoder = EncoderGraph(tower.encoder, tower.side, reserved)
        self.pieces = [EncoderPiece(stored.encoder, weight) for stored, weight in head.pieces()]

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """Return the vectors of rows."""
        x = self.encoder(values)
        return tf.concat([piece(x) for piece in self.pieces], 1)


class EncoderPiece(tf.Module):
    """What an `Encoder` does, in TensorFlow, each coordinate times a factor."""

    def __init__(self, encoder: Encoder, weight: np.ndarray) -> None:
        super().__init__()
        self.weight = weight
        self.weights = tf.Variable(encoder.weights[:-1], trainable=False, dtype=tf.float32)
        self.constant = tf.Variable(encoder.weights[-1], trainable=False, dtype=tf.float32)
        self.networks = [network.simec.encoder_ for network in encoder.networks]
        self.dense = [network.simec.encoder is not None for network in encoder.networks]
        self.places = [tf.constant(network.place) for network in encoder.networks]
        self.idf = None if encoder.idf is None else tf.constant(encoder.idf, tf.float32)

    def __call__(self, x: Any) -> Any:
        """Return the vectors of feature rows."""
        vectors = tf.sparse.sparse_dense_matmul(self._inputs(x), self.weights) + self.constant
        for network, dense, place in zip(self.networks, self.dense, self.places, strict=True):
            rows = tf.sparse.to_dense(tf.sparse.reorder(x)) if dense else x
            vectors += network(rows, training=False) @ place
        return self.weight * vectors

    def _inputs(self, x: Any) -> Any:
        if self.idf is None:
            return x
        values = x.values * tf.gather(self.idf, x.indices[:, 1])
        rows = x.indices[:, 0]
        squares = tf.math.unsorted_segment_sum(values * values, rows, x.dense_shape[0])
        length = tf.sqrt(tf.gather(squares, rows))
        return tf.SparseTensor(x.indices, tf.math.divide_no_nan(values, length), x.dense_shape)


class Recommender(tf.Module):
    """The user tower over an index of items: raw columns in, ids and scores out."""

    def __init__(
        self,
        users: Tower,
        head: Head,
        item_ids: pa.ChunkedArray,
        item_vectors: np.ndarray,
        shift: float,
        unknown: Unknown = "error",
    ) -> None:
        super().__init__()
        self.shift, self.unknown = shift, unknown
        self.items = IdTable(item_ids, "items")
        self.index = ItemIndex().index(tf.constant(item_vectors), self.items.ids)
        self.index(tf.zeros([1, item_vectors.shape[1]]), k=1)  # Keras saves only what was called
        self.users = IdTable(users.ids.ids, "users")
        self.rated = tf.Variable(np.asarray(users.counts) > 0, trainable=False)
        # One row more: the average user.
        known = np.concatenate([np.asarray(head.vectors), head.prior[None]])
        self.vectors = tf.Variable(known, trainable=False, dtype=tf.float32)
        reserved = ("user_id", "k", "exclude")
        self.tower = TowerGraph(users, head, reserved) if has_features(users) else None

    def signatures(self) -> dict[str, Any]:
        """Give the ways to call it, by name, ready for `tf.saved_model.save`."""
        one = {"user_id": tf.TensorSpec([None], self.users.dtype, name="user_id")}
        asked = {
            "k": tf.TensorSpec([], tf.int32, name="k"),
            "exclude": tf.TensorSpec([None, None], self.items.dtype, name="exclude"),
        }
        if self.tower is None:
            known = _concrete(self._known, {**one, **asked})
            return {"serving_default": known, "known_users": known}
        features = self.tower.encoder.inputs
        return {
            "serving_default": _concrete(self._any, {**one, **features, **asked}),
            "known_users": _concrete(self._known, {**one, **asked}),
            "new_users": _concrete(self._new, {**features, **asked}),
        }

    def _known(self, values: Mapping[str, Any]) -> dict[str, Any]:
        rows = self.users(values["user_id"])
        if self.unknown == "error":
            what = "user_id: the model does not know some of these users; new_users takes features"
            tf.debugging.assert_greater_equal(rows, tf.constant(0, tf.int64), what)
        return self._recommend(self._rows(rows), values)

    def _new(self, values: Mapping[str, Any]) -> dict[str, Any]:
        assert self.tower is not None
        return self._recommend(self.tower(values), values)

    def _any(self, values: Mapping[str, Any]) -> dict[str, Any]:
        assert self.tower is not None
        rows = self.users(values["user_id"])
        # As everywhere in SimRec: who has ratings keeps the vector learned from them.
        rated = (rows >= 0) & tf.gather(self.rated, tf.maximum(rows, 0))
        vectors = tf.where(rated[:, None], self._rows(rows), self.tower(values))
        return self._recommend(vectors, values)

    def _rows(self, rows: Any) -> Any:
        last = tf.shape(self.vectors, tf.int64)[0] - 1
        return tf.gather(self.vectors, tf.where(rows < 0, last, rows))

    def _recommend(self, vectors: Any, values: Mapping[str, Any]) -> dict[str, Any]:
        vectors = tf.debugging.check_numerics(vectors, "features are infinite or too large")
        seen = self.items(values["exclude"])
        z, ids = self.index.query_with_exclusions(vectors, seen, values["k"])
        none = tf.math.is_inf(z)
        no_id = tf.constant("" if ids.dtype == tf.string else -1, ids.dtype)
        return {
            "item_id": tf.where(none, no_id, ids),
            "score": z + self.shift,
        }


class FoldedTower(tf.Module):
    """A tower with its last coordinate: from raw columns to vectors whose product is the score."""

    def __init__(self, tower: Tower, head: Head, shift: float) -> None:
        super().__init__()
        self.tower = TowerGraph(tower, head)
        self.last = last_coordinate(tower.side, shift)

    def signatures(self) -> dict[str, Any]:
        """Give the way to call it."""
        return {"serving_default": _concrete(self._vectors, self.tower.encoder.inputs)}

    def _vectors(self, values: Mapping[str, Any]) -> dict[str, Any]:
        vectors = tf.debugging.check_numerics(
            self.tower(values), "features are infinite or too large"
        )
        last = tf.fill([tf.shape(vectors)[0], 1], tf.constant(self.last, tf.float32))
        return {"vector": tf.concat([vectors, last], 1)}


def save(module: Recommender | FoldedTower, path: str | os.PathLike[str]) -> dict[str, Any]:
    """Write a SavedModel; give its signatures, and inputs that are not named as their columns."""
    signatures = module.signatures()
    tf.saved_model.save(module, os.fspath(path), signatures=signatures)
    columns = {} if module.tower is None else module.tower.encoder.columns
    renamed = [f"{name} is {column!r}" for name, column in columns.items() if name != column]
    facts = {"signatures": [_describe(*item) for item in signatures.items()]}
    return {**facts, "renamed": renamed} if renamed else facts


def _describe(name: str, function: Any) -> str:
    inputs = function.structured_input_signature[1].values()
    shapes = {0: "", 1: " [rows]", 2: " [rows, any]"}
    texts = []
    for spec in sorted(inputs, key=lambda spec: spec.name):
        size = spec.shape[-1] if spec.shape.rank == 2 else None
        shape = f" [rows, {size}]" if size is not None else shapes[spec.shape.rank]
        texts.append(f"{spec.name}: {spec.dtype.name}{shape}")
    return f"{name}({', '.join(texts)})"


def _concrete(function: Any, inputs: Mapping[str, Any]) -> Any:
    @tf.function(autograph=False)
    def call(**values: Any) -> Any:
        return function(values)

    return call.get_concrete_function(**inputs)


def has_features(tower: Tower) -> bool:
    """Tell whether a tower can encode new entities."""
    return tower.encoder is not None and tower.encoder.n_features_ > 0
