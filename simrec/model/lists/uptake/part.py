"""Uptake, that is implicit feedback: the part of a `TwoTower` that learns which pairs there are."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from simrec.data.sides import SINGULAR, Side, Sides
from simrec.model.head import Saved, StoredHead, restored_heads, saved_heads
from simrec.model.lists.uptake.add_pairs import Pairs, Solver
from simrec.model.lists.uptake.fit import UptakeFit
from simrec.model.part import Entity, LaterRatings, NewRows, Part, encoded_by_column
from simrec.model.prepare import Prepared, PreparedSide
from simrec.scoring.output import Output
from simrec.scoring.pairs import Parts
from simrec.storage.arrays import Array, Sparse, columns

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
    fitted : Sides of Array of bool
        Which entities had pairs in `fit`.
    """

    solver: Solver
    axes: Sides[np.ndarray]
    fitted: Sides[Array]
    name: ClassVar[str] = "uptake"
    kind: ClassVar[str] = "uptake"

    @classmethod
    def of(cls, fit: UptakeFit, data: Prepared) -> UptakePart:
        """Make the part from what was fitted to the rated entities of `data`."""

        def head(side: Side) -> StoredHead:
            made = data.sides[side].head(fit.vectors[side], fit.encoders[side])
            return replace(made, prior=fit.priors[side])

        def fitted(side: PreparedSide) -> np.ndarray:
            out = np.zeros(len(side.tower.ids), bool)
            out[side.rated_rows] = True
            return out

        return cls(Sides.of(head), fit.output, fit.solver, fit.axes, data.sides.map(fitted))

    def with_new(self, new: Sides[NewRows]) -> UptakePart:
        """Make room for new entities: what their features say."""

        def grown(head: StoredHead, more: NewRows) -> StoredHead:
            return head.grown(head.vectors_of_new(more.features, more.has_features), more.insert)

        fitted = self.fitted.map(
            lambda one, more: more.insert(one, np.zeros(len(more.has_features), bool)), new
        )
        return replace(self, heads=self.heads.map(grown, new), fitted=fitted)

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
        # Users first: there are more items that are known than users who are not.
        for side in ("users", "items"):
            if len(learned[side]):
                part = part._solved(side, learned[side], rated, later)
        return part, learned

    def _solved(
        self, side: Side, rows: np.ndarray, rated: Sparse, later: LaterRatings
    ) -> UptakePart:
        head, others = self.heads[side], self.heads.other(side).vectors
        vectors = self.solver.solve(
            side,
            self._pairs(side, rows, rated, later),
            head.vectors[rows],
            np.asarray(self.fitted[side][rows]),
            self._encoded(side, rows, later.features),
            np.asarray(others),
            self.axes[side],
        )
        return replace(self, heads=self.heads.with_side(side, head.changed(rows, vectors)))

    def _pairs(self, side: Side, rows: np.ndarray, rated: Sparse, later: LaterRatings) -> Pairs:
        """Return all pairs of some entities, with what later ratings say of them."""
        unit = self.solver.confidence
        matrix = rated[rows] if side == "users" else columns(rated, rows)
        matrix.sort_indices()

        def confidence(values: np.ndarray | None, n: int) -> np.ndarray:
            """Return confidences in units of their mean."""
            if not unit or values is None:
                return np.full(n, 1 / (unit or 1), np.float32)
            return (values / np.float32(unit)).astype(np.float32)

        matrix.data = confidence(matrix.data, matrix.nnz)
        at = np.minimum(np.searchsorted(rows, later.rows[side]), len(rows) - 1)
        here, width = rows[at] == later.rows[side], matrix.shape[1]
        places = np.repeat(np.arange(len(rows)), np.diff(matrix.indptr)) * width + matrix.indices
        place = np.searchsorted(places, at[here] * width + later.rows.other(side)[here])
        weights = confidence(later.weights, len(here))[here]
        new = np.bincount(place, weights, matrix.nnz).astype(np.float32)
        return Pairs(matrix, np.minimum(new, matrix.data))

    def _encoded(self, side: Side, rows: np.ndarray, features: Sides[Sparse] | None) -> np.ndarray:
        """Return vectors without any pairs: what features say, or those of an average entity."""
        head = self.heads[side]
        if features is None:
            return np.tile(head.prior, (len(rows), 1))
        X = features[side][rows]
        return head.vectors_of_new(
            X, np.diff(X.indptr) > 0 if X.shape[1] else np.zeros(len(rows), bool)
        )

    def only_users(self, rows: np.ndarray) -> UptakePart:
        """Keep some users."""
        heads = Sides(self.heads.items, self.heads.users.only(rows))
        return replace(self, heads=heads, fitted=Sides(self.fitted.items, self.fitted.users[rows]))

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

    def saved(self) -> Saved:
        """Return heads and solver as plain data."""
        saved = saved_heads(self.name, self.heads)
        saved.documents[self.name] = asdict(self.solver)
        for side, axes in self.axes.named():
            saved.arrays[f"{self.name}_{side}_axes"] = axes
            saved.rows[side][f"{self.name}_{side}_fitted"] = self.fitted[side]
        return saved

    @classmethod
    def restored(cls, output: Output, artifact: Artifact, towers: Sides[Tower]) -> UptakePart:
        """Rebuild the part from what `saved` returned."""
        heads = restored_heads(cls.name, artifact, towers)
        d = heads.items.width - 1
        axes = Sides.of(lambda side: artifact.array(f"{cls.name}_{side}_axes", (d, d)))
        fitted = Sides.of(
            lambda side: artifact.array(f"{cls.name}_{side}_fitted", (len(towers[side].ids),), "b")
        )
        solver = Solver.restored(artifact.documents[cls.name])
        return cls(heads, output, solver, axes, fitted)
