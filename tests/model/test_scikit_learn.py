"""scikit-learn's own tools take the models as they take its estimators."""

import numpy as np
import pytest
from sklearn.base import clone, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.utils.validation import check_is_fitted

from simrec import SimEc, TwoTower, make_synthetic

SMALL = {"embedding_dim": 2, "epochs": 2, "lists": False}


@pytest.fixture(scope="module")
def data():
    return make_synthetic(n_users=60, n_items=40, n_ratings=500, random_state=1)


@pytest.fixture(scope="module")
def frame(data):
    return data.ratings.to_pandas()


def test_clone_keeps_settings_and_forgets_the_fit(data):
    model = TwoTower(**SMALL, hidden_layers=(4,), item_columns={"i_year": "ignore"})
    copy = clone(model)
    assert copy is not model and copy.get_params() == model.get_params()
    assert clone(SimEc(bounds=(1, 5))).bounds == (1, 5)
    fitted = TwoTower(**SMALL).fit(data.ratings)
    check_is_fitted(fitted)
    with pytest.raises(NotFittedError):
        check_is_fitted(clone(fitted))
    assert is_regressor(model) and is_regressor(SimEc())


def test_cross_val_score_with_features(data, frame):
    tables = {"items": data.items, "users": data.users}
    scores = cross_val_score(TwoTower(**SMALL), frame, cv=2, params=tables)
    assert scores.shape == (2,) and np.isfinite(scores).all()
    # The same folds by hand.
    half = len(frame) // 2
    model = TwoTower(**SMALL).fit(frame[half:], **tables)
    assert model.score(frame[:half]) == pytest.approx(scores[0], abs=1e-5)
    found = model.predict(frame[:half])
    assert model.score(frame[:half]) == pytest.approx(
        r2_score(frame["rating"][:half], found), abs=1e-5
    )


def test_grid_search(data, frame):
    search = GridSearchCV(TwoTower(lists=False, epochs=2), {"embedding_dim": [1, 2]}, cv=2)
    search.fit(frame, items=data.items)
    assert search.best_params_["embedding_dim"] in (1, 2)
    assert search.predict(frame.head(3)).shape == (3,)


@pytest.mark.slow
def test_simec_in_grid_search():
    X = np.random.default_rng(0).normal(size=(40, 4))
    S = X @ X.T
    grid = {"embedding_dim": [1, 4]}
    search = GridSearchCV(SimEc(solver="lbfgs", epochs=40), grid, cv=2, scoring="r2").fit(X, S)
    assert search.best_params_ == {"embedding_dim": 4} and search.best_score_ > 0.5
