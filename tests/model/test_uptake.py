"""Uptake: what users take up at all."""

import copy

import numpy as np
import pyarrow as pa
import pytest
from scipy import sparse
from simrec.model.lists.uptake.add_pairs import NewRidge, Pairs, moved_by_pairs, spread_axes
from simrec.model.lists.uptake.choices import noise
from simrec.model.lists.uptake.encoders import Regression, idf_of
from simrec.model.lists.uptake.least_squares import ridges, solve_rows, start_vectors
from simrec.model.lists.uptake.sweeps import factorize

from simrec import InputError, TwoTower
from simrec.model.lists.blend import list_quality
from simrec.model.run.workers import Workers

N_USERS, N_ITEMS, N_NEW = 500, 240, 60


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


class Planted:
    """Pairs drawn from known probabilities: item features say all of the items' vectors."""

    def __init__(self, seed=0):
        rng = np.random.default_rng(seed)
        n = N_ITEMS + N_NEW
        self.features = rng.standard_normal((n, 6))
        self.U = rng.standard_normal((N_USERS, 3))
        self.V = self.features @ rng.standard_normal((6, 3)) * 0.6
        popularity = rng.standard_normal(n) * 0.7
        self.P = sigmoid(self.U @ self.V.T + popularity - 3.5)
        pairs = rng.random(self.P.shape) < self.P
        self.later = rng.random(self.P.shape) < 0.15
        self.train = sparse.csr_matrix((pairs & ~self.later)[:, :N_ITEMS].astype(np.float32))
        self.held_out = sparse.csr_matrix((pairs & self.later)[:, :N_ITEMS].astype(np.float32))
        self.new_items = sparse.csr_matrix(pairs[:, N_ITEMS:].astype(np.float32))

    def table(self):
        rows = self.train.tocoo()
        return pa.table({"user_id": rows.row.astype(np.int64), "item_id": rows.col})

    def items(self):
        columns = {f"f{k}": self.features[:, k] for k in range(6)}
        return pa.table({"item_id": np.arange(N_ITEMS + N_NEW)} | columns)


def quality(U, V, hits, exclude=None):
    """NDCG@20 of all columns ranked by U V', over rows with a hit."""
    z, hit = U @ V.T, hits.toarray() > 0
    if exclude is not None:
        z = np.where(exclude.toarray() > 0, -np.inf, z)
    some = hit.any(1)
    return float(list_quality(z[some], hit[some], hit[some].sum(1)).mean())


@pytest.fixture(scope="module")
def planted():
    return Planted()


@pytest.fixture(scope="module")
def model(planted):
    return TwoTower(random_state=1).fit(planted.table(), items=planted.items())


@pytest.fixture(scope="module")
def fitted(model):
    return model.parts_["uptake"]


def chance(hits, seed=0):
    rng = np.random.default_rng(seed)
    U, V = rng.standard_normal((hits.shape[0], 4)), rng.standard_normal((hits.shape[1], 4))
    return quality(U, V, hits)


class TestLeastSquares:
    # Fewer and more pairs than coordinates; so many that conjugate gradients solve for a row.
    @pytest.mark.parametrize("n_items", [5, 40, 200])
    def test_solve_rows_is_dense_weighted_least_squares(self, n_items):
        rng = np.random.default_rng(1)
        d = 8
        R = sparse.random_array((12, n_items), density=0.6, rng=rng, format="csr")
        R = sparse.csr_matrix(R, dtype=np.float32)
        V, prior = rng.standard_normal((n_items, d)), rng.standard_normal((12, d))
        V, prior = V.astype(np.float32), prior.astype(np.float32)
        ridge, zero = rng.uniform(0.5, 2, 12), rng.uniform(0.1, 1, 12)
        explained = rng.uniform(0, 0.5, R.nnz).astype(np.float32)
        found = solve_rows(R, V, ridge, zero, explained, prior)
        for r in range(12):
            at = slice(R.indptr[r], R.indptr[r + 1])
            A, c, y = V[R.indices[at]], R.data[at], 1 - explained[at]
            H = A.T @ (c[:, None] * A) + zero[r] * V.T @ V + ridge[r] * np.eye(d)
            exact = np.linalg.solve(H, A.T @ (c * y) + ridge[r] * prior[r])
            np.testing.assert_allclose(found[r], exact, atol=2e-4)

    def test_rows_of_no_confidence_are_nothing(self):
        """Beside one that takes several steps: what is solved already must stay."""
        rng = np.random.default_rng(4)
        R = sparse.csr_matrix(np.ones((2, 90), np.float32))
        R.data[:90] = 0
        V = rng.standard_normal((90, 40)).astype(np.float32)
        found = solve_rows(R, V, np.ones(2), np.full(2, 0.1))
        assert not found[0].any()
        assert np.isfinite(found[1]).all()
        assert found[1].any()

    def test_no_pairs_no_prior_is_nothing(self):
        V = np.random.default_rng(0).standard_normal((7, 3)).astype(np.float32)
        found = solve_rows(sparse.csr_matrix((2, 7), dtype=np.float32), V, np.ones(2), np.ones(2))
        assert not found.any()

    @pytest.mark.parametrize("shape", [(30, 6), (30, 80), (30, 1200)])
    @pytest.mark.parametrize("by_rarity", [False, True])
    def test_regression_is_ridge(self, shape, by_rarity):
        rng = np.random.default_rng(2)
        X = sparse.csr_matrix(sparse.random_array(shape, density=0.3, rng=rng), dtype=np.float32)
        Y = rng.standard_normal((30, 4)).astype(np.float32)
        encoder = Regression(X, idf_of(X) if by_rarity else None, 0.5).encoder(Y)
        Z = np.hstack([encoder.inputs(X).toarray(), np.ones((30, 1))]).astype(np.float64)
        exact = np.linalg.solve(Z.T @ Z + 0.5 * np.eye(Z.shape[1]), Z.T @ Y)
        np.testing.assert_allclose(encoder(X), Z @ exact, atol=0.1)

    def test_noise_is_what_the_ridge_is_relative_to(self):
        """At the unit ridge hardly anything is left of pairs without structure, below it much."""
        rng = np.random.default_rng(3)
        R = sparse.csr_matrix((rng.random((400, 300)) < 0.05).astype(np.float32))

        def left(share):
            U, V = factorize(
                R, start_vectors(R, 32, rng), share * noise(R.shape, float(R.sum()), 0.3), 0.3, 6
            )
            values = np.linalg.svd(U @ V.T, compute_uv=False)
            return values[1:]  # the first is that pairs are there at all

        assert left(1.5).max() < 0.1 * left(0.25).max()

    def test_unit_of_noise_on_half_the_users(self):
        R = sparse.csr_matrix(np.random.default_rng(4).random((400, 300)) < 0.05, dtype=np.float32)
        expected = (200**-0.5 + 300**-0.5) / (400**-0.5 + 300**-0.5)
        assert noise((200, R.shape[1]), float(R[:200].sum()), 0.3) / noise(
            R.shape, float(R.sum()), 0.3
        ) == pytest.approx(expected, rel=0.1)


class TestLists:
    def test_held_out_pairs_are_found(self, planted, fitted):
        U, V = fitted.heads.users.vectors, fitted.heads.items.vectors[:N_ITEMS]
        true, every = np.log(planted.P[:, :N_ITEMS]), np.eye(N_ITEMS)
        reached = quality(U, V, planted.held_out, planted.train)
        assert reached > 2 * chance(planted.held_out)
        assert reached > 0.75 * quality(true, every, planted.held_out, planted.train)

    def test_new_items_are_found_by_features(self, planted, fitted):
        U, V = fitted.heads.users.vectors, fitted.heads.items.vectors[N_ITEMS:]
        assert quality(U, V, planted.new_items) > 1.5 * chance(planted.new_items)

    def test_same_seed_same_result(self, planted, model, fitted):
        again = TwoTower(random_state=1).fit(planted.table(), items=planted.items())
        for head, other in zip(fitted.heads, again.parts_["uptake"].heads, strict=True):
            np.testing.assert_array_equal(head.vectors, other.vectors)

    def test_noise_as_wide_as_the_items_promises_nothing(self, planted, model):
        noise = np.random.default_rng(5).standard_normal((N_ITEMS + N_NEW, N_ITEMS))
        flat = pa.array(noise.astype(np.float32).ravel())
        vectors = pa.FixedSizeListArray.from_arrays(flat, N_ITEMS)
        only = pa.table({"item_id": np.arange(N_ITEMS + N_NEW), "noise": vectors})
        noisy = TwoTower(random_state=1).fit(planted.table(), items=only)
        name = "held_out_ndcg@20_new_items"
        assert noisy.chosen_[name] < 0.85 * model.chosen_[name]

    @pytest.mark.slow
    def test_weights_count_where_they_help(self, planted):
        rng, pairs = np.random.default_rng(0), planted.train.tocoo()
        spurious = rng.integers(0, [N_USERS, N_ITEMS], (3 * planted.train.nnz, 2))
        users, items = (
            np.concatenate([own, more.astype(own.dtype)])
            for own, more in zip((pairs.row, pairs.col), spurious.T, strict=True)
        )
        real = np.arange(len(users)) < pairs.nnz
        found, first = np.unique(np.column_stack([users, items]), axis=0, return_index=True)
        table = {"user_id": found[:, 0], "item_id": found[:, 1]}
        tell = pa.table({**table, "weight": np.where(real[first], 5.0, 0.05)})
        assert TwoTower().fit(tell).chosen_["uptake_weighted"]
        chance = pa.table({**table, "weight": rng.permutation(tell["weight"].to_numpy())})
        one, two = (TwoTower().fit(one) for one in (chance, pa.table(table)))
        assert not one.chosen_["uptake_weighted"]
        np.testing.assert_array_equal(one.predict(tell), two.predict(tell))

    def test_prior_user_ranks_by_popularity(self, planted, model):
        ids = pa.array([10_000])
        best = model.recommend(ids, k=10, items=pa.array(range(N_ITEMS)), unknown="prior")
        found = best["item_id"].to_numpy()
        counts = np.asarray(planted.train.sum(0)).ravel()
        assert (np.diff(counts[found]) <= 0).all()
        assert counts[found[0]] == counts.max()

    def test_probabilities_are_calibrated(self, planted, model):
        """Within bins of predicted probability, the planted one is near, where there is no pair."""
        rows, columns = np.nonzero(planted.train[:, :].toarray() == 0)
        pairs = pa.table({"user_id": rows, "item_id": columns})
        predicted = np.asarray(model.predict(pairs))
        true = planted.P[rows, columns] * 0.85  # the rest of the pairs was held out
        order = np.argsort(predicted)
        for part in np.array_split(order, 8):
            # What is not in training is a pair less often than the planted probability says.
            assert abs(predicted[part].mean() - true[part].mean()) < 0.03 + 0.5 * true[part].mean()


class TestLife:
    def test_fold_in_of_nothing_is_the_cold_answer(self, fitted):
        cold = fitted.heads.users.encoder(sparse.csr_matrix((3, 0), dtype=np.float32))
        nothing = sparse.csr_matrix((3, N_ITEMS + N_NEW), dtype=np.float32)
        none = np.zeros(3, bool)
        found = fitted.solver.solve(
            "users",
            Pairs(nothing, nothing.data),
            cold,
            none,
            cold,
            fitted.heads.items.vectors,
            fitted.axes.users,
        )
        np.testing.assert_allclose(found, cold, atol=1e-6)

    def test_batch_equals_single(self, planted, fitted):
        few = planted.held_out[:6]
        cold = fitted.heads.users.encoder(sparse.csr_matrix((6, 0), dtype=np.float32))

        def solve(rows):
            own, none = few[rows], np.zeros(len(rows), bool)
            return fitted.solver.solve(
                *("users", Pairs(own, own.data), cold[rows], none, cold[rows]),
                *(fitted.heads.items.vectors[:N_ITEMS], fitted.axes.users),
            )

        together = solve(np.arange(6))
        for k in range(6):
            np.testing.assert_allclose(solve(np.array([k]))[0], together[k], atol=1e-5)

    def test_few_pairs_move_towards_them(self, planted, model):
        user = int(np.argmax(np.diff(planted.train.indptr)))
        items = planted.train[user].indices
        grown = copy.copy(model)
        given = pa.table({"user_id": np.full(5, 20_000), "item_id": items[:5].astype(np.int64)})
        grown.fold_in(given)
        ask = pa.table({"user_id": np.full(len(items), 20_000), "item_id": items.astype(np.int64)})
        before = model.predict(ask, unknown="prior")[5:].mean()
        assert grown.predict(ask)[5:].mean() > before

    def test_update_of_an_item_keeps_its_prior(self, planted, model):
        """One more pair hardly moves an item that has many: it is drawn as it was in fit."""
        item = int(np.argmax(np.bincount(planted.train.indices)))
        user = int(np.flatnonzero(planted.train[:, [item]].toarray().ravel() == 0)[0])
        grown = copy.copy(model)
        grown.update(pa.table({"user_id": [user], "item_id": [item]}))
        ask = pa.table({"user_id": np.arange(50), "item_id": np.full(50, item)})
        np.testing.assert_allclose(grown.predict(ask), model.predict(ask), atol=0.08)

    def test_axes_of_no_spread_are_plain(self):
        np.testing.assert_array_equal(spread_axes(np.zeros((5, 3), np.float32)), np.eye(3))

    def test_nobody_moves(self):
        R, some = sparse.csr_matrix((0, 30)), np.ones((30, 5), np.float32)
        axes = np.eye(4, dtype=np.float32)
        moved = moved_by_pairs(R, some[:0], some, axes, NewRidge(1.0, 0.1, 0.5, 0, 9))
        assert moved.shape == (0, 5)

    def test_done_entities_forget_their_prior(self):
        rng = np.random.default_rng(0)
        partners = rng.standard_normal((30, 5)).astype(np.float32)
        R = sparse.csr_matrix((rng.random((4, 30)) < 0.5).astype(np.float32))
        prior = rng.standard_normal((4, 5)).astype(np.float32)
        ridge = NewRidge(1.0, 0.1, 0.5, 0, 9)
        moved = moved_by_pairs(R, prior, partners, np.eye(4, dtype=np.float32), ridge)
        plain = solve_rows(R, partners[:, :-1], ridges(R, 0.1, 0.5), np.full(4, 0.5))
        np.testing.assert_allclose(moved[:, :-1], plain, atol=1e-5)


def test_workers_take_as_many_steps(monkeypatch):
    """Whether a regression has converged is for the first worker to say: bits may differ."""

    class Second(Workers):
        size, rank, calls = 2, 1, 0

        def sum(self, array):
            self.calls += 1
            return array

        def first(self, array):
            return np.ones_like(array)

    X = sparse.random_array((50, 600), density=0.1, rng=0, format="csr", dtype=np.float32)
    workers = Second()
    monkeypatch.setattr("simrec.model.lists.uptake.encoders._STEPS", 7)
    Regression(sparse.csr_matrix(X), None, 1e6, workers).encoder(np.ones((50, 2), "f4"))
    assert workers.calls == 2 + 7


class TestDegenerate:
    def test_users_have_few_ratings(self):
        """Nobody has enough to hold a few pairs out."""
        rng = np.random.default_rng(0)
        items = np.concatenate([rng.choice(12, 3, replace=False) for _ in range(20)])
        columns = {"user_id": np.repeat(np.arange(20), 3), "item_id": items}
        table = pa.table({**columns, "rating": rng.integers(1, 6, 60).astype(float)})
        best = TwoTower(bounds=(1, 5), epochs=2).fit(table).recommend([0], k=3)
        assert np.isfinite(best["score"].to_numpy()).all()

    def test_updates_of_few_distinct_histories(self):
        """Coordinates that are rounding errors do not grow from update to update."""
        user, item = (one.ravel() for one in np.meshgrid(np.arange(30), np.arange(5)))
        columns = {"user_id": user, "item_id": item + 5 * (user % 2)}
        model = TwoTower(embedding_dim=2).fit(pa.table(columns))
        for k in range(8):
            model.update(pa.table({"user_id": [100 + k, 100 + k], "item_id": [k, k + 1]}))
        for head in model.parts_["ease"].heads:
            assert np.abs(head.vectors).max() < 100

    @pytest.mark.parametrize(
        ("users", "items"),
        [
            ([0], [0]),
            ([0] * 8, list(range(8))),
            (list(range(8)), [0] * 8),
            ([0, 0, 1, 1, 2, 3], [0, 1, 1, 2, 0, 2]),
        ],
    )
    @pytest.mark.parametrize("rated", [False, True])
    def test_tiny_data(self, users, items, rated):
        columns = {"user_id": users, "item_id": items}
        if rated:
            columns["rating"] = [3.0] * len(users)
        model = TwoTower(bounds=(1, 5) if rated else None).fit(pa.table(columns))
        best = model.recommend(pa.array([0]), k=3, exclude=None)
        assert np.isfinite(best["score"].to_numpy()).all()
        grown = copy.copy(model)
        more = {name: values[:1] for name, values in columns.items()} | {"user_id": [99]}
        grown.fold_in(pa.table(more))
        assert np.isfinite(grown.recommend(pa.array([99]), k=3)["score"].to_numpy()).all()

    def test_features_of_zeros_and_weights(self):
        rng = np.random.default_rng(0)
        pairs = np.unique(rng.integers(0, [40, 25], (300, 2)), axis=0)
        table = pa.table(
            {
                "user_id": pairs[:, 0],
                "item_id": pairs[:, 1],
                "weight": rng.integers(1, 100, len(pairs)).astype(float),
            }
        )
        items = pa.table({"item_id": np.arange(30), "x": np.zeros(30), "y": [None] * 29 + ["a"]})
        model = TwoTower().fit(table, items=items)
        best = model.recommend(pa.array([0, 1]), k=5, items=pa.array(range(30)))
        assert np.isfinite(best["score"].to_numpy()).all()


class TestLater:
    def test_pairs_in_two_steps_as_in_one(self, planted, model):
        """A new user who comes back is still new: the second pair does not undo the first."""
        items = planted.train[3].indices[:6].astype(np.int64)
        once, twice = copy.copy(model), copy.copy(model)
        once.fold_in(pa.table({"user_id": np.full(6, 30_000), "item_id": items}))
        for part in (items[:2], items[2:]):
            twice.update(pa.table({"user_id": np.full(len(part), 30_000), "item_id": part}))
        ask = pa.table({"user_id": np.full(40, 30_000), "item_id": np.arange(40)})
        np.testing.assert_allclose(once.predict(ask), twice.predict(ask), atol=0.05)

    def test_the_unit_of_weights_does_not_matter(self, planted):
        pairs = planted.train.tocoo()
        table = {"user_id": pairs.row, "item_id": pairs.col}
        new = pa.table({"user_id": [50_000] * 4, "item_id": pairs.col[:4]})
        ask = pa.table({"user_id": [50_000] * 30, "item_id": np.arange(30)})
        answers = []
        for weight in (1.0, 100.0):
            weighted = pa.table({**table, "weight": np.full(len(pairs.row), weight)})
            fit = TwoTower(embedding_dim=8).fit(weighted)
            given = new.append_column("weight", pa.array(np.full(4, weight)))
            answers.append(fit.fold_in(given).predict(ask))
        np.testing.assert_allclose(*answers, atol=1e-3)

    def test_weights_of_nothing_are_refused(self):
        table = pa.table({"user_id": [1, 2], "item_id": [1, 2], "weight": [0.0, 0.0]})
        with pytest.raises(InputError, match="weights sum to 0"):
            TwoTower().fit(table)


@pytest.fixture(scope="module")
def by_groups():
    """Fit pairs of items whose group says how popular they are."""
    rng = np.random.default_rng(0)
    groups = np.arange(60) % 3  # a third of the items is taken up far more often
    share = np.array([0.02, 0.08, 0.3])[groups]
    users, items = np.nonzero(rng.random((300, 60)) < share)
    features = pa.table({"item_id": np.arange(66), "group": [f"g{k % 3}" for k in range(66)]})
    pairs = pa.table({"user_id": users, "item_id": items})
    return TwoTower(random_state=0).fit(pairs, items=features)


class TestPopularityFromFeatures:
    """Users of whom nothing is known get new items that are popular by their features."""

    def test_a_new_user_gets_the_new_items_that_most_would_take_up(self, by_groups):
        new = np.arange(60, 66)
        lists = by_groups.recommend(pa.array([9999]), k=6, items=new, unknown="prior")
        assert set(lists["item_id"][:2]) == {62, 65}
        assert set(lists["item_id"][4:]) == {60, 63}

    def test_it_fades_as_pairs_come_in(self, by_groups):
        def popularity(model):
            rows = model.items_.rows([60, 62])
            return np.asarray(model.parts_["popularity"].heads.items.vectors)[rows]

        before = popularity(by_groups)
        assert before[0, 1] < before[1, 1]
        model = copy.deepcopy(by_groups)
        model.update(pa.table({"user_id": np.arange(150), "item_id": np.full(150, 60)}))
        found = popularity(model)
        np.testing.assert_allclose(found[0], [np.log1p(150), 0, 0], rtol=1e-6)
        np.testing.assert_array_equal(found[1], before[1])
