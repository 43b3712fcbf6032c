"""Popularity that fades with time: what users of whom nothing is known are shown."""

import copy

import numpy as np
import pyarrow as pa
import pytest

from simrec import InputError, Ratings, TwoTower
from simrec.data.sides import Sides
from simrec.model.lists.fading import Fading, day_of, find_fading
from simrec.model.lists.popularity import choose_penalties, fit_popularity
from simrec.model.prepare import Encoding, prepare

DAY = 86400


def ratings_of(rng, n_users, first_day, last_day, items, first_user=0):
    """Ratings by users who come one after the other and take up some of the items at once."""
    user = np.repeat(np.arange(first_user, first_user + n_users), 5)
    item = np.concatenate([rng.choice(items, 5, replace=False) for _ in range(n_users)])
    day = np.repeat(np.linspace(first_day, last_day, n_users), 5)
    rating = rng.integers(3, 6, len(user)).astype(np.float32)
    columns = {"user_id": user, "item_id": item, "rating": rating}
    return pa.table({**columns, "timestamp": (day * DAY).astype(np.int64)})


@pytest.fixture(scope="module")
def two_eras():
    """Of items 0-29 the first half was taken up for long, the second half lately."""
    rng = np.random.default_rng(0)
    old = ratings_of(rng, 160, 0, 300, np.arange(15))
    return pa.concat_tables([old, ratings_of(rng, 80, 301, 400, np.arange(15, 30), 160)])


@pytest.fixture(scope="module")
def model(two_eras):
    return TwoTower(embedding_dim=4, epochs=3, half_life="auto").fit(two_eras)


def top(model, k=10):
    """What a user of whom nothing is known is shown."""
    return model.recommend([10**6], k=k, unknown="prior")["item_id"].tolist()


def test_newcomers_are_shown_what_is_popular_now(model, two_eras):
    assert model.chosen_["half_life"] == pytest.approx(400 / 8, rel=0.01)
    assert min(top(model)) >= 15
    plain = TwoTower(embedding_dim=4, epochs=3).fit(two_eras)
    assert max(top(plain)) < 15 and "half_life" not in plain.chosen_
    pairs = two_eras.slice(0, 50)
    np.testing.assert_array_equal(model.predict(pairs), plain.predict(pairs))


def test_fading_is_saved_and_goes_on_with_updates(model, two_eras, tmp_path):
    model.save(tmp_path / "model")
    loaded = TwoTower.load(tmp_path / "model")
    assert loaded.parts_["popularity"].fading == model.parts_["popularity"].fading
    assert top(loaded) == top(model)
    # The first items come back: after some days that is what newcomers are shown.
    rng = np.random.default_rng(1)
    later = ratings_of(rng, 40, 401, 600, np.arange(10), 1000)
    loaded.update(later)
    assert max(top(loaded)) < 15
    assert loaded.parts_["popularity"].fading.until == pytest.approx(600, abs=1)
    # All that is known of popularity is as if it had been learned at once.
    fading = loaded.parts_["popularity"].fading
    everything = Ratings.from_arrow(pa.concat_tables([two_eras, later]))
    part = loaded.parts_["popularity"]
    liked = everything.values >= part.liked
    weights = fading.weights(day_of(everything)[liked])
    expected = np.bincount(everything.item_rows[liked], weights, minlength=everything.n_items)
    np.testing.assert_allclose(part.likes, expected, rtol=1e-4)
    np.testing.assert_allclose(part.heads.items.vectors[:, 0], np.log1p(expected), rtol=1e-4)
    np.testing.assert_allclose(part.heads.items.vectors[:, 1], np.sqrt(expected), rtol=1e-4)


def test_new_items_come_in_alike_at_once_and_one_by_one(model):
    columns = {"user_id": [2000, 2001, 2002], "item_id": [500] * 3, "rating": [5.0] * 3}
    later = pa.table({**columns, "timestamp": [400 * DAY] * 3})
    at_once, one_by_one = copy.copy(model), copy.copy(model)
    at_once.update(later)
    for k in range(3):
        one_by_one.update(later.slice(k, 1))
    parts = [one.parts_["popularity"] for one in (at_once, one_by_one)]
    np.testing.assert_allclose(*[part.likes for part in parts], rtol=1e-5)
    for name in ("popularity", "uptake"):
        parts = [one.parts_[name] for one in (at_once, one_by_one)]
        np.testing.assert_allclose(
            *[part.heads.items.vectors[-1] for part in parts], rtol=1e-4, atol=1e-5
        )
    # Three pairs, where an item has forty: features tell most.
    known = at_once.blended_by("items")[-1:]
    assert known == pytest.approx(3 / 43)
    factors = at_once.blend_.of("new_popularity", "items", known)
    assert factors[0] == pytest.approx(40 / 43)


@pytest.mark.parametrize("day", [None, 400, 4000])
def test_folded_in_likes_count_as_those_of_the_latest_day(model, day):
    later = pa.table({"user_id": [2000], "item_id": [500], "rating": [5.0]})
    if day is not None:
        later = later.append_column("timestamp", pa.array([day * DAY]))
    part = copy.copy(model).fold_in(later).parts_["popularity"]
    assert part.likes[-1] == pytest.approx(part.fading.scale, rel=0.05)


def test_likes_of_ten_days_ago_count_half():
    fading = Fading(rate=0.1, until=100.0, scale=2.0)
    assert fading.weights(np.array([100.0, 90.0])).tolist() == [2.0, 1.0]
    later, left = fading.until_day(110.0)
    assert later.until == 110 and left == 0.5


def test_ratings_of_one_moment_do_not_fade(two_eras):
    moment = two_eras.slice(0, 200)
    place = moment.column_names.index("timestamp")
    moment = moment.set_column(place, "timestamp", pa.array(np.full(200, 5)))
    assert find_fading(Ratings.from_arrow(moment), "auto") is None
    assert find_fading(Ratings.from_arrow(moment), 30).rate == 1 / 30


def test_days_of_dates_and_seconds():
    columns = {"user_id": [1, 2], "item_id": [1, 2], "rating": [1.0, 2.0]}
    for times in (np.array([0, 3 * DAY]), np.array(["1970-01-01", "1970-01-04"], "datetime64[ms]")):
        ratings = Ratings.from_arrow(pa.table({**columns, "timestamp": times}))
        assert day_of(ratings).tolist() == [0, 3]
    assert day_of(Ratings.from_arrow(pa.table(columns))) is None


def test_what_is_refused(two_eras):
    with pytest.raises(InputError, match="no timestamps"):
        TwoTower(half_life=30, epochs=1).fit(two_eras.drop_columns(["timestamp"]))
    for bad in (0, -1.0, "never", True, float("inf")):
        with pytest.raises(InputError, match="half_life must be"):
            TwoTower(half_life=bad).fit(two_eras)


@pytest.mark.parametrize("tells", [False, True])
def test_popularity_of_new_items_is_the_mean_where_features_do_not_help(tells):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(400, 30))
    share = np.exp(0.5 * (x[:, 0] if tells else rng.normal(size=400)) - 3)
    users, items = np.nonzero(rng.random((200, 400)) < share)
    ratings = Ratings.from_table(pa.table({"user_id": users, "item_id": items}), rating=None)
    table = pa.table({"item_id": np.arange(400), **{f"x{k}": x[:, k] for k in range(30)}})
    data = prepare(ratings, None, Sides(table, None), Encoding(Sides({}, {}), 2, 5))
    chosen = choose_penalties(data, 0.0, rng)
    assert (chosen is not None) == tells
    for penalties in (chosen, None):
        head = fit_popularity(data, 0.0, penalties).heads.items
        told = head.encoder(data.sides.items.X[:, :-1])
        scaled = np.asarray(head.vectors[data.sides.items.rated_rows])
        np.testing.assert_allclose(told[:, 2], 1, atol=1e-6)
        for k in range(2):
            if tells and penalties is not None:
                assert np.corrcoef(told[:, k], scaled[:, k])[0, 1] > 0.6
            else:
                np.testing.assert_allclose(told[:, k], scaled[:, k].mean(), rtol=1e-4)


def test_features_tell_what_is_popular_now():
    """One genre was taken up for long, another as often but lately: new items of it are shown."""
    rng = np.random.default_rng(0)
    old = ratings_of(rng, 120, 0, 200, np.arange(30))
    both = pa.concat_tables([old, ratings_of(rng, 120, 201, 400, np.arange(30, 60), 120)])
    genres = ["old"] * 30 + ["new"] * 30 + ["old", "new"]
    table = pa.table({"item_id": np.arange(62), "genre": genres})
    model = TwoTower(embedding_dim=4, epochs=3, half_life=30).fit(both, items=table)
    vectors = np.asarray(model.parts_["popularity"].heads.items.vectors)
    assert vectors[61, 1] > vectors[60, 1] + 1
