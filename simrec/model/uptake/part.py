"""What a user takes up at all: the part of a `TwoTower` that learns from which pairs there are."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from scipy import sparse

from simrec.data.sides import SINGULAR, Side, Sides
from simrec.model.contributions import encoded_by_column
from simrec.model.head import Saved, StoredHead, restored_heads, saved_heads
from simrec.model.part import Entity, LaterRatings, NewRows, Part
from simrec.model.prepare import Prepared
from simrec.model.uptake.add_pairs import Solver
from simrec.model.uptake.fit import UptakeFit
from simrec.scoring.output import Output
from simrec.scoring.shares import Parts

if TYPE_CHECKING:
    from simrec.artifacts import Artifact
    from simrec.model.tower import Tower

# What the pairs of an entity add to its vector.
_OFFSET = {"items": "who took it up", "users": "what they took up"}


@dataclass(eq=False)
class UptakePart(Part):
    """Probabilities of uptake, with what is needed to learn later pairs.

    Attributes
    ----------
    solver : Solver
        How vectors follow from pairs.
    """

    solver: Solver
    name: ClassVar[str] = "uptake"
    kind: ClassVar[str] = "uptake"

    @classmethod
    def of(cls, fit: UptakeFit, data: Prepared) -> UptakePart:
        """Make the part from what was fitted to the rated entities of `data`."""

        def head(side: Side) -> StoredHead:
            made = data.sides[side].head(fit.vectors[side], fit.encoders[side])
            return replace(made, prior=fit.priors[side])

        return cls(Sides.of(head), fit.output, fit.solver)

    def with_new(self, new: Sides[NewRows]) -> UptakePart:
        """Make room for new entities: what their features say."""

        def grown(side: Side) -> StoredHead:
            head, more = self.heads[side], new[side]
            if not len(more.has_features):
                return head
            vectors = head.with_new(more.features, more.has_features)
            joined = np.concatenate([head.vectors, vectors])[more.order]
            return replace(head, vectors=joined)

        return replace(self, heads=Sides.of(grown))

    def with_ratings(
        self,
        counts: Sides[np.ndarray],
        later: LaterRatings,
        rated: sparse.csr_matrix,
        only_new: bool,
    ) -> tuple[UptakePart, Sides[np.ndarray]]:
        """Solve again for those who have learned, from all of their pairs."""
        part = self
        learned = later.rows.map(
            lambda rows, count: np.unique(rows[count[rows] == 0] if only_new else rows), counts
        )
        # Users first: there are more items that are known than users who are not.
        for side in ("users", "items"):
            if len(learned[side]):
                part = part._solved(side, learned[side], counts[side][learned[side]] > 0, rated)
        return part, learned

    def _solved(
        self, side: Side, rows: np.ndarray, known: np.ndarray, rated: sparse.csr_matrix
    ) -> UptakePart:
        head, partners = self.heads[side], np.asarray(self.heads.other(side).vectors)
        by_side = rated if side == "users" else sparse.csr_matrix(rated.T)
        partner_counts = np.asarray(by_side.sum(0)).ravel()
        vectors = np.array(head.vectors)
        vectors[rows] = self.solver.solve(
            side, by_side[rows], head.vectors[rows], partners, partner_counts, known
        )
        head = replace(head, vectors=vectors)
        heads = Sides(head, self.heads.users) if side == "items" else Sides(self.heads.items, head)
        return replace(self, heads=heads)

    def without(self, side: Side, keep: np.ndarray) -> UptakePart:
        """Keep only some rows of a side."""

        def kept(one: Side) -> StoredHead:
            head = self.heads[one]
            return replace(head, vectors=np.asarray(head.vectors[keep])) if one == side else head

        return replace(self, heads=Sides.of(kept))

    def explained(self, entity: Entity, vector: np.ndarray) -> Parts:
        """Take a vector apart: average, feature columns, and the entity's own pairs."""
        side, x = entity.side, entity.features
        vector = np.asarray(vector, np.float64)
        names, values = [f"average {SINGULAR[side]}"], [""]
        pieces = np.asarray(self.heads[side].prior, np.float64)[None]
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
        return saved

    @classmethod
    def restored(cls, output: Output, artifact: Artifact, towers: Sides[Tower]) -> UptakePart:
        """Rebuild the part from what `saved` returned."""
        heads = restored_heads(cls.name, artifact, towers)
        return cls(heads, output, Solver.restored(artifact.documents[cls.name]))
