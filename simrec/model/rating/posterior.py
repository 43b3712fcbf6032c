"""Posterior of embeddings given ratings: normal, around what the features say.

An entity of one side has z = [y, b]: an embedding y and a bias b. Its rating by a partner with
z' = [w, b'] is ``r = y . w + b + b' + noise``, which is linear in z once the partner is known:
``r - b' = phi . z`` with ``phi = [w, 1]``. With the prior ``z ~ N(f, L^-1)`` and noise precision t,
the posterior is normal with

    precision  P = L + t S,            S = sum over observed partners of E[phi phi^T]
    mean       P^-1 (L f + t h),       h = sum of E[phi (r - b')]

where expectations are over the partner's own posterior. L and t are estimated from the residuals.
"""

from dataclasses import dataclass

import numpy as np

from simrec.model.rating.observed import RatingRows
from simrec.model.run.threads import in_threads
from simrec.model.run.workers import ONE_WORKER, Workers

# Precisions are confined to this range, in units of the ratings' spread: data without any noise
# or any variation would drive them to infinity.
_LOWEST, _HIGHEST = 1e-6, 1e6
_CHUNK = 1024


@dataclass(frozen=True, eq=False)
class Posterior:
    """Posterior of all entities of a side: means (n x D) and covariances (n x D x D).

    Without covariances the means are taken as certain.
    """

    mean: np.ndarray
    covariance: np.ndarray | None = None

    def certain(self) -> "Posterior":
        """Return the means alone."""
        return Posterior(self.mean)

    def regressors(self) -> np.ndarray:
        """Return phi = [y, 1] of each entity, what the other side is regressed on."""
        return np.hstack([self.mean[:, :-1], np.ones((len(self.mean), 1), np.float32)])


@dataclass(frozen=True, eq=False)
class Statistics:
    """Sufficient statistics of each entity's ratings: S, h and the sum of E[(r - b')^2].

    `workers` are those between whom the entities are divided.
    """

    S: np.ndarray
    h: np.ndarray
    squares: np.ndarray
    workers: Workers = ONE_WORKER

    def weighted(self, weights: np.ndarray) -> "Statistics":
        """Return the statistics with a weight for each entity."""
        w = weights.astype(np.float32)
        S, h = self.S * w[:, None, None], self.h * w[:, None]
        return Statistics(S, h, self.squares * weights, self.workers)


def statistics(ratings: RatingRows, partners: Posterior) -> Statistics:
    """Collect the statistics of each entity's ratings, given the posterior of its partners."""
    D = partners.mean.shape[1]
    upper = np.triu_indices(D)
    phi, bias = partners.regressors(), partners.mean[:, -1:]
    moments = phi[:, upper[0]] * phi[:, upper[1]]
    phi_bias, bias_squared = phi * bias, bias**2
    if partners.covariance is not None:
        factors = (upper[0] < D - 1) & (upper[1] < D - 1)
        moments[:, factors] += partners.covariance[:, upper[0][factors], upper[1][factors]]
        phi_bias[:, :-1] += partners.covariance[:, :-1, -1]
        bias_squared = bias_squared + partners.covariance[:, -1, -1:]
    sums = ratings.sum_partners(np.hstack([moments, phi_bias, bias_squared]))
    values = ratings.sum_rated(np.hstack([phi, bias]))
    S = np.empty((ratings.n_rows, D, D), np.float32)
    S[:, upper[0], upper[1]] = sums[:, : len(upper[0])]
    S[:, upper[1], upper[0]] = sums[:, : len(upper[0])]
    h = values[:, :-1] - sums[:, len(upper[0]) : -1]
    squares = ratings.squares() - 2.0 * values[:, -1] + sums[:, -1]
    return Statistics(S, h, squares, ratings.row_workers)


@dataclass
class Precisions:
    """Precisions of a side: L of the prior around what features say, t of the noise."""

    L: np.ndarray
    t: float

    @classmethod
    def start(cls, D: int) -> "Precisions":
        """Return a start at which noise and preference share the ratings' spread equally."""
        return cls(np.eye(D) * 4.0, 1.5)


def fit_posterior(
    stats: Statistics,
    prior_means: np.ndarray,
    precisions: Precisions,
    covariance: np.ndarray | None = None,
) -> tuple[Posterior, Precisions]:
    """Return the posterior of all entities, and precisions estimated from their residuals."""
    if covariance is None:
        covariance = posterior_covariance(stats, precisions)
    pull = prior_means @ precisions.L.astype(np.float32) + np.float32(precisions.t) * stats.h
    mean = (covariance @ pull[:, :, None])[:, :, 0]
    posterior = Posterior(mean, covariance)
    return posterior, _estimate_precisions(stats, posterior, prior_means)


def posterior_covariance(stats: Statistics, precisions: Precisions) -> np.ndarray:
    """Invert the posterior precision of each entity."""
    out = np.empty_like(stats.S)
    L, t = precisions.L.astype(np.float32), np.float32(precisions.t)

    def fill(i: int) -> None:
        part = slice(i * _CHUNK, (i + 1) * _CHUNK)
        out[part] = np.linalg.inv(L + t * stats.S[part])

    in_threads(fill, -(-len(out) // _CHUNK))
    return out


def expected_squares(stats: Statistics, posterior: Posterior) -> float:
    """Sum the expected squared errors over all observed entries."""
    mean = posterior.mean
    fit = np.einsum("mi,mi->", mean, stats.h, dtype=np.float64)
    moments = np.einsum("mij,mi,mj->m", stats.S, mean, mean, optimize=True).sum(dtype=np.float64)
    if posterior.covariance is not None:
        moments += np.einsum("mij,mij->m", stats.S, posterior.covariance).sum(dtype=np.float64)
    return stats.workers.total(float(stats.squares.sum() - 2 * fit + moments))


def _estimate_precisions(
    stats: Statistics, posterior: Posterior, prior_means: np.ndarray
) -> Precisions:
    workers = stats.workers
    offset = (posterior.mean - prior_means).astype(np.float64)
    assert posterior.covariance is not None
    spread = workers.sum(offset.T @ offset + posterior.covariance.sum(0, dtype=np.float64))
    spread = spread / workers.total(len(prior_means))
    values, vectors = np.linalg.eigh(spread)
    L = (vectors / np.clip(values, 1 / _HIGHEST, 1 / _LOWEST)) @ vectors.T
    n_entries = workers.total(float(stats.S[:, -1, -1].sum(dtype=np.float64)))
    noise = expected_squares(stats, posterior) / max(n_entries, 1.0)
    return Precisions(L, float(np.clip(1 / max(noise, 1 / _HIGHEST), _LOWEST, _HIGHEST)))
