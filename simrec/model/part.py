"""What a `TwoTower` is made of: parts that each learn one thing and score it by a scalar product.

`rating` learns how well an item will be liked, the others what lists are made of. To add another,
write a `Part`, fit it in `model.lists.fit`, and name it in `model.files`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from scipy import sparse

from simrec.data.features import FeatureEncoder
from simrec.data.sides import Side, Sides
from simrec.model.head import Saved, StoredHead
from simrec.scoring.output import Output
from simrec.scoring.pairs import Parts
from simrec.storage.rows import Array, Insertion, Sparse

if TYPE_CHECKING:
    from simrec.model.tower import Tower
    from simrec.storage.artifacts import Artifact


@dataclass(frozen=True, eq=False)
class LaterRatings:
    """Ratings that came after fitting, by the rows of both towers."""

    rows: Sides[np.ndarray]
    values: np.ndarray
    weights: np.ndarray | None = None  # confidence in each pair; None where all count alike
    features: Sides[Sparse] | None = None  # encoded features of all items and users
    at: np.ndarray | None = None  # day of each, since 1970; None where it is not known


@dataclass(eq=False)
class NewRows:
    """Entities that one side of a model has just been given."""

    features: sparse.csr_matrix
    has_features: np.ndarray  # which of them have any; the others are taken as average
    insert: Insertion  # where they go; an unrated entity that is given again takes its new row
    counts: Array  # ratings of each entity before


@dataclass(frozen=True, eq=False)
class Entity:
    """One entity whose vector is to be explained."""

    side: Side
    row: int  # its row in the tower; -1 for one the model does not know
    count: int  # its ratings
    features: sparse.csr_matrix | None  # encoded; None where there is nothing to encode
    encoder: FeatureEncoder | None


@dataclass(eq=False)
class Part(ABC):
    """One thing that a model has learned.

    Methods that change anything return another part; the one they are called on stays as it is.
    `name` says what it is for, `kind` in which way it was learned.
    """

    name: ClassVar[str]
    kind: ClassVar[str]
    heads: Sides[StoredHead]  # vectors of both sides
    output: Output  # from scalar products to answers

    @abstractmethod
    def with_new(self, new: Sides[NewRows]) -> Part:
        """Make room for new entities, without ratings yet."""

    @abstractmethod
    def with_ratings(
        self,
        counts: Sides[Array],
        later: LaterRatings,
        rated: Sparse,
        only_new: Sides[bool],
    ) -> tuple[Part, Sides[np.ndarray]]:
        """Learn from later ratings; return also the rows of the items and users that learned.

        `counts` are the ratings of each entity before, `rated` (users x items) the confidence in
        every pair there is now, the later ones included.
        """

    @abstractmethod
    def without(self, side: Side, gone: np.ndarray) -> Part:
        """Remove some rows of a side."""

    @abstractmethod
    def explained(self, entity: Entity, vector: np.ndarray) -> Parts:
        """Take the vector of an entity apart, into named parts that sum to it."""

    @abstractmethod
    def comparable(self, side: Side, vectors: np.ndarray) -> np.ndarray:
        """Return embeddings without biases, in which known and new entities can be compared."""

    @abstractmethod
    def saved(self, in_shards: bool = False) -> Saved:
        """Return the part as plain data, for a directory in one piece or in shards."""

    @classmethod
    @abstractmethod
    def restored(cls, output: Output, artifact: Artifact, towers: Sides[Tower]) -> Part:
        """Rebuild the part from what `saved` returned; raise InputError where it does not fit."""
