"""What a rating model keeps of each entity, so that later ratings can be added.

An entity has a posterior of the embedding that known partners meet (`own`) and of the one that new
partners meet (`to_new`, see `simrec.model.rating.layout`). Both are normal, so that further ratings
enter as they did in `fit`; without ratings the posterior is the prior that features give.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from simrec.data.sides import Side, Sides
from simrec.errors import InputError
from simrec.mapped import release
from simrec.model.head import Saved
from simrec.model.part import NewRows
from simrec.model.rating.calibration import Calibration
from simrec.model.rating.fit import RatingFit
from simrec.model.rating.known_entities import Problem
from simrec.model.rating.packed import factors, of_factors, pack, to_factors
from simrec.model.rating.posterior import Posterior, Precisions
from simrec.model.run.scratch import Scratch, by_blocks, slices
from simrec.rows import Array, Insertion, blocks, without, writable

if TYPE_CHECKING:
    from simrec.artifacts import Artifact
    from simrec.model.tower import Tower

# In the names of all arrays of evidence in a model directory.
EVIDENCE = "evidence"
# How many ratings make an entity half known: its vector moves over from the block of new ones.
HALF_KNOWN = 5.0
# What there is a row of for each entity, beside the posteriors.
_BY_ENTITY = ("history", "pull", "cold", "warmth")


@dataclass(frozen=True, eq=False)
class PackedPosterior:
    """Normal distributions, one for each entity: means, and Cholesky factors of covariances.

    Factors are lower triangles in half precision, 306 bytes for 17 x 17.
    """

    mean: Array
    factors: Array

    @classmethod
    def of(cls, mean: np.ndarray, covariance: np.ndarray, scratch: Scratch) -> PackedPosterior:
        """Pack the posteriors of a fit."""
        halves = scratch.empty(covariance.shape, np.float16)

        def fill(rows: slice) -> None:
            halves[rows] = to_factors(covariance[rows])

        by_blocks(fill, len(halves), covariance, halves)
        return cls(mean, halves)

    def unpacked(self, rows: np.ndarray) -> Posterior:
        """Return some of them."""
        return Posterior(self.mean[rows], of_factors(self.factors[rows]))

    def without(self, gone: np.ndarray) -> PackedPosterior:
        """Remove some entities."""
        return PackedPosterior(without(self.mean, gone), without(self.factors, gone))

    def grown(
        self, mean: np.ndarray, covariances: np.ndarray, insert: Insertion
    ) -> PackedPosterior:
        """Insert entities."""
        halves = insert(self.factors, to_factors(pack(covariances)))
        return PackedPosterior(insert(self.mean, mean.astype(np.float32)), halves)

    def writable(self, rows: np.ndarray) -> PackedPosterior:
        """Return a copy that may be written to at `rows`."""
        return PackedPosterior(writable(self.mean, rows), writable(self.factors, rows))

    def put(self, rows: np.ndarray, posterior: Posterior) -> None:
        """Change the distributions of some entities in place."""
        assert posterior.covariance is not None
        self.mean[rows] = posterior.mean
        self.factors[rows] = to_factors(posterior.covariance)


@dataclass(frozen=True, eq=False)
class SideEvidence:
    """What is kept of the items or of the users, in the order of their tower's ids.

    All is in units of the ratings' spread.

    Attributes
    ----------
    own, to_new : PackedPosterior
        Of [embedding, bias] as known partners and as new partners meet it.
    own_precisions, to_new_precisions : Precisions
        Precisions of prior and noise of both.
    width : float
        How much wider the prior of a new entity is than that of known ones: as wide as the errors
        on held-out entities were.
    history : Array
        Sum of `pull` over the partners of each.
    pull : Array
        How having this entity as a partner moves the prior mean of an entity of the other side.
    cold : Array
        Out-of-fold embedding of each: what its features alone say.
    warmth : Array
        From 0 for an entity without ratings to 1 for one that was fitted with its ratings.
    moments : numpy.ndarray
        Mean of phi phi^T over the partners, weighted by their ratings: turns covariances into
        variances of a prediction.
    weights : numpy.ndarray
        The encoder of the prior means of fitted entities.
    """

    own: PackedPosterior
    to_new: PackedPosterior
    own_precisions: Precisions
    to_new_precisions: Precisions
    width: float
    history: Array
    pull: Array
    cold: Array
    warmth: Array
    moments: np.ndarray
    weights: np.ndarray

    def variance(self, rows: np.ndarray) -> np.ndarray:
        """Return each entity's part in the variance of a prediction."""
        found, places = np.unique(rows, return_inverse=True)
        moments, out = self.moments.astype(np.float32), np.empty(len(found), np.float32)
        for here, some in blocks(found):
            F = factors(self.own.factors[some])
            out[here] = np.einsum("nij,nij->n", F, moments @ F)
        return out[places]

    def new_covariance(self) -> np.ndarray:
        """Return the covariance of an entity without ratings around what its features say."""
        return np.linalg.inv(self.own_precisions.L) * self.width

    def spread(self, counts: Array) -> np.ndarray:
        """Return the covariance of what features say, over entities weighted by their ratings."""
        total = max(sum(int(some.sum()) for _, some in blocks(counts)), 1)
        parts = [(here, some / total) for here, some in blocks(counts)]
        mean = sum(share @ self.cold[here].astype(np.float64) for here, share in parts)
        spread = np.zeros(self.new_covariance().shape)
        for here, share in parts:
            off = self.cold[here].astype(np.float64) - mean
            spread += (off * share[:, None]).T @ off
        return spread

    def average_variance(self, counts: Array) -> float:
        """Return the variance of an entity of which nothing is known, not even features."""
        return float(np.sum((self.new_covariance() + self.spread(counts)) * self.moments))

    def without(self, gone: np.ndarray) -> SideEvidence:
        """Remove what is kept of some entities."""
        return replace(
            self,
            own=self.own.without(gone),
            to_new=self.to_new.without(gone),
            history=without(self.history, gone),
            pull=without(self.pull, gone),
            cold=without(self.cold, gone),
            warmth=without(self.warmth, gone),
        )

    def grown(self, own: np.ndarray, to_new: np.ndarray, new: NewRows) -> SideEvidence:
        """Insert entities without ratings.

        Parameters
        ----------
        own, to_new : numpy.ndarray
            What their features say of them to known and to new partners.
        new : NewRows
            Where they go. Those without features are taken as average; their prior is wider by
            the spread of what features say.
        """
        lacking = (~new.has_features)[:, None, None]
        # All entities are looked at only where it matters.
        spread = lacking * (self.spread(new.counts) if lacking.any() else 0.0)
        none, insert = np.zeros_like(own, np.float32), new.insert
        prior = np.linalg.inv(self.to_new_precisions.L)
        return replace(
            self,
            own=self.own.grown(own, self.new_covariance() + spread, insert),
            to_new=self.to_new.grown(to_new, prior + spread, insert),
            history=insert(self.history, none),
            pull=insert(self.pull, none),
            cold=insert(self.cold, own.astype(np.float32)),
            warmth=insert(self.warmth, none[:, 0]),
        )

    def save_to(self, saved: Saved, side: Side, prefix: str) -> None:
        """Add all of it to the content of a model directory."""
        for field in fields(self):
            value, key = getattr(self, field.name), f"{prefix}_{field.name}"
            if isinstance(value, PackedPosterior):
                saved.rows[side][f"{key}_mean"] = value.mean
                saved.rows[side][f"{key}_factors"] = value.factors
            elif isinstance(value, Precisions):
                saved.arrays |= {f"{key}_L": value.L, f"{key}_t": np.array(value.t)}
            elif field.name in _BY_ENTITY:
                saved.rows[side][key] = value
            else:
                saved.arrays[key] = np.asarray(value)

    @classmethod
    def restored(cls, prefix: str, artifact: Artifact, tower: Tower) -> SideEvidence:
        """Read back what `save_to` added; every shape is checked."""
        D = artifact.rows(f"{prefix}_own_mean", tower.ids.sizes, (None,)).shape[1]

        def array(name: str, *shape: int) -> np.ndarray:
            return artifact.array(f"{prefix}_{name}", shape)

        def rows(name: str, *shape: int) -> Array:
            return artifact.rows(f"{prefix}_{name}", tower.ids.sizes, shape)

        values: dict[str, Any] = {"width": float(array("width"))}
        for name in ("own", "to_new"):
            halves = rows(f"{name}_factors", D * (D + 1) // 2)
            values[name] = PackedPosterior(rows(f"{name}_mean", D), halves)
            L, t = array(f"{name}_precisions_L", D, D), float(array(f"{name}_precisions_t"))
            values[f"{name}_precisions"] = Precisions(np.array(L), t)
        values |= {name: rows(name, D) for name in ("history", "pull", "cold")}
        values |= {"warmth": rows("warmth"), "moments": array("moments", D, D)}
        values["weights"] = array("weights", tower.features.shape[1] + 1, D)
        return cls(**values)


@dataclass(frozen=True, eq=False)
class Evidence:
    """What is kept of both sides, and what it is relative to.

    Attributes
    ----------
    sides : Sides of SideEvidence
        What is kept of the entities.
    mean, scale : float
        Mean and spread of the ratings, as the inverse of the output has them.
    noise : float
        Variance of a rating when both its vectors are certain, on the scale of the ratings.
    """

    sides: Sides[SideEvidence]
    mean: float
    scale: float
    noise: float

    def save_to(self, saved: Saved, part: str) -> None:
        """Add all of it to the content of a model directory."""
        saved.arrays[f"{part}_{EVIDENCE}_units"] = np.array([self.mean, self.scale, self.noise])
        for side, one in self.sides.named():
            one.save_to(saved, side, f"{part}_{EVIDENCE}_{side}")

    @classmethod
    def restored(cls, part: str, artifact: Artifact, towers: Sides[Tower]) -> Evidence | None:
        """Read back what `save_to` added; None where there is nothing."""
        start = f"{part}_{EVIDENCE}"
        if f"{start}_units" not in artifact.arrays:
            return None
        units = artifact.array(f"{start}_units", (3,)).tolist()
        if units[1] <= 0:
            raise InputError(f"{start}_units: the spread of ratings is {units[1]:g}")
        sides = Sides.of(
            lambda side: SideEvidence.restored(f"{start}_{side}", artifact, towers[side])
        )
        return cls(sides, *units)


@dataclass(frozen=True, eq=False)
class Placed:
    """Where the fitted entities of a side stand among all that its tower knows.

    Attributes
    ----------
    rows : numpy.ndarray
        Row in the tower of each fitted entity.
    counts : numpy.ndarray
        Ratings of each entity of the tower; 0 for those known by their features alone.
    own, to_new : numpy.ndarray
        What features say of each entity of the tower.
    """

    rows: np.ndarray
    counts: np.ndarray
    own: np.ndarray
    to_new: np.ndarray


def evidence_of(
    fit: RatingFit, problem: Problem, placed: Sides[Placed], calibration: Calibration
) -> Evidence:
    """Collect what was learned of all entities, also of those known by their features alone."""
    known, observed, width = fit.known, problem.observed, calibration.widths

    def side_evidence(side: Side) -> SideEvidence:
        rows, one, new = placed[side].rows, known[side], fit.new.other(side)
        n, D = len(placed[side].counts), one.posterior.mean.shape[1]
        prior = np.linalg.inv(one.precisions.L) * width[side]
        n_features = problem.features[side].shape[1]
        scratch = observed.rows[side].scratch
        own = _filled(n, rows, one.posterior, placed[side].own, prior, scratch)
        to_new_prior = np.linalg.inv(new.precisions.L)
        to_new = _filled(n, rows, new.partners, placed[side].to_new, to_new_prior, scratch)
        cold = np.array(placed[side].own, np.float32)
        cold[rows] = fit.new[side].held_out
        history, pull = np.zeros((n, D), np.float32), np.zeros((n, D), np.float32)
        # The weights of the partners are the last ones.
        n_partners, n_rated = observed.rows.other(side).n_rows, observed.rows[side].n_rows
        history[rows] = observed.rows[side].sum_partners(one.weights[-n_partners:])
        pull[rows] = known.other(side).weights[-n_rated:]
        return SideEvidence(
            own,
            to_new,
            one.precisions,
            new.precisions,
            width[side],
            history,
            pull,
            cold,
            (placed[side].counts > 0).astype(np.float32),
            calibration.moments[side],
            one.weights[:n_features],
        )

    sides = Sides.of(side_evidence)
    return Evidence(sides, observed.mean, observed.scale, calibration.noise)


def _filled(
    n: int,
    rows: np.ndarray,
    posterior: Posterior,
    cold: np.ndarray,
    prior: np.ndarray,
    scratch: Scratch,
) -> PackedPosterior:
    covariance = posterior.covariance
    assert covariance is not None
    if n == len(rows):  # all have ratings
        return PackedPosterior.of(posterior.mean, covariance, scratch)
    halves = scratch.empty((n, covariance.shape[1]), np.float16)
    for part in slices(n):
        halves[part] = to_factors(pack(prior[None]))
        release(halves[part])
    made = PackedPosterior(np.array(cold, np.float32), halves)
    for part in slices(len(rows)):
        made.put(rows[part], Posterior(posterior.mean[part], covariance[part]))
        release(halves, covariance[part])
    return made
