import numpy as np
import pytest
import scipy.sparse as sp

from simrec import SimEc
from simrec.errors import InputError
from simrec.simec.inputs import row_batches
from simrec.simec.keras import keras


def ratings(m=60, n=40, share=0.4, d=3, seed=0):
    """Low-rank targets of features, between 1 and 5, some observed, some of them exactly 1."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(m, 6)).astype(np.float32)
    Z = X @ rng.normal(size=(6, d)) @ rng.normal(size=(d, n)) * 0.5
    R = np.clip(3 + Z, 1, 5).astype(np.float32)
    seen = rng.random((m, n)) < share
    return X, np.where(seen, R, np.nan), sp.csr_matrix((R[seen], np.nonzero(seen)), (m, n))


def small(**changes):
    return SimEc(**{"embedding_dim": 3, "epochs": 4, "batch_size": 16, **changes})


def outcome(model, X):
    return np.concatenate([model.predict(X).ravel(), model.transform(X).ravel()])


def test_learns_planted_factors_for_rows_never_seen():
    X, _, R = ratings(m=400, share=0.3)
    model = SimEc(3, bounds=(1, 5), epochs=60, batch_size=64, learning_rate=0.02)
    model.fit(X[:300], R[:300])
    test = R[300:].tocoo()
    error = model.predict(X[300:])[test.row, test.col] - test.data
    assert np.sqrt(np.mean(error**2)) < 0.4 * np.std(test.data)


@pytest.mark.parametrize(("solver", "features"), [("adam", 1), ("adam", 0), ("lbfgs", 1)])
def test_sparse_targets_equal_dense_ones(solver, features):
    X, dense, sparse = ratings()
    X = X if features else None
    models = [small(solver=solver, bounds=(1, 5), l2=0.1).fit(X, R) for R in (dense, sparse)]
    np.testing.assert_allclose(outcome(models[0], X), outcome(models[1], X), atol=2e-4)


def test_sparse_features_equal_dense_ones():
    X, _, R = ratings()
    X = np.where(X > 0.5, X, 0)
    dense = small(hidden_layers=(5,)).fit(X, R)
    sparse = small(hidden_layers=(5,)).fit(sp.csr_matrix(X), R)
    np.testing.assert_allclose(outcome(dense, X), outcome(sparse, X), atol=1e-5)
    np.testing.assert_allclose(outcome(dense, sp.csr_matrix(X)), outcome(dense, X), atol=1e-6)


def test_an_explicit_zero_is_observed():
    R = sp.csr_matrix(np.full((10, 8), 2.0))
    R.data[::2] = 0
    model = SimEc(4, solver="lbfgs", epochs=60).fit(None, R)
    np.testing.assert_allclose(model.predict(), R.toarray(), atol=0.02)
    assert R.nnz == 80


def test_unobserved_entries_change_nothing():
    X, dense, _ = ratings()
    empty_column = dense.copy()
    empty_column[:, 7] = np.nan
    model = small().fit(X, empty_column)
    start = small(learning_rate=1e-12).fit(X, empty_column)
    np.testing.assert_allclose(model.last_layer_[:, 7], start.last_layer_[:, 7], atol=1e-9)
    assert np.abs(model.last_layer_[:, 8] - start.last_layer_[:, 8]).max() > 1e-3


def test_frozen_last_layer_is_bit_identical_and_shared_space_predicts():
    X, _, R = ratings()
    items = small(init="least_squares", epochs=0).fit(X, R)
    Y = items.transform(X)
    users = small(epochs=5, learning_rate=0.05).fit(None, R.T.tocsr(), last_layer=Y.T)
    np.testing.assert_array_equal(users.last_layer_, Y.T)
    assert users.history_[-1]["error"] < users.history_[0]["error"]
    np.testing.assert_allclose(users.predict(), users.transform() @ Y.T, atol=1e-5)


@pytest.mark.parametrize("loss", ["mse", "mae", "bce"])
def test_predictions_lie_within_the_bounds_and_start_at_the_mean(loss):
    X, dense, sparse = ratings()
    model = small(bounds=(1, 5), loss=loss, epochs=8, learning_rate=1.0).fit(X, sparse)
    assert model.predict(1000 * X).min() >= 1 and model.predict(1000 * X).max() <= 5
    assert model.output_(np.zeros(1))[0] == pytest.approx(np.nanmean(dense), abs=1e-5)


def test_refit_equals_fresh_same_seed_same_model_and_dropout_counts():
    X, _, R = ratings()
    options = {"hidden_layers": (4,), "dropout": 0.3, "input_dropout": 0.2, "random_state": 3}
    fresh = small(**options).fit(X, R)
    again = small(**options).fit(X[:30], R[:30]).fit(X, R)
    np.testing.assert_array_equal(outcome(fresh, X), outcome(again, X))
    without = small(**{**options, "dropout": 0.0}).fit(X, R)
    assert not np.array_equal(outcome(fresh, X), outcome(without, X))


# By batches, by L-BFGS or in closed form: whichever is the quickest that shows the difference.
TRAINED = [
    {"solver": "lbfgs"},
    {"learning_rate": 0.02},
    {"epochs": 5},
    {"batch_size": 8},
    {"validation_fraction": 0.2},
]
MINIMISED = [
    {"bounds": (0, 6)},
    {"loss": "mae"},
    {"l2": 0.1},
    {"input_dropout": 0.3},
    {"init": "spectral"},
]
SOLVED = [
    ({}, {"embedding_dim": 4}),
    ({}, {"hidden_layers": (4,)}),
    ({}, {"bias": False}),
    ({}, {"sweeps": 2}),
    ({}, {"ridge": 0.1}),
    ({}, {"random_state": 1}),
    ({"hidden_layers": (4,)}, {"activation": "relu"}),
]


@pytest.fixture(scope="module")
def plain():
    X, _, R = ratings()
    return outcome(small().fit(X, R), X)


@pytest.fixture(scope="module")
def minimised():
    X, R, _ = ratings()
    return outcome(small(solver="lbfgs").fit(X, R), X)


@pytest.mark.parametrize("change", TRAINED, ids=lambda c: next(iter(c)))
def test_every_parameter_changes_the_result(change, plain):
    X, _, R = ratings()
    assert not np.array_equal(outcome(small(**change).fit(X, R), X), plain)


@pytest.mark.parametrize("change", MINIMISED, ids=lambda c: next(iter(c)))
def test_every_parameter_changes_the_minimum(change, minimised):
    X, R, _ = ratings()
    found = small(solver="lbfgs", **change).fit(X, R)
    assert not np.array_equal(outcome(found, X), minimised)


@pytest.mark.parametrize(("base", "change"), SOLVED, ids=lambda c: next(iter(c), "plain"))
def test_every_parameter_changes_the_solution(base, change):
    X, _, R = ratings()
    base = {"init": "least_squares", "epochs": 0, **base}
    before, after = small(**base).fit(X, R), small(**base, **change).fit(X, R)
    assert not np.array_equal(outcome(before, X), outcome(after, X))


@pytest.mark.slow
def test_early_stopping_keeps_the_best_epoch():
    X, _, R = ratings(m=80)
    model = small(
        hidden_layers=(32,), epochs=40, learning_rate=0.1, validation_fraction=0.25, patience=2
    ).fit(X, R)
    held = [epoch["val_error"] for epoch in model.history_]
    assert len(held) < 40
    assert len(held) - 1 - int(np.argmin(held)) <= 2


@pytest.mark.slow
def test_a_keras_model_as_encoder():
    X, _, R = ratings()
    images = X.reshape(-1, 2, 3, 1)
    cnn = keras.Sequential(
        [
            keras.Input((2, 3, 1)),
            keras.layers.Conv2D(4, 2, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(3),
        ]
    )
    before = [w.copy() for w in cnn.get_weights()]
    model = small(encoder=cnn, epochs=5).fit(images, R)
    for a, b in zip(before, cnn.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert model.history_[-1]["error"] < model.history_[0]["error"]
    again = small(encoder=cnn, epochs=5).fit(images, R)
    np.testing.assert_array_equal(outcome(model, images), outcome(again, images))


def test_batches_have_about_equal_numbers_of_entries():
    rng = np.random.default_rng(0)
    counts = rng.geometric(0.02, 1000)
    counts[::7] = 0
    batches = row_batches(counts, 50, rng)
    rows = np.concatenate(batches)
    assert sorted(rows) == list(np.flatnonzero(counts))
    sizes = np.array([counts[b].sum() for b in batches])
    assert sizes.max() - sizes.min() <= 2 * counts.max()


def test_get_params_set_params_and_repr():
    model = SimEc(4, bounds=(1, 5))
    assert model.get_params()["bounds"] == (1, 5)
    assert repr(model.set_params(epochs=3)) == "SimEc(embedding_dim=4, bounds=(1, 5), epochs=3)"
    with pytest.raises(InputError, match="no parameter 'epoch'"):
        model.set_params(epoch=3)


X, DENSE, SPARSE = ratings()
BAD = [
    ({"embedding_dim": 0}, X, SPARSE, "embedding_dim"),
    ({"hidden_layers": (0,)}, X, SPARSE, "hidden_layers"),
    ({"activation": "magic"}, X, SPARSE, "activation"),
    ({"bounds": ("1", "5")}, X, SPARSE, "low < high"),
    ({"bounds": (5, 1)}, X, SPARSE, "low < high"),
    ({"bounds": (2, 5)}, X, SPARSE, "outside bounds"),
    ({"loss": "hinge"}, X, SPARSE, "loss"),
    ({"l2": -1}, X, SPARSE, "l2"),
    ({"dropout": 1.0}, X, SPARSE, "dropout"),
    ({"solver": "magic"}, X, SPARSE, "solver"),
    ({"epochs": 0}, X, SPARSE, "trains nothing"),
    ({"learning_rate": 0}, X, SPARSE, "learning_rate"),
    ({"init": "zeros"}, X, SPARSE, "init"),
    ({}, X[:5], SPARSE, "5 rows"),
    ({}, X[:, 0], SPARSE, "row per entity"),
    ({}, X.reshape(60, 2, 3), SPARSE, "give an encoder"),
    ({}, np.where(X > 1, np.nan, X), SPARSE, "NaN"),
    ({}, X.astype(str), SPARSE, "FeatureEncoder"),
    ({}, X, np.full((60, 40), np.nan), "no observed"),
    ({}, X, sp.csr_matrix((60, 40)), "no observed"),
    ({}, X, np.where(DENSE > 4, np.inf, DENSE), "infinite"),
    ({}, X, DENSE[0], "m x n"),
    ({"validation_fraction": 0.001}, X, SPARSE, "measure on"),
    ({"validation_fraction": 0.2, "solver": "lbfgs"}, X, SPARSE, "stop early"),
    ({"validation_fraction": 0.2}, None, SPARSE, "identity"),
]


@pytest.mark.parametrize(("options", "features", "targets", "message"), BAD)
def test_bad_input_is_named(options, features, targets, message):
    with pytest.raises(InputError, match=message):
        small(**options).fit(features, targets)


def test_bad_calls_are_named():
    model = small(epochs=1)
    with pytest.raises(InputError, match="not fitted"):
        model.transform(X)
    with pytest.raises(InputError, match=r"3 x 40 .* got shape \(2, 40\)"):
        model.fit(X, SPARSE, last_layer=np.zeros((2, 40)))
    model.fit(X, SPARSE)
    with pytest.raises(InputError, match=r"\(5,\).*\(6,\)"):
        model.transform(X[:, :5])
    with pytest.raises(InputError, match="is None"):
        model.transform()


def test_diverged_training_is_an_error():
    with pytest.raises(InputError, match="diverged"):
        small(learning_rate=1e30).fit(X, SPARSE)
