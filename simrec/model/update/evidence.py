"""What a rating model believes of each entity, kept so that later ratings can be added.

An entity has a posterior of its embedding beside known partners ("own") and one of how it appears
to new partners ("beside", see `simrec.model.layout`). Both are normal, so that further ratings
enter as they did in `fit`, and a posterior without ratings is what the features say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from simrec.model.fit.known_entities import ITEMS, USERS, Known, Problem
from simrec.model.fit.posterior import Belief, Scales

if TYPE_CHECKING:
    from simrec.model.fit.new_entities import New
    from simrec.model.fit.prepare import PreparedSide
    from simrec.model.fit.rating import RatingTowers
    from simrec.model.tower import Tower

# In the names of all arrays of evidence in a model directory.
EVIDENCE = "evidence"
# How many ratings make an entity half known: its vector moves over from the block of new ones.
HALF_KNOWN = 5.0
# The prior of a new entity is at most this much wider than that of known ones, and not narrower:
# ratings make surer.
_WIDTHS = (1.0, 100.0)


@dataclass(frozen=True, eq=False)
class Posteriors:
    """Normal distributions, one for each entity: means and packed covariances."""

    mean: np.ndarray
    packed: np.ndarray

    def belief(self, rows: np.ndarray) -> Belief:
        """Unpack some of them."""
        return Belief(self.mean[rows], unpack(self.packed[rows]))

    def take(self, rows: np.ndarray) -> Posteriors:
        """Give those of some entities."""
        return Posteriors(self.mean[rows], self.packed[rows])

    def joined(self, mean: np.ndarray, covariances: np.ndarray) -> Posteriors:
        """Add entities at the end."""
        packed = np.concatenate([self.packed, pack(covariances)])
        return Posteriors(np.concatenate([self.mean, mean.astype(np.float32)]), packed)

    def copied(self) -> Posteriors:
        """Give a copy that may be written to."""
        return Posteriors(np.array(self.mean), np.array(self.packed))

    def put(self, rows: np.ndarray, belief: Belief) -> None:
        """Change the distributions of some entities in place."""
        assert belief.covariance is not None
        self.mean[rows], self.packed[rows] = belief.mean, pack(belief.covariance)


@dataclass(frozen=True, eq=False)
class SideEvidence:
    """What is believed of the items or of the users, in the order of their tower's ids.

    All is in units of the ratings' spread.

    Attributes
    ----------
    own, beside : Posteriors
        Of [embedding, bias] beside known partners, and beside new ones.
    own_scales, beside_scales : Scales
        Precisions of prior and noise of both.
    width : float
        How much wider the prior of a new entity is than that of known ones: as wide as its
        error was on held-out entities.
    history : numpy.ndarray
        Sum of the pulls of the partners of each.
    pull : numpy.ndarray
        How having this entity for a partner moves the prior mean of the other side.
    cold : numpy.ndarray
        What features alone say, by encoders that did not see the entity's ratings.
    warmth : numpy.ndarray
        From 0 for an entity without ratings to 1 for one that was fitted with its ratings.
    moments : numpy.ndarray
        Mean of phi phi^T over the other side as ratings meet it: turns covariances to variances.
    weights : numpy.ndarray
        The encoder of the prior means of fitted entities.
    """

    own: Posteriors
    beside: Posteriors
    own_scales: Scales
    beside_scales: Scales
    width: float
    history: np.ndarray
    pull: np.ndarray
    cold: np.ndarray
    warmth: np.ndarray
    moments: np.ndarray
    weights: np.ndarray

    def variance(self, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Give the part of each entity, or of some, in the variance of a prediction."""
        return self.own.packed[rows] @ _packed_weights(self.moments)

    def new_covariance(self) -> np.ndarray:
        """Give the covariance of an entity without ratings around what its features say."""
        return np.linalg.inv(self.own_scales.L) * self.width

    def spread(self, counts: np.ndarray) -> np.ndarray:
        """Give the covariance of what features say, everyone by the number of their ratings."""
        share = counts / max(counts.sum(), 1)
        cold = self.cold.astype(np.float64)
        off = cold - share @ cold
        return (off * share[:, None]).T @ off

    def average_variance(self, counts: np.ndarray) -> float:
        """Give the variance of an entity of which nothing is known, not even features."""
        return float(np.sum((self.new_covariance() + self.spread(counts)) * self.moments))

    def take(self, rows: np.ndarray) -> SideEvidence:
        """Give what is believed of some entities."""
        return replace(
            self,
            own=self.own.take(rows),
            beside=self.beside.take(rows),
            history=self.history[rows],
            pull=self.pull[rows],
            cold=self.cold[rows],
            warmth=self.warmth[rows],
        )

    def joined(
        self,
        own: np.ndarray,
        beside: np.ndarray,
        counts: np.ndarray,
        has_features: np.ndarray,
    ) -> SideEvidence:
        """Add entities without ratings at the end.

        Parameters
        ----------
        own, beside : numpy.ndarray
            What their features say of them beside known and beside new partners.
        counts : numpy.ndarray
            Ratings of the entities so far.
        has_features : numpy.ndarray of bool
            Those who have none are taken as average, and may be anything that others are.
        """
        spread = (~has_features)[:, None, None] * self.spread(counts)
        none = np.zeros_like(own, np.float32)
        return replace(
            self,
            own=self.own.joined(own, self.new_covariance() + spread),
            beside=self.beside.joined(beside, np.linalg.inv(self.beside_scales.L) + spread),
            history=np.concatenate([self.history, none]),
            pull=np.concatenate([self.pull, none]),
            cold=np.concatenate([self.cold, own.astype(np.float32)]),
            warmth=np.concatenate([self.warmth, none[:, 0]]),
        )

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """Give all of it as arrays for a model directory."""
        found: dict[str, np.ndarray] = {}
        for field in fields(self):
            value, key = getattr(self, field.name), f"{name}_{EVIDENCE}_{field.name}"
            if isinstance(value, Posteriors):
                found |= {f"{key}_mean": value.mean, f"{key}_packed": value.packed}
            elif isinstance(value, Scales):
                found |= {f"{key}_L": value.L, f"{key}_t": np.array(value.t)}
            else:
                found[key] = np.asarray(value)
        return found

    @classmethod
    def restored(cls, name: str, arrays: Mapping[str, np.ndarray]) -> SideEvidence:
        """Read `arrays` back."""
        prefix = f"{name}_{EVIDENCE}_"
        got = {key.removeprefix(prefix): a for key, a in arrays.items() if key.startswith(prefix)}
        values: dict[str, Any] = {"width": float(got["width"])}
        for block in ("own", "beside"):
            values[block] = Posteriors(got[f"{block}_mean"], got[f"{block}_packed"])
            scales = Scales(np.array(got[f"{block}_scales_L"]), float(got[f"{block}_scales_t"]))
            values[f"{block}_scales"] = scales
        for field in ("history", "pull", "cold", "warmth", "moments", "weights"):
            values[field] = got[field]
        return cls(**values)


@dataclass(frozen=True, eq=False)
class Evidence:
    """Both sides, and the mean and spread of the ratings that they are relative to."""

    items: SideEvidence
    users: SideEvidence
    mean: float
    scale: float

    @property
    def noise(self) -> float:
        """Variance of a rating when both its vectors are certain, in units of the ratings."""
        return self.scale**2 / self.users.own_scales.t

    def arrays(self) -> dict[str, np.ndarray]:
        """Give all of it as arrays for a model directory."""
        units = {f"{EVIDENCE}_units": np.array([self.mean, self.scale])}
        return {**self.items.arrays("item"), **self.users.arrays("user"), **units}

    @classmethod
    def restored(cls, arrays: Mapping[str, np.ndarray]) -> Evidence | None:
        """Read `arrays` back; None where there are none."""
        if f"{EVIDENCE}_units" not in arrays:
            return None
        mean, scale = arrays[f"{EVIDENCE}_units"].tolist()
        items, users = (SideEvidence.restored(name, arrays) for name in ("item", "user"))
        return cls(items, users, mean, scale)


def evidence_of(
    towers: RatingTowers,
    problem: Problem,
    sides: tuple[PreparedSide, PreparedSide],
    fitted: tuple[Tower, Tower],
    cold: tuple[np.ndarray, np.ndarray],
    unseen: tuple[np.ndarray, np.ndarray],
) -> Evidence:
    """Collect what was learned of all entities, also of those known by their features alone.

    Parameters
    ----------
    towers, problem, sides, fitted
        What was fitted, to what; items first.
    cold : (numpy.ndarray, numpy.ndarray)
        What features say of the entities of each tower beside known partners.
    unseen : (numpy.ndarray, numpy.ndarray)
        Likewise beside new partners.
    """
    known, observed = towers.known, problem.observed
    new: tuple[New, New] = (towers.new_items, towers.new_users)
    moments = [_moments(known, problem, 1 - k) for k in (ITEMS, USERS)]
    made = []
    for k in (ITEMS, USERS):
        rows = fitted[k].ids.rows(sides[k].rated.ids)
        n, D = len(fitted[k].ids), known.beliefs[k].mean.shape[1]
        width = _width(known, problem, new[k].error, k, moments)
        prior = np.linalg.inv(known.scales[k].L) * width
        p = sides[k].X.shape[1]
        side, B = problem.sides[k], known.weights[k]
        own = _filled(n, rows, known.beliefs[k], cold[k], prior)
        beside_prior = np.linalg.inv(new[1 - k].scales.L)
        beside = _filled(n, rows, new[1 - k].partners, unseen[k], beside_prior)
        content = np.array(cold[k], np.float32)
        content[rows] = new[k].held_out
        history, pull = np.zeros((n, D), np.float32), np.zeros((n, D), np.float32)
        history[rows] = side.count(B[p:])
        pull[rows] = known.weights[1 - k][problem.features[1 - k].shape[1] :]
        made.append(
            SideEvidence(
                own,
                beside,
                known.scales[k],
                new[1 - k].scales,
                width,
                history,
                pull,
                content,
                (fitted[k].counts > 0).astype(np.float32),
                moments[k],
                B[:p],
            )
        )
    return Evidence(made[ITEMS], made[USERS], observed.mean, observed.scale)


def pack(matrices: np.ndarray) -> np.ndarray:
    """Keep the upper triangles of symmetric matrices."""
    upper = np.triu_indices(matrices.shape[-1])
    return matrices[:, upper[0], upper[1]].astype(np.float32, copy=False)


def unpack(packed: np.ndarray) -> np.ndarray:
    """Make symmetric matrices of their upper triangles."""
    D = _size(packed.shape[1])
    upper = np.triu_indices(D)
    out = np.empty((len(packed), D, D), packed.dtype)
    out[:, upper[0], upper[1]] = packed
    out[:, upper[1], upper[0]] = packed
    return out


def _size(packed: int) -> int:
    return int((np.sqrt(8 * packed + 1) - 1) / 2)


def _packed_weights(moments: np.ndarray) -> np.ndarray:
    """Give the weights of packed entries in the trace of a product with `moments`."""
    twice = 2 * moments - np.diag(np.diag(moments))
    return twice[np.triu_indices(len(moments))].astype(np.float32)


def _filled(
    n: int, rows: np.ndarray, belief: Belief, cold: np.ndarray, prior: np.ndarray
) -> Posteriors:
    assert belief.covariance is not None
    packed = np.empty((n, len(prior) * (len(prior) + 1) // 2), np.float32)
    packed[:] = pack(prior[None])
    made = Posteriors(np.array(cold, np.float32), packed)
    made.put(rows, belief)
    return made


def _moments(known: Known, problem: Problem, k: int) -> np.ndarray:
    """Average phi phi^T over a side, everyone by the number of their ratings."""
    counts, belief = problem.sides[k].counts, known.beliefs[k]
    share = (counts / counts.sum()).astype(np.float32)
    phi = belief.rows()
    moments = (phi * share[:, None]).T.astype(np.float64) @ phi
    assert belief.covariance is not None
    spread = np.tensordot(share, belief.covariance, 1)
    moments[:-1, :-1] += spread[:-1, :-1]
    return moments


def _width(
    known: Known, problem: Problem, error: float, k: int, moments: list[np.ndarray]
) -> float:
    """Compare the variance of new entities, as held-out ones show it, with that of the prior."""
    belief, counts = known.beliefs[1 - k], problem.sides[1 - k].counts
    assert belief.covariance is not None
    share = (counts / counts.sum()).astype(np.float32)
    partners = float(np.sum(np.tensordot(share, belief.covariance, 1) * moments[1 - k]))
    excess = error**2 - 1 / known.scales[k].t - partners
    prior = float(np.sum(np.linalg.inv(known.scales[k].L) * moments[k]))
    return float(np.clip(excess / prior, *_WIDTHS))
