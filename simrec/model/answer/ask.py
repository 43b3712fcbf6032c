"""What to ask a newcomer: the items whose ratings would tell most of all others."""

from __future__ import annotations

import numpy as np


def questions(
    unit: np.ndarray, rated: np.ndarray, chances: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Choose items one by one; return their places, and the share of variance each takes away.

    Parameters
    ----------
    unit : numpy.ndarray
        Unit vectors of the items, whose products are correlations of scores: of predicted ratings
        and of uptake, side by side. In these coordinates users have unit covariance.
    rated : numpy.ndarray
        Those of the items that the user has rated.
    chances : numpy.ndarray
        The chance that the user knows each item.
    k : int
        How many.

    Notes
    -----
    A rating with as much noise as signal takes ``C v v' C / (1 + v' C v)`` from the posterior
    covariance C of the user. It counts by what that takes from the variance of the scores of all
    these items, times the chance that the user can answer.
    """
    unit, rated = unit.astype(np.float64), rated.astype(np.float64)
    C = np.linalg.inv(np.eye(unit.shape[1]) + rated.T @ rated)
    moments = unit.T @ unit / max(len(unit), 1)
    before = max(float(np.sum(C * moments)), 1e-12)
    chosen: list[int] = []
    shares: list[float] = []
    free = np.ones(len(unit), bool)
    for _ in range(min(k, len(unit))):
        CV = unit @ C
        gains = np.einsum("ij,ij->i", CV @ moments, CV) / (1 + np.einsum("ij,ij->i", CV, unit))
        best = int(np.argmax(np.where(free, gains * chances, -np.inf)))
        chosen.append(best)
        shares.append(float(gains[best]) / before)
        free[best] = False
        C = C - np.outer(CV[best], CV[best]) / (1 + CV[best] @ unit[best])
    return np.array(chosen, np.int64), np.array(shares)
