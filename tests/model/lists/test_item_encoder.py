"""The item encoder of implicit feedback: a ridge regression on weighed features."""

import numpy as np
import pyarrow as pa
import pytest
from scipy import sparse

from simrec import Ratings, TwoTower
from simrec.data.sides import Sides
from simrec.model.lists.item_encoder import (
    ItemRegression,
    feature_weights,
    full_columns,
    idf_of,
)
from simrec.model.prepare import Encoding, prepare

N_USERS, N_ITEMS, N_NEW = 90, 80, 20


def shop(seed=0):
    """Items have a tag that nearly all share and one of eight; users take those of two tags."""
    rng = np.random.default_rng(seed)
    own = rng.integers(0, 8, N_ITEMS + N_NEW)
    tags = [[f"t{t}", *(["all"] if rng.random() < 0.9 else [])] for t in own]
    wanted = np.array([rng.choice(8, 2, replace=False) for _ in range(N_USERS)])
    likes = (own[:N_ITEMS] == wanted[:, :1]) | (own[:N_ITEMS] == wanted[:, 1:])
    user, item = np.nonzero(likes & (rng.random(likes.shape) < 0.7))
    pairs = pa.table({"user_id": user, "item_id": item})
    vectors = [v.tolist() for v in np.eye(8)[own] + rng.normal(0, 0.1, (len(own), 8))]
    items = pa.table({"item_id": np.arange(len(own)), "tags": tags, "vector": vectors})
    return Ratings.from_table(pairs, rating=None), items, own, wanted


@pytest.fixture(scope="module")
def data():
    ratings, items, *_ = shop()
    return prepare(ratings, None, Sides(items, None), Encoding(Sides({}, {}), 2, 5))


# Normal equations solved whole, and conjugate gradients.
@pytest.mark.parametrize("shape", [(30, 6), (30, 80), (30, 1200)])
@pytest.mark.parametrize("by_rarity", [False, True])
def test_the_encoder_is_a_ridge_regression(shape, by_rarity):
    rng = np.random.default_rng(2)
    X = sparse.csr_matrix(sparse.random_array(shape, density=0.3, rng=rng), dtype=np.float32)
    Y = rng.standard_normal((shape[0], 4)).astype(np.float32)
    encoder = ItemRegression(X, idf_of(X) if by_rarity else None, 0.5).encoder(Y)
    Z = np.hstack([encoder.inputs(X).toarray(), np.ones((shape[0], 1))]).astype(np.float64)
    exact = np.linalg.solve(Z.T @ Z + 0.5 * np.eye(Z.shape[1]), Z.T @ Y)
    np.testing.assert_allclose(encoder(X), Z @ exact, atol=0.1)


def test_another_penalty_is_as_if_it_had_been_given_first():
    rng = np.random.default_rng(2)
    X = sparse.csr_matrix(sparse.random_array((60, 20), density=0.3, rng=rng), dtype=np.float32)
    Y = rng.standard_normal((60, 4)).astype(np.float32)
    changed = ItemRegression(X, None, 0.5)
    changed.encoder(Y)
    changed.set_penalty(8.0)
    fresh = ItemRegression(X, None, 8.0).encoder(Y)
    np.testing.assert_allclose(changed.encoder(Y).weights, fresh.weights, atol=1e-6)


def test_vectors_are_nearly_full_columns_and_tags_are_not(data):
    side = data.sides.items
    X, groups = side.X[:, :-1], side.groups[:-1]
    (full,) = full_columns(X, groups)
    assert list(side.tower.encoder.columns_)[full] == "vector"
    here = groups == full
    assert np.abs(feature_weights(X, groups, "rarity")[here]).max() < 0.1
    weighed = X.toarray() * feature_weights(X, groups, "rarity and full columns")
    assert np.square(weighed[:, here]).sum() == pytest.approx(
        np.square(weighed[:, ~here]).sum(), rel=0.05
    )


def test_new_items_are_ranked_by_what_sets_them_apart():
    ratings, items, own, wanted = shop(1)
    model = TwoTower(random_state=0).fit(ratings, items=items)
    found = model.recommend(k=3, items=np.arange(N_ITEMS, N_ITEMS + N_NEW), output="arrow")
    user, item = found["user_id"].to_numpy(), found["item_id"].to_numpy()
    right = (own[item] == wanted[user, 0]) | (own[item] == wanted[user, 1])
    assert right.mean() > 0.9


@pytest.mark.parametrize(("mean", "width"), [(1000.0, 60), (300.0, 8)])
def test_large_features_that_hardly_differ_are_regressed_on(mean, width):
    """In single precision their squares and products have no inverse."""
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(500, width))
    X = sparse.csr_matrix((mean + Z).astype(np.float32))
    Y = (Z @ rng.normal(size=(width, 3))).astype(np.float32)
    encoder = ItemRegression(X, None, 0.3).encoder(Y)
    inputs = np.hstack([X.toarray(), np.ones((500, 1))]).astype(np.float64)
    gram = inputs.T @ inputs + 0.3 * np.eye(width + 1)
    expected = inputs @ np.linalg.solve(gram, inputs.T @ Y)
    assert np.abs(encoder(X) - expected).mean() < 0.03 * np.abs(Y).mean()
