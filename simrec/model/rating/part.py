"""How well an item will be liked: the part of a `TwoTower` that learns ratings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from threadpoolctl import threadpool_limits

from simrec.data.sides import SINGULAR, Side, Sides
from simrec.errors import InputError
from simrec.mapped import release
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
from simrec.model.rating.calibration import calibrate
from simrec.model.rating.evidence import Evidence, Placed, SideEvidence, evidence_of
from simrec.model.rating.explain import explained
from simrec.model.rating.fit import RatingFit, fit_rating
from simrec.model.rating.known_entities import Problem, Report
from simrec.model.rating.layout import Block, Layout
from simrec.model.rating.observed import Observed
from simrec.model.rating.output import OutputKind, choose_output
from simrec.model.rating.posterior import Posterior
from simrec.model.run.checkpoint import Checkpoint
from simrec.model.run.scratch import slices
from simrec.model.simecs import linear_simec, network_simec
from simrec.rows import Array, Sparse
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
    bounds : (float, float)
        Lowest and highest rating; a sigmoid output may end within them.
    evidence : Evidence or None
        Posteriors of all entities; None in a model that only scores.
    """

    layout: Layout
    bounds: tuple[float, float]
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
        output_kind: OutputKind,
        rng: np.random.Generator,
        report: Report,
        checkpoint: Checkpoint | None,
        keep_evidence: bool = True,
    ) -> tuple[RatingPart, dict[str, Any]]:
        """Learn from ratings; return the part, and what was chosen on the way."""
        groups = data.sides.map(lambda side: side.groups)
        # Matrices are small and many, and worked on in threads of our own: those of the BLAS would
        # only get in the way (half as much time again). Without them, results do not depend on
        # their number.
        with threadpool_limits(1, "blas"):
            own = rng.spawn(1)[0]  # `rng` itself draws nothing for it
            output, chosen = choose_output(data, output_kind, embedding_dim, own)
            observed = Observed.of(data.ratings, data.workers, output, data.scratch)
            problem = Problem(observed, data.sides.map(lambda side: side.X), groups)
            fit = fit_rating(
                problem,
                embedding_dim,
                epochs,
                folds,
                hidden_layers,
                rng,
                report,
                checkpoint,
                keep_evidence,
            )
        output = replace(output, shift=observed.mean)
        chosen |= {
            f"{SINGULAR[side]}_penalty": new.penalty.strength
            for side, new in fit.new.named()
            if new.penalty is not None
        }
        calibration = calibrate(fit, problem, output, data.ratings) if keep_evidence else None
        errors = fit.new.map(lambda new: observed.unit * new.error)
        if calibration is not None:
            errors = calibration.rmse_new
        chosen |= {f"expected_rmse_new_{side}": rmse for side, rmse in errors.named()}
        layout = Layout(embedding_dim, observed.scale)
        heads = Sides.of(lambda side: _head(fit, side, data, layout))
        if calibration is None:
            return cls(heads, output, layout, data.bounds, None), chosen

        def placed(side: Side) -> Placed:
            prepared = data.sides[side]
            own, to_new = layout.from_features(side, np.asarray(heads[side].vectors))
            return Placed(prepared.rated_rows, np.asarray(prepared.tower.counts), own, to_new)

        evidence = evidence_of(fit, problem, Sides.of(placed), calibration)
        return cls(heads, output, layout, data.bounds, evidence), chosen

    def kept(self, what: str) -> Evidence:
        """Return the evidence, or say that there is none."""
        if self.evidence is None:
            raise InputError(
                f"{what}: the model holds vectors only, without the posteriors that this needs. "
                "Fit with keep_evidence=True."
            )
        return self.evidence

    def simec(self, side: Side) -> SimEc:
        """Return the encoder of a side's new entities as the SimEc that it is.

        W_l is [w, 1] of the posterior means of the partners with ratings, frozen, and `transform`
        gives [y, b], all in units of the ratings' spread. It was fitted to the ratings (with a
        sigmoid output, to their logits) less their mean and their partners' biases.
        """
        partners = self.kept(f"{SINGULAR[side]}_simec_").sides.other(side)
        # Those that were fitted with their ratings.
        fitted = Posterior(np.asarray(partners.own.mean)[np.asarray(partners.warmth) == 1])
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
            return head.grown(vectors, more.insert), kept.grown(own, to_new, more)

        both = Sides.of(grown)
        return replace(
            self,
            heads=both.map(lambda pair: pair[0]),
            evidence=replace(evidence, sides=both.map(lambda pair: pair[1])),
        )

    def with_ratings(
        self,
        counts: Sides[Array],
        later: LaterRatings,
        rated: Sparse,
        only_new: bool,
    ) -> tuple[RatingPart, Sides[np.ndarray]]:
        """Add ratings to the posteriors; write the vectors of those who have learned."""
        evidence = self.kept("update")
        values = (self.output.link(later.values) - evidence.mean) / evidence.scale
        values = values.astype(np.float32)
        evidence, learned = add_ratings(evidence, counts, replace(later, values=values), only_new)

        def moved(side: Side) -> StoredHead:
            rows, kept, head = learned[side], evidence.sides[side], self.heads[side]
            if not len(rows):
                return head
            own, to_new = kept.own.mean[rows], kept.to_new.mean[rows]
            return head.changed(rows, self.layout.vectors(side, own, to_new, kept.warmth[rows]))

        return replace(self, heads=Sides.of(moved), evidence=evidence), learned

    def without(self, side: Side, gone: np.ndarray) -> RatingPart:
        """Remove some rows of a side."""
        heads, evidence = self.heads.with_side(side, self.heads[side].without(gone)), self.evidence
        if evidence is None:
            return replace(self, heads=heads)
        sides = evidence.sides.with_side(side, evidence.sides[side].without(gone))
        return replace(self, heads=heads, evidence=replace(evidence, sides=sides))

    def explained(self, entity: Entity, vector: np.ndarray) -> Parts:
        """Take a vector apart: average, feature columns, history, ratings."""
        kept = self.kept("explain").sides[entity.side]
        return explained(entity, vector, self.heads[entity.side], kept, self.layout)

    def comparable(self, side: Side, vectors: np.ndarray) -> np.ndarray:
        """Return embeddings without biases, in one space for known and new entities."""
        return self.layout.comparable(side, vectors)

    def variance(self, side: Side, found: Found, counts: Array, what: str) -> np.ndarray:
        """Return each entity's part in the variance of a scalar product.

        Where the output is the identity, that of a rating is ``noise + v_user + v_item``. v is the
        trace of an entity's posterior covariance with the second moments of the partners it meets;
        without ratings, that of the prior; for an entity of which nothing is known, wider by the
        spread of features.
        """
        evidence = self.kept(what)
        kept, rows = evidence.sides[side], found.rows
        variance = np.full(len(rows), np.sum(kept.new_covariance() * kept.moments))
        known = rows < found.n_known
        asked, at = np.unique(rows[known], return_inverse=True)  # each posterior is read once
        variance[known] = kept.variance(asked)[at]
        if found.average.any():
            variance[found.average] = kept.average_variance(counts)
        return evidence.scale**2 * variance

    def std(self, z: np.ndarray, variance: np.ndarray, what: str) -> np.ndarray:
        """Return the standard deviation of ratings around what is predicted.

        Parameters
        ----------
        z, variance : numpy.ndarray
            Scalar products, and the sums of both entities' `variance`.
        what : str
            What it is needed for, to name where the model was loaded without evidence.
        """
        found = np.sqrt(self.kept(what).noise + self.output.variance(z, variance))
        return np.asarray(found, np.float32)

    def saved(self, in_shards: bool = False) -> Saved:
        """Return heads, layout and evidence as plain data."""
        saved = saved_heads(self.name, self.heads)
        saved.documents[self.name] = {
            "embedding_dim": self.layout.embedding_dim,
            "scale": self.layout.scale,
            "bounds": [float(bound) for bound in self.bounds],
        }
        if self.evidence is not None:
            self.evidence.save_to(saved, self.name)
        return saved

    @classmethod
    def restored(cls, output: Output, artifact: Artifact, towers: Sides[Tower]) -> RatingPart:
        """Rebuild the part from what `saved` returned."""
        heads = restored_heads(cls.name, artifact, towers)
        document = artifact.documents[cls.name]
        layout = Layout(document["embedding_dim"], document["scale"])
        low, high = (float(bound) for bound in document["bounds"])
        lower, upper = output.lower, output.upper
        if lower is None or upper is None or not low <= lower <= upper <= high:
            raise InputError(f"{cls.name}: {output} does not lie within {low:g} and {high:g}")
        if not output.linear and lower == upper:
            raise InputError(f"{cls.name}: {output} has no range")
        numbers = isinstance(layout.scale, int | float) and 0 < layout.scale < np.inf
        if not numbers or layout.width != heads.items.width:
            raise InputError(f"{cls.name}: {layout} does not fit vectors of {heads.items.width}")
        evidence = Evidence.restored(cls.name, artifact, towers)
        return cls(heads, output, layout, (low, high), evidence)


def _head(fit: RatingFit, side: Side, data: Prepared, layout: Layout) -> StoredHead:
    """Put what was fitted for a side into vectors, and its encoders into one encoder of vectors."""
    known, new = fit.known[side].posterior.mean, fit.new[side]
    to_new_partners = fit.new.other(side).partners.mean
    vectors = data.scratch.empty((len(known), layout.width))
    for rows in slices(len(known)):
        warm = np.ones(rows.stop - rows.start)
        vectors[rows] = layout.vectors(side, known[rows], to_new_partners[rows], warm)
        release(vectors[rows])
    to_new = new.weights if side == "items" else fit.both_weights
    weights = layout.encoder_weights(side, new.weights, to_new)
    networks = []
    if side == "users" and fit.both_network is not None:
        networks.append(Network(fit.both_network, layout.placement(side, "new_items")))
    if new.network is not None:
        block: Block = "new_items" if side == "items" else "new_users"
        networks.append(Network(new.network, layout.placement(side, block)))
    return data.sides[side].head(vectors, Encoder(weights, networks), data.scratch)
