"""Ridge regressions whose columns count by what they say of held-out rows."""

import numpy as np
import pytest
from scipy import sparse

from simrec.model.lists.column_weights import ColumnRegression, Weighed

N = 400


@pytest.fixture(scope="module")
def planted():
    """A column of tags that tell half of y, a vector that tells little, and y."""
    rng = np.random.default_rng(0)
    tags = (rng.random((N, 30)) < 0.1).astype(np.float32)
    vector = rng.normal(size=(N, 8)).astype(np.float32)
    y = tags @ rng.normal(size=30) + 0.2 * vector @ rng.normal(size=8) + rng.normal(size=N)
    X = sparse.csr_matrix(np.hstack([tags, vector]))
    return X, np.repeat([0, 1], [30, 8]), y.astype(np.float32)


def regression(X, groups, y):
    return ColumnRegression(X, groups, y, np.random.default_rng(1))


def test_weights_are_those_of_a_ridge_regression_with_a_penalty_of_each_column(planted):
    X, groups, y = planted
    weighed = Weighed(2.0, np.array([1, 0.25], np.float32), y)
    found, twice = regression(X, groups, np.column_stack([y, 2 * y])).weights(weighed).T
    D = X.toarray().astype(np.float64)
    D -= D.mean(0)
    A = D.T @ D + np.diag(np.where(groups == 0, 2.0, 8.0))
    expected = np.linalg.solve(A, D.T @ (y - y.mean()))
    np.testing.assert_allclose(found[:-1], expected, atol=2e-3)
    assert found[-1] == pytest.approx(y.mean() - X.toarray().mean(0) @ expected, abs=2e-3)
    np.testing.assert_allclose(twice, 2 * found, atol=2e-3)


def test_noise_of_any_width_changes_nothing(planted):
    X, groups, y = planted
    rng = np.random.default_rng(2)
    plain = regression(X, groups, y)
    best = plain.chosen(plain.plain())
    assert best.columns[0] > 0 and best.error < 0.8 * np.square(y - y.mean()).sum()
    for width in (1, 64, 300):
        noise = rng.normal(size=(N, width)).astype(np.float32) / np.sqrt(width)
        wider = sparse.csr_matrix(sparse.hstack([X, noise]), dtype=np.float32)
        more = regression(wider, np.append(groups, np.full(width, 2)), y)
        chosen = more.chosen(more.plain())
        assert chosen.columns[2] == 0
        np.testing.assert_array_equal(chosen.columns[:2], best.columns)
        assert chosen.penalty == best.penalty


def test_a_column_that_says_all_is_penalised_less(planted):
    X, groups, y = planted
    wider = sparse.csr_matrix(sparse.hstack([X, 0.03 * y[:, None]]), dtype=np.float32)
    more = regression(wider, np.append(groups, 2), y)
    plain = more.plain()
    chosen = more.chosen(plain)
    assert chosen.columns[2] > 1 and chosen.error < 0.5 * plain.error


def test_a_wide_column_that_harms_at_full_weight_is_kept_with_a_smaller_one():
    rng = np.random.default_rng(3)
    tags = (np.random.default_rng(0).random((N, 30)) < 0.1).astype(np.float32)
    wide = rng.normal(size=(N, 200)).astype(np.float32)
    y = 2 * tags @ rng.normal(size=30) + wide @ rng.normal(size=200) / 200**0.5
    y += 0.5 * rng.normal(size=N)
    X, groups = sparse.csr_matrix(np.hstack([tags, wide])), np.repeat([0, 1], [30, 200])
    found = regression(X, groups, y)
    tags_weight, wide_weight = found.telling(found.plain(), [0, 1]).columns
    assert tags_weight == 1 and 0 < wide_weight < 1
