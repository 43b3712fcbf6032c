"""Vectors for one purpose: those of known entities, and the encoder of all others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import sparse

from simrec.data.sides import SIDES, Side, Sides
from simrec.scoring.threads import row_blocks
from simrec.storage.arrays import Array, Insertion, Sparse, csr_arrays

if TYPE_CHECKING:
    from simrec.model.tower import Tower
    from simrec.simec.simec import SimEc
    from simrec.storage.artifacts import Artifact


class Found(NamedTuple):
    """Entities that were looked up in a tower."""

    rows: np.ndarray  # of each its index into [known vectors; rows of `fresh`; average vector]
    n_known: int  # how many the tower knows
    fresh: sparse.csr_matrix | None  # encoded features of cold entities
    average: np.ndarray  # which are taken as average: nothing is known of them

    @property
    def known(self) -> np.ndarray:
        """Which of them the tower knows."""
        return self.rows < self.n_known

    @property
    def known_rows(self) -> np.ndarray:
        """The row of each in the tower, -1 for those it does not know."""
        return np.where(self.known, self.rows, -1)

    def take(self, places: Any) -> Found:
        """Return some of them."""
        return self._replace(rows=self.rows[places], average=self.average[places])

    def of_all(self, values: Array) -> np.ndarray:
        """Return the value of each, by those of all known ones; 0 for a new one."""
        out = np.zeros(len(self.rows), values.dtype)
        out[self.known] = values[self.rows[self.known]]
        return out


@dataclass(eq=False)
class Saved:
    """Plain data for a model directory, by name.

    Arrays and sparse matrices with a row for each entity of a side, all other arrays, JSON
    documents, and weights of networks.
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
        """Return all that has a row for each entity of a side as arrays."""
        found = dict(self.rows[side])
        for name, matrix in self.sparse[side].items():
            found |= csr_arrays(name, matrix)
        return found


@dataclass(eq=False)
class Network:
    """A trained encoder with hidden layers; its outputs z go into a vector as ``z @ place``."""

    simec: SimEc
    place: np.ndarray

    def encode(self, X: sparse.csr_matrix) -> np.ndarray:
        """Return the network's part of the vectors of feature rows."""
        return self.simec.transform(X) @ self.place

    def document(self) -> dict[str, Any]:
        """Return the encoder as plain data; its weights are saved as arrays."""
        from simrec.simec.files import encoder_document

        return encoder_document(self.simec.encoder_)

    @classmethod
    def restored(
        cls, document: Mapping[str, Any], weights: list[np.ndarray], place: np.ndarray
    ) -> Network:
        """Return the network that `document` described, with these weights; runs no code."""
        from simrec.simec.encoders import check_encoder_shapes
        from simrec.simec.files import encoder_from_document
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
    """From feature rows to vectors: a linear map, and networks with hidden layers added to it."""

    weights: np.ndarray  # A row for each feature and one for a constant: [x, 1] @ weights
    networks: list[Network] = field(default_factory=list)
    # Weight of each feature by its rarity; each row is then divided by its length.
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
    """Vectors of one side: of one part of a model, or of several side by side."""

    vectors: Array  # A vector for each entity the tower knows, float32; may be mapped from files
    prior: np.ndarray  # the vector of an average entity

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
    def pieces(self) -> list[tuple[StoredHead, np.ndarray]]:
        """Return the heads that lie side by side, and the factors of entities without pairs."""

    def gathered(self, found: Found) -> tuple[Array, np.ndarray]:
        """Return vectors, and the row in them of each entity; all are not copied for a few."""
        if found.fresh is None and not found.average.any():
            return self.vectors, found.rows
        if len(found.rows) <= found.n_known:
            return self.of(found), np.arange(len(found.rows))
        more = [] if found.fresh is None else [self.encode(found.fresh)]
        return np.concatenate([self.vectors, *more, self.prior[None]]), found.rows


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
        known = found.known
        out[known] = self.vectors[found.rows[known]]
        if found.fresh is not None:
            by_features = ~known & ~found.average
            out[by_features] = self.encode(found.fresh)[found.rows[by_features] - found.n_known]
        out[found.average] = self.prior
        return out

    def pieces(self) -> list[tuple[StoredHead, np.ndarray]]:
        """Return itself."""
        return [(self, np.ones(self.width, np.float32))]

    def vectors_of_new(self, features: sparse.csr_matrix, has_features: np.ndarray) -> np.ndarray:
        """Return the vectors of new entities: encoded features, or the average vector."""
        vectors = self.encode(features)
        vectors[~has_features] = self.prior
        return vectors

    def grown(self, vectors: np.ndarray, insert: Insertion) -> StoredHead:
        """Insert the vectors of new entities."""
        return replace(self, vectors=insert(self.vectors, vectors))

    def only(self, rows: np.ndarray) -> StoredHead:
        """Keep some rows."""
        return replace(self, vectors=self.vectors[rows])

    def changed(self, rows: np.ndarray, vectors: np.ndarray) -> StoredHead:
        """Replace some rows."""
        changed = np.array(self.vectors)
        changed[rows] = vectors
        return replace(self, vectors=changed)


class JoinedHead(Head):
    """The heads of several components side by side, each coordinate times a factor.

    Factors depend on the kind of an entity, so a scalar product is the blend for its kinds of user
    and item. Vectors are joined when they are first used.

    Parameters
    ----------
    heads : sequence of StoredHead
        The components.
    factors : callable
        From what entities are blended by to factors, a row for each.
    by : callable
        Returns by what the known entities are blended, such as their pairs; 0 of a new one. Called
        when it is first needed.
    """

    def __init__(
        self,
        heads: Sequence[StoredHead],
        factors: Callable[[np.ndarray], np.ndarray],
        by: Callable[[], Array],
    ) -> None:
        self._heads, self._factors, self._find_by = list(heads), factors, by

    @cached_property
    def _by(self) -> Array:
        return self._find_by()

    @cached_property
    def prior(self) -> np.ndarray:  # type: ignore[override]
        """The vector of an average entity."""
        return self._joined([head.prior[None] for head in self._heads], np.zeros(1))[0]

    @cached_property
    def vectors(self) -> np.ndarray:  # type: ignore[override]
        """Vectors of all known entities."""
        return self._joined([head.vectors for head in self._heads], np.asarray(self._by))

    def encode(self, X: sparse.csr_matrix) -> np.ndarray:
        """Return the vectors that features give."""
        return self._joined([head.encode(X) for head in self._heads], np.zeros(X.shape[0]))

    def of(self, found: Found) -> np.ndarray:
        """Return the vector of each entity that was found, joining those only."""
        return self._joined([head.of(found) for head in self._heads], found.of_all(self._by))

    def pieces(self) -> list[tuple[StoredHead, np.ndarray]]:
        """Return the heads and the factors of entities without pairs."""
        edges = np.cumsum([head.width for head in self._heads])[:-1]
        return list(zip(self._heads, np.split(self._factors(np.zeros(1))[0], edges), strict=True))

    def _joined(self, arrays: Sequence[Array], by: np.ndarray) -> np.ndarray:
        out = np.empty((len(by), sum(array.shape[1] for array in arrays)), np.float32)
        np.concatenate([np.asarray(array) for array in arrays], axis=1, out=out)
        for block in row_blocks(len(by)):
            out[block] *= self._factors(by[block])
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
        vectors = artifact.array(f"{start}_vectors", (len(tower.ids), width))
        width, n_features = vectors.shape[1], tower.features.shape[1]
        networks = []
        for key, document in sorted(artifact.documents.items()):
            if key.startswith(f"{start}_network_"):
                place = artifact.array(f"{key}_place", (None, width))
                networks.append(Network.restored(document, artifact.keras_weights[key], place))
        idf = f"{start}_idf"
        encoder = Encoder(
            artifact.array(f"{start}_weights", (n_features + 1, width)),
            networks,
            artifact.array(idf, (n_features,)) if idf in artifact.arrays else None,
        )
        return StoredHead(vectors, encoder, artifact.array(f"{start}_prior", (width,)))

    items = head("items")
    return Sides(items, head("users", items.width))
