"""Linear algebra of similarity matrices: spectra, splits, several relations, singular vectors."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh
from scipy.sparse.linalg import eigsh

from simrec.errors import InputError


@dataclass(frozen=True)
class Spectrum:
    """All eigenvalues of a similarity matrix of `size` entries, largest first."""

    values: np.ndarray
    size: int

    @property
    def negative_share(self) -> float:
        """Share of the squared spectrum that is negative: what Y Y^T can never express."""
        squares = self.values**2
        return float(squares[self.values < 0].sum() / max(squares.sum(), 1e-300))

    def error_symmetric(self, d: int) -> float:
        """Return the least mean squared error of any Y Y^T: d largest positive eigenvalues kept."""
        kept = np.maximum(self.values[:d], 0)
        return float(max((self.values**2).sum() - (kept**2).sum(), 0.0) / self.size)

    def error_free(self, d: int) -> float:
        """Return the least mean squared error of any Y W_l: d largest by magnitude kept."""
        squares = np.sort(self.values**2)[::-1]
        return float(squares[d:].sum() / self.size)

    def report(self, d: int) -> str:
        """Return a few lines on whether the symmetric regulariser would hurt at size d."""
        symmetric, free = self.error_symmetric(d), self.error_free(d)
        verdict = (
            "the symmetric regulariser costs accuracy: leave it out and use Y W_l"
            if symmetric > 1.1 * free + 1e-12
            else "the symmetric regulariser costs next to nothing"
        )
        return (
            f"eigenvalues from {self.values[0]:.4g} to {self.values[-1]:.4g}, "
            f"{int((self.values < -1e-9 * np.abs(self.values).max()).sum())} negative "
            f"({self.negative_share:.1%} of the squared spectrum)\n"
            f"d = {d}: best Y Y^T {symmetric:.4g}, best Y W_l {free:.4g} mean squared error\n"
            f"{verdict}"
        )


def _check_similarity(S: np.ndarray) -> np.ndarray:
    S = np.asarray(S, dtype=np.float64)
    if S.ndim != 2 or S.shape[0] != S.shape[1]:
        raise InputError(f"a similarity matrix is square, got shape {S.shape}")
    if not np.isfinite(S).all():
        raise InputError("the spectrum needs a complete matrix, but S holds NaN or infinite values")
    scale = np.abs(S).max()
    if np.abs(S - S.T).max() > 1e-6 * max(scale, 1e-12):
        raise InputError("the spectrum is of a symmetric matrix, but S differs from its transpose")
    return S


def spectrum(S: np.ndarray) -> Spectrum:
    """Return the eigenvalues of a complete symmetric S, largest first."""
    S = _check_similarity(S)
    return Spectrum(eigh(S, eigvals_only=True)[::-1], S.size)


def split_similarity(S: np.ndarray) -> tuple[np.ndarray, np.ndarray, Spectrum]:
    """Split S into S1 - S2, both positive semidefinite; return S1, S2 and the spectrum of S."""
    S = _check_similarity(S)
    values, vectors = eigh(S)
    positive = values > 0
    S1 = (vectors[:, positive] * values[positive]) @ vectors[:, positive].T
    S2 = (vectors[:, ~positive] * -values[~positive]) @ vectors[:, ~positive].T
    return S1, S2, Spectrum(values[::-1], S.size)


def largest_eigenvalue(S: np.ndarray) -> float:
    """Return the largest eigenvalue of a symmetric matrix; missing entries count as zero."""
    filled = np.nan_to_num(np.asarray(S, dtype=np.float64))
    if len(filled) < 3:
        return float(eigh(filled, eigvals_only=True)[-1])
    # A fixed start vector: the default one is drawn from the global generator.
    start = np.random.default_rng(0).normal(size=len(filled))
    return float(eigsh(filled, k=1, which="LA", return_eigenvectors=False, v0=start)[0])


def combine_relations(relations: Sequence[np.ndarray]) -> np.ndarray:
    """Average several similarity matrices, each divided by its largest eigenvalue.

    A missing entry (NaN) of one relation leaves the average of the others; an entry missing in
    all of them stays missing.
    """
    if not relations:
        raise InputError("combine_relations needs at least one matrix")
    shape = np.shape(relations[0])
    total, seen = np.zeros(shape), np.zeros(shape)
    for number, relation in enumerate(relations):
        S = np.asarray(relation, dtype=float)
        if S.shape != shape or S.ndim != 2 or shape[0] != shape[1]:
            raise InputError(
                f"relations must be square and of one shape {shape}, number {number} is {S.shape}"
            )
        scale = largest_eigenvalue(S)
        if scale <= 0:
            raise InputError(f"relation {number} has no positive eigenvalue to divide by")
        known = ~np.isnan(S)
        total += np.where(known, S, 0) / scale
        seen += known
    return np.divide(total, seen, out=np.full(shape, np.nan), where=seen > 0)


def singular_vectors(Y: np.ndarray, W: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return U, s (largest first) and V^T with ``U * s @ Vt = Y W``, without forming the product.

    Y are embeddings (``model.transform(X)``), W a last layer (``model.last_layer_``).
    """
    left, a = np.linalg.qr(np.asarray(Y, dtype=np.float64))
    right, b = np.linalg.qr(np.asarray(W, dtype=np.float64).T)
    u, s, vt = np.linalg.svd(a @ b.T)
    return left @ u, s, vt @ right.T
