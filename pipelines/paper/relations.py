"""Linear algebra of similarity matrices: spectra, splits and averages."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh
from scipy.sparse.linalg import eigsh


@dataclass(frozen=True)
class Spectrum:
    """All eigenvalues of a similarity matrix of `size` entries, largest first."""

    values: np.ndarray
    size: int

    def error_symmetric(self, d: int) -> float:
        """Return the least mean squared error of any Y Y^T: d largest positive eigenvalues kept."""
        kept = np.maximum(self.values[:d], 0)
        return float(max((self.values**2).sum() - (kept**2).sum(), 0.0) / self.size)

    def error_free(self, d: int) -> float:
        """Return the least mean squared error of any Y W_l: d largest by magnitude kept."""
        squares = np.sort(self.values**2)[::-1]
        return float(squares[d:].sum() / self.size)

    def report(self, d: int) -> str:
        """Say what the symmetric regulariser would cost at size d."""
        squares = self.values**2
        negative = squares[self.values < 0].sum() / max(squares.sum(), 1e-300)
        return (
            f"eigenvalues from {self.values[0]:.4g} to {self.values[-1]:.4g}, {negative:.1%} of "
            f"the squared spectrum negative; d = {d}: best Y Y^T {self.error_symmetric(d):.4g}, "
            f"best Y W_l {self.error_free(d):.4g} mean squared error"
        )


def spectrum(S: np.ndarray) -> Spectrum:
    """Return the eigenvalues of a complete symmetric S, largest first."""
    return Spectrum(eigh(S.astype(np.float64), eigvals_only=True)[::-1], S.size)


def split_similarity(S: np.ndarray) -> tuple[np.ndarray, np.ndarray, Spectrum]:
    """Split S into S1 - S2, both positive semidefinite; return S1, S2 and the spectrum of S."""
    values, vectors = eigh(S)
    positive = values > 0
    S1 = (vectors[:, positive] * values[positive]) @ vectors[:, positive].T
    S2 = (vectors[:, ~positive] * -values[~positive]) @ vectors[:, ~positive].T
    return S1, S2, Spectrum(values[::-1], S.size)


def combine_relations(relations: Sequence[np.ndarray]) -> np.ndarray:
    """Average similarity matrices, each divided by its largest eigenvalue."""
    # A fixed start vector: the default one is drawn from the global generator.
    start = np.random.default_rng(0).normal(size=len(relations[0]))
    scaled = []
    for S in relations:
        S = S.astype(np.float64)
        scaled.append(S / eigsh(S, k=1, which="LA", return_eigenvectors=False, v0=start)[0])
    return np.mean(scaled, axis=0)
