"""Which coordinates of a rating vector mean what.

A block of coordinates holds z = [y, b] of an entity as [y, b, 1] for an item and as [w, 1, b] for a
user, whose scalar product is y . w + b + b'. Without refinement a vector is one such block. With it
three blocks lie side by side, so that one scalar product answers all four tasks. An entity is zero
in the blocks that are not its own::

                 known       new_items        new_users
    known item   warm        0                cold
    new item     0           warm             0
    known user   warm        cold             0
    new user     0           cold             warm

``warm`` is the embedding used against warm partners, ``cold`` the one used against cold partners:
for a known entity its posterior refitted against out-of-fold embeddings, for a new user what its
features say given the embeddings that features give to items. A new item has one for both. Where
held-out ratings gain by it, a last block follows content (`simrec.model.rating.content_block`).
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from simrec.data.sides import Side

Block = Literal["known", "new_items", "new_users"]
_BLOCKS: tuple[Block, ...] = ("known", "new_items", "new_users")
# The block of the embedding that features give a new entity of a side.
_NEW: dict[Side, Block] = {"items": "new_items", "users": "new_users"}


@dataclass(frozen=True)
class Layout:
    """The coordinates of rating vectors."""

    embedding_dim: int  # coordinates of an embedding y, without bias
    scale: float  # standard deviation of the ratings, in units of which embeddings and biases are
    refined: bool = True  # whether there are three blocks, or one
    content: int = 0  # coordinates of a last block, see `simrec.model.rating.content_block`

    @property
    def block_width(self) -> int:
        """Coordinates of a block: the embedding, its bias, and a constant."""
        return self.embedding_dim + 2

    @property
    def width(self) -> int:
        """Coordinates of a vector."""
        return (len(_BLOCKS) if self.refined else 1) * self.block_width + self.content

    def columns(self, block: Block) -> slice:
        """Return where a block stands."""
        start = _BLOCKS.index(block) * self.block_width if self.refined else 0
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
        self, side: Side, warm: np.ndarray, cold: np.ndarray, warmth: np.ndarray
    ) -> np.ndarray:
        """Write the vectors of entities that are known to the degree of their warmth.

        One that was fitted has warmth 1, one without ratings 0. In between, partners meet it as
        both: the weights of the two embeddings add to one. The content block is left at zero.
        """
        if not self.refined:
            return self.coordinates(side, warm)
        share, none = warmth.astype(np.float32)[:, None], np.zeros((len(warm), self.content), "f4")
        warm, cold = self.coordinates(side, warm), self.coordinates(side, cold)
        if side == "items":
            return np.hstack([share * warm, (1 - share) * warm, share * cold, none])
        return np.hstack([share * warm, cold, (1 - share) * warm, none])

    def from_features(self, side: Side, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Read (warm, cold) off the vectors that features give to new entities."""
        warm = self.embedding(side, vectors[:, self.columns(_NEW[side])])
        return warm, self.embedding(side, vectors[:, self.columns("new_items")])

    def encoder_weights(self, side: Side, warm: np.ndarray, cold: np.ndarray) -> np.ndarray:
        """Return the matrix that turns features of new entities into vectors.

        The last row belongs to the constant feature, which carries the constants of the blocks.
        """
        weights = np.zeros((len(warm), self.width), np.float32)
        weights[:, self.columns("new_items")] = self._block_weights(side, cold)
        weights[:, self.columns(_NEW[side])] = self._block_weights(side, warm)
        return weights

    def placement(self, side: Side, block: Block) -> np.ndarray:
        """Return the matrix that puts embeddings [y, b], without constants, into a block."""
        D = self.embedding_dim + 1
        full = np.zeros((D, self.width), np.float32)
        full[:, self.columns(block)] = self.coordinates(side, np.eye(D, dtype=np.float32))
        full[:, self.columns(block)] -= self.coordinates(side, np.zeros((1, D), np.float32))
        return full

    def without_constants(
        self, side: Side, warm: np.ndarray, cold: np.ndarray, warmth: float
    ) -> np.ndarray:
        """Write embeddings as parts of a vector, without the constants of its blocks."""
        full = self.vectors(side, warm, cold, np.full(len(warm), warmth))
        return full.astype(np.float64) - self.constants(side, warmth)

    def constants(self, side: Side, warmth: float) -> np.ndarray:
        """Return the constants of the blocks of an entity: its vector if z were zero."""
        none = np.zeros((1, self.embedding_dim + 1))
        return self.vectors(side, none, none, np.array([warmth]))[0].astype(np.float64)

    def comparable(self, side: Side, vectors: np.ndarray) -> np.ndarray:
        """Return embeddings without biases, in one space for known and new entities."""
        if not self.refined:
            return vectors[:, : self.embedding_dim]
        known, new = vectors[:, self.columns("known")], vectors[:, self.columns(_NEW[side])]
        return known[:, : self.embedding_dim] + new[:, : self.embedding_dim]

    def _block_weights(self, side: Side, B: np.ndarray) -> np.ndarray:
        # Coordinates of a sum are the sum of coordinates, but for the constant, which counts once.
        constant = self.coordinates(side, np.zeros((1, B.shape[1]), np.float32))
        weights = self.coordinates(side, B) - constant
        weights[-1] += constant[0]
        return weights
