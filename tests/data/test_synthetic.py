"""Synthetic data: its shape, its truth, and that nothing beats the best it reports."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simrec.data.ratings import Ratings
from simrec.data.split import cold_start_split
from simrec.data.synthetic import make_synthetic
from simrec.data.synthetic.truth import Parameters, Truth
from simrec.errors import InputError
from simrec.evaluation.baselines import BiasBaseline
from simrec.scoring.metrics import rmse

TASKS = ["warm", "new_items", "new_users", "new_both"]


@pytest.fixture(scope="module")
def data():
    return make_synthetic(n_users=2000, n_items=1200, n_ratings=200_000, random_state=3)


@pytest.fixture(scope="module")
def split(data):
    return cold_start_split(data.ratings, cold_items=0.4, cold_users=0.4)


def test_tables(data):
    ratings = data.ratings.to_pandas()
    assert ratings.columns.tolist() == ["user_id", "item_id", "rating"]
    assert len(ratings) == 200_000
    assert not ratings.duplicated(["user_id", "item_id"]).any()
    assert set(ratings["rating"] * 2) <= set(range(1, 11))
    assert (ratings["rating"].min(), ratings["rating"].max()) == data.bounds
    assert data.items.num_rows == 1200 and data.users.num_rows == 2000
    types = {field.name: field.type for field in data.items.schema}
    assert types["title"] == pa.string() and types["year"] == pa.int32()
    assert types["genres"] == pa.list_(pa.string())
    assert types["mood"] == pa.list_(pa.float32(), 6)
    assert data.items.column("title").to_pandas().is_unique
    assert data.items.column("year").null_count and data.users.column("age").null_count


def test_popularity_is_skewed_and_ratings_are_missing_not_at_random(data):
    ratings = Ratings.from_arrow(data.ratings)
    counts = np.sort(np.bincount(ratings.item_rows))[::-1]
    assert counts[: len(counts) // 10].sum() > 0.25 * len(ratings)
    rng = np.random.default_rng(0)
    anyone, anything = rng.integers(0, 2000, 50_000), rng.integers(0, 1200, 50_000)
    rated = data.truth.preference(ratings.user_rows, ratings.item_rows)
    assert rated.mean() > data.truth.preference(anyone, anything).mean() + 0.2


def test_same_seed_same_data():
    first, second, other = (make_synthetic(50, 40, 300, random_state=s) for s in (1, 1, 2))
    for name in ("ratings", "items", "users"):
        assert getattr(first, name).equals(getattr(second, name))
        assert not getattr(first, name).equals(getattr(other, name))


def test_tasks_are_ordered_by_what_is_known(data, split):
    best = data.best_rmse(split)
    assert list(best) == TASKS
    assert best["warm"] < best["new_users"] < best["new_both"]
    assert best["warm"] < best["new_items"] < best["new_both"]
    bias = BiasBaseline.fit(split.train)
    for task, ratings in split.tasks().items():
        assert best[task] < rmse(ratings.values, bias.predict(ratings)) - 0.05


@pytest.mark.parametrize("task", TASKS)
def test_the_best_cannot_be_improved_on(data, split, task):
    """Its errors are unrelated to anything it knows: to itself, to features, to exposure."""
    ratings = split.tasks()[task]
    best = data.best_predictions(ratings, task)
    error = ratings.values - best
    user = ratings.users.ids.to_numpy()[ratings.user_rows] - 1
    item = ratings.items.ids.to_numpy()[ratings.item_rows] - 1
    truth = data.truth
    exposure = np.log(truth.users.exposure[user] * truth.items.exposure[item])
    known = [best, best**2, exposure, truth.users.prior[user, -1], truth.items.prior[item, -1]]
    X = np.column_stack([np.ones(len(error)), *known])
    # Errors of a new entity's ratings share its offset, so entities are what is counted: fitted on
    # half of users and items, the correction must not help on the other half.
    half = (user % 2 == 0) & (item % 2 == 0)
    other = (user % 2 == 1) & (item % 2 == 1)
    correction = X @ np.linalg.lstsq(X[half], error[half], rcond=None)[0]
    gain = np.sqrt(np.mean(error[other] ** 2)) - np.sqrt(np.mean((error - correction)[other] ** 2))
    assert gain < 0.004
    assert abs(error.mean()) < 0.03


def test_integration_over_unknown_offsets_equals_drawing_them():
    """One pair, seen in half a million worlds that differ in the offsets not known."""
    rng = np.random.default_rng(0)
    rank, n = 3, 500_000
    prior = np.array([[0.5, -0.4, 0.3, 0.2]], np.float32)

    def side(exposure):
        offset = rng.standard_normal((n, rank + 1)) * np.append(np.full(rank, 0.5), 0.3)
        return Parameters(
            np.repeat(prior, n, axis=0), offset.astype(np.float32), np.full(n, exposure), 0.5, 0.3
        )

    truth = Truth(side(3.0), side(1.0))
    world = np.arange(n)
    one = np.zeros(1, int)
    for know_user, know_item in ((True, True), (True, False), (False, True), (False, False)):
        z = truth.preference(
            one.repeat(n) if know_user else world, one.repeat(n) if know_item else world
        )
        observed = rng.random(n) < 1 - np.exp(-3.0 * truth.acceptance(z))
        drawn = truth.rate(z[observed], rng).mean()
        exact = truth.best(one, one, know_user=know_user, know_item=know_item)[0]
        assert abs(drawn - exact) < 0.005


def test_feature_share_is_what_features_explain():
    items = make_synthetic(100, 2000, 1000).truth.items
    explained = items.prior.var(axis=0) / (items.prior + items.offset).var(axis=0)
    np.testing.assert_allclose(explained, 0.75, atol=0.06)


def test_the_committed_sample_can_be_made_again(repository, tmp_path):
    directory, made = repository / "data" / "sample", make_synthetic()
    made.write(tmp_path)
    for name in ("ratings", "items", "users"):
        assert pq.read_table(tmp_path / f"{name}.parquet").equals(getattr(made, name))
        assert pq.read_table(directory / f"{name}.parquet").equals(getattr(made, name))
    assert sum(file.stat().st_size for file in directory.iterdir()) < 400_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_users": 0}, "n_users must be positive"),
        ({"n_ratings": 200_000}, "at most a quarter of the 600 x 400 pairs"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        make_synthetic(**arguments)


def test_foreign_ids_are_refused(data):
    foreign = Ratings.from_arrow(pa.table({"user_id": [1], "item_id": [99_999], "rating": [3.0]}))
    with pytest.raises(InputError, match="1 values of item_id are not of this synthetic data"):
        data.best_predictions(foreign, "warm")
    with pytest.raises(InputError, match="task must be one of"):
        data.best_predictions(foreign, "hot")
