"""Item embeddings of implicit feedback: leading eigenvectors."""

import numpy as np
import pytest
from scipy import sparse
from workers import in_threads

from simrec.model.lists.axes import Axes, find_axes, item_scale

N_ROWS, N_ITEMS = 300, 120


@pytest.fixture(scope="module")
def rows():
    """Histories of users of five groups of items, so that five eigenvalues stand out."""
    rng = np.random.default_rng(0)
    own = rng.integers(0, 5, (N_ROWS, 1)) == np.arange(N_ITEMS) % 5
    popularity = np.linspace(0.2, 1, N_ITEMS)
    return sparse.csr_matrix(
        rng.random(own.shape) < np.where(own, 0.6, 0.04) * popularity, dtype="f4"
    )


def counts_of(rows):
    return np.asarray(rows.sum(0)).ravel()


def exact(rows):
    """All eigenvalues and eigenvectors of the Gram matrix, largest first."""
    Y = rows.toarray() * item_scale(counts_of(rows))
    e, V = np.linalg.eigh((Y.T @ Y).astype(np.float64))
    return e[::-1], V[:, ::-1]


def test_power_iteration_finds_the_leading_eigenvectors(rows):
    found = find_axes(rows, counts_of(rows), 5, np.random.default_rng(1))
    e, V = exact(rows)
    np.testing.assert_allclose(found.e, e[:5], rtol=1e-4)
    np.testing.assert_allclose(np.abs((found.V * V[:, :5]).sum(0)), 1, atol=1e-4)


@pytest.mark.parametrize("n_rows", [N_ROWS, 90])
def test_small_sides_are_exact(rows, n_rows):
    """More coordinates than half of the items or of the rows."""
    some = rows[:n_rows]
    d = 70 if n_rows == N_ROWS else 50
    found = find_axes(some, counts_of(some), d, np.random.default_rng(1))
    e, V = exact(some)
    np.testing.assert_allclose(found.e, e[:d], rtol=1e-3)
    gram = (V[:, :d] * e[:d]) @ V[:, :d].T
    np.testing.assert_allclose((found.V * found.e) @ found.V.T, gram, atol=1e-3)


@pytest.mark.parametrize("d", [5, 70])
def test_workers_divided_equal_one(rows, d):
    counts = counts_of(rows)
    one = find_axes(rows, counts, d, np.random.default_rng(1))

    def work(workers):
        own = rows[workers.rank * 100 :][: 100 if workers.rank < 2 else None]
        return find_axes(own, counts, d, np.random.default_rng(1), workers)

    for found in in_threads(3, work):
        assert isinstance(found, Axes), found
        np.testing.assert_allclose(found.e, one.e, rtol=1e-4)
        product, expected = ((axes.V * axes.e) @ axes.V.T for axes in (found, one))
        np.testing.assert_allclose(product, expected, atol=2e-3)


def test_histories_and_items_are_inverse_scales(rows):
    axes = find_axes(rows, counts_of(rows), 5, np.random.default_rng(1))
    np.testing.assert_allclose(axes.inputs.T @ axes.items, np.eye(5), atol=1e-4)
    np.testing.assert_allclose(axes.scale, counts_of(rows) ** -0.25, rtol=1e-5)


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (2, 40)])
def test_hardly_any_rows_or_items(shape):
    axes = find_axes(
        sparse.csr_matrix(np.ones(shape, "f4")), np.ones(shape[1]), 8, np.random.default_rng(0)
    )
    assert axes.V.shape == (shape[1], len(axes.e))
    assert np.isfinite(axes.V).all() and (axes.e > 0).all()
