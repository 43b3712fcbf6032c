"""Uptake, that is implicit feedback: the part of a `TwoTower` that learns which pairs there are.

Items have the embeddings of `axes`, new ones what an encoder of their features gives. Users have
what `user_encoder` makes of their history and features: nothing is solved for when a user has taken
up something more.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from scipy import sparse

from simrec.data.sides import SINGULAR, Sides
from simrec.errors import InputError
from simrec.model.head import Saved, restored_heads, saved_heads
from simrec.model.lists.axes import item_scale
from simrec.model.lists.blend import user_kinds
from simrec.model.lists.pair_weight import PairWeight
from simrec.model.lists.user_encoder import KNOWN
from simrec.model.part import (
    Entity,
    LaterRatings,
    NewRows,
    Part,
    encoded_by_column,
    learners,
    with_new_rows,
)
from simrec.scoring.output import Output
from simrec.scoring.pairs import Parts
from simrec.scoring.threads import row_blocks
from simrec.storage.arrays import Array, Sparse, columns, rows_of

if TYPE_CHECKING:
    from simrec.model.tower import Tower
    from simrec.storage.artifacts import Artifact

# What the pairs of an entity add to its vector.
_OFFSET = {"items": "who took it up", "users": "what they took up"}


@dataclass(frozen=True, eq=False)
class UserMaps:
    """From history and features to the vector of a user.

    Attributes
    ----------
    projection : numpy.ndarray
        Features x coordinates of features.
    maps : numpy.ndarray
        For each of `KNOWN`: coordinates of the history, of features and a constant x vector.
    """

    projection: np.ndarray
    maps: np.ndarray

    def __call__(self, coordinates: np.ndarray, features: Sparse, counts: np.ndarray) -> np.ndarray:
        """Return the vectors of users with so many pairs."""
        constant = np.ones((len(counts), 1), np.float32)
        Z = np.hstack([coordinates, np.asarray(features @ self.projection), constant])
        kinds = user_kinds(counts)
        return sum((kinds[:, [k]] * Z) @ M for k, M in enumerate(self.maps) if kinds[:, k].any())

    def of_features(self) -> np.ndarray:
        """Return the weights of features and constant for users of whom nothing else is known."""
        d = self.maps.shape[2]
        M = self.maps[KNOWN.index("nothing")][d:]
        return np.vstack([self.projection @ M[:-1], M[-1:]]).astype(np.float32)


@dataclass(eq=False)
class UptakePart(Part):
    """Which items users take up, with what is needed to learn later pairs.

    Attributes
    ----------
    weight : PairWeight
        What a pair counts in a history.
    users : UserMaps
        How the vectors of users follow from histories and features.
    inputs : Array
        Of each item, the factor of its vector that it adds to the coordinates of its users.
    fitted : Array of bool
        Which items had pairs in `fit`.
    spread : numpy.ndarray
        Sum of squares of the users' coordinates, each with its ridge.
    mean : float
        Mean of the users' weights, which are one over the root of the number of pairs.
    power : float
        Power of its count by which the column of an item was divided.
    typical : float
        Pairs of an item in `fit`, on average.
    """

    weight: PairWeight
    users: UserMaps
    inputs: Array
    fitted: Array
    spread: np.ndarray
    mean: float
    power: float
    typical: float
    name: ClassVar[str] = "uptake"
    kind: ClassVar[str] = "uptake"

    def known(self, pairs: Array) -> np.ndarray:
        """Tell how far items with so many pairs are known, from 0 to 1: those of `fit` wholly.

        One that came later is half known by as many pairs as those have on average.
        """
        pairs = np.asarray(pairs)
        return np.where(self.fitted, 1, pairs / (pairs + self.typical)).astype(np.float32)

    def with_new(self, new: Sides[NewRows]) -> UptakePart:
        """Make room for new entities: what their features say."""
        items = new.items
        none = np.zeros(len(items.has_features))
        return replace(
            self,
            heads=self.heads.map(with_new_rows, new),
            inputs=items.insert(self.inputs, none.astype(np.float32)),
            fitted=items.insert(self.fitted, none.astype(bool)),
        )

    def with_ratings(
        self, counts: Sides[Array], later: LaterRatings, rated: Sparse, only_new: Sides[bool]
    ) -> tuple[UptakePart, Sides[np.ndarray]]:
        """Encode the histories of those who have learned anew, then let their items learn."""
        learned, part = learners(counts, later, only_new), self
        if len(learned.items):
            part = part._with_items(learned.items, later, rated)
        if len(learned.users):
            part = part._with_users(learned.users, later, rated)
        return part, learned

    def _coordinates(self, histories: Sparse, inputs: Array) -> np.ndarray:
        """Return the coordinates of users' histories; see the attribute `inputs`."""
        used, place = np.unique(histories.indices, return_inverse=True)
        shape = (histories.shape[0], len(used))
        histories = sparse.csr_matrix((histories.data, place, histories.indptr), shape=shape)
        factors = np.asarray(inputs[used], np.float32)[:, None]
        return np.asarray(histories @ (np.asarray(self.heads.items.vectors[used]) * factors))

    def _with_users(self, users: np.ndarray, later: LaterRatings, rated: Sparse) -> UptakePart:
        width = len(self.users.projection)
        X = sparse.csr_matrix((len(users), width), dtype=np.float32)
        if later.features is not None:
            X = rows_of(later.features.users, users)
        histories = rows_of(rated, users)
        coordinates = self._coordinates(histories, self.inputs)
        head = self.heads.users.changed(
            users, self.users(coordinates, X, np.diff(histories.indptr))
        )
        return replace(self, heads=self.heads.with_side("users", head))

    def _with_items(self, rows: np.ndarray, later: LaterRatings, rated: Sparse) -> UptakePart:
        """Regress who took an item up on the users' coordinates, as the embeddings of `fit` do.

        An item that had no pairs in `fit` is drawn towards what its features say over its first
        pairs, and is no evidence of taste before. The coordinates are those of items that had, and
        these count in histories as much as before: nothing grows from update to update because it
        is explained by itself.
        """
        fitted = np.asarray(self.fitted[rows])
        here = np.isin(later.rows.items, rows[fitted])
        if later.again is not None:  # these are in it already
            here &= ~later.again
        users = [later.rows.users[here]]
        items = [np.searchsorted(rows, later.rows.items[here])]
        pairs = columns(rated, rows[~fitted])
        users.append(pairs.indices)
        items.append(np.repeat(np.flatnonzero(~fitted), np.diff(pairs.indptr)))
        who, place = np.unique(np.concatenate(users), return_inverse=True)
        histories = rows_of(rated, who)
        weights = np.maximum(np.diff(histories.indptr), 1) ** -0.5 / self.mean
        inputs = np.array(self.inputs)
        known = np.where(self.fitted, inputs, 0)
        pulls = self._coordinates(histories, known) * (weights[:, None] / self.spread)
        shape = (len(rows), len(who))
        ones = np.ones(len(place), np.float32)
        which = sparse.csr_matrix((ones, (np.concatenate(items), place)), shape=shape)
        moved = np.asarray(which @ pulls, np.float32)
        head, n = self.heads.items, np.diff(pairs.indptr)
        vectors = np.array(head.vectors[rows])
        before = np.linalg.norm(vectors[fitted], axis=1)
        vectors[fitted] += moved[fitted]
        after = np.linalg.norm(vectors[fitted], axis=1)
        inputs[rows[fitted]] *= np.where(after > 0, before / np.maximum(after, 1e-30), 1)
        if later.arrived is not None and later.features is not None and len(n):
            X = later.features.items[rows[~fitted]]
            cold = head.vectors_of_new(X, np.diff(X.indptr) > 0)
            known = later.arrived.known
            # What is not known yet is told by features.
            moved[~fitted] += (1 - known)[:, None] * cold
            inputs[rows[~fitted]] = known * item_scale(n, self.power) ** 2
        vectors[~fitted] = moved[~fitted]
        heads = self.heads.with_side("items", head.changed(rows, vectors))
        return replace(self, heads=heads, inputs=inputs)

    def explained(self, entity: Entity, vector: np.ndarray) -> Parts:
        """Take a vector apart: average, feature columns, and the entity's own pairs."""
        side, x, vector = entity.side, entity.features, np.asarray(vector, np.float64)
        names, values, pieces = [f"average {SINGULAR[side]}"], [""], vector[None]
        if x is not None and (entity.encoder is None or x.nnz):
            pieces = encoded_by_column(entity.encoder, x, self.heads[side].encoder)
            words = {} if entity.encoder is None else entity.encoder.words(x)
            names, values = [*names, *words], [*values, *words.values()]
        if entity.count:
            names, values = [*names, _OFFSET[side]], [*values, f"{entity.count:,} pairs"]
            pieces = np.concatenate([pieces, (vector - pieces.sum(0))[None]])
        return Parts(names, values, pieces, np.zeros(len(vector)))

    def saved(self) -> Saved:
        """Return the part as plain data."""
        saved = saved_heads(self.name, self.heads)
        more = {"mean_weight": self.mean, "power": self.power, "typical_pairs": self.typical}
        saved.documents[self.name] = {**asdict(self.weight), **more}
        saved.rows.items["uptake_inputs"] = self.inputs
        saved.rows.items["uptake_fitted"] = self.fitted
        saved.arrays |= {
            "uptake_projection": self.users.projection,
            "uptake_maps": self.users.maps,
            "uptake_spread": self.spread,
        }
        return saved

    @classmethod
    def restored(cls, output: Output, artifact: Artifact, towers: Sides[Tower]) -> UptakePart:
        """Rebuild the part from what `saved` returned."""
        heads = restored_heads(cls.name, artifact, towers)
        d, n = heads.items.width, len(towers.items.ids)
        projection = artifact.array("uptake_projection", (towers.users.features.shape[1], None))
        width = d + projection.shape[1] + 1
        maps = artifact.array("uptake_maps", (len(KNOWN), width, d))
        spread = artifact.array("uptake_spread", (d,))
        document = dict(artifact.documents[cls.name])
        numbers = [document.pop(name) for name in ("mean_weight", "power", "typical_pairs")]
        if not all(isinstance(n, int | float) and not isinstance(n, bool) for n in numbers):
            raise InputError(f"uptake: expected numbers, got {numbers}")
        mean, power, typical = map(float, numbers)
        if not (spread > 0).all() or not min(mean, typical) > 0:
            raise InputError("uptake: expected positive spread, mean weight and typical pairs")
        if not 0 <= power <= 1:
            raise InputError(f"uptake: power is {power!r}, expected a number from 0 to 1")
        return cls(
            heads,
            output,
            PairWeight.restored(document),
            UserMaps(projection, maps),
            artifact.array("uptake_inputs", (n,)),
            artifact.array("uptake_fitted", (n,), "b"),
            spread,
            mean,
            power,
            typical,
        )


def encoded_histories(
    histories: sparse.csr_matrix,
    inputs: np.ndarray,
    features: Sparse,
    maps: UserMaps,
) -> np.ndarray:
    """Return the vectors of users from all of their pairs."""
    n, width = histories.shape[0], maps.maps.shape[2]
    out = np.empty((n, width), np.float32)
    for rows in row_blocks(n, width):
        some = histories[rows]
        out[rows] = maps(np.asarray(some @ inputs), features[rows], np.diff(some.indptr))
    return out
