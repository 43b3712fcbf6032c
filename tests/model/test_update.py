"""The life of an entity: fold_in, update, forget, uncertainty, explanations, similarity."""

import copy

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from simrec import InputError, Ratings, TwoTower, cold_start_split
from simrec.data.sides import Sides
from simrec.data.synthetic import make_synthetic
from simrec.model.part import LaterRatings
from simrec.model.update.add_ratings import add_ratings

TASKS = ("warm", "new_items", "new_users", "new_both")


def vectors(model, side):
    return model.parts_["rating"].heads[side].vectors


@pytest.fixture(scope="module")
def data():
    return make_synthetic(n_users=500, n_items=250, n_ratings=20_000, random_state=3)


@pytest.fixture(scope="module")
def split(data):
    return cold_start_split(Ratings.from_arrow(data.ratings), random_state=1)


@pytest.fixture(scope="module")
def fitted(data, split):
    return TwoTower(bounds=(0.5, 5)).fit(split.train, items=data.items, users=data.users)


@pytest.fixture(scope="module")
def likes(split):
    """Pairs without ratings: what was rated 4 or higher."""
    return split.train.select(split.train.values >= 4).to_arrow().select(["user_id", "item_id"])


@pytest.fixture(scope="module")
def lister(data, likes):
    """A model of interactions: it has learned uptake and no ratings."""
    return TwoTower(embedding_dim=8).fit(likes, items=data.items, users=data.users)


@pytest.fixture
def model(fitted):
    return copy.copy(fitted)


def bounded(model, contributions):
    """The answer that the contributions to a score sum to."""
    output = model.parts_["rating" if "rating" in model.parts_ else "uptake"].output
    return output(np.array(sum(contributions["contribution"].to_pylist()) - output.shift))


def test_ratings_for_a_model_of_pairs_count_as_pairs_and_this_is_said(lister, caplog):
    pairs = pa.table({"user_id": [9001, 9001], "item_id": [17, 24]})
    expected = copy.copy(lister).fold_in(pairs).recommend(9001, k=5)
    assert "however rated" not in caplog.text
    rated = copy.copy(lister).fold_in(pairs.append_column("rating", pa.array([1.0, 1.0])))
    assert "each of 2 counts as one, however rated" in caplog.text
    assert rated.recommend(9001, k=5).equals(expected)


def rmse(model, ratings):
    return float(np.sqrt(np.mean((model.predict(ratings) - ratings.values) ** 2)))


def order_within(rows, seed=0):
    """Number the ratings of each entity in random order."""
    order = np.random.default_rng(seed).permutation(len(rows))
    order = order[np.argsort(rows[order], kind="stable")]
    counts = np.bincount(rows)
    rank = np.empty(len(rows), int)
    rank[order] = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return rank, counts[rows]


def revealed(ratings, side, n):
    """Give the first n ratings of each entity, and what is left after the first ten."""
    rank, count = order_within(ratings.user_rows if side == "user" else ratings.item_rows)
    enough = count >= 15
    return ratings.select(enough & (rank < n)), ratings.select(enough & (rank >= 10))


class TestFoldIn:
    @pytest.mark.parametrize("side", ["user", pytest.param("item", marks=pytest.mark.slow)])
    def test_error_falls_as_ratings_are_revealed(self, fitted, split, side):
        ratings = getattr(split, f"new_{side}s")
        errors = []
        for n in (0, 1, 2, 5, 10):
            few, rest = revealed(ratings, side, n)
            errors.append(rmse(copy.copy(fitted).fold_in(few if n else None), rest))
        assert errors == sorted(errors, reverse=True)
        assert errors[-1] < 0.97 * errors[0]

    def test_no_rating_is_the_cold_answer_exactly(self, data, split, fitted):
        known = np.isin(data.users["user_id"].to_numpy(), split.train.users.ids.to_numpy())
        users = data.users.filter(pa.array(known))
        model = TwoTower(lists=False, bounds=(0.5, 5)).fit(
            split.train, items=data.items, users=users
        )
        new = data.users.filter(pa.array(~known))
        cold = model.predict(split.new_users, users=new)
        assert np.array_equal(model.fold_in(None, users=new).predict(split.new_users), cold)

    @pytest.mark.parametrize("side", ["user", "item"])
    def test_all_ratings_come_close_to_retraining(self, data, split, fitted, side):
        ratings = getattr(split, f"new_{side}s")
        rank, _ = order_within(ratings.user_rows if side == "user" else ratings.item_rows)
        seen, rest = ratings.select(rank % 5 != 0), ratings.select(rank % 5 == 0)
        both = pa.concat_tables([split.train.to_arrow(), seen.to_arrow()])
        again = TwoTower(lists=False, bounds=(0.5, 5)).fit(both, items=data.items, users=data.users)
        folded = copy.copy(fitted).fold_in(seen)
        assert rmse(folded, rest) < 1.01 * rmse(again, rest)

    def test_others_are_untouched(self, model, fitted, split):
        model.fold_in(revealed(split.new_users, "user", 5)[0])
        assert np.array_equal(model.predict(split.warm), fitted.predict(split.warm))
        assert np.array_equal(model.predict(split.new_items), fitted.predict(split.new_items))

    def test_many_at_once_equal_one_by_one(self, fitted, split):
        few, _ = revealed(split.new_users, "user", 5)
        together = copy.copy(fitted).fold_in(few)
        for user in few.users.ids.to_pylist()[:5]:
            alone = few.select(few.user_rows == few.users.rows([user])[0])
            one = copy.copy(fitted).fold_in(alone)
            row = one.users_.rows([user])[0]
            near = np.allclose(
                vectors(one, "users")[row], vectors(together, "users")[row], atol=1e-5
            )
            assert near

    def test_both_new(self, model, data, split):
        """New users and new items who rated each other are learned in one call."""
        before = rmse(model, split.new_both)
        tables = [split.new_users.to_arrow(), split.new_items.to_arrow()]
        model.fold_in(pa.concat_tables(tables))
        assert rmse(model, split.new_both) < 0.95 * before

    def test_ids_without_features_start_as_average(self, data, split, fitted, caplog):
        model = copy.copy(fitted)
        items = split.train.items.ids.to_pylist()[:3]
        few = pa.table({"user_id": [10**6] * 3, "item_id": items, "rating": [5.0, 5.0, 5.0]})
        model.fold_in(few)
        assert "1 have no row of features" in caplog.text
        pairs = few.select(["user_id", "item_id"])
        average = fitted.predict(pairs, unknown="prior")
        assert (model.predict(pairs) > average).all()

    def test_without_features(self, split):
        model = TwoTower(lists=False, bounds=(0.5, 5)).fit(split.train)
        few, rest = revealed(split.new_users, "user", 10)
        pairs, truth = rest.to_arrow(), rest.values
        cold = model.predict(pairs, unknown="prior")
        warm = model.fold_in(few).predict(pairs)
        assert np.mean((warm - truth) ** 2) < 0.9 * np.mean((cold - truth) ** 2)

    def test_ratings_of_known_pairs_are_left_out(self, model, fitted, split, caplog):
        model.fold_in(split.warm)
        assert "change nothing; update learns from them" in caplog.text
        assert np.array_equal(vectors(model, "users"), vectors(fitted, "users"))

    def test_what_was_rated_follows_the_entities(self, model, data, split):
        """Features given again for items without ratings do not mix up who rated what."""

        def pairs(one):
            found = one.rated_.tocoo()
            users, items = one.users_.ids.to_numpy(), one.items_.ids.to_numpy()
            return set(zip(users[found.row], items[found.col], strict=True))

        before = pairs(model)
        few, _ = revealed(split.new_users, "user", 5)
        model.fold_in(few, items=data.items, users=data.users)
        new = few.to_arrow()
        given = zip(new["user_id"].to_pylist(), new["item_id"].to_pylist(), strict=True)
        assert pairs(model) == before | set(given)
        model.fold_in(split.warm)
        assert model.rated_.nnz == len(before) + len(few)  # what nobody learned from is not kept

    def test_bad_input_changes_nothing(self, model, fitted):
        bad = pa.table({"user_id": [10**6], "item_id": [1], "rating": [9.0]})
        with pytest.raises(InputError, match="rating"):
            model.fold_in(bad)
        assert len(model.users_) == len(fitted.users_)

    def test_ratings_may_all_be_the_same(self):
        """Bounds that the ratings gave, and not the person, are not held against later ones."""
        same = {"user_id": [1, 2, 3, 1, 2, 3], "item_id": [1, 1, 1, 2, 2, 2], "rating": [3.0] * 6}
        model = TwoTower(lists=False, folds=2, epochs=2).fit(pa.table(same))
        model.fold_in(pa.table({"user_id": [9], "item_id": [1], "rating": [3.0]}))
        assert model.predict(pa.table({"user_id": [9], "item_id": [2]})) == pytest.approx(3)

    def test_uptake_lifts_what_was_taken_up(self, lister, split):
        few, _ = revealed(split.new_users, "user", 10)
        given = few.select(few.values >= 4)
        folded = copy.copy(lister).fold_in(given)
        pairs = given.to_arrow().to_pandas()
        ranks = []
        for model in (lister, folded):
            listed = model.recommend(pairs["user_id"].unique(), k=1000, exclude=None)
            ranks.append(listed.merge(pairs, on=["user_id", "item_id"])["rank"].mean())
        assert ranks[1] < 0.99 * ranks[0]
        others = split.warm
        assert np.array_equal(folded.predict(others), lister.predict(others))


class TestUpdate:
    def test_close_to_a_refit(self, data, split):
        late = np.random.default_rng(0).random(len(split.train)) < 0.05
        old, new = split.train.select(~late), split.train.select(late)
        model = TwoTower(lists=False, bounds=(0.5, 5)).fit(old, items=data.items, users=data.users)
        before = rmse(model, split.warm)
        model.update(new)
        again = TwoTower(lists=False, bounds=(0.5, 5)).fit(
            split.train, items=data.items, users=data.users
        )
        assert rmse(model, split.warm) < 1.005 * rmse(again, split.warm)
        assert rmse(model, split.warm) < before

    def test_names_its_parent(self, model, split, tmp_path):
        model.save(tmp_path / "one")
        parent = model.model_id_
        model.update(split.warm)
        model.save(tmp_path / "two")
        loaded = TwoTower.load(tmp_path / "two")
        assert loaded.parent_ == parent != loaded.model_id_
        assert loaded.updates_[-1]["ratings"] == len(split.warm)
        assert TwoTower.load(tmp_path / "one").parent_ is None

    def test_saved_and_loaded_goes_on_alike(self, model, split, tmp_path):
        model.save(tmp_path / "model")
        loaded = TwoTower.load(tmp_path / "model").update(split.warm)
        assert np.array_equal(
            loaded.predict(split.warm), model.update(split.warm).predict(split.warm)
        )

    def test_new_category_is_unknown_and_counted(self, model, data, split):
        new = data.items.slice(0, 2)
        new = new.set_column(0, "item_id", pa.array([10**6, 10**6 + 1], new["item_id"].type))
        at = new.column_names.index("studio")
        new = new.set_column(at, "studio", pa.array(["Never Heard Of", "Nor Of This"]))
        ratings = pa.table(
            {
                "user_id": split.train.users.ids.slice(0, 2),
                "item_id": new["item_id"],
                "rating": [4.0, 2.0],
            }
        )
        model.update(ratings, items=new)
        learned = model.updates_[-1]
        assert learned["unknown_values"] == {"items": {"studio": 2}}
        assert learned["new_items"] == 2

    def test_features_of_known_ids_make_no_new_ones(self, model, fitted, data, split):
        model.update(split.warm, items=data.items, users=data.users)
        learned = model.updates_[-1]
        assert (learned["new_items"], learned["new_users"]) == (0, 0)
        assert model.items_ == fitted.items_ and model.users_ == fitted.users_

    def test_ids_keep_their_meaning(self, model, fitted, data, split):
        """A new id that sorts between others moves no one's vector to someone else."""
        ids = [-5, 10**6]
        ratings = pa.table(
            {"user_id": ids, "item_id": split.train.items.ids.slice(0, 2), "rating": [3.0, 4.0]}
        )
        model.update(ratings)
        for user in fitted.users_.ids.to_pylist()[::50]:
            before = vectors(fitted, "users")[fitted.users_.rows([user])[0]]
            assert np.array_equal(vectors(model, "users")[model.users_.rows([user])[0]], before)

    def test_a_pair_counts_by_its_last_rating(self, model, split):
        """In histories too, whether it is rated again at once, later, or beside new ids."""
        some = split.train.to_arrow().slice(0, 4)
        weight = model.parts_["uptake"].weight
        for _ in range(2):
            for stars in (1.0, 5.0):
                again = some.set_column(2, "rating", pa.array([stars] * 4, pa.float32()))
                new = {
                    "user_id": [-7, 10**6],
                    "item_id": [-int(stars), 10**7],
                    "rating": [3.0, 3.0],
                }
                new = pa.table(new).cast(again.select(["user_id", "item_id", "rating"]).schema)
                both = [again.select(new.column_names), new]
                before = model.rated_.nnz
                model.update(pa.concat_tables(both))
                rows = model.users_.rows(some["user_id"]), model.items_.rows(some["item_id"])
                found = np.asarray(model.rated_[rows[0]][:, rows[1]].todense()).diagonal()
                np.testing.assert_allclose(found, weight(np.full(4, stars)), rtol=1e-6)
                assert model.rated_.nnz - before <= 2


class TestAddRatings:
    def test_in_two_parts_as_in_one(self, fitted, split):
        """For fixed partners, evidence adds up whatever the order in which it comes."""
        model, few = fitted, revealed(split.new_users, "user", 10)[0]
        evidence = model.parts_["rating"].evidence
        rows = Sides(
            model.items_.rows(few.items.ids)[few.item_rows],
            model.users_.rows(few.users.ids)[few.user_rows],
        )
        values = (few.values - evidence.mean) / evidence.scale
        counts = model.towers_.map(lambda tower: np.array(tower.counts))
        once, learned = add_ratings(
            evidence, counts, LaterRatings(rows, values), only_new=Sides(True, True)
        )
        half = np.arange(len(few)) % 2 == 0
        twice = evidence
        for part in (half, ~half):
            some = LaterRatings(rows.map(lambda all_rows, part=part: all_rows[part]), values[part])
            # Items keep still: pretend they are known and the users are not.
            users = np.isin(np.arange(len(counts.users)), some.rows.users)
            fresh = Sides(counts.items, np.where(users, 0, 1))
            twice, _ = add_ratings(twice, fresh, some, only_new=Sides(True, True))
        ours = once.sides.users.warm.unpacked(learned.users).covariance
        theirs = twice.sides.users.warm.unpacked(learned.users).covariance
        assert np.allclose(ours, theirs, rtol=4e-3, atol=1e-4)  # kept in half precision


class TestForget:
    def test_nothing_is_left(self, model, split, tmp_path):
        user = int(split.train.users.ids[7].as_py())
        others = split.warm.select(split.warm.user_rows != split.warm.users.rows([user])[0])
        before = model.predict(others)
        model.forget([user])
        assert user not in model.users_.ids.to_pylist()
        assert (
            len(model.parts_["rating"].evidence.sides.users.warm.mean)
            == len(model.users_)
            == len(vectors(model, "users"))
        )
        assert np.array_equal(model.predict(others), before)
        pair = pa.table({"user_id": [user], "item_id": split.train.items.ids.slice(0, 1)})
        with pytest.raises(InputError, match="neither ratings nor features"):
            model.predict(pair)
        model.save(tmp_path / "model")
        assert user not in TwoTower.load(tmp_path / "model").users_.ids.to_pylist()

    def test_folded_and_forgotten_is_as_before(self, model, fitted, split):
        few = pa.table(
            {"user_id": [10**6], "item_id": split.train.items.ids.slice(0, 1), "rating": [5.0]}
        )
        model.fold_in(few).forget(10**6)
        assert np.array_equal(vectors(model, "users"), vectors(fitted, "users"))
        assert np.array_equal(vectors(model, "items"), vectors(fitted, "items"))

    def test_ids_in_any_form(self, fitted):
        first = fitted.users_.ids[0]
        one = first.as_py()
        for given in (one, np.int64(one), first, [one], {one}, np.array([one]), iter([one])):
            assert len(copy.copy(fitted).forget(given).users_) == len(fitted.users_) - 1
        assert len(copy.copy(fitted).forget([]).users_) == len(fitted.users_)
        with pytest.raises(InputError, match="for example 1000000000"):
            copy.copy(fitted).forget(iter([one, 10**9]))

    def test_who_is_not_there(self, model):
        with pytest.raises(InputError, match="1 users to forget are not in the model"):
            model.forget([10**9])


class TestUncertainty:
    @pytest.mark.parametrize("task", TASKS)
    def test_intervals_hold_what_they_say(self, fitted, split, task):
        ratings = getattr(split, task)
        mean, std = fitted.predict(ratings, return_std=True)
        inside = np.mean(np.abs(ratings.values - mean) <= 1.645 * std)
        assert 0.87 <= inside <= 0.93

    def test_newer_is_less_sure(self, fitted, split):
        _, rest = revealed(split.new_users, "user", 10)
        stds = [
            copy.copy(fitted)
            .fold_in(revealed(split.new_users, "user", n)[0] if n else None)
            .predict(rest, return_std=True)[1]
            .mean()
            for n in (0, 1, 5, 10)
        ]
        assert stds == sorted(stds, reverse=True)
        assert fitted.predict(split.warm, return_std=True)[1].mean() < stds[-1]

    def test_unknown_is_least_sure(self, fitted, split, data):
        item = split.train.items.ids.slice(0, 1)
        known = pa.table({"user_id": split.train.users.ids.slice(0, 1), "item_id": item})
        unknown = pa.table({"user_id": [10**6], "item_id": item})
        new = data.users.slice(0, 1).set_column(0, "user_id", pa.array([10**6]))
        stds = [
            fitted.predict(known, return_std=True)[1][0],
            fitted.predict(unknown, users=new, return_std=True)[1][0],
            fitted.predict(unknown, unknown="prior", return_std=True)[1][0],
        ]
        assert stds == sorted(stds)

    @pytest.mark.parametrize("seed", [1, 2])
    def test_newer_is_less_sure_of_little_data_too(self, seed):
        """Where held-out entities seem no harder than known ones, new ones are no surer."""
        data = make_synthetic(n_users=120, n_items=60, n_ratings=1800, random_state=seed)
        model = TwoTower(lists=False, bounds=(0.5, 5)).fit(
            data.ratings, items=data.items, users=data.users
        )
        for tower, side in (
            (model.towers_.items, model.parts_["rating"].evidence.sides.items),
            (model.towers_.users, model.parts_["rating"].evidence.sides.users),
        ):
            new = np.sum(side.new_covariance() * side.moments)
            assert side.variance(np.flatnonzero(tower.counts > 0)).mean() < new

    def test_few_pairs_as_many(self, fitted, split):
        """A few pairs have the deviations that they have among many."""
        _, many = fitted.predict(split.train, return_std=True)
        _, few = fitted.predict(split.train.to_arrow().slice(0, 5), return_std=True)
        assert np.allclose(few, many[:5], rtol=1e-6)

    def test_exploring_gives_new_items_a_chance(self, fitted):
        rated = dict(
            zip(fitted.items_.ids.to_pylist(), fitted.towers_.items.counts.tolist(), strict=True)
        )
        shares = []
        for explore in (0.0, 1.0, 3.0):
            table = fitted.recommend(k=10, explore=explore, rank_by="rating", output="arrow")
            shares.append(np.mean([rated[i] == 0 for i in table["item_id"].to_pylist()]))
        assert shares[0] < shares[1] < shares[2]

    def test_scores_are_predictions_also_when_exploring(self, fitted):
        users = fitted.users_.ids.slice(0, 5)
        table = fitted.recommend(users, k=3, explore=1.0, rank_by="rating", output="arrow")
        within = np.clip(table["score"], 0.5, 5)
        assert np.allclose(within, fitted.predict(table.select(["user_id", "item_id"])))

    @pytest.mark.parametrize("explore", [-1.0, float("nan"), True, "1"])
    def test_bad_explore(self, fitted, explore):
        with pytest.raises(InputError, match="explore"):
            fitted.recommend(explore=explore, output="arrow")

    def test_interactions_have_none(self, lister, split):
        with pytest.raises(InputError, match="return_std"):
            lister.predict(split.warm, return_std=True)


class TestExplain:
    @pytest.mark.parametrize("learned", ["rating", "uptake"])
    @pytest.mark.parametrize("task", TASKS)
    def test_contributions_sum_to_the_score(self, fitted, lister, split, learned, task):
        model = fitted if learned == "rating" else lister
        pairs = getattr(split, task).to_arrow().slice(0, 5)
        scores = model.predict(pairs)
        for row, score in zip(pairs.to_pylist(), scores, strict=True):
            table = model.explain(row["user_id"], row["item_id"], output="arrow")
            assert bounded(model, table) == pytest.approx(score, abs=1e-5)
            assert set(table["side"].to_pylist()) == {"model", "item", "user"}

    @pytest.mark.parametrize("task", TASKS)
    def test_contributions_sum_to_the_score_of_lists(self, fitted, split, task):
        pair = getattr(split, task).to_arrow().slice(0, 1).to_pylist()[0]
        user, item = pair["user_id"], pair["item_id"]
        table = fitted.explain(user, item, rank_by="both", output="arrow")
        listed = fitted.recommend([user], k=1, items=[item], exclude=None, output="arrow")
        total = sum(table["contribution"].to_pylist())
        assert total == pytest.approx(listed["score"][0].as_py(), abs=1e-4)

    def test_folded_in(self, model, split):
        few, rest = revealed(split.new_users, "user", 3)
        model.fold_in(few)
        pair = rest.to_arrow().slice(0, 1)
        user, item = pair["user_id"][0].as_py(), pair["item_id"][0].as_py()
        table = model.explain(user, item, output="arrow")
        assert bounded(model, table) == pytest.approx(model.predict(pair)[0], abs=1e-5)
        assert "how they rated" in table["feature"].to_pylist()

    def test_without_features_there_are_none_to_show(self, model, split):
        few = pa.table(
            {"user_id": [10**6], "item_id": split.train.items.ids.slice(0, 1), "rating": [5.0]}
        )
        table = model.fold_in(few).explain(10**6, few["item_id"][0].as_py(), output="arrow")
        shown = {row["feature"]: row["value"] for row in table.to_pylist() if row["side"] == "user"}
        assert set(shown) == {"average user", "what they rated", "how they rated"}
        assert shown["how they rated"] == shown["what they rated"] == "1 rating"
        assert bounded(model, table) == pytest.approx(model.predict(few)[0], abs=1e-5)

    def test_new_by_table_as_by_id(self, fitted, data, split):
        item = split.new_items.items.ids[0].as_py()
        user = split.train.users.ids[0].as_py()
        row = data.items.filter(pa.array(np.array(data.items["item_id"]) == item))
        other = row.set_column(0, "item_id", pa.array([10**6]))
        ours, theirs = (
            fitted.explain(user, item, output="arrow"),
            fitted.explain(user, 10**6, items=other, output="arrow"),
        )
        assert np.allclose(ours["contribution"], theirs["contribution"], atol=1e-6)
        assert ours["value"].to_pylist() == theirs["value"].to_pylist()

    def test_average_entity(self, fitted, split):
        item = split.train.items.ids[0].as_py()
        table = fitted.explain(10**6, item, unknown="prior", output="arrow")
        assert "average user" in table["feature"].to_pylist()
        with pytest.raises(InputError, match="neither ratings nor features"):
            fitted.explain(10**6, item, output="arrow")

    def test_values_are_readable(self, fitted, data, split):
        item = split.train.items.ids[0].as_py()
        table = fitted.explain(split.train.users.ids[0].as_py(), item, output="arrow").to_pylist()
        raw = data.items.filter(pa.array(np.array(data.items["item_id"]) == item)).to_pylist()[0]
        shown = {row["feature"]: row["value"] for row in table if row["side"] == "item"}
        assert shown["year"] == str(raw["year"])
        assert shown["genres"] == ", ".join(sorted(raw["genres"]))

    @pytest.mark.slow
    def test_a_network_is_taken_apart(self):
        """At x, the weights that stand for a network give what the network gives."""
        from scipy import sparse

        from simrec import SimEc
        from simrec.model.head import Network
        from simrec.model.part import linear_at

        rng = np.random.default_rng(0)
        X = sparse.random(50, 12, 0.4, format="csr", random_state=0, dtype=np.float32)
        simec = SimEc(3, hidden_layers=(6,), epochs=2).fit(X, rng.normal(size=(50, 20)))
        network = Network(simec, rng.normal(size=(3, 5)).astype(np.float32))
        for i in range(5):
            weights = linear_at(network, X[i])
            assert np.allclose(X[i] @ weights[:-1] + weights[-1], network.encode(X[i]), atol=1e-5)


class TestSimilar:
    def test_twins_are_nearest(self, data, split):
        """Of two items with the same features, one new, each is the other's nearest."""
        item = split.train.items.ids[0].as_py()
        row = data.items.filter(pa.array(np.array(data.items["item_id"]) == item))
        twins = [row.set_column(0, "item_id", pa.array([10**6 + i], pa.int32())) for i in range(2)]
        items = pa.concat_tables([data.items, *twins])
        model = TwoTower(bounds=(0.5, 5), embedding_dim=4, epochs=4)
        model.fit(split.train, items=items, users=data.users)
        nearest = model.similar_items(10**6, k=1, output="arrow")
        assert nearest["item_id"][0].as_py() == 10**6 + 1
        assert nearest["similarity"][0].as_py() == pytest.approx(1, abs=1e-5)
        features = row.drop_columns(["item_id"]).to_pylist()[0]
        by_features = model.similar_items(features, k=2, output="arrow")
        assert set(by_features["item_id"].to_pylist()) == {10**6, 10**6 + 1}
        del features[next(iter(model.towers_.items.encoder.columns_))]  # counts as missing
        assert len(model.similar_items(features, k=2)) == 2

    def test_agrees_with_what_users_think(self, fitted):
        """The similarity of known items is the correlation of their tastes over users."""
        d = vectors(fitted, "items").shape[1] // 3 - 2
        rated = fitted.towers_.users.counts > 0
        taste = vectors(fitted, "users")[rated][:, :d] @ vectors(fitted, "items")[:, :d].T
        weights = fitted.towers_.users.counts[rated] / fitted.towers_.users.counts.sum()
        known = np.flatnonzero(fitted.towers_.items.counts > 0)
        a = int(known[0])
        item = fitted.items_.ids[a].as_py()
        table = fitted.similar_items(item, k=len(fitted.items_), rank_by="rating", output="arrow")
        found = dict(
            zip(table["item_id"].to_pylist(), table["similarity"].to_pylist(), strict=True)
        )
        for b in known[1:6]:
            x, y = (taste[:, i] - weights @ taste[:, i] for i in (a, b))
            expected = (weights * x * y).sum() / np.sqrt(
                (weights * x * x).sum() * (weights * y * y).sum()
            )
            assert found[fitted.items_.ids[int(b)].as_py()] == pytest.approx(expected, abs=1e-3)

    def test_popularity_makes_nobody_alike(self, lister):
        """By uptake too: what an item is to all users does not count."""
        part, counts = lister.parts_["uptake"], lister.towers_.users.counts
        users, items = part.heads.users.vectors, part.heads.items.vectors
        scores = users @ items.T
        scores = scores - np.average(scores, axis=0, weights=counts)
        x, y = scores[:, 0], scores[:, 1]
        expected = counts @ (x * y) / np.sqrt((counts @ x**2) * (counts @ y**2))
        first, second = (lister.items_.ids[i].as_py() for i in (0, 1))
        every = len(lister.items_)
        table = lister.similar_items(first, k=every, rank_by="uptake").set_index("item_id")
        assert table["similarity"][second] == pytest.approx(expected, abs=1e-3)

    def test_users_and_errors(self, fitted, lister):
        user = fitted.users_.ids[0].as_py()
        for model in (fitted, lister):
            table = model.similar_users(user, k=3, output="arrow")
            assert len(table) == 3 and user not in table["user_id"].to_pylist()
        with pytest.raises(InputError, match="k must be"):
            fitted.similar_users(user, k=0, output="arrow")
        with pytest.raises(InputError, match="neither ratings nor features"):
            fitted.similar_items(10**9, output="arrow")


@pytest.mark.parametrize("write", ["|".join, str, lambda genres: str(np.array(genres))])
def test_lists_in_strings_are_lists_to_filters(data, split, write, tmp_path):
    def written(table):
        genres = pa.array([write(genres) for genres in table["genres"].to_pylist()])
        return table.set_column(table.column_names.index("genres"), "genres", genres)

    found = []
    for items in (data.items, written(data.items)):
        later = items.take(list(range(5)))
        early = items.filter(pc.invert(pc.is_in(items["item_id"], later["item_id"])))
        known = pc.is_in(data.ratings["item_id"], early["item_id"])
        model = TwoTower(epochs=1, lists=False).fit(data.ratings.filter(known), items=early)
        model.save(tmp_path / "model")
        model = TwoTower.load(tmp_path / "model")
        model.update(data.ratings.filter(pc.invert(known)).slice(0, 40), items=later)
        model.save(tmp_path / "model")
        model = TwoTower.load(tmp_path / "model")
        found.append(model.catalogue_["genres"].to_pylist())
        answer = model.recommend(
            7, k=9, where={"genres": {"contains": "War"}}, at_most={"genres": 3}
        )
        found.append(answer["item_id"].tolist())
    assert found[:2] == found[2:] and len(found[1]) > 2
    assert found[0][:5] == data.items["genres"].to_pylist()[:5]
