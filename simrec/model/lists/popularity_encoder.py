"""How popular a new item will be, from its features."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from simrec.model.head import Encoder
from simrec.model.lists.uptake.encoders import Regression, idf_of

_PENALTIES = tuple(0.1 * 4.0**k for k in range(7))
_FOLDS = 5


def popularity_encoder(X: sparse.csr_matrix, logs: np.ndarray, rng: np.random.Generator) -> Encoder:
    """Fit an encoder whose second coordinate is the log popularity, and the third a constant.

    The penalty, and whether features are weighed by rarity, are chosen on items held out in turn;
    the mean is kept where features do not help.

    Parameters
    ----------
    X : csr_matrix
        Feature rows of items.
    logs : numpy.ndarray
        Their log popularity.
    rng : numpy.random.Generator
        Source of the folds.
    """
    mean = float(logs.mean())
    weights = np.zeros((X.shape[1] + 1, 3), np.float32)
    weights[-1] = 0, mean, 1
    encoder = Encoder(weights)
    n = len(logs)
    if not X.shape[1] or n < 2 * _FOLDS or logs.std() == 0:
        return encoder
    off = (logs - mean).astype(np.float32)[:, None]
    fold = rng.permutation(n) % _FOLDS
    best = float(np.square(off, dtype=np.float64).sum())
    for idf in (None, idf_of(X)):
        errors = np.zeros(len(_PENALTIES))
        for k in range(_FOLDS):
            known, held_out = fold != k, X[fold == k]
            made = Regression(X[known], idf is not None, _PENALTIES[0], idf=idf, steps=40)
            for place, penalty in enumerate(_PENALTIES):
                made = made.with_penalty(penalty)
                left = off[~known] - made.encoder(off[known])(held_out)
                errors[place] += float(np.square(left, dtype=np.float64).sum())
        for error, penalty in zip(errors, _PENALTIES, strict=True):
            if error < best:
                best, chosen = error, (idf, penalty)
                encoder = Encoder(weights, idf=idf)
    if best < float(np.square(off, dtype=np.float64).sum()):
        idf, penalty = chosen
        whole = Regression(X, idf is not None, penalty, idf=idf, steps=40).encoder(off)
        weights[:, 1] += whole.weights[:, 0]
    return encoder
