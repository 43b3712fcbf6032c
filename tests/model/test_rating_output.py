"""The output of ratings: which one is chosen, and that all else follows."""

import copy
import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from planted import rmse, saturating

from simrec import InputError, Ratings, TwoTower, cold_start_split
from simrec.data.sides import Sides
from simrec.model.prepare import Encoding, prepare
from simrec.scoring.output import Output

SMALL = {"embedding_dim": 4, "knots": 0, "bounds": (1, 5), "lists": False}
RATINGS, ITEMS, USERS = saturating(p=12, n_users=240, n_items=200, gain=3.0)
SPLIT = cold_start_split(Ratings.from_table(RATINGS), random_state=0)
TASKS = SPLIT.tasks()


def fitted(train=SPLIT.train, items=ITEMS, users=USERS, **changes):
    return TwoTower(**{**SMALL, **changes}).fit(train, items=items, users=users)


def rating(model):
    return model.parts_["rating"]


@pytest.fixture(scope="module")
def model():
    return fitted()


@pytest.fixture(scope="module")
def identity():
    return fitted(rating_output="identity")


def linear(n_users=60, n_items=50, seed=0):
    """Ratings that do not saturate: the sum of a bias and a scalar product."""
    rng = np.random.default_rng(seed)
    truth = (
        3
        + rng.normal(0, 0.5, n_items)
        + rng.normal(size=(n_users, 2)) @ rng.normal(size=(2, n_items))
    )
    u, i = np.nonzero(rng.random(truth.shape) < 0.6)
    r = (truth[u, i] + 0.2 * rng.normal(size=len(u))).astype(np.float32)
    return Ratings.from_table(pa.table({"user_id": u, "item_id": i, "rating": r}))


def test_all_four_tasks_where_ratings_saturate(model, identity):
    """The bar: .36 of the spread in all four tasks, .20 where both are known."""
    spread = float(np.std(SPLIT.train.values))
    found = {task: rmse(model, part) / spread for task, part in TASKS.items()}
    assert model.chosen_["rating_output"] == "sigmoid"
    assert found["warm"] < 0.2 and max(found.values()) < 0.36, found
    for task, part in TASKS.items():
        assert found[task] < 0.8 * rmse(identity, part) / spread
    for side in ("items", "users"):
        expected = model.chosen_[f"expected_rmse_new_{side}"]
        assert 0.8 < expected / rmse(model, TASKS[f"new_{side}"]) < 1.25


def test_a_sigmoid_ends_where_ratings_end(model):
    output = rating(model).output
    assert 1.6 < output.lower < 2 and 4 < output.upper < 4.4  # 3 -+ 1.2, and a little noise
    assert rating(model).bounds == (1, 5)
    predicted = model.predict(SPLIT.new_both)
    assert predicted.min() >= output.lower and predicted.max() <= output.upper


def test_the_identity_stays_to_the_bit_where_ratings_do_not_saturate():
    ratings = linear()
    auto = TwoTower(lists=False, embedding_dim=3).fit(ratings)
    assert auto.chosen_["rating_output"] == "identity"
    other = TwoTower(lists=False, embedding_dim=3, rating_output="identity").fit(ratings)
    for mine, theirs in zip(
        auto.predict(ratings, return_std=True), other.predict(ratings, return_std=True), strict=True
    ):
        assert np.array_equal(mine, theirs)
    assert auto.chosen_ == other.chosen_
    sigmoid = TwoTower(lists=False, embedding_dim=3, rating_output="sigmoid").fit(ratings)
    assert sigmoid.chosen_["rating_output"] == "sigmoid"
    assert rmse(sigmoid, ratings) > rmse(other, ratings)


def test_deviations_are_those_of_held_out_ratings(model):
    for task in ("warm", "new_items", "new_users"):
        predicted, std = model.predict(TASKS[task], return_std=True)
        inside = np.mean(np.abs(predicted - TASKS[task].values) <= 1.645 * std)
        assert 0.8 < inside < 0.97, (task, inside)
    predicted, std = model.predict(SPLIT.new_items, return_std=True)
    output = rating(model).output
    near_an_end = np.minimum(predicted - output.lower, output.upper - predicted) < 0.1
    assert std[near_an_end].mean() < 0.6 * std[~near_an_end].mean()


def test_later_ratings_are_learned_as_logits(model):
    """Few ratings of new users help, whether they lie within the sigmoid or beyond it."""
    part, rng = SPLIT.new_users, np.random.default_rng(0)
    given = rng.random(len(part)) < 0.5
    folded = copy.copy(model).fold_in(part.select(given))
    rest = part.select(~given)
    assert rmse(folded, rest) < rmse(model, rest)
    item = int(SPLIT.train.items.ids[0].as_py())

    def after(value):
        rated = pa.table({"user_id": [777], "item_id": [item], "rating": [value]})
        return copy.copy(model).fold_in(rated).predict(777, item)[0]

    assert after(1.0) == after(1.5) < after(3.0) < after(4.5) == after(5.0)
    with pytest.raises(InputError, match="outside of the bounds 1 to 5"):
        after(5.5)


def test_update_moves_towards_what_was_rated(model):
    pair = SPLIT.warm.to_arrow().slice(0, 1).select(["user_id", "item_id"])
    before = model.predict(pair)[0]
    value = 1.0 if before > 3 else 5.0
    rated = pair.append_column("rating", pa.array([value], pa.float32()))
    after = copy.copy(model).update(rated).predict(pair)[0]
    assert abs(after - value) < abs(before - value)


def test_contributions_sum_to_the_logit(model):
    pair = SPLIT.warm.to_arrow().slice(3, 1)
    user, item = pair["user_id"][0].as_py(), pair["item_id"][0].as_py()
    total = model.explain(user, item)["contribution"].sum()
    output = replace(rating(model).output, shift=0.0)
    assert output(np.array([total]))[0] == pytest.approx(model.predict(user, item)[0], abs=1e-4)


def test_save_and_load_change_nothing(model, tmp_path):
    model.save(tmp_path / "model")
    loaded = TwoTower.load(tmp_path / "model")
    assert loaded.get_params() == model.get_params()
    assert loaded.chosen_ == model.chosen_ and loaded.rating_bounds() == (1, 5)
    for part in TASKS.values():
        for mine, theirs in zip(
            model.predict(part, return_std=True), loaded.predict(part, return_std=True), strict=True
        ):
            assert np.array_equal(mine, theirs)
    few = SPLIT.new_users.select(np.arange(40))
    mine, theirs = (copy.copy(one).fold_in(few).predict(few) for one in (model, loaded))
    assert np.array_equal(mine, theirs)


@pytest.mark.parametrize("bounds", [[2.5, 5], [1, float("nan")], [1]], ids=str)
def test_bounds_of_a_model_directory_are_checked(model, bounds, monkeypatch):
    from simrec.model.rating import part as module

    part = rating(model)

    class Artifact:
        documents = {"rating": {**part.saved().documents["rating"], "bounds": bounds}}

    monkeypatch.setattr(module, "restored_heads", lambda *args: part.heads)
    with pytest.raises(ValueError, match="does not lie within|not enough values"):
        module.RatingPart.restored(part.output, Artifact, model.towers_)


def test_exported_vectors_give_the_predictions(model, tmp_path):
    model.export(tmp_path / "vectors", "parquet", rank_by="rating")
    tables = [
        pq.read_table(tmp_path / "vectors" / f"{side}.parquet") for side in ("users", "items")
    ]
    U, V = (np.array(table["vector"].to_pylist(), np.float32) for table in tables)
    ids = [
        table[name].to_numpy() for table, name in zip(tables, ("user_id", "item_id"), strict=True)
    ]
    pairs = pa.table({"user_id": np.repeat(ids[0], len(V)), "item_id": np.tile(ids[1], len(U))})
    about = json.loads((tmp_path / "vectors" / "export.json").read_text())["prediction"]
    assert about["kind"] == "sigmoid"
    predicted = Output(about["lower"], about["upper"])((U @ V.T).ravel())
    np.testing.assert_allclose(predicted, model.predict(pairs), atol=1e-5)


def test_lists_are_ranked_by_the_scalar_product(model):
    lists = model.recommend([3, 5], k=5, rank_by="rating", exclude=None)
    scores = lists["score"].to_numpy()
    output = replace(rating(model).output, shift=0.0)
    predicted = model.predict(pa.Table.from_pandas(lists[["user_id", "item_id"]]))
    np.testing.assert_allclose(output(scores), predicted, atol=1e-5)
    assert model.recommend([3], k=5, explore=1.0)["score"].notna().all()


def prepared(ratings, bounds=(1, 5)):
    return prepare(ratings, bounds, Sides(None, None), Encoding(Sides(None, None), 2, 10))


def one_of(kind, n_users=40, n_items=30):
    rng = np.random.default_rng(1)
    u, i = np.nonzero(rng.random((n_users, n_items)) < 0.9)
    r = {
        "constant": np.full(len(u), 4.0),
        "binary": rng.integers(0, 2, len(u)).astype(float),
        "almost constant": np.where(np.arange(len(u)) % 500 == 0, 1.0, 5.0),
        "one user": rng.random(len(u)),
    }[kind]
    if kind == "one user":
        u, i = np.zeros_like(u), np.arange(len(u))
    return Ratings.from_table(pa.table({"user_id": u, "item_id": i, "rating": r}))


@pytest.mark.parametrize("kind", ["constant", "binary", "almost constant", "one user"])
@pytest.mark.parametrize("output", ["auto", "sigmoid"])
def test_ratings_with_little_to_choose_on(kind, output):
    ratings = one_of(kind)
    bounds = (0, 5) if kind == "constant" else None
    model = TwoTower(
        lists=False, embedding_dim=3, epochs=4, rating_output=output, bounds=bounds
    ).fit(ratings)
    predicted, std = model.predict(ratings, return_std=True)
    assert np.isfinite(predicted).all() and np.isfinite(std).all() and (std >= 0).all()
    low, high = bounds or (ratings.values.min(), ratings.values.max())
    assert low <= predicted.min() and predicted.max() <= high
    assert model.chosen_["rating_output"] == ("identity" if output == "auto" else "sigmoid")


def test_a_sigmoid_needs_a_range():
    with pytest.raises(InputError, match=r"all ratings are 4.*bounds=\(lowest, highest\)"):
        TwoTower(rating_output="sigmoid").fit(one_of("constant"))
    with pytest.raises(InputError, match="rating_output must be .* got 'relu'"):
        TwoTower(rating_output="relu").fit(SPLIT.train)


def test_a_resumed_fit_makes_the_same_choice(tmp_path):
    ratings, items, users = saturating(n_users=80, n_items=60, p=4)
    settings = {**SMALL, "epochs": 3}
    kept = {"checkpoint": tmp_path / "kept", "items": items, "users": users}
    first = TwoTower(**settings).fit(ratings, **kept)
    again = TwoTower(**settings).fit(ratings, **kept, resume=True)
    assert again.chosen_ == first.chosen_ and again.chosen_["rating_output"] == "sigmoid"
    assert np.array_equal(again.predict(ratings), first.predict(ratings))
    with pytest.raises(InputError, match="other rating_output"):
        TwoTower(**settings, rating_output="identity").fit(ratings, **kept, resume=True)
