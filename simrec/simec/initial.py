"""Start values of the last layer: random, or a truncated decomposition of sampled rows."""

from typing import Any

import numpy as np
import scipy.sparse as sp

from simrec.scoring.output import Output
from simrec.simec.inputs import Targets

INITS = ("random", "spectral", "least_squares")


def random_last_layer(n_columns: int, d: int, rng: np.random.Generator) -> np.ndarray:
    """Return W_l^T with small normal entries."""
    return rng.normal(0, 0.1, (n_columns, d)).astype(np.float32)


def _linear_targets(targets: Targets, output: Output, rows: np.ndarray) -> Any:
    """Return sampled rows of R on the scale of z: (R - g(0)) / g'(0), with zero where missing.

    Observed entries are divided by the observed share, so that sums over rows keep their
    expectation.
    """
    matrix = targets.matrix[rows]
    at_zero = float(output(np.zeros(1))[0])
    slope = output.slope()
    if sp.issparse(matrix):
        share = matrix.nnz / (matrix.shape[0] * matrix.shape[1])
        matrix = matrix.copy()
        matrix.data = (matrix.data - at_zero) / (slope * max(share, 1e-12))
        return matrix
    if targets.complete:
        return (matrix - at_zero) / slope
    share = float((~np.isnan(matrix)).mean())
    return np.nan_to_num(matrix - at_zero, nan=0.0) / (slope * max(share, 1e-12))


def spectral_last_layer(
    targets: Targets,
    d: int,
    output: Output,
    rows_of_targets: np.ndarray | None,
    n_rows: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return W_l^T from a truncated decomposition of at most `n_rows` sampled rows.

    A symmetric S (`rows_of_targets` given) uses the d largest positive eigenvalues of the block of
    sampled targets, W_l = L^{1/2} U^T, and Nystroem's formula for the other targets. Any other R
    uses the truncated SVD of the sampled rows, W_l = s^{1/2} V^T, scaled to all rows.
    """
    if rows_of_targets is not None:
        n = targets.n_columns
        some = np.sort(rng.permutation(n)[: min(n_rows, n)])
        parts = []
        for r in range(targets.n_relations):
            block = Targets(targets.relation(r), n, 1, targets.complete)
            rows = np.asarray(_as_dense(_linear_targets(block, output, rows_of_targets[some])))
            values, vectors = _top_eigen(rows[:, some], d)
            parts.append((rows.T @ vectors) / np.sqrt(values))
        return np.concatenate(parts).astype(np.float32)
    m = targets.n_rows
    some = np.sort(rng.permutation(m)[: min(n_rows, m)])
    rows = _linear_targets(targets, output, some)
    rank = min(d, *[s - 1 for s in rows.shape])
    _, values, vectors = _truncated_svd(rows, max(rank, 1), rng)
    # Singular values grow with the square root of the number of rows.
    scaled = vectors.T * np.sqrt(values * np.sqrt(m / len(some)))
    last = random_last_layer(rows.shape[1], d, rng)
    last[:, : scaled.shape[1]] = scaled
    return last


def _as_dense(matrix: Any) -> np.ndarray:
    return np.asarray(matrix.toarray() if sp.issparse(matrix) else matrix)


def _top_eigen(block: np.ndarray, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the d algebraically largest eigenvalues and their vectors, largest first."""
    from scipy.linalg import eigh

    n = len(block)
    block = (block + block.T).astype(np.float64) / 2
    values, vectors = eigh(block, subset_by_index=[max(0, n - d), n - 1])
    values, vectors = values[::-1], vectors[:, ::-1]
    # W_l^T W_l has no negative eigenvalues: such directions start small.
    values = np.maximum(values, max(float(values[0]), 1e-12) * 1e-6)
    if len(values) < d:
        pad = d - len(values)
        values = np.concatenate([values, np.full(pad, values[0])])
        vectors = np.concatenate([vectors, np.zeros((n, pad))], axis=1)
    return values, vectors


def _truncated_svd(
    matrix: Any, rank: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a truncated SVD by randomised subspace iteration, in O(entries x d)."""
    probe = rng.normal(size=(matrix.shape[1], rank + 10)).astype(np.float32)
    basis = np.asarray(matrix @ probe)
    for _ in range(3):
        basis, _ = np.linalg.qr(basis)
        basis, _ = np.linalg.qr(np.asarray(matrix.T @ basis))
        basis = np.asarray(matrix @ basis)
    basis, _ = np.linalg.qr(basis)
    u, s, vt = np.linalg.svd(np.asarray(basis.T @ matrix), full_matrices=False)
    return (basis @ u)[:, :rank], s[:rank], vt[:rank]
