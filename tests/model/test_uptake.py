"""Uptake: what users take up at all."""

import copy

import numpy as np
import pyarrow as pa
import pytest
from scipy import sparse

from simrec import TwoTower
from simrec.model.lists.blend import list_quality

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


def folded(model, users, items):
    """Fold pairs into a copy of a model."""
    table = pa.table({"user_id": users.astype(np.int64), "item_id": items.astype(np.int64)})
    return copy.copy(model).fold_in(table)


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
    def test_a_user_without_pairs_has_the_cold_answer(self, fitted):
        none, d = sparse.csr_matrix((3, 0), dtype=np.float32), fitted.heads.items.width
        found = fitted.users(np.zeros((3, d), np.float32), none, np.zeros(3))
        np.testing.assert_allclose(found, fitted.heads.users.encoder(none), atol=1e-6)

    def test_batch_equals_single(self, planted, model):
        pairs = planted.held_out[:6].tocoo()
        together = folded(model, 30_000 + pairs.row, pairs.col)
        for k in range(6):
            own = pairs.row == k
            single = folded(model, 30_000 + pairs.row[own], pairs.col[own])
            rows = [one.users_.rows([30_000 + k])[0] for one in (together, single)]
            vectors = [
                one.parts_["uptake"].heads.users.vectors[row]
                for one, row in zip((together, single), rows, strict=True)
            ]
            np.testing.assert_allclose(*vectors, atol=1e-5)

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
        others = np.setdiff1d(np.arange(50), user)
        ask = pa.table({"user_id": others, "item_id": np.full(len(others), item)})
        np.testing.assert_allclose(grown.predict(ask), model.predict(ask), atol=0.08)


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
        for head in model.parts_["uptake"].heads:
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

    def test_features_of_zeros(self):
        rng = np.random.default_rng(0)
        pairs = np.unique(rng.integers(0, [40, 25], (300, 2)), axis=0)
        table = pa.table({"user_id": pairs[:, 0], "item_id": pairs[:, 1]})
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
        others = np.setdiff1d(np.arange(40), items)
        ask = pa.table({"user_id": np.full(len(others), 30_000), "item_id": others})
        np.testing.assert_allclose(once.predict(ask), twice.predict(ask), atol=0.1)

    def test_a_pair_twice_is_no_other_pair(self, planted, model):
        """A user who takes up again what they have is encoded from the same history."""
        items = planted.train[3].indices[:6].astype(np.int64)
        pairs = pa.table({"user_id": np.full(6, 30_000), "item_id": items})
        once = copy.copy(model).fold_in(pairs)
        twice = copy.copy(once).update(pairs.slice(0, 2))
        counts = [np.diff(one.rated_[one.users_.rows([30_000])].indptr) for one in (once, twice)]
        assert counts[0] == counts[1] == 6
        vectors = [one.parts_["uptake"].heads.items.vectors for one in (once, twice)]
        np.testing.assert_array_equal(*vectors)  # nor are there more who took the items up

    def test_fold_in_encodes_as_fit_does(self, planted, model):
        """A newcomer with the history of a known user has that user's vector."""
        for user in (3, 4, 5):
            items = planted.train[user].indices
            grown = folded(model, np.full(len(items), 30_000), items)
            vectors = grown.parts_["uptake"].heads.users.vectors
            known, new = grown.users_.rows([user, 30_000])
            np.testing.assert_allclose(vectors[new], vectors[known], rtol=1e-5, atol=1e-5)

    def test_new_items_move_from_their_features_to_their_pairs(self, planted, model):
        """Two items with the same users differ by what is left of their features, less and less."""
        two, typical = [N_ITEMS, N_ITEMS + 1], planted.train.getnnz() // N_ITEMS

        def vectors(n):
            grown = copy.copy(model)
            if n:
                pairs = {"user_id": np.tile(np.arange(n), 2), "item_id": np.repeat(two, n)}
                grown.update(pa.table(pairs))
            return np.asarray(grown.parts_["uptake"].heads.items.vectors)[grown.items_.rows(two)]

        numbers = (0, 2, 5, 12, typical, 10 * typical)
        apart = [np.linalg.norm(np.subtract(*vectors(n))) for n in numbers]
        assert np.all(np.diff(apart) < 0)
        assert apart[-1] < apart[0] / 5

    def test_a_new_item_is_its_regression_on_histories(self, planted):
        """With all pairs of a known item it comes close to it, but for the ridge."""
        model = TwoTower(embedding_dim=8, random_state=1).fit(planted.table())
        item = int(np.argmax(np.bincount(planted.train.indices)))
        users = np.flatnonzero(planted.train[:, [item]].toarray())
        grown = copy.copy(model)
        grown.update(pa.table({"user_id": users, "item_id": np.full(len(users), 50_000)}))
        part = grown.parts_["uptake"]
        new = part.heads.items.vectors[grown.items_.rows([50_000])[0]]
        known = model.parts_["uptake"].heads.items.vectors[item]
        shrunk = known * (1 - 5.0 / part.spread)  # `spread` is the eigenvalue and a ridge of 5
        assert np.linalg.norm(new - shrunk) < 0.1 * np.linalg.norm(shrunk)

    def test_pairs_of_a_new_item_one_by_one_as_at_once(self, planted, model):
        columns = {"user_id": np.arange(7), "item_id": np.full(7, N_ITEMS)}
        pairs = pa.table(columns)
        at_once, one_by_one = copy.copy(model).fold_in(pairs), copy.copy(model)
        for k in range(7):
            one_by_one.update(pairs.slice(k, 1))
        row = model.items_.rows([N_ITEMS])[0]
        found = [
            np.asarray(one.parts_["uptake"].heads.items.vectors[row])
            for one in (at_once, one_by_one)
        ]
        np.testing.assert_allclose(*found, atol=1e-5)

    def test_nothing_grows_from_update_to_update(self, planted):
        """Items are regressed on the others: none is explained by itself or by newer ones."""
        model = TwoTower(embedding_dim=100, random_state=1).fit(planted.table())
        item = int(np.argmax(np.bincount(planted.train.indices)))
        fans = np.flatnonzero(planted.train[:, [item]].toarray())
        others = np.setdiff1d(np.arange(N_USERS), fans)[: len(fans)]
        users = np.concatenate([fans, fans, others])
        items = np.repeat([50_000, 50_001, item], [len(fans), len(fans), len(others)])
        order = np.random.default_rng(0).permutation(len(users))
        pairs = pa.table({"user_id": users[order], "item_id": items[order]})
        at_once, in_parts = copy.copy(model).update(pairs), copy.copy(model)
        for some in np.array_split(np.arange(len(users)), 30):
            in_parts.update(pairs.take(some))
        once, parts = (
            np.asarray(one.parts_["uptake"].heads.items.vectors)[one.items_.rows([50_000, item])]
            for one in (at_once, in_parts)
        )
        lengths = [np.linalg.norm(one, axis=1) for one in (once, parts)]
        np.testing.assert_allclose(*lengths, rtol=0.3)


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
        known = model.blended_by("items")[model.items_.rows([60])[0]]
        assert known == pytest.approx(150 / (150 + 2_412 / 60))
        likes = 150 + (1 - known) * np.array([np.expm1(before[0, 0]), before[0, 1] ** 2])
        np.testing.assert_allclose(found[0], [np.log1p(likes[0]), np.sqrt(likes[1]), 1], rtol=1e-5)
        np.testing.assert_array_equal(found[1], before[1])
