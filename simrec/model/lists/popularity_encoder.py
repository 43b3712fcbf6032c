"""How popular a new item will be, from its features."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from simrec.model.head import Encoder
from simrec.model.lists.column_weights import ColumnRegression
from simrec.model.lists.uptake.encoders import idf_of

# Items from which on features can tell anything.
_FEW = 10


def popularity_encoder(
    X: sparse.csr_matrix, groups: np.ndarray, logs: np.ndarray, rng: np.random.Generator | None
) -> Encoder:
    """Fit an encoder whose second coordinate is the log popularity, and the third a constant.

    The penalty of each column, and whether features are weighed by rarity, are chosen on items held
    out in turn; the mean is kept where features do not help.

    Parameters
    ----------
    X : csr_matrix
        Feature rows of items.
    groups : numpy.ndarray
        The column of each feature.
    logs : numpy.ndarray
        Their log popularity.
    rng : numpy.random.Generator or None
        Source of the folds; None for the mean alone, where no new item will be ranked.
    """
    mean = float(logs.mean())
    weights = np.zeros((X.shape[1] + 1, 3), np.float32)
    weights[-1] = 0, mean, 1
    encoder = Encoder(weights)
    if rng is None or not X.shape[1] or len(logs) < _FEW or logs.std() == 0:
        return encoder
    seed = rng.integers(1 << 31)
    tried = []
    for idf in (None, idf_of(X)):
        Z = Encoder(weights, idf=idf).inputs(X).tocsr().astype(np.float32)
        regression = ColumnRegression(Z, groups, logs, np.random.default_rng(seed))
        tried.append((regression.plain(), idf, regression))
    plain, idf, regression = min(tried, key=lambda one: one[0].error)
    chosen = regression.chosen(plain)
    if chosen.error < float(np.square(logs - mean, dtype=np.float64).sum()):
        weights[:, 1] = regression.weights(chosen)
        encoder.idf = idf
    return encoder
