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
from simrec.model.rating.fit import RatingFit
from simrec.model.rating.known_entities import KnownEntities, Problem
from simrec.model.rating.observed import RatingRows
from simrec.model.rating.posterior import Posterior, Precisions

if TYPE_CHECKING:
    from simrec.artifacts import Artifact
    from simrec.model.tower import Tower

# In the names of all arrays of evidence in a model directory.
EVIDENCE = "evidence"
# How many ratings make an entity half known: its vector moves over from the block of new ones.
HALF_KNOWN = 5.0
# The prior of a new entity is at most this much wider than that of known ones, and not narrower:
# ratings make surer.
_WIDTHS = (1.0, 100.0)


@dataclass(frozen=True, eq=False)
class PackedPosterior:
    """Normal distributions, one for each entity: means and packed covariances."""

    mean: np.ndarray
    packed: np.ndarray

    def unpacked(self, rows: np.ndarray) -> Posterior:
        """Return some of them with full covariances."""
        return Posterior(self.mean[rows], unpack(self.packed[rows]))

    def take(self, rows: np.ndarray) -> PackedPosterior:
        """Return those of some entities."""
        return PackedPosterior(self.mean[rows], self.packed[rows])

    def joined(self, mean: np.ndarray, covariances: np.ndarray) -> PackedPosterior:
        """Add entities at the end."""
        packed = np.concatenate([self.packed, pack(covariances)])
        return PackedPosterior(np.concatenate([self.mean, mean.astype(np.float32)]), packed)

    def copied(self) -> PackedPosterior:
        """Return a copy that may be written to."""
        return PackedPosterior(np.array(self.mean), np.array(self.packed))

    def put(self, rows: np.ndarray, posterior: Posterior) -> None:
        """Change the distributions of some entities in place."""
        assert posterior.covariance is not None
        self.mean[rows], self.packed[rows] = posterior.mean, pack(posterior.covariance)


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
    history : numpy.ndarray
        Sum of `pull` over the partners of each.
    pull : numpy.ndarray
        How having this entity as a partner moves the prior mean of an entity of the other side.
    cold : numpy.ndarray
        Out-of-fold embedding of each: what its features alone say.
    warmth : numpy.ndarray
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
    history: np.ndarray
    pull: np.ndarray
    cold: np.ndarray
    warmth: np.ndarray
    moments: np.ndarray
    weights: np.ndarray

    def variance(self, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Return each entity's part in the variance of a prediction."""
        return self.own.packed[rows] @ _packed_weights(self.moments)

    def new_covariance(self) -> np.ndarray:
        """Return the covariance of an entity without ratings around what its features say."""
        return np.linalg.inv(self.own_precisions.L) * self.width

    def spread(self, counts: np.ndarray) -> np.ndarray:
        """Return the covariance of what features say, over entities weighted by their ratings."""
        share = counts / max(counts.sum(), 1)
        cold = self.cold.astype(np.float64)
        off = cold - share @ cold
        return (off * share[:, None]).T @ off

    def average_variance(self, counts: np.ndarray) -> float:
        """Return the variance of an entity of which nothing is known, not even features."""
        return float(np.sum((self.new_covariance() + self.spread(counts)) * self.moments))

    def take(self, rows: np.ndarray) -> SideEvidence:
        """Return what is kept of some entities."""
        return replace(
            self,
            own=self.own.take(rows),
            to_new=self.to_new.take(rows),
            history=self.history[rows],
            pull=self.pull[rows],
            cold=self.cold[rows],
            warmth=self.warmth[rows],
        )

    def joined(
        self,
        own: np.ndarray,
        to_new: np.ndarray,
        counts: np.ndarray,
        has_features: np.ndarray,
    ) -> SideEvidence:
        """Add entities without ratings at the end.

        Parameters
        ----------
        own, to_new : numpy.ndarray
            What their features say of them to known and to new partners.
        counts : numpy.ndarray
            Ratings of the entities so far.
        has_features : numpy.ndarray of bool
            Those who have none are taken as average; their prior is wider by the spread of what
            features say.
        """
        spread = (~has_features)[:, None, None] * self.spread(counts)
        none = np.zeros_like(own, np.float32)
        return replace(
            self,
            own=self.own.joined(own, self.new_covariance() + spread),
            to_new=self.to_new.joined(to_new, np.linalg.inv(self.to_new_precisions.L) + spread),
            history=np.concatenate([self.history, none]),
            pull=np.concatenate([self.pull, none]),
            cold=np.concatenate([self.cold, own.astype(np.float32)]),
            warmth=np.concatenate([self.warmth, none[:, 0]]),
        )

    def arrays(self, prefix: str) -> dict[str, np.ndarray]:
        """Return all of it as arrays for a model directory."""
        found: dict[str, np.ndarray] = {}
        for field in fields(self):
            value, key = getattr(self, field.name), f"{prefix}_{field.name}"
            if isinstance(value, PackedPosterior):
                found |= {f"{key}_mean": value.mean, f"{key}_packed": value.packed}
            elif isinstance(value, Precisions):
                found |= {f"{key}_L": value.L, f"{key}_t": np.array(value.t)}
            else:
                found[key] = np.asarray(value)
        return found

    @classmethod
    def restored(cls, prefix: str, artifact: Artifact, tower: Tower) -> SideEvidence:
        """Read `arrays` back; every shape is checked."""
        n = len(tower.ids)
        D = artifact.array(f"{prefix}_own_mean", (n, None)).shape[1]

        def array(name: str, *shape: int) -> np.ndarray:
            return artifact.array(f"{prefix}_{name}", shape)

        values: dict[str, Any] = {"width": float(array("width"))}
        for name in ("own", "to_new"):
            packed = array(f"{name}_packed", n, D * (D + 1) // 2)
            values[name] = PackedPosterior(array(f"{name}_mean", n, D), packed)
            L, t = array(f"{name}_precisions_L", D, D), float(array(f"{name}_precisions_t"))
            values[f"{name}_precisions"] = Precisions(np.array(L), t)
        values |= {name: array(name, n, D) for name in ("history", "pull", "cold")}
        values |= {"warmth": array("warmth", n), "moments": array("moments", D, D)}
        values["weights"] = array("weights", tower.features.shape[1] + 1, D)
        return cls(**values)


@dataclass(frozen=True, eq=False)
class Evidence:
    """What is kept of both sides, and the mean and spread of the ratings it is relative to."""

    sides: Sides[SideEvidence]
    mean: float
    scale: float

    @property
    def noise(self) -> float:
        """Variance of a rating when both its vectors are certain, in units of the ratings."""
        return self.scale**2 / self.sides.users.own_precisions.t

    def arrays(self, part: str) -> dict[str, np.ndarray]:
        """Return all of it as arrays for a model directory."""
        found = {f"{part}_{EVIDENCE}_units": np.array([self.mean, self.scale])}
        for side, one in self.sides.named():
            found |= one.arrays(f"{part}_{EVIDENCE}_{side}")
        return found

    @classmethod
    def restored(cls, part: str, artifact: Artifact, towers: Sides[Tower]) -> Evidence | None:
        """Read `arrays` back; None where there are none."""
        start = f"{part}_{EVIDENCE}"
        if f"{start}_units" not in artifact.arrays:
            return None
        mean, scale = artifact.array(f"{start}_units", (2,)).tolist()
        sides = Sides.of(
            lambda side: SideEvidence.restored(f"{start}_{side}", artifact, towers[side])
        )
        return cls(sides, mean, scale)


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


def evidence_of(fit: RatingFit, problem: Problem, placed: Sides[Placed]) -> Evidence:
    """Collect what was learned of all entities, also of those known by their features alone."""
    known, observed = fit.known, problem.observed
    moments = Sides.of(lambda side: _moments(known.other(side), problem.observed.rows.other(side)))

    def side_evidence(side: Side) -> SideEvidence:
        rows, one, new = placed[side].rows, known[side], fit.new.other(side)
        n, D = len(placed[side].counts), one.posterior.mean.shape[1]
        width = _width(known, problem, fit.new[side].error, side, moments)
        prior = np.linalg.inv(one.precisions.L) * width
        n_features = problem.features[side].shape[1]
        own = _filled(n, rows, one.posterior, placed[side].own, prior)
        to_new_prior = np.linalg.inv(new.precisions.L)
        to_new = _filled(n, rows, new.partners, placed[side].to_new, to_new_prior)
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
            width,
            history,
            pull,
            cold,
            (placed[side].counts > 0).astype(np.float32),
            moments[side],
            one.weights[:n_features],
        )

    return Evidence(Sides.of(side_evidence), observed.mean, observed.scale)


def pack(matrices: np.ndarray) -> np.ndarray:
    """Keep the upper triangles of symmetric matrices."""
    upper = np.triu_indices(matrices.shape[-1])
    return matrices[:, upper[0], upper[1]].astype(np.float32, copy=False)


def unpack(packed: np.ndarray) -> np.ndarray:
    """Make symmetric matrices of their upper triangles."""
    D = int((np.sqrt(8 * packed.shape[1] + 1) - 1) / 2)
    upper = np.triu_indices(D)
    out = np.empty((len(packed), D, D), packed.dtype)
    out[:, upper[0], upper[1]] = packed
    out[:, upper[1], upper[0]] = packed
    return out


def _packed_weights(moments: np.ndarray) -> np.ndarray:
    """Return the weights of packed entries in the trace of a product with `moments`."""
    twice = 2 * moments - np.diag(np.diag(moments))
    return twice[np.triu_indices(len(moments))].astype(np.float32)


def _filled(
    n: int, rows: np.ndarray, posterior: Posterior, cold: np.ndarray, prior: np.ndarray
) -> PackedPosterior:
    packed = np.empty((n, len(prior) * (len(prior) + 1) // 2), np.float32)
    packed[:] = pack(prior[None])
    made = PackedPosterior(np.array(cold, np.float32), packed)
    made.put(rows, posterior)
    return made


def _moments(one: KnownEntities, ratings: RatingRows) -> np.ndarray:
    """Average phi phi^T over a side, its entities weighted by their ratings."""
    share = (ratings.counts / ratings.counts.sum()).astype(np.float32)
    phi = one.posterior.regressors()
    moments = (phi * share[:, None]).T.astype(np.float64) @ phi
    assert one.posterior.covariance is not None
    spread = np.tensordot(share, one.posterior.covariance, 1)
    moments[:-1, :-1] += spread[:-1, :-1]
    return moments


def _width(
    known: Sides[KnownEntities],
    problem: Problem,
    error: float,
    side: Side,
    moments: Sides[np.ndarray],
) -> float:
    """Compare the variance of new entities, as held-out ones show it, with that of the prior."""
    posterior, counts = known.other(side).posterior, problem.observed.rows.other(side).counts
    assert posterior.covariance is not None
    share = (counts / counts.sum()).astype(np.float32)
    partners = np.tensordot(share, posterior.covariance, 1)
    excess = error**2 - 1 / known[side].precisions.t - float(np.sum(partners * moments.other(side)))
    prior = float(np.sum(np.linalg.inv(known[side].precisions.L) * moments[side]))
    return float(np.clip(excess / prior, *_WIDTHS))
