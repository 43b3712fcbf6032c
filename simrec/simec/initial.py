"""The last layer W_l: as it is given, and where it starts."""

from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.linalg import eigh

from simrec.errors import InputError
from simrec.simec.inputs import Problem, Targets
from simrec.simec.linear_algebra import randomised_svd


def first_last_layer(problem: Problem, init: str) -> np.ndarray:
    """Return W_l^T where training starts: as given, or else as `init` says."""
    targets, d = problem.targets, problem.params["embedding_dim"]
    if problem.last_layer is not None:
        return check_last_layer(problem.last_layer, d, targets)
    if init == "random":
        return _random(targets.matrix.shape[1], d, problem.rng)
    return _spectral(problem, d, problem.params["init_rows"])


def _random(n_columns: int, d: int, rng: np.random.Generator) -> np.ndarray:
    return rng.normal(0, 0.1, (n_columns, d)).astype(np.float32)


def _spectral(problem: Problem, d: int, n_rows: int) -> np.ndarray:
    """Return W_l^T from a truncated decomposition of at most `n_rows` sampled rows.

    A symmetric S (`rows_of_targets` given) uses the d largest positive eigenvalues of the block of
    sampled targets, W_l = L^{1/2} U^T, and Nystroem's formula for the other targets. Any other R
    uses the truncated SVD of the sampled rows, W_l = s^{1/2} V^T, scaled to all rows.
    """
    targets, rng = problem.targets, problem.rng
    if problem.rows_of_targets is not None:
        n = targets.n_columns
        some = np.sort(rng.permutation(n)[: min(n_rows, n)])
        parts = []
        for r in range(targets.n_relations):
            block = targets.relation(r)[problem.rows_of_targets[some]]
            rows = _linear_targets(problem, block)
            rows = rows.toarray() if sp.issparse(rows) else rows
            values, vectors = _top_eigen(rows[:, some], d)
            parts.append((rows.T @ vectors) / np.sqrt(values))
        return np.concatenate(parts).astype(np.float32)
    m = targets.n_rows
    some = np.sort(rng.permutation(m)[: min(n_rows, m)])
    rows = _linear_targets(problem, targets.matrix[some])
    rank = min(d, *[s - 1 for s in rows.shape])
    _, values, vectors = randomised_svd(rows, max(rank, 1), rng)
    # Singular values grow with the square root of the number of rows.
    scaled = vectors.T * np.sqrt(values * np.sqrt(m / len(some)))
    last = _random(rows.shape[1], d, rng)
    last[:, : scaled.shape[1]] = scaled
    return last


def _linear_targets(problem: Problem, matrix: Any) -> Any:
    """Return rows of R on the scale of z: (R - g(0)) / g'(0), with zero where missing.

    Observed entries are divided by the observed share, so that sums over rows keep their
    expectation.
    """
    at_zero, slope = float(problem.output(np.zeros(1))[0]), problem.output.slope()
    if sp.issparse(matrix):
        share = matrix.nnz / (matrix.shape[0] * matrix.shape[1])
        matrix = matrix.copy()
        matrix.data = (matrix.data - at_zero) / (slope * max(share, 1e-12))
        return matrix
    if problem.targets.complete:
        return (matrix - at_zero) / slope
    share = float((~np.isnan(matrix)).mean())
    return np.nan_to_num(matrix - at_zero, nan=0.0) / (slope * max(share, 1e-12))


def _top_eigen(block: np.ndarray, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the d algebraically largest eigenvalues and their vectors, largest first."""
    n = len(block)
    block = (block + block.T).astype(np.float64) / 2
    values, vectors = eigh(block, subset_by_index=[max(0, n - d), n - 1])
    values, vectors = values[::-1], vectors[:, ::-1]
    # W_l^T W_l has no negative eigenvalues: such directions start small.
    values = np.maximum(values, max(float(values[0]), 1e-12) * 1e-6)
    pad = max(d - n, 0)
    return np.pad(values, (0, pad), constant_values=values[0]), np.pad(vectors, ((0, 0), (0, pad)))


def check_last_layer(last_layer: Any, d: int, targets: Targets) -> np.ndarray:
    """Return a given W_l (d x n, or d x n x k) as the network keeps it: a row per column of R."""
    given, k = np.asarray(last_layer, dtype=np.float32), targets.n_relations
    expected = (d, targets.n_columns, k) if k > 1 else (d, targets.n_columns)
    if given.shape != expected:
        raise InputError(
            f"last_layer must be {' x '.join(map(str, expected))} (embedding_dim x targets"
            f"{' x relations' if k > 1 else ''}), got shape {given.shape}"
        )
    if not np.isfinite(given).all():
        raise InputError("last_layer holds NaN or infinite values")
    return np.ascontiguousarray(given.T.reshape(-1, d))


def last_layer_from_columns(columns: np.ndarray, n_relations: int) -> np.ndarray:
    """Return W_l (d x n, or d x n x k) from the (k n) x d rows that the network keeps."""
    if n_relations == 1:
        return columns.T
    return columns.reshape(n_relations, -1, columns.shape[1]).transpose(2, 1, 0)
