"""Every model a similarity encoder can be, against linear algebra where that knows the answer."""

import numpy as np
import pytest
import scipy.sparse as sp

from simrec import SimEc
from simrec.errors import InputError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 8)).astype(np.float32)
S = (X @ X.T / 8).astype(np.float32)  # rank 8, positive semidefinite
R = RNG.normal(size=(30, 6)).astype(np.float32) @ RNG.normal(size=(6, 20)).astype(np.float32)


def exact(**changes):
    return SimEc(**{"embedding_dim": 4, "solver": "lbfgs", "epochs": 400, **changes})


def best_rank(matrix, d):
    u, s, vt = np.linalg.svd(matrix)
    return (u[:, :d] * s[:d]) @ vt[:d]


def mask(matrix, share, seed=1):
    hidden = np.random.default_rng(seed).random(matrix.shape) < share
    if matrix.shape[0] == matrix.shape[1]:
        hidden = np.triu(hidden) | np.triu(hidden).T
    return np.where(hidden, np.nan, matrix).astype(np.float32)


# 1. The singular value decomposition


@pytest.mark.parametrize("init", ["random", "spectral", "least_squares"])
def test_identity_input_gives_the_best_low_rank_approximation(init):
    model = exact(init=init).fit(None, R)
    np.testing.assert_allclose(model.predict(), best_rank(R, 4), atol=0.02)


def test_missing_values_are_filled_in():
    model = exact(embedding_dim=6, init="least_squares", sweeps=40, l2=1e-6, epochs=200)
    model.fit(None, mask(R, 0.2))
    error = model.predict() - R
    assert np.sqrt(np.mean(error**2)) < 0.1 * R.std()


# 2. The eigendecomposition


@pytest.mark.parametrize("features", [None, X])
def test_symmetric_regulariser_gives_the_kernel_pca_embedding(features):
    model = exact(symmetric=1.0, epochs=300).fit(features, S)
    best = best_rank(S, 4)
    Y, W = model.transform(features), model.last_layer_
    for product in (Y @ W, W.T @ W, Y @ Y.T):
        np.testing.assert_allclose(product, best, atol=0.05)


def test_least_squares_sweeps_solve_the_linear_encoder():
    model = SimEc(4, init="least_squares", sweeps=60, epochs=0, symmetric=1.0).fit(X, S)
    np.testing.assert_allclose(model.similarity(X), best_rank(S, 4), atol=0.02)


@pytest.mark.slow
def test_symmetric_by_batches_of_rows():
    model = SimEc(4, symmetric=1.0, epochs=100, batch_size=25, learning_rate=0.05).fit(X, S)
    best = np.mean((best_rank(S, 4) - S) ** 2)
    assert np.mean((model.similarity(X) - S) ** 2) < 1.1 * best


@pytest.mark.parametrize("optimizer", ["lbfgs", "adam"])
@pytest.mark.parametrize("option", ["symmetric", "self_similarity"])
def test_symmetric_terms_change_the_result(option, optimizer):
    plain = exact(epochs=5, solver=optimizer).fit(X, S).transform(X)
    other = exact(epochs=5, solver=optimizer, **{option: 1.0}).fit(X, S).transform(X)
    assert not np.allclose(plain, other, atol=1e-4)


# 3. and 4. Out of sample, with fewer targets


@pytest.mark.parametrize("init", ["random", "least_squares"])
def test_few_targets_are_enough_for_all_rows(init):
    model = exact(embedding_dim=8, symmetric=1.0, init=init, epochs=200)
    model.fit(X[:40], S[:40, :40], targets=20)
    assert model.last_layer_.shape == (8, 20)
    np.testing.assert_allclose(model.predict(X[40:]), S[40:, :20], atol=0.1)
    np.testing.assert_allclose(model.similarity(X[40:], X[:40]), S[40:, :40], atol=0.15)


def test_targets_first_or_given():
    first = exact(epochs=3).fit(X, S, targets=5)
    np.testing.assert_array_equal(first.targets_, np.arange(5))
    given = exact(epochs=3).fit(X, S, targets=[7, 3, 9])
    np.testing.assert_array_equal(given.targets_, [7, 3, 9])
    # Columns chosen beforehand: `targets` says which rows they are.
    chosen = exact(symmetric=1.0, epochs=3).fit(X, S[:, [7, 3, 9]], targets=[7, 3, 9])
    again = exact(symmetric=1.0, epochs=3).fit(X, S, targets=[7, 3, 9])
    np.testing.assert_allclose(chosen.transform(X), again.transform(X), atol=1e-6)


# 5. Missing values


@pytest.mark.parametrize("sparse", [False, True])
def test_most_of_s_missing(sparse):
    rng = np.random.default_rng(3)
    many = rng.normal(size=(250, 8)).astype(np.float32)
    full = many @ many.T / 8
    seen = mask(full, 0.9)
    if sparse:
        known = ~np.isnan(seen)
        seen = sp.csr_matrix((seen[known], np.nonzero(known)), seen.shape)
    model = SimEc(8, init="least_squares", sweeps=20, epochs=0, symmetric=1.0).fit(many, seen)
    assert np.mean((model.similarity(many) - full) ** 2) < 0.02 * full.var()


def test_least_squares_with_missing_values_minimises_the_loss():
    seen = mask(R, 0.3)
    start = exact(init="least_squares", sweeps=100, epochs=0).fit(None, seen)
    known = ~np.isnan(seen)
    error = np.mean((start.predict() - seen)[known] ** 2)
    reference = exact(epochs=500).fit(None, seen).history_[-1]["error"]
    assert error < 1.2 * reference + 1e-4


# 7. Similarities that are not metric


def test_negative_eigenvalues_are_captured_by_the_last_layer():
    signs = np.array([1, 1, -1, -1])
    F = RNG.normal(size=(40, 4)).astype(np.float32)
    T = (F * signs) @ F.T
    free = exact(epochs=300).fit(F, T)
    np.testing.assert_allclose(free.predict(F), T, atol=0.05)


# 8. Several relations


def several():
    A, B = RNG.normal(size=(2, 8, 8))
    return np.stack([X @ (A @ A.T) @ X.T, X @ (B @ B.T) @ X.T], axis=2).astype(np.float32) / 64


def test_stacked_relations_share_one_embedding():
    T = several()
    model = exact(embedding_dim=8, epochs=300).fit(X, T)
    assert model.last_layer_.shape == (8, 50, 2)
    np.testing.assert_allclose(model.predict(X), T, atol=0.05 * np.abs(T).max())


def test_relations_missing_in_different_places_sparse_and_dense():
    T = several()
    T[:, :, 0] = mask(T[:, :, 0], 0.4, seed=4)
    T[:, :, 1] = mask(T[:, :, 1], 0.4, seed=5)
    parts = []
    for r in range(2):
        known = ~np.isnan(T[:, :, r])
        parts.append(sp.csr_matrix((T[:, :, r][known], np.nonzero(known)), T.shape[:2]))
    a, b = (exact(epochs=6).fit(X, targets).predict(X) for targets in (T, parts))
    assert a.shape == (50, 50, 2)
    np.testing.assert_allclose(a, b, atol=2e-3)


def test_frozen_last_layer_of_two_relations():
    T = several()
    first = exact(epochs=5).fit(X, T)
    second = exact(epochs=5).fit(None, T, last_layer=first.last_layer_)
    np.testing.assert_array_equal(second.last_layer_, first.last_layer_)


# 12. Why


def test_relevance_of_a_linear_encoder_is_exact():
    model = exact(epochs=5).fit(X, S)
    relevance, base = model.explain(X, target=3)
    kernel, bias = model.encoder_.get_weights()
    np.testing.assert_allclose(relevance, X * (kernel @ model.last_layer_[:, 3]), rtol=1e-5)
    np.testing.assert_allclose(base, bias @ model.last_layer_[:, 3], rtol=1e-4)


@pytest.mark.parametrize("features", [X, sp.csr_matrix(np.where(X > 0, X, 0))])
def test_relevance_of_a_deep_encoder_sums_to_the_prediction(features):
    model = exact(hidden_layers=(12,), epochs=5).fit(features, S)
    relevance, base = model.explain(features, target=3)
    np.testing.assert_allclose(relevance.sum(1) + base, model.products(features)[:, 3], atol=1e-5)
    # A feature that is zero has no part in it.
    zero = (features.toarray() if sp.issparse(features) else features) == 0
    assert (relevance[zero] == 0).all()


def test_contributions_to_a_similarity_are_exact_for_a_linear_encoder():
    model = exact(epochs=5).fit(X, S)
    kernel, bias = model.encoder_.get_weights()
    Y = X @ kernel + bias
    one, other, base = model.explain_similarity(X[:10], X[10:20])
    np.testing.assert_allclose(one, X[:10] * (Y[10:20] @ kernel.T) / 2, atol=1e-5)
    np.testing.assert_allclose(other, X[10:20] * (Y[:10] @ kernel.T) / 2, atol=1e-5)
    np.testing.assert_allclose(base, (Y[:10] + Y[10:20]) @ bias / 2, atol=1e-5)
    whole = np.einsum("id,id->i", Y[:10], Y[10:20])
    np.testing.assert_allclose(one.sum(1) + other.sum(1) + base, whole, atol=1e-5)
    # A single pair of rows; and the other way round.
    first, second, rest = model.explain_similarity(X[0], X[10])
    assert first.shape == (8,) and rest == pytest.approx(base[0], abs=1e-6)
    np.testing.assert_allclose(first, one[0], atol=1e-6)
    np.testing.assert_allclose(model.explain_similarity(X[10], X[0])[0], second, atol=1e-6)
    with pytest.raises(InputError, match="row by row, but have 3 and 2 rows"):
        model.explain_similarity(X[:3], X[:2])


@pytest.mark.parametrize("features", [X, sp.csr_matrix(np.where(X > 0, X, 0))])
@pytest.mark.slow
def test_contributions_to_a_similarity_sum_to_it_for_a_deep_encoder(features):
    model = exact(hidden_layers=(6,), epochs=20).fit(features, S)
    one, other, base = model.explain_similarity(features[:10], features[10:20])
    whole = np.diag(model.similarity(features[:10], features[10:20]))
    np.testing.assert_allclose(one.sum(1) + other.sum(1) + base, whole, atol=1e-4)
    # Shuffling the largest contribution away matters more than the smallest.
    dense = features.toarray() if sp.issparse(features) else features
    changed = []
    for place in (np.argmax(np.abs(one), 1), np.argmin(np.abs(one), 1)):
        without = dense[:10].copy()
        without[np.arange(10), place] = 0
        changed.append(np.abs(np.diag(model.similarity(without, dense[10:20])) - whole).mean())
    assert changed[0] > 3 * changed[1]


# Options that do not fit

SQUARE, TWO = S, np.stack([S, S], 2)
BAD = [
    ({"symmetric": 1.0}, R.T, "square symmetric"),
    ({"symmetric": 1.0}, S + np.triu(S), "differ by up to"),
    ({"symmetric": 1.0, "bounds": (-5, 9)}, SQUARE, "bounds"),
    ({"self_similarity": 1.0}, TWO, "2 relations"),
    ({"symmetric": 1.0}, TWO, "2 relations"),
    ({"symmetric": 1.0}, mask(S, 0.5), "missing entries with init='least_squares' and epochs=0"),
    ({"init": "least_squares", "validation_fraction": 0.2}, SQUARE, "validation_fraction"),
    ({"init": "least_squares", "loss": "mae"}, SQUARE, "mse"),
    ({"sweeps": 0}, SQUARE, "sweeps"),
]


@pytest.mark.parametrize(("options", "targets", "message"), BAD)
def test_options_that_do_not_fit_are_named(options, targets, message):
    features = None if len(targets) != len(X) else X
    with pytest.raises(InputError, match=message):
        exact(**options).fit(features, targets)


def test_calls_that_do_not_fit_are_named():
    with pytest.raises(InputError, match="frozen"):
        exact(symmetric=1.0).fit(X, S, last_layer=np.zeros((4, 50)))
    with pytest.raises(InputError, match="of the 50 there are; got"):
        exact().fit(X, S, targets=99)
    with pytest.raises(InputError, match="twice"):
        exact().fit(X, S, targets=[1, 1])
    with pytest.raises(InputError, match="different shapes"):
        exact().fit(None, [sp.eye(3).tocsr(), sp.eye(4).tocsr()])
    model = exact(epochs=2).fit(X, S)
    with pytest.raises(InputError, match="between 0 and 49"):
        model.explain(X, target=50)
