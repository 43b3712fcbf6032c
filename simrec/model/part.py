"""What a `TwoTower` is made of: parts that each learn one thing and score it by a scalar product.

`rating` learns how well an item will be liked, `uptake` whether it will be taken up at all. To add
another, write a folder with a `Part` in it, fit it in `model.fit`, and name it in `model.files`.
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
from simrec.rows import Array, Insertion, Sparse
from simrec.scoring.output import Output
from simrec.scoring.shares import Parts

if TYPE_CHECKING:
    from simrec.artifacts import Artifact
    from simrec.model.tower import Tower


@dataclass(frozen=True, eq=False)
class LaterRatings:
    """Ratings that came after fitting, by the rows of both towers.

    Attributes
    ----------
    rows : Sides of numpy.ndarray
        Rows of the items and of the users.
    values : numpy.ndarray
        The ratings.
    weights : numpy.ndarray or None
        Confidence in each pair; None where all count alike.
    features : Sides of Sparse or None
        Encoded features of all items and users.
    at : numpy.ndarray or None
        Day of each, since 1970; None where it is not known.
    """

    rows: Sides[np.ndarray]
    values: np.ndarray
    weights: np.ndarray | None = None
    features: Sides[Sparse] | None = None
    at: np.ndarray | None = None


@dataclass(eq=False)
class NewRows:
    """Entities that one side of a model has just been given.

    Attributes
    ----------
    features : csr_matrix
        Their encoded features.
    has_features : numpy.ndarray of bool
        Which of them have any; the others are taken as average.
    insert : Insertion
        Where they go; an entity without ratings that was given again takes its new row.
    counts : Array
        Ratings of each entity before.
    """

    features: sparse.csr_matrix
    has_features: np.ndarray
    insert: Insertion
    counts: Array


@dataclass(frozen=True, eq=False)
class Entity:
    """One entity whose vector is to be explained.

    Attributes
    ----------
    side : {"items", "users"}
        Its side.
    row : int
        Its row in the tower; -1 for one the model does not know.
    count : int
        Its ratings.
    features : csr_matrix or None
        Its encoded features; None where there is nothing to encode.
    encoder : FeatureEncoder or None
        What encoded them.
    """

    side: Side
    row: int
    count: int
    features: sparse.csr_matrix | None
    encoder: FeatureEncoder | None


@dataclass(eq=False)
class Part(ABC):
    """One thing that a model has learned.

    Methods that change anything return another part; the one they are called on stays as it is.
    `name` says what it is for, `kind` in which way it was learned.

    Attributes
    ----------
    heads : Sides of StoredHead
        Vectors of both sides.
    output : Output
        From scalar products to answers.
    """

    name: ClassVar[str]
    kind: ClassVar[str]
    heads: Sides[StoredHead]
    output: Output

    @abstractmethod
    def with_new(self, new: Sides[NewRows]) -> Part:
        """Make room for new entities, without ratings yet."""

    @abstractmethod
    def with_ratings(
        self,
        counts: Sides[Array],
        later: LaterRatings,
        rated: Sparse,
        only_new: bool,
    ) -> tuple[Part, Sides[np.ndarray]]:
        """Learn from later ratings; return also the rows of the items and users that learned.

        Parameters
        ----------
        counts : Sides of Array
            Ratings of each item and user before.
        later : LaterRatings
            The ratings.
        rated : Sparse
            Users x items: confidence in every pair there is now, the later ones included.
        only_new : bool
            Whether only entities without ratings before learn from them.
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
        """Rebuild the part from what `saved` returned. Nothing in the artifact is believed.

        Raises
        ------
        InputError
            If arrays are missing, or do not fit each other or the towers.
        """
