"""How well an item will be liked: the part of a `TwoTower` that learns ratings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from scipy import sparse
from threadpoolctl import threadpool_limits

from simrec.data.sides import SINGULAR, Side, Sides
from simrec.errors import InputError
from simrec.model.head import (
    Encoder,
    Found,
    Network,
    Saved,
    StoredHead,
    restored_heads,
    saved_heads,
)
from simrec.model.part import Entity, LaterRatings, NewRows, Part
from simrec.model.prepare import Prepared
from simrec.model.rating.add_ratings import add_ratings
from simrec.model.rating.evidence import Evidence, Placed, SideEvidence, evidence_of
from simrec.model.rating.explain import explained
from simrec.model.rating.fit import RatingFit, fit_rating
from simrec.model.rating.known_entities import Problem, Report
from simrec.model.rating.layout import Block, Layout
from simrec.model.rating.observed import Observed
from simrec.model.rating.posterior import Posterior
from simrec.model.run.checkpoint import Checkpoint
from simrec.model.run.workers import Workers
from simrec.model.simecs import linear_simec, network_simec
from simrec.scoring.output import Output
from simrec.scoring.shares import Parts

if TYPE_CHECKING:
    from simrec.artifacts import Artifact
    from simrec.model.tower import Tower
    from simrec.simec.simec import SimEc


@dataclass(eq=False)
class RatingPart(Part):
    """Predicted ratings, with what is needed to learn later ratings.

    Attributes
    ----------
    layout : Layout
        Which coordinates of a vector mean what.
    evidence : Evidence or None
        Posteriors of all entities; None where a model was loaded only to score.
    """

    layout: Layout
    evidence: Evidence | None
    name: ClassVar[str] = "rating"
    kind: ClassVar[str] = "posteriors"

    @classmethod
    def fit(
        cls,
        data: Prepared,
        embedding_dim: int,
        epochs: int,
        folds: int,
        hidden_layers: tuple[int, ...],
        rng: np.random.Generator,
        report: Report,
        workers: Workers,
        checkpoint: Checkpoint | None,
    ) -> tuple[RatingPart, dict[str, Any]]:
        """Learn from ratings; return the part, and what was chosen on the way."""
        groups = data.sides.map(lambda side: side.groups)
        observed = Observed.of(data.ratings, workers)
        X = data.sides.map(lambda side: side.X)
        mine = X.users[observed.my_users] if workers.size > 1 else X.users
        problem = Problem(observed, Sides(X.items, mine), groups)
        # Matrices are small and many, and worked on in threads of our own: those of the BLAS would
        # only get in the way (half as much time again). Without them, results do not depend on
        # their number.
        with threadpool_limits(1, "blas"):
            fit = fit_rating(
                problem, embedding_dim, epochs, folds, hidden_layers, rng, report, checkpoint
            )
        if workers.size > 1:
            # The model is one, with the users of all workers.
            fit = fit.gathered(observed)
            observed = Observed.of(data.ratings)
            problem = Problem(observed, X, groups)
        chosen = {
            f"{SINGULAR[side]}_penalty": new.penalty.strength
            for side, new in fit.new.named()
            if new.penalty is not None
        } | {
            "expected_rmse_new_items": observed.scale * fit.new.items.error,
            "expected_rmse_new_users": observed.scale * fit.new.users.error,
        }
        layout = Layout(embedding_dim, observed.scale)
        heads = Sides.of(lambda side: _head(fit, side, data, layout))

        def placed(side: Side) -> Placed:
            prepared = data.sides[side]
            own, to_new = layout.from_features(side, heads[side].vectors)
            return Placed(prepared.rated_rows, prepared.tower.counts, own, to_new)

        evidence = evidence_of(fit, problem, Sides.of(placed))
        output = Output(*data.bounds, shift=observed.mean, kind="clip")
        return cls(heads, output, layout, evidence), chosen

    def kept(self, what: str) -> Evidence:
        """Return the evidence, or say that the model was loaded without it."""
        if self.evidence is None:
            raise InputError(
                f"{what}: the model holds vectors only, without the posteriors that this needs."
            )
        return self.evidence

    def simec(self, side: Side) -> SimEc:
        """Return the encoder of a side's new entities as the SimEc that it is.

        W_l is [w, 1] of the posterior means of the partners with ratings, frozen, and `transform`
        gives [y, b], all in units of the ratings' spread. It was fitted to the ratings less their
        mean and their partners' biases.
        """
        partners = self.kept(f"{SINGULAR[side]}_simec_").sides.other(side)
        # Those that were fitted with their ratings.
        fitted = Posterior(np.asarray(partners.own.mean)[partners.warmth == 1])
        encoder, last_layer = self.heads[side].encoder, fitted.regressors().T
        if encoder.networks:
            return network_simec(encoder.networks[-1].simec.encoder_, last_layer, Output())
        own, _ = self.layout.from_features(side, encoder.weights)
        return linear_simec(own, last_layer, Output())

    def with_new(self, new: Sides[NewRows]) -> RatingPart:
        """Make room for new entities: what their features say, and a prior around it."""
        evidence = self.kept("fold_in or update")

        def grown(side: Side) -> tuple[StoredHead, SideEvidence]:
            head, kept, more = self.heads[side], evidence.sides[side], new[side]
            if not len(more.has_features):
                return head, kept
            vectors = head.vectors_of_new(more.features, more.has_features)
            own, to_new = self.layout.from_features(side, vectors)
            kept = kept.joined(own, to_new, more.counts, more.has_features).take(more.order)
            return head.joined(vectors, more.order), kept

        both = Sides.of(grown)
        return replace(
            self,
            heads=both.map(lambda pair: pair[0]),
            evidence=replace(evidence, sides=both.map(lambda pair: pair[1])),
        )

    def with_ratings(
        self,
        counts: Sides[np.ndarray],
        later: LaterRatings,
        rated: sparse.csr_matrix,
        only_new: bool,
    ) -> tuple[RatingPart, Sides[np.ndarray]]:
        """Add ratings to the posteriors; write the vectors of those who have learned."""
        evidence = self.kept("update")
        values = ((later.values - evidence.mean) / evidence.scale).astype(np.float32)
        evidence, learned = add_ratings(evidence, counts, replace(later, values=values), only_new)

        def moved(side: Side) -> StoredHead:
            rows, kept, head = learned[side], evidence.sides[side], self.heads[side]
            if not len(rows):
                return head
            vectors = np.array(head.vectors)
            vectors[rows] = self.layout.vectors(
                side, kept.own.mean[rows], kept.to_new.mean[rows], kept.warmth[rows]
            )
            return replace(head, vectors=vectors)

        return replace(self, heads=Sides.of(moved), evidence=evidence), learned

    def without(self, side: Side, keep: np.ndarray) -> RatingPart:
        """Keep only some rows of a side."""
        heads, evidence = self.heads.with_side(side, self.heads[side].take(keep)), self.evidence
        if evidence is None:
            return replace(self, heads=heads)
        sides = evidence.sides.with_side(side, evidence.sides[side].take(keep))
        return replace(self, heads=heads, evidence=replace(evidence, sides=sides))

    def explained(self, entity: Entity, vector: np.ndarray) -> Parts:
        """Take a vector apart: average, feature columns, history, ratings."""
        kept = self.kept("explain").sides[entity.side]
        return explained(entity, vector, self.heads[entity.side], kept, self.layout)

    def comparable(self, side: Side, vectors: np.ndarray) -> np.ndarray:
        """Return embeddings without biases, in one space for known and new entities."""
        return self.layout.comparable(side, vectors)

    def variance(self, side: Side, found: Found, counts: np.ndarray, what: str) -> np.ndarray:
        """Return each entity's part in the variance of a predicted rating.

        The variance of a rating is ``noise + v_user + v_item``. v is the trace of an entity's
        posterior covariance with the second moments of the partners it meets; without ratings, that
        of the prior; for an entity of which nothing is known, wider by the spread of features.
        """
        evidence = self.kept(what)
        kept, rows = evidence.sides[side], found.rows
        variance = np.full(len(rows), np.sum(kept.new_covariance() * kept.moments))
        known = rows < found.n_known
        few = len(rows) < found.n_known  # for a few pairs, not all posteriors are read
        variance[known] = kept.variance(rows[known]) if few else kept.variance()[rows[known]]
        if found.average.any():
            variance[found.average] = kept.average_variance(counts)
        return evidence.scale**2 * variance

    def saved(self) -> Saved:
        """Return heads, layout and evidence as plain data."""
        saved = saved_heads(self.name, self.heads)
        saved.documents[self.name] = {
            "embedding_dim": self.layout.embedding_dim,
            "scale": self.layout.scale,
        }
        if self.evidence is not None:
            saved.arrays |= self.evidence.arrays(self.name)
        return saved

    @classmethod
    def restored(cls, output: Output, artifact: Artifact, towers: Sides[Tower]) -> RatingPart:
        """Rebuild the part from what `saved` returned."""
        heads = restored_heads(cls.name, artifact, towers)
        layout = Layout(**artifact.documents[cls.name])
        if layout.width != heads.items.width:
            raise InputError(f"{cls.name}: {layout} does not fit vectors of {heads.items.width}")
        return cls(heads, output, layout, Evidence.restored(cls.name, artifact, towers))


def _head(fit: RatingFit, side: Side, data: Prepared, layout: Layout) -> StoredHead:
    """Put what was fitted for a side into vectors, and its encoders into one encoder of vectors."""
    known, new = fit.known[side].posterior.mean, fit.new[side]
    vectors = layout.vectors(side, known, fit.new.other(side).partners.mean, np.ones(len(known)))
    to_new = new.weights if side == "items" else fit.both_weights
    weights = layout.encoder_weights(side, new.weights, to_new)
    networks = []
    if side == "users" and fit.both_network is not None:
        networks.append(Network(fit.both_network, layout.placement(side, "new_items")))
    if new.network is not None:
        block: Block = "new_items" if side == "items" else "new_users"
        networks.append(Network(new.network, layout.placement(side, block)))
    return data.sides[side].head(vectors, Encoder(weights, networks))
