"""What a `TwoTower` is made of: parts that each learn one thing and score it by a scalar product.

`rating` learns how well an item will be liked, the others what lists are made of. To add another,
write a `Part`, fit it in `model.lists.fit`, and name it in `model.files`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
from scipy import sparse

from simrec.data.features import FeatureEncoder
from simrec.data.sides import Side, Sides
from simrec.model.head import Encoder, Network, Saved, StoredHead
from simrec.model.tower import Tower
from simrec.scoring.output import Output
from simrec.scoring.pairs import Parts
from simrec.storage.arrays import Array, Insertion, Sparse
from simrec.storage.artifacts import Artifact


@dataclass(frozen=True, eq=False)
class LaterRatings:
    """Ratings that came after fitting, by the rows of both towers."""

    rows: Sides[np.ndarray]
    values: np.ndarray
    features: Sides[Sparse] | None = None  # encoded features of all items and users
    at: np.ndarray | None = None  # day of each, since 1970; None where it is not known
    again: np.ndarray | None = None  # which pairs had been rated before; None where none had
    arrived: "Arrived | None" = None  # items that came after fit and learn; None without lists


class Arrived(NamedTuple):
    """Items that came after `fit` and learn from later ratings."""

    rows: np.ndarray
    known: np.ndarray  # how far each is known, from 0 to 1


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
    def with_new(self, new: Sides[NewRows]) -> "Part":
        """Make room for new entities, without ratings yet."""

    @abstractmethod
    def with_ratings(
        self,
        counts: Sides[Array],
        later: LaterRatings,
        rated: Sparse,
        only_new: Sides[bool],
    ) -> "tuple[Part, Sides[np.ndarray]]":
        """Learn from later ratings; return also the rows of the items and users that learned.

        `counts` are the ratings of each entity before, `rated` (users x items) what every pair that
        there is now counts in a history, the later ones included.
        """

    def only_users(self, rows: np.ndarray) -> "Part":
        """Keep some users, by their rows."""
        return replace(self, heads=Sides(self.heads.items, self.heads.users.only(rows)))

    @abstractmethod
    def explained(self, entity: Entity, vector: np.ndarray) -> Parts:
        """Take the vector of an entity apart, into named parts that sum to it."""

    def comparable(self, side: Side, vectors: np.ndarray) -> np.ndarray:
        """Return embeddings without biases, in which known and new entities can be compared."""
        return vectors

    @abstractmethod
    def saved(self) -> Saved:
        """Return the part as plain data."""

    @classmethod
    @abstractmethod
    def restored(cls, output: Output, artifact: Artifact, towers: Sides[Tower]) -> "Part":
        """Rebuild the part from what `saved` returned; raise InputError where it does not fit."""


def with_new_rows(head: StoredHead, new: NewRows) -> StoredHead:
    """Insert what features say of new entities."""
    return head.grown(head.vectors_of_new(new.features, new.has_features), new.insert)


def learners(counts: Sides[Array], later: LaterRatings, only_new: Sides[bool]) -> Sides[np.ndarray]:
    """Return the rows of those who learn from later ratings, of one side only new ones if so."""
    return later.rows.map(
        lambda rows, count, new: np.unique(rows[count[rows] == 0] if new else rows),
        counts,
        only_new,
    )


def by_column(
    encoder: FeatureEncoder | None, x: sparse.csr_matrix, weights: np.ndarray
) -> np.ndarray:
    """Apply weights to the features of each column; the first row is that of the constant."""
    out = np.zeros((1 + (0 if encoder is None else len(encoder.columns_)), weights.shape[1]))
    out[0] = weights[-1]
    if encoder is not None:
        np.add.at(out, 1 + encoder.groups_[x.indices], x.data[:, None] * weights[x.indices])
    return out


def encoded_by_column(
    features: FeatureEncoder | None, x: sparse.csr_matrix, encoder: Encoder
) -> np.ndarray:
    """Take apart the vector that an encoder gives to x; the first row is the constant part."""
    pieces = by_column(features, encoder.inputs(x), encoder.weights).astype(np.float64)
    for network in encoder.networks:
        pieces = pieces + by_column(features, x, linear_at(network, x))
    return pieces


def linear_at(network: Network, x: sparse.csr_matrix) -> np.ndarray:
    """Return weights that act at x as the network does: its integrated gradients over x."""
    from simrec.simec.encoders import relevance
    from simrec.simec.inputs import Features

    D = len(network.place)
    # One row for each output, in one go.
    rows = Features.check(sparse.vstack([x] * D, format="csr"))
    if network.simec.encoder is not None:  # a user's own encoder takes dense rows
        rows = rows.as_kind("dense")
    share, base = relevance(network.simec.encoder_, rows, np.eye(D, dtype=np.float32))
    weights = np.zeros((x.shape[1] + 1, D))
    there = x.data != 0
    weights[x.indices[there]] = (share[:, x.indices[there]] / x.data[there]).T
    weights[-1] = base
    return weights @ network.place
