"""`refine=False`: the two SimEcs and nothing else, and the SimEcs of the default."""

import copy

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from planted import rmse, saturating
from processes import imported_by

from simrec import InputError, Ratings, SimEc, TwoTower, cold_start_split, make_synthetic
from simrec.simec.keras import keras

RATINGS, ITEMS, USERS = saturating()
SPLIT = cold_start_split(Ratings.from_table(RATINGS), random_state=0)
SMALL = {"refine": False, "embedding_dim": 5, "bounds": (1, 5), "knots": 0, "epochs": 8}


def fitted(items=ITEMS, users=USERS, train=SPLIT.train, **changes):
    return TwoTower(**{**SMALL, **changes}).fit(train, items=items, users=users)


def rating(model):
    return model.parts_["rating"]


@pytest.fixture(scope="module")
def model():
    return fitted()


@pytest.fixture(scope="module")
def default():
    return fitted(refine=True)


@pytest.mark.parametrize(
    "planted", [{"p": 12, "n_users": 240, "n_items": 200, "d": 3}, {"seed": 5}, {"seed": 6}]
)
def test_all_four_tasks_where_ratings_saturate(planted):
    """The bar is .36 of the spread with bounds beyond where ratings end (1.8 and 4.2)."""
    ratings, items, users = saturating(**planted)
    split = cold_start_split(Ratings.from_table(ratings), random_state=0)
    model = fitted(items, users, split.train, epochs=None, embedding_dim=8)
    spread = float(np.std(split.train.values))
    found = {task: rmse(model, part) / spread for task, part in split.tasks().items()}
    assert max(found.values()) < 0.36, found


def test_w_l_is_bit_identical_to_the_item_embeddings(model):
    known = model.towers_.items.counts > 0
    Y = model.item_simec_.transform(model.towers_.items.features[known])
    assert np.array_equal(model.user_simec_.last_layer_, Y.T)
    assert np.array_equal(rating(model).heads.items.vectors[known], Y)


def test_who_is_answered_for_by_what(model):
    """Items by their features, known users by their column of W_l, new ones by features."""
    heads, towers = rating(model).heads, model.towers_
    for side, simec in (("items", model.item_simec_), ("users", model.user_simec_)):
        says = simec.transform(towers[side].features)
        new = towers[side].counts == 0
        np.testing.assert_allclose(heads[side].vectors[new], says[new], atol=1e-5)
    known = towers.users.counts > 0
    assert np.array_equal(heads.users.vectors[known], model.item_simec_.last_layer_.T)
    part = SPLIT.warm
    rows = towers.items.ids.rows(part.items.ids), towers.users.ids.rows(part.users.ids)
    columns = (np.cumsum(known) - 1)[rows[1]]
    predicted = model.item_simec_.predict(towers.items.features[rows[0]])
    expected = predicted[part.item_rows, columns[part.user_rows]]
    np.testing.assert_allclose(model.predict(part), expected, atol=1e-4)


def test_the_frozen_last_layer_stays_as_it_is_when_solved_in_closed_form(model):
    """The user SimEc again, by the public class: W_l comes back bit by bit."""
    known = model.towers_.users.counts > 0
    X, W = model.towers_.users.features[known], model.user_simec_.last_layer_
    R = np.random.default_rng(0).uniform(1, 5, (X.shape[0], W.shape[1]))
    again = SimEc(len(W), solver="closed_form", bounds=(1, 5)).fit(X, R, last_layer=W)
    assert np.array_equal(again.last_layer_, W)


def test_predictions_lie_within_the_bounds(model):
    pairs = pa.table({"user_id": np.repeat(np.arange(160), 130), "item_id": list(range(130)) * 160})
    found = model.predict(pairs)
    assert found.dtype == np.float32 and found.min() >= 1 and found.max() <= 5
    one = [model.predict(pairs.slice(i, 1))[0] for i in (0, 5000, 20000)]
    np.testing.assert_allclose(one, found[[0, 5000, 20000]], atol=1e-6)


def test_refit_equals_fresh_and_save_load_changes_nothing(model, tmp_path):
    again = TwoTower(**{**SMALL, "epochs": 1}).fit(SPLIT.warm, items=ITEMS, users=USERS)
    again.set_params(epochs=SMALL["epochs"])
    again.fit(SPLIT.train, items=ITEMS, users=USERS)
    again.save(tmp_path / "model")
    loaded = TwoTower.load(tmp_path / "model")
    for part in SPLIT.tasks().values():
        assert np.array_equal(model.predict(part), again.predict(part))
        assert np.array_equal(model.predict(part), loaded.predict(part))
    for name in ("item_simec_", "user_simec_"):
        mine, other = getattr(model, name), getattr(loaded, name)
        assert isinstance(other, SimEc)
        assert np.array_equal(mine.last_layer_, other.last_layer_)
        X = np.random.default_rng(0).normal(size=(4, *mine.feature_shape_))
        assert np.array_equal(mine.transform(X), other.transform(X))
        assert np.array_equal(mine.predict(X), other.predict(X))
        other.save(tmp_path / name)


def test_a_damaged_model_is_refused(model, tmp_path):
    import json

    model.save(tmp_path / "model")
    file = tmp_path / "model" / "parts.json"
    document = json.loads(file.read_text())
    document["rating"]["kind"] = "two_simecs"
    file.write_text(json.dumps(document))
    with pytest.raises(InputError, match="parts.json"):
        TwoTower.load(tmp_path / "model")


@pytest.mark.parametrize(
    "change",
    [
        {"refine": True},
        {"embedding_dim": 4},
        {"epochs": 2},
        pytest.param({"hidden_layers": (4,)}, marks=pytest.mark.slow),
        {"rating_output": "identity"},
        {"random_state": 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_parameter_changes_the_result(model, change):
    other = fitted(**change)
    assert not np.array_equal(model.predict(SPLIT.new_both), other.predict(SPLIT.new_both))


def own_encoder(n_outputs=6):
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [keras.Input((12,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(n_outputs)]
    )


@pytest.mark.slow
@pytest.mark.parametrize("own", [False, True], ids=["hidden layers", "own"])
def test_encoders_with_hidden_layers_and_of_ones_own(own, tmp_path):
    encoder = own_encoder()
    before = [w.copy() for w in encoder.get_weights()]
    options = {"item_encoder": encoder, "user_encoder": own_encoder()}
    model = fitted(**options if own else {"hidden_layers": (8,)}, epochs=25, folds=2)
    assert rmse(model, SPLIT.new_items) < 0.8 * float(np.std(SPLIT.train.values))
    assert model.explain(1, 1)["contribution"].notna().all()
    model.save(tmp_path / "model")
    loaded = TwoTower.load(tmp_path / "model")
    assert np.array_equal(model.predict(SPLIT.new_both), loaded.predict(SPLIT.new_both))
    X, known = model.towers_.items.features, model.towers_.items.counts > 0
    assert np.array_equal(model.item_simec_.transform(X), loaded.item_simec_.transform(X))
    assert np.array_equal(model.user_simec_.last_layer_, model.item_simec_.transform(X[known]).T)
    assert (loaded.item_encoder is not None) == own
    assert all(np.array_equal(a, b) for a, b in zip(before, encoder.get_weights(), strict=True))
    model.export(tmp_path / "tower", "tower", side="user")


def test_without_features_items_are_rows_and_new_ones_are_average():
    model = fitted(items=None, users=None, epochs=30)
    assert model.item_simec_.feature_kind_ == "identity"
    Y = model.item_simec_.transform()
    assert np.array_equal(model.user_simec_.last_layer_, Y.T)
    assert np.array_equal(rating(model).heads.items.vectors, Y)
    spread = float(np.std(SPLIT.train.values))
    assert rmse(model, SPLIT.warm) < 0.6 * spread
    assert rmse(model, SPLIT.new_users) < 1.15 * spread
    assert model.user_simec_.transform(np.ones((2, 1))).shape == (2, 7)  # with biases


def test_few_ratings_of_new_entities_help():
    model = fitted(users=None, epochs=None)
    part = SPLIT.new_users
    seen = np.random.default_rng(0).random(len(part)) < 0.5
    given, rest = part.select(seen), part.select(~seen)
    cold = rmse(model, rest)
    model.fold_in(given)
    assert rmse(model, rest) < 0.8 * cold
    items = SPLIT.new_items
    few = items.select(np.random.default_rng(0).random(len(items)) < 0.3)
    before = model.predict(SPLIT.warm)
    model.fold_in(few)
    assert np.array_equal(model.predict(SPLIT.warm), before)


def test_ratings_that_features_already_explain_do_no_harm(model, tmp_path):
    model.save(tmp_path / "model")
    loaded = TwoTower.load(tmp_path / "model")
    part = SPLIT.new_both
    few = part.select(np.arange(len(part)) % 3 == 0)
    rest = part.select(np.arange(len(part)) % 3 > 0)
    assert rmse(loaded.fold_in(few), rest) < 1.02 * rmse(model, rest)
    loaded.update(SPLIT.warm)
    assert rmse(loaded, SPLIT.warm) < rmse(model, SPLIT.warm)


def test_new_entities_without_ratings_and_users_who_are_forgotten(model, tmp_path):
    model = copy.deepcopy(model)
    known = model.towers_.users.counts > 0
    more = USERS.slice(0, 2).set_column(0, "user_id", pa.array([1000, -1]))
    model.fold_in(None, users=more)
    cold = model.predict(pa.table({"user_id": [1000, -1], "item_id": [3, 3]}))
    assert np.isfinite(cold).all()
    first = int(np.flatnonzero(known)[0])
    model.forget(model.users_.ids[first + 1].as_py())  # the new -1 comes first
    assert model.item_simec_.last_layer_.shape[1] == known.sum() - 1
    model.save(tmp_path / "model")
    assert TwoTower.load(tmp_path / "model").item_simec_.last_layer_.shape[1] == known.sum() - 1


def test_everything_else_works(model, tmp_path):
    found = model.recommend([0, 1], k=3)
    assert len(found) == 6 and np.isfinite(found["score"]).all()
    assert len(model.recommend([0], k=3, rank_by="rating")) == 3
    assert len(model.similar_items(0, k=4)) == 4
    why = model.explain(0, 1)
    vectors = model.embed_users([0], rank_by="rating"), model.embed_items([1], rank_by="rating")
    z = float(np.dot(*(table["vector"][0] for table in vectors)))
    assert why["contribution"].sum() == pytest.approx(z + rating(model).output.shift, abs=1e-4)
    model.export(tmp_path / "vectors", "parquet")
    model.export(tmp_path / "saved", "savedmodel", rank_by="rating")
    model.save(tmp_path / "model")
    from simrec.jobs.score import score

    pairs = SPLIT.new_both.to_arrow()
    pq.write_table(pairs, tmp_path / "pairs.parquet")
    score(tmp_path / "model", tmp_path / "pairs.parquet", tmp_path / "scores.parquet")
    scores = pq.read_table(tmp_path / "scores.parquet")
    np.testing.assert_allclose(scores["score"].to_numpy(), model.predict(pairs), atol=1e-6)


def test_bad_use_is_named():
    with pytest.raises(InputError, match="refine=False"):
        TwoTower(method="simec")
    with pytest.raises(InputError, match="refine must be True or False"):
        fitted(refine="no")
    with pytest.raises(InputError, match="give one"):
        fitted(hidden_layers=(3,), item_encoder=own_encoder())
    with pytest.raises(InputError, match="table of users"):
        fitted(users=None, user_encoder=own_encoder(), epochs=1)
    with pytest.raises(InputError, match=r"Dense\(6\)"):
        fitted(item_encoder=own_encoder(4), epochs=1)


def test_intervals_and_exploration_need_no_refinement(model):
    predicted, std = model.predict(SPLIT.warm, return_std=True)
    error = np.abs(predicted - SPLIT.warm.values)
    assert 0.55 < np.mean(error < std) < 0.9
    assert len(model.recommend([0], k=3, explore=1.0)) == 3
    few = RATINGS.slice(0, 1000)
    constant = few.set_column(2, "rating", pa.array(np.full(len(few), 4.0)))
    flat = TwoTower(refine=False).fit(constant)
    np.testing.assert_allclose(flat.predict(constant), 4.0, atol=1e-3)


@pytest.mark.parametrize("hidden_layers", [(), pytest.param((4,), marks=pytest.mark.slow)])
def test_the_default_shows_its_towers_as_simecs(default, hidden_layers, tmp_path):
    options = {"refine": True, "hidden_layers": hidden_layers, "folds": 2}
    model = fitted(**options) if hidden_layers else default
    part, towers = rating(model), model.towers_
    for side, simec in (("items", model.item_simec_), ("users", model.user_simec_)):
        assert isinstance(simec, SimEc)
        partners = part.evidence.sides.other(side).warm.mean[towers.other(side).counts > 0]
        frozen = np.hstack([partners[:, :-1], np.ones((len(partners), 1), np.float32)]).T
        assert np.array_equal(simec.last_layer_, frozen)
        vectors = part.heads[side].encode(towers[side].features)
        own, _ = part.layout.from_features(side, vectors)
        np.testing.assert_allclose(simec.transform(towers[side].features), own, atol=1e-4)
    model.save(tmp_path / "model")
    loaded = TwoTower.load(tmp_path / "model")
    assert np.array_equal(loaded.user_simec_.last_layer_, model.user_simec_.last_layer_)
    X = towers.users.features
    assert np.array_equal(loaded.user_simec_.transform(X), model.user_simec_.transform(X))


def test_simecs_need_ratings():
    pairs = TwoTower(embedding_dim=4).fit(RATINGS.slice(0, 1000).drop_columns(["rating"]))
    with pytest.raises(InputError, match="without ratings"):
        _ = pairs.item_simec_


@pytest.mark.slow
def test_the_default_needs_no_tensorflow(tmp_path):
    """Unless it chooses a hidden layer, for which there is no reason here."""
    make_synthetic(n_users=120, n_items=60, n_ratings=1500, random_state=0).write(tmp_path)
    code = (
        "from simrec import TwoTower\n"
        "m = TwoTower(embedding_dim=3, epochs=2)\n"
        "m.fit('ratings.parquet', items='items.parquet', users='users.parquet')\n"
        "m.predict('ratings.parquet'); m.save('m'); TwoTower.load('m').recommend([7])"
    )
    assert not {"tensorflow", "tf_keras"} & imported_by(code, cwd=tmp_path)
