"""Vectors for one purpose: those of known entities, and the encoder of all others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import sparse

from simrec.data.sides import SIDES, Side, Sides
from simrec.rows import Array, Insertion, Rows, Sparse, shards_of, without, writable

if TYPE_CHECKING:
    from simrec.artifacts import Artifact
    from simrec.model.tower import Tower
    from simrec.simec.simec import SimEc


class Found(NamedTuple):
    """Entities that were looked up in a tower.

    Attributes
    ----------
    rows : numpy.ndarray
        Of each entity its index into [known vectors; rows of `fresh`; the average vector].
    n_known : int
        How many the tower knows.
    fresh : csr_matrix or None
        Encoded features of those who are answered for by features.
    average : numpy.ndarray of bool
        Which are taken as average: nothing is known of them.
    """

    rows: np.ndarray
    n_known: int
    fresh: sparse.csr_matrix | None
    average: np.ndarray


@dataclass(eq=False)
class Saved:
    """Plain data for a model directory, by name.

    Attributes
    ----------
    rows : Sides of dict
        Arrays with a row for each item, and for each user.
    sparse : Sides of dict
        Sparse matrices likewise.
    arrays : dict
        All other arrays; none is as long as a side.
    documents : dict
        What is no array.
    networks : dict
        Weights of networks.
    """

    rows: Sides[dict[str, Array]] = field(default_factory=lambda: Sides({}, {}))
    sparse: Sides[dict[str, Sparse]] = field(default_factory=lambda: Sides({}, {}))
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    documents: dict[str, Any] = field(default_factory=dict)
    networks: dict[str, list[np.ndarray]] = field(default_factory=dict)

    def add(self, more: Saved) -> None:
        """Add what another has."""
        for side in SIDES:
            self.rows[side].update(more.rows[side])
            self.sparse[side].update(more.sparse[side])
        self.arrays |= more.arrays
        self.documents |= more.documents
        self.networks |= more.networks

    def whole(self, side: Side) -> dict[str, np.ndarray]:
        """Return all that has a row for each entity of a side, in one piece."""
        found = {name: np.asarray(rows) for name, rows in self.rows[side].items()}
        for name, matrix in self.sparse[side].items():
            one = matrix.tocsr()
            for piece in ("data", "indices", "indptr"):
                found[f"{name}_{piece}"] = getattr(one, piece)
        return found


@dataclass(eq=False)
class Network:
    """A trained encoder with hidden layers, and where its outputs z go in a vector: ``z @ place``.

    `simec` may be any `SimEc` whose `transform` gives z.
    """

    simec: SimEc
    place: np.ndarray

    def encode(self, X: sparse.csr_matrix) -> np.ndarray:
        """Return the network's part of the vectors of feature rows."""
        return self.simec.transform(X) @ self.place

    def document(self) -> dict[str, Any]:
        """Return the encoder as plain data; its weights are saved as arrays."""
        from simrec.simec.encoder_files import encoder_document

        return encoder_document(self.simec.encoder_)

    @classmethod
    def restored(
        cls, document: Mapping[str, Any], weights: list[np.ndarray], place: np.ndarray
    ) -> Network:
        """Return the network that `document` described, with these weights; runs no code."""
        from simrec.simec.encoder_files import encoder_from_document
        from simrec.simec.encoders import check_encoder_shapes
        from simrec.simec.simec import SimEc

        simec = SimEc(embedding_dim=len(place))
        simec.encoder_ = encoder_from_document(document, weights)
        simec.feature_kind_ = "sparse"
        simec.feature_shape_ = tuple(simec.encoder_.input_shape[1:])
        if not hasattr(simec.encoder_, "stack"):
            simec.encoder = simec.encoder_  # a user's own takes dense rows
        check_encoder_shapes(simec.encoder_, simec.feature_shape_, len(place))
        return cls(simec, place)


@dataclass(eq=False)
class Encoder:
    """From feature rows to vectors: a linear map, and networks with hidden layers added to it.

    Attributes
    ----------
    weights : numpy.ndarray
        A row for each feature and one for a constant: [x, 1] @ weights.
    networks : list of Network
        Encoders with hidden layers, whose parts are added to those of the linear map.
    idf : numpy.ndarray or None
        Weight of each feature by its rarity. Where given, features are multiplied by it and each
        row is divided by its length before the linear map.
    """

    weights: np.ndarray
    networks: list[Network] = field(default_factory=list)
    idf: np.ndarray | None = None

    def __call__(self, X: sparse.csr_matrix) -> np.ndarray:
        """Return the vectors of feature rows."""
        vectors = self.inputs(X) @ self.weights[:-1] + self.weights[-1]
        for network in self.networks:
            vectors += network.encode(X)
        return vectors.astype(np.float32, copy=False)

    def inputs(self, X: sparse.csr_matrix) -> sparse.csr_matrix:
        """Return what the linear map is applied to."""
        if self.idf is None:
            return X
        X = sparse.csr_matrix(X.multiply(self.idf[None]), dtype=np.float32)
        length = np.sqrt(np.asarray(X.multiply(X).sum(1)).ravel())
        inverse = (1 / np.where(length > 0, length, 1)).astype(np.float32)
        return sparse.csr_matrix(sparse.diags_array(inverse) @ X)


class Head(ABC):
    """Vectors of one side: of one part of a model, or of several side by side.

    Attributes
    ----------
    vectors : Array
        A vector for each entity the tower knows, float32; may be mapped from files.
    prior : numpy.ndarray
        The vector of an average entity.
    """

    vectors: Array
    prior: np.ndarray

    @property
    def width(self) -> int:
        """Coordinates of a vector."""
        return len(self.prior)

    @abstractmethod
    def encode(self, X: sparse.csr_matrix) -> np.ndarray:
        """Return the vectors that features give."""

    @abstractmethod
    def of(self, found: Found) -> np.ndarray:
        """Return the vector of each entity that was found."""

    @abstractmethod
    def pieces(self) -> list[tuple[StoredHead, float]]:
        """Return the heads that lie side by side in the vectors, and their weights."""

    def gathered(self, found: Found) -> tuple[Array, np.ndarray]:
        """Return vectors, and the row in them of each entity; all are not copied for a few."""
        alone = found.fresh is None and not found.average.any()
        if alone or len(found.rows) > found.n_known:
            return self.stacked(found), found.rows
        return self.of(found), np.arange(len(found.rows))

    def stacked(self, found: Found) -> Array:
        """Return the vectors that the rows of `found` count in; shards are not copied."""
        if found.fresh is None and not found.average.any():
            return self.vectors
        more = [] if found.fresh is None else [self.encode(found.fresh)]
        pieces = [*shards_of(self.vectors), *more, self.prior[None]]
        return Rows(pieces) if isinstance(self.vectors, Rows) else np.concatenate(pieces)


@dataclass(eq=False)
class StoredHead(Head):
    """The head of a part, as it is kept in a model."""

    vectors: Array
    encoder: Encoder
    prior: np.ndarray

    def encode(self, X: sparse.csr_matrix) -> np.ndarray:
        """Return the vectors that features give."""
        return self.encoder(X)

    def of(self, found: Found) -> np.ndarray:
        """Return the vector of each entity that was found."""
        out = np.empty((len(found.rows), self.width), np.float32)
        known = found.rows < found.n_known
        out[known] = self.vectors[found.rows[known]]
        if found.fresh is not None:
            by_features = ~known & ~found.average
            out[by_features] = self.encode(found.fresh)[found.rows[by_features] - found.n_known]
        out[found.average] = self.prior
        return out

    def pieces(self) -> list[tuple[StoredHead, float]]:
        """Return itself."""
        return [(self, 1.0)]

    def vectors_of_new(self, features: sparse.csr_matrix, has_features: np.ndarray) -> np.ndarray:
        """Return the vectors of new entities: what features say, or those of an average one."""
        vectors = self.encode(features)
        vectors[~has_features] = self.prior
        return vectors

    def grown(self, vectors: np.ndarray, insert: Insertion) -> StoredHead:
        """Insert the vectors of new entities."""
        return replace(self, vectors=insert(self.vectors, vectors))

    def without(self, gone: np.ndarray) -> StoredHead:
        """Remove some rows."""
        return replace(self, vectors=without(self.vectors, gone))

    def changed(self, rows: np.ndarray, vectors: np.ndarray) -> StoredHead:
        """Replace some rows."""
        changed = writable(self.vectors, rows)
        changed[rows] = vectors
        return replace(self, vectors=changed)


class JoinedHead(Head):
    """Several heads side by side, each times its weight.

    A scalar product with vectors joined in the same order is the weighted sum of the scalar
    products. Vectors are joined when they are first used.
    """

    def __init__(self, parts: Sequence[tuple[StoredHead, float]]) -> None:
        self._pieces = list(parts)
        self.prior = self._joined([head.prior for head, _ in parts])

    @cached_property
    def vectors(self) -> np.ndarray:  # type: ignore[override]
        """Vectors of all known entities."""
        return self._joined([head.vectors for head, _ in self._pieces])

    def encode(self, X: sparse.csr_matrix) -> np.ndarray:
        """Return the vectors that features give."""
        return self._joined([head.encode(X) for head, _ in self._pieces])

    def of(self, found: Found) -> np.ndarray:
        """Return the vector of each entity that was found, joining those only."""
        return self._joined([head.of(found) for head, _ in self._pieces])

    def pieces(self) -> list[tuple[StoredHead, float]]:
        """Return the heads and their weights."""
        return self._pieces

    def _joined(self, arrays: Sequence[Array]) -> np.ndarray:
        width = sum(array.shape[-1] for array in arrays)
        out = np.empty((*arrays[0].shape[:-1], width), np.float32)
        start = 0
        for array, (_, weight) in zip(arrays, self._pieces, strict=True):
            stop = start + array.shape[-1]
            np.multiply(array, np.float32(weight), out=out[..., start:stop])
            start = stop
        return out


def saved_heads(name: str, heads: Sides[StoredHead]) -> Saved:
    """Return the heads of a part as plain data."""
    saved = Saved()
    for side, head in heads.named():
        start, encoder = f"{name}_{side}", head.encoder
        saved.rows[side][f"{start}_vectors"] = head.vectors
        saved.arrays |= {f"{start}_weights": encoder.weights, f"{start}_prior": head.prior}
        if encoder.idf is not None:
            saved.arrays[f"{start}_idf"] = encoder.idf
        for number, network in enumerate(encoder.networks):
            key = f"{start}_network_{number}"
            saved.documents[key] = network.document()
            saved.arrays[f"{key}_place"] = network.place
            saved.networks[key] = network.simec.encoder_.get_weights()
    return saved


def restored_heads(name: str, artifact: Artifact, towers: Sides[Tower]) -> Sides[StoredHead]:
    """Rebuild the heads of a part from what `saved_heads` returned; every shape is checked."""

    def head(side: Side, width: int | None = None) -> StoredHead:
        start, tower = f"{name}_{side}", towers[side]
        vectors = artifact.rows(f"{start}_vectors", tower.ids.sizes, (width,))
        width, n_features = vectors.shape[1], tower.features.shape[1]
        networks = []
        for key, weights in sorted(artifact.keras_weights.items()):
            if key.startswith(f"{start}_network_"):
                place = artifact.array(f"{key}_place", (None, width))
                networks.append(Network.restored(artifact.documents[key], weights, place))
        idf = f"{start}_idf"
        encoder = Encoder(
            artifact.array(f"{start}_weights", (n_features + 1, width)),
            networks,
            artifact.array(idf, (n_features,)) if idf in artifact.arrays else None,
        )
        return StoredHead(vectors, encoder, artifact.array(f"{start}_prior", (width,)))

    items = head("items")
    return Sides(items, head("users", items.width))
