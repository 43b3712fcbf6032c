"""Content profiles: a ridge regression of each user's history on the features of items."""

import numpy as np
import pyarrow as pa
import pytest
from simrec.model.lists.components import PairWeight
from simrec.model.lists.content import Content, ContentSetting
from simrec.model.lists.uptake.encoders import feature_weights, full_columns

from simrec import Ratings, TwoTower
from simrec.data.sides import Sides
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


@pytest.mark.parametrize("weighing", ["rarity", "rarity and full columns"])
@pytest.mark.parametrize("ridge", [0.3, 3.0])
def test_a_profile_is_a_ridge_regression_of_the_history(data, ridge, weighing):
    content = Content.of(data, weighing, 512, np.random.default_rng(0))
    part = content.part(data, ContentSetting(ridge, 512, weighing), PairWeight())
    T = content.rows.toarray().astype(np.float64)
    assert np.linalg.norm(T, axis=1) == pytest.approx(np.ones(len(T)), abs=1e-5)
    H = data.rated().toarray()[:, data.sides.items.rated_rows] > 0
    weights = H @ T @ np.linalg.inv(T.T @ T + ridge * np.eye(T.shape[1])) * ridge
    new = np.asarray(data.sides.items.tower.counts) == 0
    X = content.encoder.inputs(data.sides.items.tower.features[new]).toarray()
    found = part.heads.users.vectors @ part.heads.items.vectors[new].T
    assert found == pytest.approx(weights @ X.T, abs=2e-2 * np.abs(weights @ X.T).max())


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
