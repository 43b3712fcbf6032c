"""Which coordinates of a rating vector mean what.

Three blocks of coordinates lie side by side, so that one scalar product answers all four tasks.
A block holds z = [y, b] of an entity as [y, b, 1] for an item and as [w, 1, b] for a user, whose
scalar product is y . w + b + b'. An entity is zero in the blocks that are not its own::

                 known       new_items        new_users
    known item   own         0                to_new
    new item     0           own              0
    known user   own         to_new           0
    new user     0           to_new           own

``own`` is the embedding that known partners meet, ``to_new`` the one that new partners meet: for a
known entity its posterior refitted against out-of-fold embeddings, for a new user what its features
say of the embeddings that features give to items. A new item meets both with the same embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from simrec.data.sides import Side

Block = Literal["known", "new_items", "new_users"]
_BLOCKS: tuple[Block, ...] = ("known", "new_items", "new_users")
# The block in which what features say of a new entity of a side stands.
_NEW: dict[Side, Block] = {"items": "new_items", "users": "new_users"}


@dataclass(frozen=True)
class Layout:
    """The coordinates of rating vectors.

    Attributes
    ----------
    embedding_dim : int
        Coordinates of an embedding y, without bias.
    scale : float
        Standard deviation of the ratings, in units of which embeddings and biases are.
    """

    embedding_dim: int
    scale: float

    @property
    def block_width(self) -> int:
        """Coordinates of a block: the embedding, its bias, and a constant."""
        return self.embedding_dim + 2

    @property
    def width(self) -> int:
        """Coordinates of a vector."""
        return len(_BLOCKS) * self.block_width

    def columns(self, block: Block) -> slice:
        """Return where a block stands."""
        start = _BLOCKS.index(block) * self.block_width
        return slice(start, start + self.block_width)

    def coordinates(self, side: Side, z: np.ndarray) -> np.ndarray:
        """Write [y, b] as the coordinates of a block, in units of the ratings."""
        one = np.ones((len(z), 1), np.float32)
        if side == "items":
            return np.hstack([z * np.float32(self.scale), one])
        return np.hstack([z[:, :-1], one, z[:, -1:] * np.float32(self.scale)])

    def embedding(self, side: Side, coordinates: np.ndarray) -> np.ndarray:
        """Read [y, b] off the coordinates of a block."""
        if side == "items":
            return coordinates[:, :-1] / np.float32(self.scale)
        return np.hstack([coordinates[:, :-2], coordinates[:, -1:] / np.float32(self.scale)])

    def vectors(
        self, side: Side, own: np.ndarray, to_new: np.ndarray, warmth: np.ndarray
    ) -> np.ndarray:
        """Write the vectors of entities that are known to the degree of their warmth.

        One that was fitted has warmth 1, one without ratings 0. In between, partners meet it as
        both: the weights of the two embeddings add to one.
        """
        warm = warmth.astype(np.float32)[:, None]
        own, to_new = self.coordinates(side, own), self.coordinates(side, to_new)
        if side == "items":
            return np.hstack([warm * own, (1 - warm) * own, warm * to_new])
        return np.hstack([warm * own, to_new, (1 - warm) * own])

    def from_features(self, side: Side, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Read (own, to_new) off the vectors that features give to new entities."""
        own = self.embedding(side, vectors[:, self.columns(_NEW[side])])
        return own, self.embedding(side, vectors[:, self.columns("new_items")])

    def encoder_weights(self, side: Side, own: np.ndarray, to_new: np.ndarray) -> np.ndarray:
        """Return the matrix that turns features of new entities into vectors.

        The last row belongs to the constant feature, which carries the constants of the blocks.

        Parameters
        ----------
        side : {"items", "users"}
            The side.
        own, to_new : numpy.ndarray
            Weights from features to the two embeddings; for items `to_new` does not matter.
        """
        weights = np.zeros((len(own), self.width), np.float32)
        weights[:, self.columns("new_items")] = self._block_weights(side, to_new)
        weights[:, self.columns(_NEW[side])] = self._block_weights(side, own)
        return weights

    def placement(self, side: Side, block: Block) -> np.ndarray:
        """Return the matrix that puts embeddings [y, b], without constants, into a block."""
        D = self.embedding_dim + 1
        full = np.zeros((D, self.width), np.float32)
        full[:, self.columns(block)] = self.coordinates(side, np.eye(D, dtype=np.float32))
        full[:, self.columns(block)] -= self.coordinates(side, np.zeros((1, D), np.float32))
        return full

    def without_constants(
        self, side: Side, own: np.ndarray, to_new: np.ndarray, warmth: float
    ) -> np.ndarray:
        """Write embeddings as parts of a vector, without the constants of its blocks."""
        full = self.vectors(side, own, to_new, np.full(len(own), warmth))
        return full.astype(np.float64) - self.constants(side, warmth)

    def constants(self, side: Side, warmth: float) -> np.ndarray:
        """Return the constants of the blocks of an entity: its vector if z were zero."""
        none = np.zeros((1, self.embedding_dim + 1))
        return self.vectors(side, none, none, np.array([warmth]))[0].astype(np.float64)

    def comparable(self, side: Side, vectors: np.ndarray) -> np.ndarray:
        """Return embeddings without biases, in one space for known and new entities."""
        known, new = vectors[:, self.columns("known")], vectors[:, self.columns(_NEW[side])]
        return known[:, : self.embedding_dim] + new[:, : self.embedding_dim]

    def _block_weights(self, side: Side, B: np.ndarray) -> np.ndarray:
        # Coordinates of a sum are the sum of coordinates, but for the constant, which counts once.
        constant = self.coordinates(side, np.zeros((1, B.shape[1]), np.float32))
        weights = self.coordinates(side, B) - constant
        weights[-1] += constant[0]
        return weights
