"""The user encoder of implicit feedback: closed forms against draws of what is given."""

import numpy as np
import pytest
from scipy import sparse
from workers import in_threads

from simrec.model.lists.axes import find_axes
from simrec.model.lists.user_encoder import GIVEN, RIDGE, UserRegression

N_USERS, N_ITEMS, D = 60, 14, 4
FEATURE_RIDGE, SHARE = 100.0, 0.5
POWER = {"nothing": 0.5, "few": 0.0, "known": 0.5}


class Small:
    """Histories of some users, what each pair counts, whether it was liked, and features."""

    def __init__(self, seed=0):
        rng = np.random.default_rng(seed)
        there = rng.random((N_USERS, N_ITEMS)) < rng.uniform(0.3, 0.95, (N_USERS, 1))
        there[:, 0] |= ~there.any(1)
        self.pairs = sparse.csr_matrix(there, dtype=np.float32)
        self.histories, self.liked = self.pairs.copy(), self.pairs.copy()
        self.histories.data = rng.uniform(0.5, 1.5, self.pairs.nnz).astype(np.float32)
        self.liked.data = (rng.random(self.pairs.nnz) < 0.6).astype(np.float32)
        features = rng.normal(size=(N_USERS, 2)) + 2 * there[:, :2]
        self.features = np.hstack([features, np.ones((N_USERS, 1))]).astype(np.float32)
        counts = np.asarray(self.pairs.sum(0)).ravel()
        self.axes = find_axes(self.pairs, counts, D, rng)

    def regression(self, extra=None, own=slice(None), **more):
        targets = {"taken": self.pairs[own], "liked": self.liked[own]}
        return UserRegression(
            self.histories[own], targets, self.features[own], self.axes, extra, **more
        )


@pytest.fixture(scope="module")
def small():
    return Small()


def drawn(small, known, target, n_draws=20_000, seed=0):
    """Least squares over many draws of what is given; targets are what is not, as many as all."""
    rng, P = np.random.default_rng(seed), small.axes.inputs.astype(np.float64)
    H, T = small.histories.toarray(), target.toarray()
    n = (H != 0).sum(1)
    most = {"nothing": 0, "few": GIVEN, "known": np.inf}[known]
    share = np.minimum(most / n, SHARE)[:, None]
    weights = n ** -POWER[known]
    weights = (weights / weights.mean())[:, None]
    A, B = 0.0, 0.0
    for _ in range(n_draws):
        given = rng.random(H.shape) < share
        Z = np.hstack([(H * given) @ P, small.features])
        Y = np.where(given, 0, T / (1 - share)) @ P
        A, B = A + Z.T @ (weights * Z), B + Z.T @ (weights * Y)
    A, B = A / n_draws, B / n_draws
    A[:D, :D] += RIDGE[known] * P.T @ P
    A[np.arange(D, D + 2), np.arange(D, D + 2)] += FEATURE_RIDGE
    return np.linalg.solve(A, B)


@pytest.mark.parametrize("known", ["few", "known"])
@pytest.mark.parametrize("target", ["taken", "liked"])
def test_the_closed_form_is_the_mean_over_draws(small, known, target):
    found = small.regression().maps(known)[target]
    of = {"taken": small.pairs, "liked": small.liked}[target]
    expected = drawn(small, known, of, 4_000)
    np.testing.assert_allclose(found, expected, atol=0.02 * np.abs(expected).max())


def test_no_pair_is_explained_by_itself():
    """Histories of one pair have no other: what is given tells nothing."""
    rng = np.random.default_rng(0)
    pairs = sparse.csr_matrix(np.eye(8, dtype=np.float32)[rng.integers(0, 8, 300)])
    axes = find_axes(pairs, np.asarray(pairs.sum(0)).ravel(), 7, rng)
    none = np.zeros((300, 1), np.float32)  # nor does a constant
    maps = UserRegression(pairs, {"taken": pairs}, none, axes).maps("known")
    assert np.abs(maps["taken"][:7]).max() < 1e-5
    twice = sparse.csr_matrix(pairs + pairs[:, [1, 0, 3, 2, 5, 4, 7, 6]])  # always in twos
    maps = UserRegression(twice, {"taken": twice}, none, axes).maps("known")
    scores = axes.inputs @ maps["taken"][:7] @ axes.items.T
    assert (scores.argmax(1) == [1, 0, 3, 2, 5, 4, 7, 6]).all()


def test_nothing_given_leaves_the_features(small):
    found = small.regression().maps("nothing")["taken"]
    assert np.abs(found[:D]).max() < 1e-6
    expected = drawn(small, "nothing", small.pairs, 1)
    np.testing.assert_allclose(found[D:], expected[D:], rtol=1e-3, atol=1e-4)


def test_coordinates_are_shrunk_the_more_the_less_they_carry(small):
    maps = small.regression().maps("few")
    for name in ("smooth", "smoother"):
        shrunk = np.diag(maps[name])
        np.testing.assert_array_equal(maps[name][:D], np.diag(shrunk))
        assert not maps[name][D:].any()
        assert (np.diff(shrunk) <= 0).all() and shrunk.min() > 0 and shrunk.max() < 1
    assert (np.diag(maps["smoother"]) < np.diag(maps["smooth"])).all()
    np.testing.assert_array_equal(maps["alike"][:D], np.eye(D))


def test_every_pair_is_predicted_whether_given_or_not(small):
    """With `every` the target of a draw is the whole history."""
    rng, P = np.random.default_rng(0), small.axes.inputs.astype(np.float64)
    H, T, n = small.histories.toarray(), small.pairs.toarray(), np.diff(small.pairs.indptr)
    weights = (n**-0.5 / (n**-0.5).mean())[:, None]
    A, B, n_draws = 0.0, 0.0, 4_000
    for _ in range(n_draws):
        Z = np.hstack([(H * (rng.random(H.shape) < SHARE)) @ P, small.features])
        A, B = A + Z.T @ (weights * Z) / n_draws, B + Z.T @ (weights * T) @ P / n_draws
    A[:D, :D] += RIDGE["known"] * P.T @ P
    A[np.arange(D, D + 2), np.arange(D, D + 2)] += FEATURE_RIDGE
    expected = np.linalg.solve(A, B)
    found = small.regression().maps("known")["every"]
    np.testing.assert_allclose(found, expected, atol=0.02 * np.abs(expected).max())


def test_rows_of_item_features_are_users_without_features(small):
    rng = np.random.default_rng(3)
    extra = sparse.csr_matrix(rng.random((20, N_ITEMS)) < 0.4, dtype=np.float32)
    plain, more = small.regression(), small.regression(extra)
    for known in ("few", "nothing"):
        np.testing.assert_array_equal(plain.maps(known)["taken"], more.maps(known)["taken"])
    assert np.abs(plain.maps("known")["taken"] - more.maps("known")["taken"]).max() > 1e-3


def test_users_divided_between_workers(small):
    extra = sparse.csr_matrix(np.ones((3, N_ITEMS), np.float32))
    one = small.regression(extra)

    def work(workers):
        own = slice(0, 25) if workers.rank == 0 else slice(25, None)
        regression = small.regression(extra, own, workers=workers)
        return {known: regression.maps(known) for known in RIDGE}

    for found in in_threads(2, work):
        assert isinstance(found, dict), found
        for known, maps in found.items():
            for name, one_map in maps.items():
                np.testing.assert_allclose(one_map, one.maps(known)[name], atol=1e-4)
