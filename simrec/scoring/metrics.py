"""Metrics: arrays in, arrays out.

Errors of ratings give one number. Ranking metrics give one number per user; they take the *hits*
of a ranked list, a boolean matrix (users x k) that says which ranks hold a relevant item, as
`hits` makes it from the result of a top-k search. Relevance is yes or no.

Examples
--------
>>> rmse(np.array([1.0, 5.0]), np.array([2.0, 4.0]))
1.0
>>> mae(np.array([1.0, 5.0]), np.array([2.0, 5.0]))
0.5
>>> relevant = sparse.csr_matrix(np.array([[0, 1, 0, 1], [1, 0, 0, 0]]))
>>> hits(np.array([[3, 2, 1], [1, 2, -1]]), relevant).tolist()
[[True, False, True], [False, False, False]]
>>> precision_at_k(np.array([[True, False, True, False]]))
array([0.5])
>>> recall_at_k(np.array([[True, False, True, False]]), np.array([4]))
array([0.5])
>>> ndcg_at_k(np.array([[False, True], [True, True]]), np.array([1, 5])).round(4)
array([0.6309, 1.    ])
>>> map_at_k(np.array([[True, False, True]]), np.array([2])).round(4)
array([0.8333])
>>> mrr(np.array([[False, True], [False, False]]))
array([0.5, 0. ])
"""

from typing import Any

import numpy as np
from scipy import sparse

from simrec.errors import InputError


def rmse(ratings: np.ndarray, predictions: np.ndarray) -> float:
    """Return the root of the mean squared error; NaN of no ratings."""
    error = _errors(ratings, predictions)
    return float(np.sqrt(np.mean(error**2))) if len(error) else float("nan")


def mae(ratings: np.ndarray, predictions: np.ndarray) -> float:
    """Return the mean absolute error; NaN of no ratings."""
    error = _errors(ratings, predictions)
    return float(np.mean(np.abs(error))) if len(error) else float("nan")


def hits(ids: np.ndarray, relevant: Any) -> np.ndarray:
    """Say which ranks of each user's list hold a relevant item, as booleans (n_users x k).

    `ids` (n_users x k) are item rows, best first, -1 where a list ends early. Every stored entry of
    the sparse matrix `relevant` (n_users x n_items), whatever its value, is a relevant item.
    """
    matrix, n_items = sparse.csr_matrix(relevant), relevant.shape[1]
    if len(ids) != matrix.shape[0] or ids.max(initial=-1) >= n_items:
        raise InputError(
            f"ids (shape {ids.shape}, up to {ids.max(initial=-1)}) are not those of relevant items "
            f"of shape {matrix.shape}: one row for each of its rows, columns of it"
        )
    users = np.arange(len(ids), dtype=np.int64)
    stored = np.repeat(users, np.diff(matrix.indptr)) * n_items + matrix.indices
    return np.isin(users[:, None] * n_items + ids, stored) & (ids >= 0)


def precision_at_k(hit: np.ndarray) -> np.ndarray:
    """Return the share of the k ranks that are hits; a rank left empty is a miss."""
    return hit.mean(axis=1)


def recall_at_k(hit: np.ndarray, n_relevant: np.ndarray) -> np.ndarray:
    """Return the share of each user's relevant items that is in the list.

    NaN for a user without relevant items, here and in the metrics below: leave such users out.
    """
    return _divide(hit.sum(axis=1), n_relevant)


def ndcg_at_k(hit: np.ndarray, n_relevant: np.ndarray) -> np.ndarray:
    """Return the discounted gain of the hits (1 / log2(rank + 1)) relative to the best list.

    The best list has all relevant items first, as many as fit into k ranks.
    """
    discount = 1 / np.log2(np.arange(2, hit.shape[1] + 2))
    ideal = np.concatenate([[0.0], np.cumsum(discount)])
    return _divide(hit @ discount, ideal[np.minimum(n_relevant, hit.shape[1])])


def map_at_k(hit: np.ndarray, n_relevant: np.ndarray) -> np.ndarray:
    """Return each user's average precision; its mean over users is the MAP.

    The precision at the rank of each hit, summed, over the number of relevant items or k,
    whichever is smaller: 1 for the best possible list.
    """
    precision = np.cumsum(hit, axis=1) / np.arange(1, hit.shape[1] + 1)
    return _divide((precision * hit).sum(axis=1), np.minimum(n_relevant, hit.shape[1]))


def mrr(hit: np.ndarray) -> np.ndarray:
    """Return the reciprocal rank of each user's first hit, 0 without one."""
    return np.where(hit.any(axis=1), 1 / (np.argmax(hit, axis=1) + 1), 0.0)


def _errors(ratings: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    ratings, predictions = np.asarray(ratings), np.asarray(predictions)
    if ratings.shape != predictions.shape or ratings.ndim != 1:
        raise InputError(
            "ratings and predictions must be two vectors of equal length, "
            f"got shapes {ratings.shape} and {predictions.shape}"
        )
    missing = ~np.isfinite(predictions)
    if missing.any():
        raise InputError(
            f"{int(missing.sum())} of {len(predictions)} predictions are missing (NaN or "
            f"infinite; first at position {int(np.argmax(missing))}): an error over the others "
            "would not compare with anything"
        )
    return predictions.astype(np.float64) - ratings


def _divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    out = np.full(len(numerator), np.nan)
    return np.divide(numerator, denominator, out=out, where=denominator > 0)
