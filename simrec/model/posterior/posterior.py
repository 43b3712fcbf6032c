"""Posterior of embeddings given ratings: normal, around a prior mean from features.

An entity of one side has z = [y, b]: an embedding y and a bias b. Its rating by a partner with
z' = [w, b'] is ``r = y . w + b + b' + noise``, which is linear in z once the partner is known:
``r - b' = phi . z`` with ``phi = [w, 1]``. With the prior ``z ~ N(f, L^-1)`` and noise precision t,
the posterior is normal with

    precision  P = L + t S,            S = sum over observed partners of E[phi phi^T]
    mean       P^-1 (L f + t h),       h = sum of E[phi (r - b')]

where expectations are over the partner's own posterior. L and t are estimated from the residuals.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from simrec.model.posterior import packed
from simrec.model.posterior.observed import RatingRows
from simrec.model.run.workers import ONE_WORKER, Workers
from simrec.scoring.threads import BLOCK, by_blocks, filled, in_threads, row_blocks

# Precisions are confined to this range, in units of the ratings' spread: data without any noise
# or any variation would drive them to infinity.
_LOWEST, _HIGHEST = 1e-6, 1e6
_CHUNK = 1024


@dataclass(frozen=True, eq=False)
class Posterior:
    """Posterior of all entities of a side: means (n x D) and covariances as upper triangles.

    Without covariances the means are taken as certain.
    """

    mean: np.ndarray
    covariance: np.ndarray | None = None

    def regressors(self, rows: slice = slice(None)) -> np.ndarray:
        """Return phi = [y, 1] of each entity, what the other side is regressed on."""
        mean = self.mean[rows]
        return np.hstack([mean[:, :-1], np.ones((len(mean), 1), np.float32)])


@dataclass(frozen=True, eq=False)
class Statistics:
    """Sufficient statistics of each entity's ratings: S, h and the sum of E[(r - b')^2].

    S are upper triangles, or whole matrices where it is multiplied with many times. `workers` are
    those between whom the entities are divided.
    """

    S: np.ndarray
    h: np.ndarray
    squares: np.ndarray
    workers: Workers = ONE_WORKER

    def times(self, Y: np.ndarray) -> np.ndarray:
        """Multiply each S with its row of Y."""
        return packed.products(self.S, Y)

    def diagonal(self) -> np.ndarray:
        """Return the diagonal of each S."""
        return packed.diagonals(self.S) if self.S.ndim == 2 else np.einsum("mii->mi", self.S)

    def counts(self) -> np.ndarray:
        """Return the number of ratings of each entity: phi ends in a constant."""
        return self.S[:, -1] if self.S.ndim == 2 else self.S[:, -1, -1]

    def unpacked(self) -> "Statistics":
        """Return the same with whole matrices, faster to multiply with."""
        return replace(self, S=packed.unpacked(self.S))


def statistics(ratings: RatingRows, partners: Posterior) -> Statistics:
    """Collect the statistics of each entity's ratings, given the posterior of its partners."""
    D = partners.mean.shape[1]
    upper = packed.upper(D)
    n_moments = len(upper[0])
    factors = np.flatnonzero(upper[1] < D - 1)
    last = np.flatnonzero(upper[1] == D - 1)

    def tables(rows: slice) -> tuple[np.ndarray, np.ndarray]:
        phi, bias = partners.regressors(rows), partners.mean[rows, -1:]
        moments = packed.outer(phi)
        phi_bias, bias_squared = phi * bias, bias**2
        if partners.covariance is not None:
            C = partners.covariance[rows]
            moments[:, factors] += C[:, factors]
            phi_bias[:, :-1] += C[:, last[:-1]]
            bias_squared = bias_squared + C[:, -1:]
        return np.hstack([moments, phi_bias, bias_squared]), np.hstack([phi, bias])

    S = np.empty((ratings.n_rows, n_moments), np.float32)
    h, squares = np.empty((ratings.n_rows, D), np.float32), ratings.squares()

    def take(rows: slice, sums: np.ndarray, values: np.ndarray) -> None:
        S[rows] = sums[:, :n_moments]
        h[rows] = values[:, :-1] - sums[:, n_moments:-1]
        squares[rows] = squares[rows] - 2.0 * values[:, -1] + sums[:, -1]

    ratings.sums(tables, (n_moments + D + 1, D + 1), take)
    return Statistics(S, h, squares, ratings.row_workers)


@dataclass
class Precisions:
    """Precisions of a side: L of the prior around its mean, t of the noise."""

    L: np.ndarray
    t: float


@dataclass(eq=False)
class KnownEntities:
    """The known entities of one side."""

    posterior: Posterior  # of their embeddings and biases
    precisions: Precisions  # of the prior and the noise
    prior_means: np.ndarray  # what features and history say of each
    # Encoder of the prior means: rows of features, of the number of ratings, of each partner.
    weights: np.ndarray
    penalties: np.ndarray  # of each column of features, the number of ratings, the partners


@dataclass(frozen=True, eq=False)
class Marginal:
    """Statistics on the prior means, with the offset of each entity integrated out.

    An entity with many ratings tells its own embedding well, but that is still one draw around
    what the features say: S becomes ``L - L P^-1 L``, at most L, and h becomes ``t L P^-1 h``.
    """

    stats: Statistics
    precisions: Precisions
    covariance: np.ndarray

    @cached_property
    def h(self) -> np.ndarray:
        """Return h of each entity."""
        h = packed.products(self._C, self.stats.h) @ self._L
        h *= np.float32(self.precisions.t)
        return h

    def times(self, Y: np.ndarray) -> np.ndarray:
        """Multiply each S with its row of Y."""
        out = Y @ self._L
        out -= packed.products(self._C, out) @ self._L
        return out

    def diagonal(self) -> np.ndarray:
        """Return the diagonal of each S: that of L less l_i C l_i for each column l_i of L."""
        L, D = self._L, len(self._L)
        rows, columns = packed.upper(D)
        squares = (L[rows] * L[columns]) * packed.trace_weights(D)[:, None]
        out = np.empty((len(self.covariance), D), np.float32)
        return filled(out, lambda part: np.diag(L) - self.covariance[part] @ squares)

    @cached_property
    def _C(self) -> np.ndarray:
        """Covariances, whole where they are few: they are multiplied with many times."""
        few = len(self.covariance) <= BLOCK
        return packed.unpack(self.covariance) if few else self.covariance

    @cached_property
    def _L(self) -> np.ndarray:
        return self.precisions.L.astype(np.float32)


def fit_posterior(
    stats: Statistics,
    prior_means: np.ndarray,
    precisions: Precisions,
    covariance: np.ndarray | None = None,
) -> tuple[Posterior, Precisions]:
    """Return the posterior of all entities, and precisions estimated from their residuals."""
    weighted = prior_means @ precisions.L.astype(np.float32)
    weighted += np.float32(precisions.t) * stats.h
    if covariance is None:
        posterior = Posterior(weighted, posterior_covariance(stats, precisions, weighted))
    else:
        posterior = Posterior(packed.products(covariance, weighted), covariance)
    workers = stats.workers
    L = prior_precision(posterior, prior_means, workers)
    n_entries = float(stats.counts().sum(dtype=np.float64))
    noise = expected_squares(stats, posterior) / max(workers.total(n_entries), 1.0)
    t = float(np.clip(1 / max(noise, 1 / _HIGHEST), _LOWEST, _HIGHEST))
    return posterior, Precisions(L, t)


def posterior_covariance(
    stats: Statistics, precisions: Precisions, vectors: np.ndarray | None = None
) -> np.ndarray:
    """Invert the posterior precision of each entity; multiply `vectors` with it in place."""
    out = np.empty(stats.S.shape, np.float32)
    L, t = precisions.L.astype(np.float32), np.float32(precisions.t)

    def fill(rows: slice) -> None:
        def invert(i: int) -> None:
            start = rows.start + i * _CHUNK
            part = slice(start, min(start + _CHUNK, rows.stop))
            C = np.linalg.inv(L + t * packed.unpack(stats.S[part]))
            out[part] = packed.pack(C)
            if vectors is not None:
                vectors[part] = (C @ vectors[part, :, None])[:, :, 0]

        in_threads(invert, -(-(rows.stop - rows.start) // _CHUNK))

    by_blocks(fill, len(out))
    return out


def expected_squares(stats: Statistics, posterior: Posterior) -> float:
    """Sum the expected squared errors over all observed entries."""
    mean, covariance = posterior.mean, posterior.covariance
    weights = packed.trace_weights(mean.shape[1])

    def expected(rows: slice) -> np.ndarray:
        moments = packed.outer(mean[rows])
        if covariance is not None:
            moments += covariance[rows]
        return (moments * stats.S[rows]) @ weights

    moments = filled(np.empty(len(mean), np.float32), expected)
    fit = np.einsum("mi,mi->", mean, stats.h, dtype=np.float64)
    total = stats.squares.sum() - 2 * fit + moments.sum(dtype=np.float64)
    return stats.workers.total(float(total))


def prior_precision(posterior: Posterior, prior_means: np.ndarray, workers: Workers) -> np.ndarray:
    """Estimate the precision of the prior from how far posteriors lie from the prior means."""
    assert posterior.covariance is not None
    spread = packed.weighted_sum(posterior.covariance)
    for rows in row_blocks(len(prior_means)):
        offset = (posterior.mean[rows] - prior_means[rows]).astype(np.float64)
        spread += offset.T @ offset
    spread = workers.sum(spread) / workers.total(len(prior_means))
    values, vectors = np.linalg.eigh(spread)
    return (vectors / np.clip(values, 1 / _HIGHEST, 1 / _LOWEST)) @ vectors.T
