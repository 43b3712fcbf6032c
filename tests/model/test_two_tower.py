"""The two towers on data whose answers are known."""

from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from simrec import InputError, Ratings, TwoTower, cold_start_split
from simrec.data.sides import Sides
from simrec.model.posterior.observed import Observed
from simrec.model.posterior.posterior import Posterior, Precisions, fit_posterior, statistics

# Most of these tests are about ratings, and lists take most of the time of a small fit.
rating_tower = partial(TwoTower, lists=False)


def vectors(model, side):
    return model.parts_["rating"].heads[side].vectors


def planted(n_users=150, n_items=120, share=0.35, noise=0.1, seed=0, constant=False, offsets=0.0):
    """Ratings that features explain: rank 2, a bias on each side, all from three features each."""
    rng = np.random.default_rng(seed)
    X, Z = rng.normal(size=(n_items, 3)), rng.normal(size=(n_users, 3))
    A, B = rng.normal(size=(3, 2)) / 2, rng.normal(size=(3, 2)) / 2
    V = X @ A + offsets * rng.normal(size=(n_items, 2))
    W = Z @ B + offsets * rng.normal(size=(n_users, 2))
    truth = 3 + 0.4 * X[:, 0] + 0.4 * Z[:, 1][:, None] + W @ V.T
    u, i = np.nonzero(rng.random((n_users, n_items)) < share)
    r = truth[u, i] + noise * rng.normal(size=len(u))
    if constant:
        r = np.full(len(u), 4.0)
    ratings = pd.DataFrame({"user_id": u, "item_id": [f"i{k:03d}" for k in i], "rating": r})
    items = pd.DataFrame(X, columns=["a", "b", "c"])
    items.insert(0, "item_id", [f"i{k:03d}" for k in range(n_items)])
    users = pd.DataFrame(Z, columns=["p", "q", "r"])
    users.insert(0, "user_id", np.arange(n_users))
    return ratings, items, users


def errors(model, split):
    return {
        task: float(np.sqrt(np.mean((model.predict(part) - part.values) ** 2)))
        for task, part in split.tasks().items()
    }


@pytest.fixture(scope="module")
def data():
    return planted()


@pytest.fixture(scope="module")
def split(data):
    return cold_start_split(Ratings.from_pandas(data[0]), random_state=3)


@pytest.fixture(scope="module")
def model(data, split):
    return TwoTower(embedding_dim=4, random_state=1).fit(split.train, items=data[1], users=data[2])


def test_features_that_explain_everything_predict_new_items_and_users(model, split):
    spread = float(np.std(split.train.values))
    found = errors(model, split)
    assert spread > 0.8  # the noise is 0.1
    assert found["warm"] < 0.15
    assert found["new_items"] < 0.25
    assert found["new_users"] < 0.25
    assert found["new_both"] < 0.35


def test_shuffled_features_fall_back_to_the_mean(data, split):
    _ratings, items, users = data
    rng = np.random.default_rng(0)
    items = items.assign(item_id=rng.permutation(items["item_id"]))
    users = users.assign(user_id=rng.permutation(users["user_id"]))
    model = rating_tower(embedding_dim=4).fit(split.train, items=items, users=users)
    found = errors(model, split)
    baseline = np.sqrt(np.mean((split.new_both.values - split.train.mean) ** 2))
    assert found["new_both"] < 1.1 * baseline
    assert found["warm"] < 0.2


def test_offsets_let_ratings_correct_what_features_say():
    ratings, items, users = planted(offsets=0.7, seed=5)
    split = cold_start_split(Ratings.from_pandas(ratings), random_state=0)
    found = errors(rating_tower(embedding_dim=4).fit(split.train, items=items, users=users), split)
    assert found["warm"] < 0.6 * found["new_items"]


def test_noise_features_cost_little(data, split, model):
    _ratings, items, users = data
    rng = np.random.default_rng(7)
    for j in range(20):
        items = items.assign(**{f"noise{j}": rng.normal(size=len(items))})
    noisy = rating_tower(embedding_dim=4, random_state=1).fit(split.train, items=items, users=users)
    assert errors(noisy, split)["new_items"] < errors(model, split)["new_items"] + 0.1


def test_user_tower_is_fitted_against_the_frozen_item_embeddings(split):
    """The item embeddings stay as they are, and users are the ridge solution against them."""
    observed = Observed.of(split.train)
    items = Posterior(np.random.default_rng(0).normal(size=(split.train.n_items, 3)).astype("f4"))
    before = items.mean.copy()
    stats = statistics(observed.rows.users, items)
    precisions = Precisions(np.eye(3) * 4.0, 1.5)
    prior = np.zeros((split.train.n_users, 3), np.float32)
    users, _ = fit_posterior(stats, prior, precisions)
    assert items.mean.tobytes() == before.tobytes()
    row = int(np.argmax(observed.rows.users.counts))
    mine = split.train.user_rows == row
    phi = items.regressors()[split.train.item_rows[mine]].astype(float)
    values = (split.train.values[mine] - observed.mean) / observed.scale
    residual = values - items.mean[split.train.item_rows[mine], -1]
    left = precisions.L + precisions.t * phi.T @ phi
    expected = np.linalg.solve(left, precisions.t * phi.T @ residual)
    np.testing.assert_allclose(users.mean[row], expected, atol=1e-4)


def test_predictions_lie_within_the_bounds(data, split):
    tight = rating_tower(embedding_dim=2, bounds=(0, 6), epochs=3)
    clipped = Ratings.from_pandas(data[0].assign(rating=data[0]["rating"].clip(0, 6)))
    tight.fit(clipped, items=data[1], users=data[2])
    everyone = pa.table(
        {
            "user_id": np.repeat(np.arange(150), 120),
            "item_id": np.tile(data[1]["item_id"].to_numpy(str), 150),
        }
    )
    found = tight.predict(everyone)
    assert found.dtype == np.float32
    assert found.min() >= 0 and found.max() <= 6
    assert found.max() == 6  # some scalar products are beyond


def test_same_seed_same_model_and_refit_equals_fresh(data, split):
    tables = {"items": data[1], "users": data[2]}
    model = rating_tower(embedding_dim=3, epochs=4, random_state=5)
    first = vectors(model.fit(split.train, **tables), "items").copy()
    model.fit(split.warm, **tables)
    again = vectors(model.fit(split.train, **tables), "items")
    fresh = rating_tower(embedding_dim=3, epochs=4, random_state=5).fit(split.train, **tables)
    assert np.array_equal(first, again)
    assert np.array_equal(first, vectors(fresh, "items"))
    other = rating_tower(embedding_dim=3, epochs=4, random_state=6).fit(split.train, **tables)
    assert not np.array_equal(first, vectors(other, "items"))


def test_number_of_threads_changes_nothing(data, split, monkeypatch):
    from simrec.model.posterior import observed

    tables = {"items": data[1], "users": data[2]}
    first = vectors(rating_tower(embedding_dim=3, epochs=3).fit(split.train, **tables), "users")
    monkeypatch.setattr(observed, "processors", lambda: 1)
    second = vectors(rating_tower(embedding_dim=3, epochs=3).fit(split.train, **tables), "users")
    assert np.array_equal(first, second)


@pytest.fixture(scope="module")
def scores(data):
    """Give the predictions of a model with other settings, on data where all of them matter."""
    ratings, items, users = data
    items = items.assign(kind=np.array(list("xxxyyz"))[np.arange(len(items)) % 6])
    ratings = ratings.assign(rating=ratings["rating"].clip(upper=3.0))
    split = cold_start_split(Ratings.from_pandas(ratings), random_state=3)

    def scores(**settings):
        model = rating_tower(**{"embedding_dim": 3, "epochs": 4, **settings})
        return model.fit(split.train, items=items, users=users).predict(split.new_both)

    plain = scores()
    return lambda **settings: scores(**settings) if settings else plain


@pytest.mark.parametrize(
    "change",
    [
        {"embedding_dim": 2},
        {"bounds": (-20.0, 20.0)},
        {"epochs": 2},
        {"folds": 3},
        {"knots": 0},
        {"item_columns": {"a": "ignore"}},
        {"user_columns": {"q": "ignore"}},
        {"min_count": 40},
        {"rating_output": "sigmoid"},
        {"random_state": 9},
    ],
)
def test_every_parameter_changes_the_result(scores, change):
    assert not np.array_equal(scores(), scores(**change))


def test_without_lists_predicted_ratings_rank(model, data, split, tmp_path):
    bare = TwoTower(embedding_dim=4, random_state=1, lists=False)
    bare.fit(split.train, items=data[1], users=data[2])
    assert set(bare.parts_) == {"rating"}
    assert np.array_equal(bare.predict(split.new_both), model.predict(split.new_both))
    new = data[2].head(3).assign(user_id=[9001, 9002, 9003])
    for users in ([1, 2], new):
        found = bare.recommend(users, k=5, output="arrow")
        by_rating = model.recommend(users, k=5, rank_by="rating", output="arrow")
        assert found["item_id"].equals(by_rating["item_id"])
    bare.save(tmp_path / "bare")
    assert TwoTower.load(tmp_path / "bare").recommend([1], k=5).equals(bare.recommend([1], k=5))
    few = pd.DataFrame({"user_id": [9001] * 2, "item_id": ["i001", "i002"], "rating": [5.0, 1.0]})
    bare.fold_in(few, users=new)
    assert len(bare.recommend([9001], k=5)) == 5
    pairs = split.train.to_arrow().select(["user_id", "item_id"])
    assert "uptake" in TwoTower(embedding_dim=2, lists=False).fit(pairs).parts_


def test_save_and_load_give_identical_scores(model, split, data, tmp_path):
    model.save(tmp_path / "model")
    loaded = TwoTower.load(tmp_path / "model")
    assert loaded.get_params() == model.get_params()
    for part in split.tasks().values():
        assert np.array_equal(model.predict(part), loaded.predict(part))
    new = data[2].assign(user_id=data[2]["user_id"] + 1000)
    assert loaded.embed_users(new, output="arrow").equals(model.embed_users(new, output="arrow"))
    assert loaded.recommend([1, 2], k=3, output="arrow").equals(
        model.recommend([1, 2], k=3, output="arrow")
    )
    assert loaded.chosen_ == model.chosen_


def test_batch_equals_single(model, split):
    part = split.new_items.to_arrow()
    together = model.predict(part)
    for row in (0, 7, part.num_rows - 1):
        assert model.predict(part.slice(row, 1))[0] == together[row]


def test_new_ids_are_answered_from_their_features(model, data, split):
    _ratings, items, users = data
    pairs = split.new_both.to_arrow()
    known = model.predict(pairs)
    renamed_items = items.assign(item_id="new-" + items["item_id"])
    renamed_users = users.assign(user_id=users["user_id"] + 10_000)
    renamed = pa.table(
        {
            "user_id": [u + 10_000 for u in pairs["user_id"].to_pylist()],
            "item_id": ["new-" + i for i in pairs["item_id"].to_pylist()],
        }
    )
    found = model.predict(renamed, items=renamed_items, users=renamed_users)
    assert np.array_equal(found, known)


def test_a_rated_entity_keeps_its_vector_whatever_features_are_given(model, split, data):
    pairs = split.warm.to_arrow()
    other = data[1].assign(a=0.0, b=0.0, c=0.0)
    assert np.array_equal(model.predict(pairs, items=other), model.predict(pairs))


def test_an_id_with_neither_is_refused_or_average(model, split):
    pairs = pa.table({"user_id": [0, 77777], "item_id": ["i001", "i002"]})
    with pytest.raises(InputError, match=r"user 77777 has neither.*users=.*unknown='prior'"):
        model.predict(pairs)
    found = model.predict(pairs, unknown="prior")
    assert np.isfinite(found).all()
    everywhere = pa.table({"user_id": [88888], "item_id": ["nothing"]})
    assert abs(model.predict(everywhere, unknown="prior")[0] - split.train.mean) < 0.3


def test_without_features_of_one_side_or_both(split, data):
    for tables in ({"items": data[1]}, {"users": data[2]}, {}):
        model = rating_tower(embedding_dim=4).fit(split.train, **tables)
        found = model.predict(split.warm)
        assert np.sqrt(np.mean((found - split.warm.values) ** 2)) < 0.25
        cold = model.predict(split.new_both, unknown="prior")
        assert np.isfinite(cold).all()
    assert len(np.unique(cold)) == 1
    assert abs(cold[0] - split.train.mean) < 0.2


def test_recommend_ranks_all_items_and_leaves_out_what_was_seen(model, split):
    everything = model.recommend([3], k=1000, exclude=None, rank_by="rating", output="arrow")
    assert everything.num_rows == len(model.items_)
    assert everything["rank"].to_pylist() == list(range(1, len(model.items_) + 1))
    pairs = everything.select(["user_id", "item_id"])
    within = np.clip(
        everything["score"].to_numpy(), split.train.values.min(), split.train.values.max()
    )
    assert np.allclose(model.predict(pairs), within)
    unseen = model.recommend([3], k=1000, rank_by="rating", output="arrow")
    row = split.train.users.rows([3])[0]
    seen = set(
        split.train.items.take(split.train.item_rows[split.train.user_rows == row]).to_pylist()
    )
    kept = [i for i in everything["item_id"].to_pylist() if i not in seen]
    assert unseen["item_id"].to_pylist() == kept
    some = model.recommend([3, 1], k=2, items=["i005", "i001", "i009"], output="arrow")
    assert some["user_id"].to_pylist() == [3, 3, 1, 1]
    assert set(some["item_id"].to_pylist()) <= {"i005", "i001", "i009"}


def test_recommend_for_new_users_from_a_table(model, data):
    new = data[2].head(3).assign(user_id=[9001, 9002, 9003])
    found = model.recommend(new, k=5, items=data[1], output="arrow")
    assert found.num_rows == 15
    assert found.column_names == ["user_id", "item_id", "score", "rank"]
    with pytest.raises(InputError, match="more than once"):
        model.recommend([1, 1], output="arrow")


def test_embeddings_score_by_scalar_product(model, data):
    items = model.embed_items(data[1], rank_by="rating", output="arrow")
    users = model.embed_users(data[2], rank_by="rating", output="arrow")
    V = np.stack(items["vector"].to_numpy())
    W = np.stack(users["vector"].to_numpy())
    pairs = pa.table({"user_id": [4], "item_id": ["i007"]})
    expected = model.parts_["rating"].output(W[4] @ V[7])
    assert model.predict(pairs)[0] == pytest.approx(expected, abs=1e-5)


def test_arrow_and_parquet_and_pandas_give_the_same_model(split, data, tmp_path):
    settings = {"embedding_dim": 2, "epochs": 2}
    first = rating_tower(**settings).fit(split.train, items=data[1], users=data[2])
    data[1].to_parquet(tmp_path / "items.parquet")
    arrow = pa.Table.from_pandas(data[2], preserve_index=False)
    second = rating_tower(**settings).fit(
        split.train.to_arrow(), items=tmp_path / "items.parquet", users=arrow
    )
    assert np.array_equal(vectors(first, "items"), vectors(second, "items"))


@pytest.mark.parametrize("shape", ["one_user", "one_item", "one_rating", "constant"])
def test_degenerate_data_still_gives_an_answer(shape):
    ratings, items, users = planted(n_users=12, n_items=10, share=0.7)
    if shape == "one_user":
        ratings = ratings[ratings["user_id"] == 3]
    elif shape == "one_item":
        ratings = ratings[ratings["item_id"] == "i004"]
    elif shape == "one_rating":
        ratings = ratings.head(1)
    else:
        ratings = ratings.assign(rating=4.0)
    model = rating_tower(embedding_dim=2).fit(ratings, items=items, users=users)
    pairs = pa.table({"user_id": np.arange(12), "item_id": ["i001"] * 12})
    found = model.predict(pairs)
    assert np.isfinite(found).all()
    low, high = np.float32(ratings["rating"].min()), np.float32(ratings["rating"].max())
    assert low <= found.min() and found.max() <= high


def test_many_sparse_columns_and_text_and_vectors():
    ratings, items, users = planted(n_users=80, n_items=60)
    rng = np.random.default_rng(0)
    wide = [[f"tag{t}" for t in rng.choice(100_000, 40)] for _ in range(60)]
    table = pa.Table.from_pandas(items, preserve_index=False)
    table = table.append_column("tags", pa.array(wide))
    table = table.append_column("plot", pa.array([f"words of number {k} here" for k in range(60)]))
    poster = pa.FixedSizeListArray.from_arrays(pa.array(rng.normal(size=60 * 8)), 8)
    table = table.append_column("poster", poster)
    model = rating_tower(embedding_dim=2, epochs=4, min_count=1, item_columns={"plot": "text"})
    model.fit(ratings, items=table, users=users)
    assert model.towers_.items.encoder.n_features_ > 2000
    assert np.isfinite(vectors(model, "items")).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"embedding_dim": 0}, "embedding_dim must be a whole number from 1 on, got 0"),
        ({"folds": 1}, "folds must be a whole number from 2 on"),
        ({"epochs": 2.5}, "epochs must be a whole number"),
        ({"bounds": (5, 1)}, "5"),
    ],
)
def test_bad_settings_are_named(data, settings, message):
    with pytest.raises(InputError, match=message):
        TwoTower(**settings).fit(data[0])


def test_bad_tables_are_named(data, split):
    ratings, items, _users = data
    with pytest.raises(InputError, match=r"items.*repeat the item_id"):
        TwoTower().fit(split.train, items=pd.concat([items, items.head(2)]))
    with pytest.raises(InputError, match=r"no item_id of the ratings"):
        TwoTower().fit(split.train, items=items.assign(item_id="x" + items["item_id"]))
    with pytest.raises(InputError, match=r"item_id"):
        TwoTower().fit(split.train, items=items.rename(columns={"item_id": "id"}))
    with pytest.raises(InputError, match="item_columns were given"):
        TwoTower(item_columns={"a": "number"}).fit(split.train)
    with pytest.raises(InputError, match="not fitted"):
        TwoTower().predict(ratings)
    with pytest.raises(InputError, match=r"outside of the bounds"):
        TwoTower(bounds=(1, 2)).fit(ratings)


def test_rated_items_without_features_are_counted_and_taken_as_average(data, split, caplog):
    with caplog.at_level("WARNING"):
        model = rating_tower(embedding_dim=2, epochs=3).fit(split.train, items=data[1].head(50))
    assert "have no row of features" in caplog.text
    assert np.isfinite(vectors(model, "items")).all()


@pytest.mark.slow
def test_hidden_layers_learn_what_a_line_cannot(tmp_path):
    ratings, items, _ = planted(n_users=60, n_items=150, seed=2)
    effect = pd.Series(2 * np.abs(items["c"].to_numpy()), index=items["item_id"])
    ratings = ratings.assign(rating=ratings["rating"] + effect[ratings["item_id"]].to_numpy())
    split = cold_start_split(Ratings.from_pandas(ratings), random_state=2)
    settings = {"embedding_dim": 2, "epochs": 6, "knots": 0, "folds": 2}
    deep = rating_tower(hidden_layers=(16,), **settings).fit(split.train, items=items)
    linear = rating_tower(**settings).fit(split.train, items=items)
    line, curve = (
        np.sqrt(np.mean((model.predict(split.new_items) - split.new_items.values) ** 2))
        for model in (linear, deep)
    )
    assert curve < 0.9 * line
    deep.save(tmp_path / "deep")
    loaded = TwoTower.load(tmp_path / "deep")
    new = items.head(5).assign(item_id=[f"new{k}" for k in range(5)])
    pairs = pa.table({"user_id": deep.users_.take(range(5)), "item_id": new["item_id"].to_list()})
    assert np.array_equal(deep.predict(pairs, items=new), loaded.predict(pairs, items=new))


@pytest.mark.slow
def test_the_frozen_last_layer_of_a_deep_tower_stays_as_it_is(split, data):
    from scipy import sparse

    from simrec.model.new_entities.fit import Sampled, fit_network
    from simrec.model.params import Settings
    from simrec.model.posterior.problem import Problem

    observed, rng = Observed.of(split.train), np.random.default_rng(0)
    mean = rng.normal(size=(split.train.n_items, 3)).astype("f4")
    X = sparse.identity(split.train.n_users, np.float32, format="csr")
    problem = Problem(observed, Sides(X, X), Sides(None, None))
    sampled = Sampled.of(problem, rng)
    simec = fit_network(sampled, "users", Posterior(mean), Settings(hidden_layers=(4,)), seed=0)
    assert (
        simec.last_layer_.tobytes()
        == np.ascontiguousarray(Posterior(mean).regressors().T).tobytes()
    )


ODD_IDS = [1.5, None, [1, "a"], [[1, 2]], 10**30, b"x", True, object(), [None], float("nan")]


@pytest.mark.parametrize("given", ODD_IDS, ids=lambda given: repr(given).partition(" at ")[0])
@pytest.mark.parametrize("ask", ["recommend", "similar_users", "forget", "embed_users"])
def test_ids_that_are_none_are_refused(model_directory, given, ask):
    model = TwoTower.load(model_directory)
    if given is None and ask in ("recommend", "embed_users"):
        assert len(getattr(model, ask)()) > 0  # everyone
        return
    with pytest.raises(InputError):
        getattr(model, ask)(given)


def test_ids_in_any_form(model_directory):
    model = TwoTower.load(model_directory)
    expected = model.recommend([100, 101], k=2)
    for given in (
        (100, 101),
        np.array([100, 101]),
        pd.Series([100, 101]),
        pd.Index([100, 101]),
        pa.array([100, 101]),
        pa.chunked_array([[100], [101]]),
        (user for user in (100, 101)),
    ):
        assert model.recommend(given, k=2).equals(expected)
    assert len(model.similar_users(pd.Series([100, 101]), k=2)) == 4
    assert model.similar_users({100}, k=2).equals(model.similar_users(100, k=2))


@pytest.mark.parametrize(
    "settings",
    [
        {"bounds": 5},
        {"bounds": "ab"},
        {"bounds": (5, 1)},
        {"hidden_layers": 5},
        {"hidden_layers": "ab"},
        {"hidden_layers": (0,)},
        {"item_columns": "ab"},
        {"random_state": -1},
    ],
    ids=str,
)
def test_settings_of_another_kind_are_refused(settings):
    ratings = pa.table({"user_id": [1, 2], "item_id": [1, 1], "rating": [1.0, 2.0]})
    with pytest.raises(InputError, match=next(iter(settings))):
        TwoTower(**settings).fit(ratings)


@pytest.mark.parametrize(
    ("users", "items", "rating", "words"),
    [
        ([7] * 9, range(9), None, "all are of one user; what sets users apart"),
        (range(9), ["a"] * 9, None, "all are of one item; what sets items apart"),
        ([1, 1, 2, 2], [1, 2, 1, 3], 4.0, "all are 4, and so will predictions be"),
    ],
)
def test_ratings_that_tell_little_are_said(users, items, rating, words, caplog):
    values = [1.0, 5.0, 3.0] * 3 if rating is None else [rating] * len(users)
    pairs = pa.table({"user_id": list(users), "item_id": list(items), "rating": values})
    model = TwoTower(bounds=(1, 5)).fit(pairs)
    assert words in caplog.text and caplog.text.count("ratings: all are") == 1
    predicted = model.predict(pairs)
    assert ((predicted >= 1) & (predicted <= 5)).all() and len(model.recommend(exclude=None))
    if rating is not None:
        np.testing.assert_allclose(predicted, rating, atol=1e-4)
