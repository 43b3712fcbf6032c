"""Posterior of embeddings given ratings: Gaussian, around what the features say.

An entity of one side has z = [y, b]: an embedding y and a bias b. Its rating by a partner with
z' = [w, b'] is ``r = y . w + b + b' + noise``, which is linear in z once the partner is known:
``r - b' = phi . z`` with ``phi = [w, 1]``. With the prior ``z ~ N(f, L^-1)`` and noise precision t,
the posterior is normal with

    precision  P = L + t S,            S = sum over observed partners of E[phi phi^T]
    mean       P^-1 (L f + t h),       h = sum of E[phi (r - b')]

where expectations are over the partner's own posterior. L and t follow from the residuals.
"""

from dataclasses import dataclass

import numpy as np

from simrec.model.fit.observed import Side, in_threads
from simrec.model.run.workers import ALONE, Group

# Precisions are confined to this range, in units of the ratings' spread: data without any noise
# or any variation would drive them to infinity.
_LOWEST, _HIGHEST = 1e-6, 1e6
_CHUNK = 1024


@dataclass(frozen=True, eq=False)
class Belief:
    """Posterior of all entities of a side: means (n x D) and covariances (n x D x D)."""

    mean: np.ndarray
    covariance: np.ndarray | None = None

    def rows(self) -> np.ndarray:
        """Give the regressors phi = [y, 1] that the other side sees, at their means."""
        return np.hstack([self.mean[:, :-1], np.ones((len(self.mean), 1), np.float32)])


@dataclass(frozen=True, eq=False)
class Statistics:
    """What an entity's ratings say of it: S, h and the sum of E[(r - b')^2].

    `group` are the workers between whom the entities are divided.
    """

    S: np.ndarray
    h: np.ndarray
    squares: np.ndarray
    group: Group = ALONE

    def weighted(self, weights: np.ndarray) -> "Statistics":
        """Give each entity's evidence a weight."""
        w = weights.astype(np.float32)
        S, h = self.S * w[:, None, None], self.h * w[:, None]
        return Statistics(S, h, self.squares * weights, self.group)


def statistics(side: Side, other: Belief) -> Statistics:
    """Collect the evidence for the entities of a side from what is believed of the other."""
    D = other.mean.shape[1]
    upper = np.triu_indices(D)
    phi, bias = other.rows(), other.mean[:, -1:]
    moments = phi[:, upper[0]] * phi[:, upper[1]]
    phi_bias, bias_squared = phi * bias, bias**2
    if other.covariance is not None:
        factors = (upper[0] < D - 1) & (upper[1] < D - 1)
        moments[:, factors] += other.covariance[:, upper[0][factors], upper[1][factors]]
        phi_bias[:, :-1] += other.covariance[:, :-1, -1]
        bias_squared = bias_squared + other.covariance[:, -1, -1:]
    sums = side.count(np.hstack([moments, phi_bias, bias_squared]))
    values = side.weigh(np.hstack([phi, bias]))
    S = np.empty((side.n_rows, D, D), np.float32)
    S[:, upper[0], upper[1]] = sums[:, : len(upper[0])]
    S[:, upper[1], upper[0]] = sums[:, : len(upper[0])]
    h = values[:, :-1] - sums[:, len(upper[0]) : -1]
    squares = side.squares() - 2.0 * values[:, -1] + sums[:, -1]
    return Statistics(S, h, squares, side.rows)


@dataclass
class Scales:
    """The precisions of a side: L of the prior around the features, t of the noise."""

    L: np.ndarray
    t: float

    @classmethod
    def start(cls, D: int) -> "Scales":
        """Begin where the ratings' spread is about equally noise and preference."""
        return cls(np.eye(D) * 4.0, 1.5)


def update(
    stats: Statistics, prior: np.ndarray, scales: Scales, covariance: np.ndarray | None = None
) -> tuple[Belief, Scales]:
    """Give the posterior of all entities, and the precisions that their residuals show."""
    if covariance is None:
        covariance = posterior_covariance(stats, scales)
    pull = prior @ scales.L.astype(np.float32) + np.float32(scales.t) * stats.h
    mean = (covariance @ pull[:, :, None])[:, :, 0]
    belief = Belief(mean, covariance)
    return belief, _scales(stats, belief, prior)


def posterior_covariance(stats: Statistics, scales: Scales) -> np.ndarray:
    """Invert the posterior precision of each entity."""
    out = np.empty_like(stats.S)
    L, t = scales.L.astype(np.float32), np.float32(scales.t)

    def fill(i: int) -> None:
        part = slice(i * _CHUNK, (i + 1) * _CHUNK)
        out[part] = np.linalg.inv(L + t * stats.S[part])

    in_threads(fill, -(-len(out) // _CHUNK))
    return out


def expected_squares(stats: Statistics, belief: Belief) -> float:
    """Sum the expected squared errors over all observed entries."""
    mean = belief.mean
    fit = np.einsum("mi,mi->", mean, stats.h, dtype=np.float64)
    moments = np.einsum("mij,mi,mj->m", stats.S, mean, mean, optimize=True).sum(dtype=np.float64)
    if belief.covariance is not None:
        moments += np.einsum("mij,mij->m", stats.S, belief.covariance).sum(dtype=np.float64)
    return stats.group.total(float(stats.squares.sum() - 2 * fit + moments))


def _scales(stats: Statistics, belief: Belief, prior: np.ndarray) -> Scales:
    group = stats.group
    offset = (belief.mean - prior).astype(np.float64)
    assert belief.covariance is not None
    spread = group.sum(offset.T @ offset + belief.covariance.sum(0, dtype=np.float64))
    spread = spread / group.total(len(prior))
    values, vectors = np.linalg.eigh(spread)
    L = (vectors / np.clip(values, 1 / _HIGHEST, 1 / _LOWEST)) @ vectors.T
    n_entries = group.total(float(stats.S[:, -1, -1].sum(dtype=np.float64)))
    noise = expected_squares(stats, belief) / max(n_entries, 1.0)
    return Scales(L, float(np.clip(1 / max(noise, 1 / _HIGHEST), _LOWEST, _HIGHEST)))
