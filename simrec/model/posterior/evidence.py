"""What a rating model keeps of each entity, so that later ratings can be added.

An entity has a posterior of the embedding that known partners meet (`warm`) and of the one that new
partners meet (`cold`, see `simrec.model.rating.layout`). Both are normal, so that further ratings
enter as they did in `fit`; without ratings the posterior is the prior that features give.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np

from simrec.data.sides import Side, Sides
from simrec.errors import InputError
from simrec.model.head import Saved
from simrec.model.part import NewRows
from simrec.model.posterior.packed import factors, of_factors, pack, to_factors
from simrec.model.posterior.posterior import Posterior, Precisions
from simrec.model.tower import Tower
from simrec.scoring.threads import filled
from simrec.storage.arrays import Array, Insertion, blocks
from simrec.storage.artifacts import Artifact

# In the names of all arrays of evidence in a model directory.
EVIDENCE = "evidence"
# How many ratings make an entity half known: its vector moves over from the block of new ones.
HALF_KNOWN = 5.0
# What there is a row of for each entity, beside the posteriors.
_BY_ENTITY = ("history", "history_weights", "out_of_fold", "warmth")


@dataclass(frozen=True, eq=False)
class PackedPosterior:
    """Normal distributions, one for each entity: means, and Cholesky factors of covariances.

    Factors are lower triangles in half precision, 306 bytes for 17 x 17.
    """

    mean: Array
    factors: Array

    @classmethod
    def of(cls, mean: np.ndarray, covariance: np.ndarray) -> "PackedPosterior":
        """Pack the posteriors of a fit."""
        halves = np.empty(covariance.shape, np.float16)
        return cls(mean, filled(halves, lambda rows: to_factors(covariance[rows])))

    def unpacked(self, rows: np.ndarray) -> Posterior:
        """Return some of them."""
        return Posterior(self.mean[rows], of_factors(self.factors[rows]))

    def only(self, rows: np.ndarray) -> "PackedPosterior":
        """Keep some entities."""
        return PackedPosterior(self.mean[rows], self.factors[rows])

    def grown(
        self, mean: np.ndarray, covariances: np.ndarray, insert: Insertion
    ) -> "PackedPosterior":
        """Insert entities."""
        halves = insert(self.factors, to_factors(pack(covariances)))
        return PackedPosterior(insert(self.mean, mean.astype(np.float32)), halves)

    def copy(self) -> "PackedPosterior":
        """Return a copy that may be written to."""
        return PackedPosterior(np.array(self.mean), np.array(self.factors))

    def put(self, rows: np.ndarray, posterior: Posterior) -> None:
        """Change the distributions of some entities in place."""
        assert posterior.covariance is not None
        self.mean[rows] = posterior.mean
        self.factors[rows] = to_factors(posterior.covariance)


@dataclass(frozen=True, eq=False)
class SideEvidence:
    """What is kept of the items or of the users, in the order of their tower's ids.

    All is in units of the ratings' spread.
    """

    warm: PackedPosterior  # of [embedding, bias], used against warm partners
    cold: PackedPosterior | None  # used against cold partners; None without refinement
    warm_precisions: Precisions
    cold_precisions: Precisions | None
    width: float  # of the prior of a new entity over that of known ones, by held-out errors
    history: Array  # sum of `history_weights` over the partners of each
    history_weights: Array  # how each, as a partner, moves the prior mean of the other side
    out_of_fold: Array  # out-of-fold embedding of each, from its features
    warmth: Array  # from 0 without ratings to 1 for one that was fitted with its ratings
    moments: np.ndarray  # mean of phi phi^T over the partners, weighted by their ratings
    weights: np.ndarray  # the encoder of the prior means of fitted entities
    # Of some users alone: the spread of all; see `spread`.
    spread_of_all: np.ndarray | None = None

    def variance(self, rows: np.ndarray) -> np.ndarray:
        """Return each entity's part in the variance of a prediction; posteriors are read once."""
        found, places = np.unique(rows, return_inverse=True)
        moments, out = self.moments.astype(np.float32), np.empty(len(found), np.float32)
        for here, some in blocks(found):
            F = factors(self.warm.factors[some])
            out[here] = np.einsum("nij,nij->n", F, moments @ F)
        return out[places]

    def new_covariance(self) -> np.ndarray:
        """Return the prior covariance of an entity without ratings."""
        return np.linalg.inv(self.warm_precisions.L) * self.width

    def spread(self, counts: Array) -> np.ndarray:
        """Return the covariance of out-of-fold embeddings, entities weighted by their ratings."""
        if self.spread_of_all is not None:
            return self.spread_of_all
        total = max(sum(int(some.sum()) for _, some in blocks(counts)), 1)
        parts = [(here, some / total) for here, some in blocks(counts)]
        mean = sum(share @ self.out_of_fold[here].astype(np.float64) for here, share in parts)
        spread = np.zeros(self.new_covariance().shape)
        for here, share in parts:
            off = self.out_of_fold[here].astype(np.float64) - mean
            spread += (off * share[:, None]).T @ off
        return spread

    def only(self, rows: np.ndarray) -> "SideEvidence":
        """Keep some entities."""
        cold = None if self.cold is None else self.cold.only(rows)
        by_entity = {name: getattr(self, name)[rows] for name in _BY_ENTITY}
        return replace(self, warm=self.warm.only(rows), cold=cold, **by_entity)

    def grown(self, warm: np.ndarray, cold: np.ndarray, new: NewRows) -> "SideEvidence":
        """Insert entities without ratings, with the embeddings that their features give.

        Those without features are taken as average: their prior is wider by the spread of what
        features say.
        """
        lacking = (~new.has_features)[:, None, None]
        # All entities are looked at only where it matters.
        spread = lacking * (self.spread(new.counts) if lacking.any() else 0.0)
        none, insert = np.zeros_like(warm, np.float32), new.insert
        against_cold = self.cold
        if against_cold is not None and self.cold_precisions is not None:
            prior = np.linalg.inv(self.cold_precisions.L)
            against_cold = against_cold.grown(cold, prior + spread, insert)
        return replace(
            self,
            warm=self.warm.grown(warm, self.new_covariance() + spread, insert),
            cold=against_cold,
            history=insert(self.history, none),
            history_weights=insert(self.history_weights, none),
            out_of_fold=insert(self.out_of_fold, warm.astype(np.float32)),
            warmth=insert(self.warmth, none[:, 0]),
        )

    def save_to(self, saved: Saved, side: Side, prefix: str) -> None:
        """Add all of it to the content of a model directory."""
        for field in fields(self):
            value, key = getattr(self, field.name), f"{prefix}_{field.name}"
            if value is None:
                continue
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
    def restored(cls, prefix: str, artifact: Artifact, tower: Tower, refined: bool) -> Self:
        """Read back what `save_to` added; every shape is checked."""
        D = artifact.array(f"{prefix}_warm_mean", (len(tower.ids), None)).shape[1]

        def array(name: str, *shape: int) -> np.ndarray:
            return artifact.array(f"{prefix}_{name}", shape)

        def rows(name: str, *shape: int) -> Array:
            return artifact.array(f"{prefix}_{name}", (len(tower.ids), *shape))

        values: dict[str, Any] = {"width": float(array("width"))}
        values |= {"cold": None, "cold_precisions": None}
        for name in ("warm", "cold") if refined else ("warm",):
            halves = rows(f"{name}_factors", D * (D + 1) // 2)
            values[name] = PackedPosterior(rows(f"{name}_mean", D), halves)
            L, t = array(f"{name}_precisions_L", D, D), float(array(f"{name}_precisions_t"))
            values[f"{name}_precisions"] = Precisions(np.array(L), t)
        values |= {name: rows(name, D) for name in ("history", "history_weights", "out_of_fold")}
        values |= {"warmth": rows("warmth"), "moments": array("moments", D, D)}
        values["weights"] = array("weights", tower.features.shape[1] + 1, D)
        return cls(**values)


@dataclass(frozen=True, eq=False)
class Evidence:
    """What is kept of both sides, and what it is relative to."""

    sides: Sides[SideEvidence]
    mean: float  # of the ratings, as the inverse of the output has them
    scale: float  # their standard deviation
    noise: float  # variance of a rating when both vectors are certain, on the ratings' scale

    def save_to(self, saved: Saved, part: str) -> None:
        """Add all of it to the content of a model directory."""
        saved.arrays[f"{part}_{EVIDENCE}_units"] = np.array([self.mean, self.scale, self.noise])
        for side, one in self.sides.named():
            one.save_to(saved, side, f"{part}_{EVIDENCE}_{side}")

    @classmethod
    def restored(
        cls, part: str, artifact: Artifact, towers: Sides[Tower], refined: bool
    ) -> "Evidence | None":
        """Read back what `save_to` added; None where there is nothing."""
        start = f"{part}_{EVIDENCE}"
        if f"{start}_units" not in artifact.arrays:
            return None
        units = artifact.array(f"{start}_units", (3,)).tolist()
        if units[1] <= 0:
            raise InputError(f"{start}_units: the spread of ratings is {units[1]:g}")
        sides = Sides.of(
            lambda side: SideEvidence.restored(f"{start}_{side}", artifact, towers[side], refined)
        )
        return cls(sides, *units)
