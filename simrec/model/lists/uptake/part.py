"""Uptake, that is implicit feedback: the part of a `TwoTower` that learns which pairs there are."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from scipy import sparse

from simrec.data.sides import SINGULAR, Side, Sides
from simrec.model.contributions import encoded_by_column
from simrec.model.head import Saved, StoredHead, restored_heads, saved_heads
from simrec.model.lists.uptake.add_pairs import Scaled, Solver
from simrec.model.lists.uptake.fit import UptakeFit
from simrec.model.part import Entity, LaterRatings, NewRows, Part
from simrec.model.prepare import Prepared
from simrec.scoring.output import Output
from simrec.scoring.pairs import Parts
from simrec.storage.rows import Array, Sparse, columns, without

if TYPE_CHECKING:
    from simrec.model.tower import Tower
    from simrec.storage.artifacts import Artifact

# What the pairs of an entity add to its vector.
_OFFSET = {"items": "who took it up", "users": "what they took up"}


@dataclass(eq=False)
class UptakePart(Part):
    """Probabilities of uptake, with what is needed to learn later pairs.

    Attributes
    ----------
    solver : Solver
        How vectors follow from pairs.
    axes : Sides of numpy.ndarray
        How vectors are spread around what features say.
    factors : Sides of Array
        Factor that the vector of each entity carries; 0 for one that had no pairs in `fit`.
    """

    solver: Solver
    axes: Sides[np.ndarray]
    factors: Sides[Array]
    name: ClassVar[str] = "uptake"
    kind: ClassVar[str] = "uptake"

    @classmethod
    def of(cls, fit: UptakeFit, data: Prepared) -> UptakePart:
        """Make the part from what was fitted to the rated entities of `data`."""

        def head(side: Side) -> StoredHead:
            made = data.sides[side].head(fit.vectors[side], fit.encoders[side])
            return replace(made, prior=fit.priors[side])

        def factors(side: Side) -> np.ndarray:
            prepared = data.sides[side]
            out = np.zeros(len(prepared.tower.ids), np.float32)
            out[prepared.rated_rows] = fit.item_factors if side == "items" else 1.0
            return out

        return cls(Sides.of(head), fit.output, fit.solver, fit.axes, Sides.of(factors))

    def with_new(self, new: Sides[NewRows]) -> UptakePart:
        """Make room for new entities: what their features say."""

        def grown(head: StoredHead, more: NewRows) -> StoredHead:
            return head.grown(head.vectors_of_new(more.features, more.has_features), more.insert)

        factors = self.factors.map(
            lambda one, more: more.insert(one, np.zeros(len(more.has_features), np.float32)), new
        )
        return replace(self, heads=self.heads.map(grown, new), factors=factors)

    def with_ratings(
        self,
        counts: Sides[Array],
        later: LaterRatings,
        rated: Sparse,
        only_new: Sides[bool],
    ) -> tuple[UptakePart, Sides[np.ndarray]]:
        """Solve again for those who have learned, from all of their pairs."""
        part = self
        learned = later.rows.map(
            lambda rows, count, new: np.unique(rows[count[rows] == 0] if new else rows),
            counts,
            only_new,
        )
        weights = np.ones(len(later.values)) if later.weights is None else later.weights
        entries = (weights.astype(np.float32), (later.rows.users, later.rows.items))
        new = sparse.csr_matrix(entries, shape=rated.shape)
        # Users first: there are more items that are known than users who are not.
        for side in ("users", "items"):
            if len(learned[side]):
                part = part._solved(side, learned[side], rated, new, later)
        return part, learned

    def _solved(
        self,
        side: Side,
        rows: np.ndarray,
        rated: Sparse,
        new: sparse.csr_matrix,
        ratings: LaterRatings,
    ) -> UptakePart:
        head, others = self.heads[side], self.heads.other(side).vectors
        pairs, later = (self._confidences(matrix, side, rows) for matrix in (rated, new))
        factors = self.factors[side][rows]
        vectors = self.solver.solve(
            side,
            pairs,
            later,
            Scaled(head.vectors[rows], factors),
            self._encoded(side, rows, ratings.features),
            Scaled(np.asarray(others), np.asarray(self.factors.other(side))),
            self.axes[side],
            self._beyond_one(rows, ratings, new.shape) if side == "users" else None,
        )
        heads = self.heads.with_side(side, head.changed(rows, vectors))
        if side == "users":
            return replace(self, heads=heads)
        fitted, counts = factors > 0, np.asarray(pairs.sum(1)).ravel()
        carried = np.array(self.factors.items)
        carried[rows[fitted]] = self.solver.item_factor(counts[fitted])
        return replace(self, heads=heads, factors=Sides(carried, self.factors.users))

    def _beyond_one(
        self, users: np.ndarray, later: LaterRatings, shape: tuple[int, int]
    ) -> sparse.csr_matrix | None:
        """Return what pairs of new users are taken for, beyond 1: by how well they are liked."""
        if not self.solver.slope:
            return None
        beyond = self.solver.slope * (later.values - self.solver.mean_rating)
        entries = (beyond.astype(np.float32), (later.rows.users, later.rows.items))
        return sparse.csr_matrix(entries, shape=shape)[users]

    def _confidences(self, matrix: Sparse, side: Side, rows: np.ndarray) -> sparse.csr_matrix:
        """Return the pairs of some entities x all partners, in units of the mean confidence."""
        pairs = sparse.csr_matrix(matrix[rows] if side == "users" else columns(matrix, rows))
        unit = self.solver.confidence
        values = pairs.data / np.float32(unit) if unit else np.ones_like(pairs.data)
        parts = (values.astype(np.float32), pairs.indices, pairs.indptr)
        return sparse.csr_matrix(parts, shape=pairs.shape)

    def _encoded(self, side: Side, rows: np.ndarray, features: Sides[Sparse] | None) -> np.ndarray:
        """Return vectors without any pairs: what features say, or those of an average entity."""
        head = self.heads[side]
        if features is None:
            return np.tile(head.prior, (len(rows), 1))
        X = features[side][rows]
        return head.vectors_of_new(
            X, np.diff(X.indptr) > 0 if X.shape[1] else np.zeros(len(rows), bool)
        )

    def without(self, side: Side, gone: np.ndarray) -> UptakePart:
        """Remove some rows of a side."""
        return replace(
            self,
            heads=self.heads.with_side(side, self.heads[side].without(gone)),
            factors=self.factors.with_side(side, without(self.factors[side], gone)),
        )

    def explained(self, entity: Entity, vector: np.ndarray) -> Parts:
        """Take a vector apart: average, feature columns, and the entity's own pairs."""
        side, x = entity.side, entity.features
        vector = np.asarray(vector, np.float64)
        names, values = [f"average {SINGULAR[side]}"], [""]
        pieces = np.asarray(self.heads[side].prior if entity.count else vector, np.float64)[None]
        if x is None:
            pieces = vector[None]
        elif entity.encoder is None or x.nnz:
            pieces = encoded_by_column(entity.encoder, x, self.heads[side].encoder)
            columns = {} if entity.encoder is None else entity.encoder.words(x)
            names, values = [*names, *columns], [*values, *columns.values()]
        if entity.count:
            names, values = [*names, _OFFSET[side]], [*values, f"{entity.count:,} pairs"]
            pieces = np.concatenate([pieces, (vector - pieces.sum(0))[None]])
        return Parts(names, values, pieces, np.zeros(len(vector)))

    def comparable(self, side: Side, vectors: np.ndarray) -> np.ndarray:
        """Return vectors without popularity."""
        return vectors[:, :-1]

    def saved(self, in_shards: bool = False) -> Saved:
        """Return heads and solver as plain data."""
        saved = saved_heads(self.name, self.heads)
        saved.documents[self.name] = asdict(self.solver)
        for side, axes in self.axes.named():
            saved.arrays[f"{self.name}_{side}_axes"] = axes
            saved.rows[side][f"{self.name}_{side}_factors"] = self.factors[side]
        return saved

    @classmethod
    def restored(cls, output: Output, artifact: Artifact, towers: Sides[Tower]) -> UptakePart:
        """Rebuild the part from what `saved` returned."""
        heads = restored_heads(cls.name, artifact, towers)
        d = heads.items.width - 1
        axes = Sides.of(lambda side: artifact.array(f"{cls.name}_{side}_axes", (d, d)))
        factors = Sides.of(
            lambda side: artifact.rows(f"{cls.name}_{side}_factors", towers[side].ids.sizes)
        )
        solver = Solver.restored(artifact.documents[cls.name])
        return cls(heads, output, solver, axes, factors)
