"""The solvers that everything linear shares: conjugate gradients, randomised SVD."""

from collections.abc import Callable
from typing import Any

import numpy as np

Map = Callable[[np.ndarray], np.ndarray]


def inner_product(a: np.ndarray, b: np.ndarray) -> Any:
    """Return the scalar product of two arrays of the same shape, in double precision."""
    return np.einsum("i,i->", a.ravel(), b.ravel(), dtype=np.float64)


def by_column(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the scalar products of columns: an inner product that solves each on its own."""
    return np.einsum("ij,ij->j", a, b)[None]


def conjugate_gradients(
    normal: Map,
    right: np.ndarray,
    precondition: Map,
    start: np.ndarray | None = None,
    iterations: int = 20,
    tolerance: float = 1e-4,
    inner: Callable[[np.ndarray, np.ndarray], Any] = inner_product,
) -> np.ndarray:
    """Solve ``normal(x) = right`` for a symmetric positive definite map, from `start` or zero.

    `precondition` is an approximate inverse of the map. Stops after `iterations` steps, or where
    the preconditioned residual is below `tolerance`, relative to the right-hand side. An `inner`
    product that returns an array, which broadcasts against `right`, solves several systems side by
    side: each takes steps of its own, and stops on its own.

    >>> A = np.array([[2.0, 1.0], [1.0, 3.0]])
    >>> conjugate_gradients(lambda x: A @ x, np.array([3.0, 4.0]), lambda r: r).round(4)
    array([1., 1.])
    """
    x, residual = np.zeros_like(right), right.copy()
    if start is not None:
        x = start.copy()
        residual -= normal(x)
    goal = tolerance**2 * inner(right, precondition(right))
    direction = precondition(residual)
    size = inner(residual, direction)
    for _ in range(iterations):
        active = size > goal
        if not np.any(active):
            break
        image = normal(direction)
        curvature = inner(direction, image)
        step = np.where(active, size / np.where(curvature > 0, curvature, 1), 0)
        step = step.astype(right.dtype)
        x += step * direction
        residual -= step * image
        scaled = precondition(residual)
        last, size = size, np.where(active, inner(residual, scaled), size)
        ratio = np.where(active, size / np.where(last > 0, last, 1), 0).astype(right.dtype)
        direction = scaled + ratio * direction
    return x


def randomised_svd(
    matrix: Any, rank: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a truncated SVD by randomised subspace iteration, in O(entries x rank).

    >>> rng = np.random.default_rng(0)
    >>> A = rng.normal(size=(30, 3)) @ rng.normal(size=(3, 20))
    >>> u, s, vt = randomised_svd(A, 3, rng)
    >>> bool(np.allclose((u * s) @ vt, A, atol=1e-4))
    True
    """
    probe = rng.normal(size=(matrix.shape[1], rank + 10)).astype(np.float32)
    basis = np.asarray(matrix @ probe)
    for _ in range(3):
        basis, _ = np.linalg.qr(basis)
        basis, _ = np.linalg.qr(np.asarray(matrix.T @ basis))
        basis = np.asarray(matrix @ basis)
    basis, _ = np.linalg.qr(basis)
    u, s, vt = np.linalg.svd(np.asarray(basis.T @ matrix), full_matrices=False)
    return (basis @ u)[:, :rank], s[:rank], vt[:rank]
