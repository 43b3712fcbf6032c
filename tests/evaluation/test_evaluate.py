"""The four-task table: its figures by hand, its candidates, its refusals."""

import numpy as np
import pyarrow as pa
import pytest

from simrec.data.ratings import Ratings
from simrec.data.split import ColdStartSplit, cold_start_split, time_split
from simrec.data.synthetic import make_synthetic
from simrec.errors import InputError
from simrec.evaluation.baselines import BiasBaseline, MeanBaseline, PopularityBaseline
from simrec.evaluation.evaluate import BEST, evaluate, verdicts
from simrec.scoring.metrics import rmse


def ratings(*rows):
    """Return ratings of rows (user, item, rating)."""
    user, item, value = zip(*rows, strict=True)
    return Ratings.from_arrow(pa.table({"user_id": user, "item_id": item, "rating": value}))


class Fixed:
    """A model that gives everyone the same score for an item, and remembers what it was asked."""

    def __init__(self, scores):
        self.scores = scores
        self.asked = []

    def predict(self, pairs):
        assert pairs.column_names == ["user_id", "item_id"]  # the answer is not shown
        return np.array([self.scores[i] for i in pairs.column("item_id").to_pylist()], np.float32)

    def recommend(self, users, k=10, items=None, exclude=None):
        seen = set()
        if exclude is not None:
            table = exclude.to_arrow()
            seen = set(
                zip(*(table.column(c).to_pylist() for c in table.column_names[:2]), strict=True)
            )
        candidates = sorted(items.to_pylist(), key=lambda item: -self.scores[item])
        self.asked.append((users.to_pylist(), set(candidates)))
        rows = []
        for user in users.to_pylist():
            allowed = [item for item in candidates if (user, item) not in seen][:k]
            rows += [(user, item, rank) for rank, item in enumerate(allowed, start=1)]
        names = ["user_id", "item_id", "rank"]
        return pa.table(dict(zip(names, zip(*rows, strict=True), strict=True)))


@pytest.fixture
def split():
    """Items a to d and users 1, 2 are kept, e and f and user 3 are held out."""
    return ColdStartSplit(
        train=ratings((1, "a", 5), (1, "b", 1), (2, "c", 3), (2, "d", 4)),
        warm=ratings((1, "c", 5), (2, "a", 2)),
        new_items=ratings((1, "e", 4), (2, "f", 1)),
        new_users=ratings((3, "d", 5), (3, "b", 1)),
        new_both=ratings((3, "e", 2), (3, "f", 3)),
    )


@pytest.fixture
def model():
    return Fixed({"a": 5.0, "b": 4.0, "c": 3.0, "d": 2.0, "e": 1.0, "f": 2.0})


def test_the_table_by_hand(split, model):
    table = evaluate(model, split, k=2).set_index("task")
    assert list(table.index) == ["warm", "new_items", "new_users", "new_both"]
    assert table["n"].tolist() == [2, 2, 2, 2]
    np.testing.assert_allclose(table.loc["warm", "rmse"], np.sqrt((2**2 + 3**2) / 2))
    np.testing.assert_allclose(table.loc["warm", "mae"], 2.5)
    np.testing.assert_allclose(table.loc["warm", "rmse_mean"], np.sqrt((1.75**2 + 1.25**2) / 2))
    # User 1 has c to find among c and d (a and b are known): rank 1.
    assert table.loc[
        "warm", ["n_ranked", "precision@2", "recall@2", "ndcg@2", "map@2", "mrr"]
    ].to_list() == [1, 0.5, 1, 1, 1, 1]
    assert table.loc["warm", "coverage"] == 0.5
    # User 1 has e to find among e and f: rank 2.
    assert table.loc["new_items", ["n_ranked", "mrr", "map@2"]].to_list() == [1, 0.5, 0.5]
    np.testing.assert_allclose(table.loc["new_items", "ndcg@2"], 1 / np.log2(3))
    # User 3 has d to find among a to d: not in the first two.
    assert table.loc["new_users", ["n_ranked", "recall@2", "mrr"]].to_list() == [1, 0, 0]
    # No item was rated 4 or more: nothing to rank for.
    assert table.loc["new_both", "n_ranked"] == 0
    assert np.isnan(
        table.loc["new_both", ["precision@2", "ndcg@2", "coverage"]].astype(float)
    ).all()
    # The most popular of c and d for user 1: both were liked never, once (d, by user 2).
    assert table.loc["warm", ["mrr", "mrr_popular"]].to_list() == [1, 0.5]
    assert table.loc["warm", ["coverage", "new_share"]].to_list() == [0.5, 0]


def test_what_is_ranked_for_whom(split, model):
    evaluate(model, split, threshold=1)
    kept, held_out = {"a", "b", "c", "d"}, {"e", "f"}
    assert model.asked == [([1, 2], kept), ([1, 2], held_out), ([3], kept), ([3], held_out)]


def test_the_threshold_decides_what_is_relevant(split, model):
    table = evaluate(model, split, k=2, threshold=2).set_index("task")
    assert table["n_ranked"].tolist() == [2, 1, 1, 1]
    assert table.loc["new_both", "recall@2"] == 1


def test_baselines_know_the_training_ratings_alone(split, model):
    table = evaluate(model, split).set_index("task")
    bias = BiasBaseline.fit(split.train)
    for task, test in split.tasks().items():
        assert table.loc[task, "rmse_bias"] == rmse(test.values, bias.predict(test.to_arrow()))
    assert table.loc["new_both", "rmse_bias"] == table.loc["new_both", "rmse_mean"]


def test_without_recommend_there_are_errors_only(split):
    class Constant:
        def predict(self, pairs):
            return np.full(pairs.num_rows, 3.0, np.float32)

    table = evaluate(Constant(), split)
    assert table["rmse"].notna().all()
    assert table["ndcg@10"].isna().all()


def test_a_task_without_ratings_has_a_row_of_nan(split, model):
    nothing = split.warm.select(np.zeros(2, bool))
    table = evaluate(
        model, ColdStartSplit(split.train, nothing, split.new_items, nothing, nothing)
    ).set_index("task")
    assert table["n"].tolist() == [0, 2, 0, 0]
    assert (
        table.loc[["warm", "new_users", "new_both"]]
        .drop(columns=["n", "n_ranked"])
        .isna()
        .all(axis=None)
    )
    assert table.loc["new_items", "rmse"] > 0


def test_overlap_with_training_is_refused(split, model):
    bad = ColdStartSplit(
        split.train,
        ratings((1, "c", 5), (2, "d", 4)),
        split.new_items,
        split.new_users,
        split.new_both,
    )
    with pytest.raises(
        InputError, match=r"1 of 2 test ratings \(warm\).*'user_id': 2, 'item_id': 'd'"
    ):
        evaluate(model, bad)


def test_missing_predictions_are_refused(split, model):
    model.scores["f"] = np.nan
    with pytest.raises(InputError, match=r"new_items: 1 of 2 predictions.*'item_id': 'f'"):
        evaluate(model, split)


def test_wrong_number_of_predictions_is_refused(split, model):
    model.predict = lambda pairs: np.zeros(1)
    with pytest.raises(InputError, match=r"shape \(1,\) for 2 pairs"):
        evaluate(model, split)


def test_foreign_recommendations_are_refused(split, model):
    model.recommend = lambda users, k, items, exclude: pa.table(
        {"user_id": users[:1], "item_id": ["zzz"], "rank": [1]}
    )
    with pytest.raises(InputError, match="not asked for"):
        evaluate(model, split)


def test_models_that_can_are_asked_to_answer_for_unknown_ids(split, model):
    plain = model.predict
    options = []
    model.predict = lambda pairs, unknown="error": options.append(unknown) or plain(pairs)
    evaluate(model, split)
    assert options == ["prior"] * 4


def test_users_are_drawn_with_a_fixed_seed():
    split = cold_start_split(make_synthetic().ratings)

    class Popular(Fixed):
        def __init__(self):
            super().__init__({i: -i for i in range(1, 401)})

    tables = [evaluate(Popular(), split, max_users=n) for n in (20, 20, 30)]
    assert tables[0]["n_ranked"].tolist() == [20] * 4
    assert tables[0].equals(tables[1])
    assert not tables[0].equals(tables[2])


def test_below_popularity_is_said(split, model):
    table = evaluate(model, split, k=2)
    (little,) = verdicts(table, 2)
    assert "new users; new items for new users: too little to tell" in little
    assert little in str(table) and BEST not in str(table)
    table[["n", "n_ranked"]] = 20
    said = verdicts(table, 2)
    no_better = "new users: the lists are no better than the most popular items"
    assert any(sentence.startswith(no_better) for sentence in said)
    assert any("known users and items: the predictions are no better" in s for s in said)
    table[["ndcg@2", "rmse"]] = 1.0, 0.0
    assert verdicts(table, 2) == []


class Learner:
    """A model that can be fitted: the mean of each item, the items in the order of their ids."""

    fits = []

    def __init__(self, random_state=0):
        self.random_state = random_state

    def get_params(self):
        return {"random_state": self.random_state}

    def fit(self, ratings, items=None, users=None):
        self.bias = BiasBaseline.fit(ratings)
        self.fits.append((self.random_state, len(ratings), items, users))

    def predict(self, pairs):
        return self.bias.predict(pairs)


def test_seeds_give_mean_and_standard_deviation():
    ratings_ = make_synthetic().ratings
    Learner.fits = []
    table = evaluate(Learner(7), ratings_, seeds=3, items=make_synthetic().items)
    assert [fit[0] for fit in Learner.fits] == [0, 1, 2]
    errors = []
    for seed in range(3):
        parts = cold_start_split(ratings_, random_state=seed)
        learner = Learner()
        learner.fit(parts.train)
        errors.append(evaluate(learner, parts)["rmse"])
    np.testing.assert_allclose(table["rmse"], np.mean(errors, axis=0))
    np.testing.assert_allclose(table["rmse_std"], np.std(errors, axis=0, ddof=1))
    assert list(table.columns[:3]) == ["task", "n", "n_std"]
    # One split for all seeds: only the model changes.
    split = cold_start_split(ratings_)
    assert (evaluate(Learner(), split, seeds=[4, 5])["rmse_std"] == 0).all()
    with pytest.raises(InputError, match="needs a split"):
        evaluate(Learner(), ratings_)
    with pytest.raises(InputError, match="at least one"):
        evaluate(Learner(), ratings_, seeds=[])
    with pytest.raises(InputError, match="each once"):
        evaluate(Learner(), ratings_, seeds=[1, 1])


def test_a_split_by_time_says_how_old_the_model_is(model):
    rows = [(1, "a", 5, 0), (2, "b", 1, 1), (1, "b", 4, 4), (2, "e", 5, 7), (3, "a", 2, 9)]
    user, item, rating, day = zip(*rows, strict=True)
    columns = {"user_id": user, "item_id": item, "rating": rating}
    columns["timestamp"] = np.array(day) * 86400
    table = evaluate(model, time_split(pa.table(columns), at=4 * 86400)).set_index("task")
    assert table["age_days"].to_list()[:3] == [0, 3, 5] and np.isnan(table["age_days"].iloc[3])
    assert table["n"].to_list() == [1, 1, 1, 0]


@pytest.mark.parametrize("given", ["items", "users", "nothing"])
def test_two_tower_without_a_table_or_ratings(given, caplog):
    from simrec import TwoTower

    data = make_synthetic(n_users=120, n_items=90, n_ratings=2500)
    tables = {given: getattr(data, given)} if given != "nothing" else {}
    split = cold_start_split(Ratings.from_arrow(data.ratings))
    model = TwoTower(embedding_dim=2, epochs=2).fit(split.train, **tables)
    table = evaluate(model, split, items=tables.get("items"))
    assert table["rmse"].notna().all() and table["ndcg@10"].notna().all()
    assert "have neither ratings nor features" in caplog.text
    interactions = Ratings.from_arrow(data.ratings.drop_columns(["rating"]), rating=None)
    split = cold_start_split(interactions)
    lists = evaluate(model.fit(split.train, **tables), split, items=tables.get("items"))
    assert lists[["rmse", "mae", "rmse_mean", "rmse_bias"]].isna().all(axis=None)
    assert lists[["ndcg@10", "ndcg@10_popular", "coverage"]].notna().all(axis=None)
    assert all("lists" in sentence for sentence in verdicts(lists))


def shrunk_by(n):
    return type("Shrunk", (BiasBaseline,), {"shrinkage": (n, n)})


class TestBaselines:
    def test_popularity_counts_what_is_liked(self):
        train = ratings((1, 7, 5), (2, 7, 5), (3, 8, 4), (1, 9, 1))
        popular = PopularityBaseline.fit(train, threshold=4)
        users, items = pa.array([1, 5]), pa.array([9, 8, 7])
        assert popular.recommend(users, 1, items)["item_id"].to_pylist() == [7, 7]
        found = popular.recommend(users, 2, items, train)
        assert found["item_id"].to_pylist() == [8, 7, 8]
        assert found["rank"].to_pylist() == [1, 1, 2]

    def test_popularity_of_new_items_comes_from_features(self):
        rng = np.random.default_rng(0)
        kind = rng.choice(["hit", "miss"], 200)
        rows = [
            (user, item, 5)
            for item in range(150)
            for user in range(int(rng.integers(20, 40) if kind[item] == "hit" else 2))
        ]
        items = pa.table({"item_id": np.arange(200), "kind": kind})
        popular = PopularityBaseline.fit(ratings(*rows), items)
        new = np.arange(150, 200)
        scores = popular.score(pa.array(new))
        assert scores[kind[new] == "hit"].min() > scores[kind[new] == "miss"].max()
        blind = PopularityBaseline.fit(ratings(*rows))
        assert np.ptp(blind.score(pa.array(new))) == 0

    def test_baselines_take_any_table(self, split):
        for kind in (MeanBaseline, BiasBaseline):
            model = kind.fit(split.train)
            pairs = split.warm.to_arrow()
            np.testing.assert_array_equal(model.predict(pairs), model.predict(pairs.to_pandas()))

    def test_bias_by_hand(self):
        train = ratings((1, "a", 5), (1, "b", 3), (2, "a", 3))
        bias = shrunk_by(0).fit(train)
        test = ratings((2, "b", 1), (3, "a", 1), (9, "z", 1))
        expected = [1, bias.mean + bias.item_bias[0], 11 / 3]
        np.testing.assert_allclose(bias.predict(test.to_arrow()), expected, rtol=1e-3)

    def test_shrinkage_draws_towards_the_mean(self):
        train = ratings((1, "a", 5), (2, "b", 1))
        weak, strong = shrunk_by(1).fit(train), shrunk_by(1000).fit(train)
        pairs = train.to_arrow()
        assert weak.predict(pairs)[0] > strong.predict(pairs)[0] > 3
        mean = MeanBaseline.fit(train).predict(pairs)
        np.testing.assert_allclose(strong.predict(pairs), mean, atol=0.01)

    def test_refusals(self):
        train = ratings((1, "a", 5))
        with pytest.raises(InputError, match="no ratings"):
            MeanBaseline.fit(train.select(np.zeros(1, bool)))


def test_a_saved_model_is_given_by_its_path(tmp_path, caplog):
    from simrec import TwoTower

    data = make_synthetic(n_users=80, n_items=60, n_ratings=1000)
    split = cold_start_split(Ratings.from_arrow(data.ratings))
    model = TwoTower(embedding_dim=2, epochs=1).fit(split.train, items=data.items)
    model.save(tmp_path / "model")
    expected = evaluate(model, split)
    for path in (tmp_path / "model", str(tmp_path / "model")):
        found = evaluate(path, split)
        assert found["rmse"].notna().all() and found.equals(expected)
    assert "may have seen the answers" not in caplog.text
    evaluate(TwoTower(embedding_dim=2, epochs=1).fit(data.ratings, items=data.items), split)
    assert "has learned 1000 ratings, the training part has" in caplog.text
    with pytest.raises(InputError, match="nothing here"):
        evaluate(str(tmp_path / "nothing here"), split)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty: no manifest\.json in it, so this is no model"):
        evaluate(tmp_path / "empty", split)
    with pytest.raises(InputError, match=r"evaluate: a model has predict\(pairs\).*got dict"):
        evaluate({}, split)
    with pytest.raises(InputError, match="got the class TwoTower; give a fitted one"):
        evaluate(TwoTower, split)
    with pytest.raises(InputError, match="not fitted yet"):
        evaluate(TwoTower(), split)
