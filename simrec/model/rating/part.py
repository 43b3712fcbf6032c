"""How well an item will be liked: the part of a `TwoTower` that learns ratings."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from scipy import sparse

from simrec.data.sides import SINGULAR, Side, Sides
from simrec.errors import InputError, plural
from simrec.model.head import (
    Encoder,
    Found,
    Network,
    Saved,
    StoredHead,
    restored_heads,
    saved_heads,
)
from simrec.model.new_entities.calibration import calibrate, evidence_of
from simrec.model.new_entities.fit import RatingFit
from simrec.model.part import (
    Entity,
    LaterRatings,
    NewRows,
    Part,
    by_column,
    encoded_by_column,
)
from simrec.model.posterior.encoder import history_weight
from simrec.model.posterior.evidence import Evidence, SideEvidence
from simrec.model.posterior.posterior import Posterior
from simrec.model.posterior.problem import Problem
from simrec.model.prepare import Prepared
from simrec.model.rating.layout import Block, Layout
from simrec.model.rating.simecs import as_simec
from simrec.model.tower import Tower
from simrec.model.update.add_ratings import add_ratings
from simrec.scoring.output import Output
from simrec.scoring.pairs import Parts
from simrec.simec.simec import SimEc
from simrec.storage.arrays import Array, Sparse
from simrec.storage.artifacts import Artifact

# What the ratings of an entity add: by which partners it has, and by what they say and how many
# they are.
_HISTORY = {
    "items": ("who rated it", "how it was rated"),
    "users": ("what they rated", "how they rated"),
}


@dataclass(eq=False)
class RatingPart(Part):
    """Predicted ratings, with what is needed to learn later ratings."""

    layout: Layout  # which coordinates of a vector mean what
    bounds: tuple[float, float]  # lowest and highest rating; a sigmoid output may end within them
    evidence: Evidence | None  # posteriors of all entities; None in a model that only scores
    coefficient: float = 0.0  # of the content block, where there is one
    name: ClassVar[str] = "rating"
    kind: ClassVar[str] = "posteriors"

    @classmethod
    def of(
        cls, fit: RatingFit, problem: Problem, output: Output, data: Prepared, keep_evidence: bool
    ) -> tuple[Self, dict[str, Any]]:
        """Put what was fitted into vectors; return the part, and the errors to expect."""
        observed = problem.observed
        output = replace(output, shift=observed.mean)
        layout = Layout(fit.dim, observed.scale, fit.refined)
        heads = Sides.of(lambda side: _head(fit, side, data, layout))
        if not keep_evidence:
            errors = fit.new.map(lambda new: observed.unit * new.error)
            return cls(heads, output, layout, data.bounds, None), _expected(errors)
        calibration = calibrate(fit, problem, output, data.ratings)

        features = heads.map(lambda head: np.asarray(head.vectors))
        encoded = Sides.of(lambda side: layout.from_features(side, features[side]))
        evidence = evidence_of(fit, problem, data, encoded, calibration)
        part = cls(heads, output, layout, data.bounds, evidence)
        return part, _expected(calibration.rmse_new)

    def with_words(self, words: Sides[np.ndarray]) -> Self:
        """Give features that are words, which it was fitted without, weights of 0."""

        def wider(weights: np.ndarray, own: np.ndarray) -> np.ndarray:
            if not own.any():
                return weights
            out = np.zeros((len(own), weights.shape[1]), weights.dtype)
            out[~own] = weights
            return out

        def head(one: StoredHead, own: np.ndarray) -> StoredHead:
            encoder = replace(one.encoder, weights=wider(one.encoder.weights, own))
            return replace(one, encoder=encoder)

        part = replace(self, heads=self.heads.map(head, words))
        if self.evidence is None:
            return part
        sides = self.evidence.sides.map(
            lambda one, own: replace(one, weights=wider(one.weights, own)), words
        )
        return replace(part, evidence=replace(self.evidence, sides=sides))

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

        Without refinement `transform` gives vectors, W_l are the vectors of the partners with
        ratings, and `predict` gives ratings: the user SimEc has the vectors of the items, frozen.
        With refinement W_l is [w, 1] of their posterior means, frozen, and `transform` gives
        [y, b], all in units of the ratings' spread; it was fitted to the ratings (with a sigmoid
        output, to their logits) less their mean and their partners' biases.
        """
        sides, encoder = self.kept(f"{SINGULAR[side]}_simec_").sides, self.heads[side].encoder
        # Those that were fitted with their ratings.
        fitted = sides.map(lambda one: np.asarray(one.warmth) == 1)
        if not self.layout.refined:
            vectors = self.heads.map(lambda head, rows: np.asarray(head.vectors)[rows], fitted)
            last_layer = np.ascontiguousarray(vectors.other(side)).T
            rows = side == "items" and len(encoder.weights) == 1  # no features: rows of their own
            return as_simec(vectors.items if rows else encoder, last_layer, self.output)
        partners = np.asarray(sides.other(side).warm.mean)[fitted.other(side)]
        last_layer = Posterior(partners).regressors().T
        if encoder.networks:
            return as_simec(encoder.networks[-1].simec.encoder_, last_layer, Output())
        warm, _ = self.layout.from_features(side, encoder.weights)
        return as_simec(Encoder(warm), last_layer, Output())

    def with_new(self, new: Sides[NewRows]) -> Self:
        """Make room for new entities: encoded features, and a prior around them."""
        evidence = self.kept("fold_in or update")

        def grown(side: Side) -> tuple[StoredHead, SideEvidence]:
            head, kept, more = self.heads[side], evidence.sides[side], new[side]
            if not len(more.has_features):
                return head, kept
            vectors = head.vectors_of_new(more.features, more.has_features)
            warm, cold = self.layout.from_features(side, vectors)
            return head.grown(vectors, more.insert), kept.grown(warm, cold, more)

        both = Sides.of(grown)
        evidence = replace(evidence, sides=both.map(lambda pair: pair[1]))
        return replace(self, heads=both.map(lambda pair: pair[0]), evidence=evidence)

    def with_ratings(
        self,
        counts: Sides[Array],
        later: LaterRatings,
        rated: Sparse,
        only_new: Sides[bool],
    ) -> tuple[Self, Sides[np.ndarray]]:
        """Add ratings to the posteriors; write the vectors of those who have learned."""
        evidence = self.kept("update")
        values = (self.output.link(later.values) - evidence.mean) / evidence.scale
        values = values.astype(np.float32)
        evidence, learned = add_ratings(evidence, counts, replace(later, values=values), only_new)

        def moved(side: Side) -> StoredHead:
            rows, kept, head = learned[side], evidence.sides[side], self.heads[side]
            if not len(rows):
                return head
            warm = kept.warm.mean[rows]
            cold = warm if kept.cold is None else kept.cold.mean[rows]
            vectors = self.layout.vectors(side, warm, cold, kept.warmth[rows])
            start = vectors.shape[1] - self.layout.content
            vectors[:, start:] = head.vectors[rows][:, start:]
            return head.changed(rows, vectors)

        part = replace(self, heads=Sides.of(moved), evidence=evidence)
        return part.with_residuals(later.rows, later.values, learned.users), learned

    def with_residuals(
        self, rows: Sides[np.ndarray], values: np.ndarray, users: np.ndarray
    ) -> Self:
        """Add the residuals of ratings to the content block of some users, who ascend."""
        width, head = self.layout.content, self.heads.users
        here = np.isin(rows.users, users)
        if not width or not here.any():
            return self
        of_items, of_users = rows.items[here], rows.users[here]
        vectors, Y = head.vectors[of_users], self.heads.items.vectors[of_items]
        z = np.einsum("nd,nd->n", vectors[:, :-width], Y[:, :-width])
        residuals = self.output.link(values[here]) - np.float32(self.output.shift) - z
        places = (
            self.coefficient * residuals,
            (np.searchsorted(users, of_users), np.arange(len(z))),
        )
        sums = sparse.csr_matrix(places, shape=(len(users), len(z))) @ Y[:, -width:]
        changed = np.array(head.vectors[users])
        changed[:, -width:] += sums
        return replace(self, heads=self.heads.with_side("users", head.changed(users, changed)))

    def only_users(self, rows: np.ndarray) -> Self:
        """Keep some users."""
        heads, evidence = Sides(self.heads.items, self.heads.users.only(rows)), self.evidence
        if evidence is None:
            return replace(self, heads=heads)
        sides = Sides(evidence.sides.items, evidence.sides.users.only(rows))
        return replace(self, heads=heads, evidence=replace(evidence, sides=sides))

    def explained(self, entity: Entity, vector: np.ndarray) -> Parts:
        """Take a vector apart: average, feature columns, history, ratings."""
        kept = self.kept("explain").sides[entity.side]
        return explain_rating(entity, vector, self.heads[entity.side], kept, self.layout)

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
        known = found.known
        variance[known] = kept.variance(rows[known])
        if found.average.any():
            spread = kept.new_covariance() + kept.spread(counts)
            variance[found.average] = np.sum(spread * kept.moments)
        return evidence.scale**2 * variance

    def std(self, z: np.ndarray, variance: np.ndarray, what: str) -> np.ndarray:
        """Return the standard deviation of ratings; `variance` is the sum of both entities'."""
        found = np.sqrt(self.kept(what).noise + self.output.variance(z, variance))
        return np.asarray(found, np.float32)

    def saved(self) -> Saved:
        """Return heads, layout and evidence as plain data."""
        saved = saved_heads(self.name, self.heads)
        saved.documents[self.name] = {
            "embedding_dim": self.layout.embedding_dim,
            "scale": self.layout.scale,
            "refined": self.layout.refined,
            "bounds": [float(bound) for bound in self.bounds],
            "content": [self.layout.content, self.coefficient],
        }
        if self.evidence is not None:
            self.evidence.save_to(saved, self.name)
        return saved

    @classmethod
    def restored(cls, output: Output, artifact: Artifact, towers: Sides[Tower]) -> Self:
        """Rebuild the part from what `saved` returned."""
        heads = restored_heads(cls.name, artifact, towers)
        document = artifact.documents[cls.name]
        content, coefficient = document.get("content", (0, 0.0))
        if not isinstance(content, int) or content < 0 or not 0 <= coefficient < np.inf:
            raise InputError(f"{cls.name}: {content} x {coefficient} is no content block")
        layout = Layout(document["embedding_dim"], document["scale"], document["refined"], content)
        low, high = (float(bound) for bound in document["bounds"])
        lower, upper = output.lower, output.upper
        if lower is None or upper is None or not low <= lower <= upper <= high:
            raise InputError(f"{cls.name}: {output} does not lie within {low:g} and {high:g}")
        if not output.linear and lower == upper:
            raise InputError(f"{cls.name}: {output} has no range")
        numbers = isinstance(layout.scale, int | float) and 0 < layout.scale < np.inf
        if not numbers or layout.width != heads.items.width:
            raise InputError(f"{cls.name}: {layout} does not fit vectors of {heads.items.width}")
        evidence = Evidence.restored(cls.name, artifact, towers, layout.refined)
        return cls(heads, output, layout, (low, high), evidence, float(coefficient))


def _expected(errors: Sides[float]) -> dict[str, Any]:
    return {f"expected_rmse_new_{side}": rmse for side, rmse in errors.named()}


def _head(fit: RatingFit, side: Side, data: Prepared, layout: Layout) -> StoredHead:
    """Put what was fitted for a side into vectors, and its encoders into one encoder of vectors."""
    known, new = fit.known[side].posterior.mean, fit.new[side]
    against_cold = fit.new.other(side).partners.mean if fit.refined else known
    both = fit.both if side == "users" and fit.refined else None
    cold = new.weights if both is None else both.weights
    encoder = Encoder(layout.encoder_weights(side, new.weights, cold))
    if both is not None and both.network is not None:
        place = layout.placement(side, "new_items")
        encoder.networks.append(Network(both.network, place))
    if new.network is not None:
        block: Block = "new_items" if side == "items" else "new_users"
        encoder.networks.append(Network(new.network, layout.placement(side, block)))
    prepared = data.sides[side]
    if not fit.refined and side == "items" and prepared.X.shape[1] > 1:
        vectors = encoder(prepared.X[:, :-1])  # known items are their encoded features
    else:
        vectors = layout.vectors(side, known, against_cold, np.ones(len(known)))
    return prepared.head(vectors, encoder)


def explain_rating(
    entity: Entity, vector: np.ndarray, head: StoredHead, kept: SideEvidence, layout: Layout
) -> Parts:
    """Take the rating vector of one entity apart."""
    side, count, x = entity.side, entity.count, entity.features
    vector = np.asarray(vector, np.float64)
    warmth = float(kept.warmth[entity.row]) if entity.row >= 0 else 0.0
    constant = layout.constants(side, warmth)
    names, values = [f"average {SINGULAR[side]}"], [""]
    if x is None:
        return Parts(names, values, (vector - constant)[None], constant)
    if entity.encoder is not None and not x.nnz:
        # Without a row of features: taken as average.
        pieces = (np.array(head.prior, np.float64) if count else vector.copy())[None]
    else:
        pieces = encoded_by_column(entity.encoder, x, head.encoder)
        columns = {} if entity.encoder is None else entity.encoder.words(x)
        names, values = [*names, *columns], [*values, *columns.values()]
    if warmth == 1 and layout.refined:
        warm = cold = by_column(entity.encoder, x, kept.weights)[: len(pieces)]
    else:
        warm, cold = layout.from_features(side, pieces)
    found = [layout.without_constants(side, warm, cold, warmth)]
    start = len(vector) - layout.content
    found[0][:, start:] = pieces[:, start:]
    if count and layout.refined:
        history = (history_weight(np.array([count])) * kept.history[entity.row])[None]
        found.append(layout.without_constants(side, history, history, warmth))
        names, values = [*names, _HISTORY[side][0]], [*values, plural(count, "rating")]
    if count:
        found.append((vector - constant - np.concatenate(found).sum(0))[None])
        names, values = [*names, _HISTORY[side][1]], [*values, plural(count, "rating")]
    return Parts(names, values, np.concatenate(found), constant)
