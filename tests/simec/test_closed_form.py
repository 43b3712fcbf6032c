"""`SimEc(solver="closed_form")`: exact, masked, frozen, and without TensorFlow."""

import numpy as np
import pytest
from processes import imported_by
from scipy import sparse

from simrec import InputError, SimEc

RNG = np.random.default_rng(0)
X, W = RNG.normal(size=(80, 6)), RNG.normal(size=(3, 40)).astype("f4")
TRUTH = X @ RNG.normal(size=(6, 3)) @ W
SEEN = RNG.random(TRUTH.shape) < 0.4


@pytest.mark.parametrize("masked", ["complete", "dense", "sparse"])
def test_a_frozen_last_layer_is_solved_exactly_and_stays_as_it_is(masked):
    R = TRUTH if masked == "complete" else np.where(SEEN, TRUTH, np.nan)
    if masked == "sparse":
        R = sparse.csr_matrix((TRUTH[SEEN], np.nonzero(SEEN)), shape=TRUTH.shape)
    model = SimEc(3, solver="closed_form", ridge=1e-9).fit(X, R, last_layer=W)
    assert np.array_equal(model.last_layer_, W)
    np.testing.assert_allclose(model.predict(X), TRUTH, atol=1e-2)


def test_a_free_last_layer_is_found_too_and_bounds_are_kept():
    R = sparse.csr_matrix((TRUTH[SEEN], np.nonzero(SEEN)), shape=TRUTH.shape)
    model = SimEc(3, solver="closed_form", sweeps=30).fit(X, R)
    assert np.corrcoef(TRUTH.ravel(), model.predict(X).ravel())[0, 1] > 0.995
    bounded = 1 + 4 / (1 + np.exp(-TRUTH / 4))
    found = SimEc(3, solver="closed_form", bounds=(1, 5)).fit(X, bounded, last_layer=W).predict(X)
    assert found.min() >= 1 and found.max() <= 5
    np.testing.assert_allclose(found, bounded, atol=0.05)


def test_save_load_and_explain(tmp_path):
    model = SimEc(3, solver="closed_form").fit(X, TRUTH)
    model.save(tmp_path / "simec")
    loaded = SimEc.load(tmp_path / "simec")
    assert np.array_equal(loaded.transform(X), model.transform(X))
    relevance, base = model.explain(X, target=2)
    np.testing.assert_allclose(relevance.sum(1) + base, model.products(X)[:, 2], atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [{"hidden_layers": (4,)}, {"dropout": 0.1}, {"loss": "mae"}, {"l2": 0.1}],
    ids=lambda options: next(iter(options)),
)
def test_what_it_cannot_solve_is_named(options):
    with pytest.raises(InputError, match=next(iter(options))):
        SimEc(3, solver="closed_form", **options).fit(X, TRUTH)


def test_it_imports_no_tensorflow():
    code = (
        "import numpy as np; from simrec import SimEc\n"
        "X = np.random.default_rng(0).normal(size=(20, 4))\n"
        "SimEc(2, solver='closed_form').fit(X, X @ X.T).predict(X)"
    )
    assert not {"tensorflow", "tf_keras"} & imported_by(code)
