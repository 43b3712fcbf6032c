"""The splits: partitions, by recipes that anyone can repeat."""

import datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simrec.data.ratings import Ratings
from simrec.data.split import ColdStartSplit, cold_start_split, days, split_by_known, time_split
from simrec.errors import InputError


def make_frame(seed=0, n_users=30, n_items=20, share=0.5, as_text=False):
    rng = np.random.default_rng(seed)
    users, items = np.nonzero(rng.random((n_users, n_items)) < share)
    order = rng.permutation(len(users))
    frame = pd.DataFrame({"user_id": users[order] * 7 + 3, "item_id": items[order] * 5 + 1})
    if as_text:
        frame = "x" + frame.astype(str)
    frame["rating"] = rng.integers(1, 6, len(frame)).astype(np.float32)
    return frame


def rows_of(ratings):
    table = ratings.to_arrow()
    return list(zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True))


def by_the_recipe(frame, cold_items, cold_users, warm, seed):
    """The documented recipe, in pandas, with nothing of ours."""
    items, users = np.unique(frame.item_id), np.unique(frame.user_id)
    rng = np.random.default_rng(seed)
    new_items = rng.choice(items, int(cold_items * len(items)), replace=False)
    new_users = rng.choice(users, int(cold_users * len(users)), replace=False)
    held_out = rng.random(len(frame)) < warm
    item, user = frame.item_id.isin(new_items), frame.user_id.isin(new_users)
    return {
        "train": frame[~item & ~user & ~held_out],
        "warm": frame[~item & ~user & held_out],
        "new_items": frame[item & ~user],
        "new_users": frame[~item & user],
        "new_both": frame[item & user],
    }


shares = st.sampled_from([0.0, 0.1, 0.2, 0.35, 0.5])


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31), shares, shares, shares, st.booleans())
def test_it_is_the_recipe(seed, cold_items, cold_users, warm, as_text):
    frame = make_frame(seed, as_text=as_text)
    split = cold_start_split(frame, cold_items, cold_users, warm, seed)
    expected = by_the_recipe(frame, cold_items, cold_users, warm, seed)
    for name, part in expected.items():
        assert rows_of(getattr(split, name)) == [tuple(row) for row in part.itertuples(index=False)]


def test_it_is_a_partition_that_holds_out_whole_entities():
    ratings = Ratings.from_pandas(make_frame())
    split = cold_start_split(ratings)
    parts = [split.train, *split.tasks().values()]
    assert sorted(row for part in parts for row in rows_of(part)) == sorted(rows_of(ratings))
    for part in (split.new_items, split.new_both):
        assert not split.train.items.contains(part.items.ids).any()
    for part in (split.new_users, split.new_both):
        assert not split.train.users.contains(part.users.ids).any()
    assert not split.warm.items.contains(split.new_items.items.ids).any()
    assert split.new_users.items.contains(split.train.items.ids).any()


def test_tasks_come_in_order():
    split = cold_start_split(make_frame())
    assert isinstance(split, ColdStartSplit)
    assert list(split.tasks()) == ["warm", "new_items", "new_users", "new_both"]
    with pytest.raises(AttributeError):
        split.train = split.warm


def test_seeds_decide():
    frame = make_frame()
    one, same, other = (cold_start_split(frame, random_state=seed) for seed in (1, 1, 2))
    assert one.train.to_arrow().equals(same.train.to_arrow())
    assert not one.train.to_arrow().equals(other.train.to_arrow())


def test_a_task_may_be_empty_and_is_still_ratings():
    split = cold_start_split(make_frame(), cold_items=0, cold_users=0, warm=0)
    for part in split.tasks().values():
        assert len(part) == part.n_users == part.n_items == 0
        assert part.to_arrow().num_rows == 0
        assert part.to_csr().shape == (0, 0)
        assert len(part) == 0
        assert np.isnan(part.mean)


def test_timestamps_go_along():
    frame = make_frame().assign(timestamp=lambda f: np.arange(len(f)))
    split = cold_start_split(frame)
    stamps = np.concatenate([p.timestamps for p in (split.train, *split.tasks().values())])
    assert sorted(stamps) == list(range(len(frame)))


@pytest.mark.parametrize("name", ["cold_items", "cold_users", "warm"])
@pytest.mark.parametrize("share", [-0.1, 1.0, 20])
def test_shares_out_of_range(name, share):
    with pytest.raises(InputError, match=f"{name} must be a share.*got {share}"):
        cold_start_split(make_frame(), **{name: share})


def test_nothing_left_to_train_on():
    table = pa.table({"user_id": [1, 2], "item_id": [1, 2], "rating": [1.0, 2.0]})
    with pytest.raises(InputError, match="no rating is left to train on: of 2 ratings"):
        cold_start_split(table, cold_items=0.5, cold_users=0.5, warm=0.99)


def test_movielens_split_is_the_published_one(movielens):
    frame = pd.read_parquet(movielens / "ratings.parquet")
    split = cold_start_split(frame)
    expected = by_the_recipe(frame, 0.2, 0.2, 0.1, 0)
    for name, part in expected.items():
        found = getattr(split, name)
        assert found.to_arrow().column("item_id").to_pylist() == part.item_id.tolist()
        assert found.values.tolist() == part.rating.tolist()


def timed(times):
    """Three users and items, rated in the order of `times`."""
    rows = [(1, "a"), (2, "a"), (1, "b"), (2, "b"), (1, "c"), (3, "a"), (3, "c"), (2, "c")]
    user, item = zip(*rows, strict=True)
    columns = {"user_id": user, "item_id": item, "rating": np.arange(8.0), "timestamp": times}
    return pa.table(columns)


DAY = 86400
SECONDS = 1_400_000_000 // DAY * DAY + DAY * np.array([0, 1, 2, 7, 8, 9, 10, 11])
DATES = SECONDS.astype("datetime64[s]")


@pytest.mark.parametrize(
    "times",
    [
        pa.array(SECONDS),
        pa.array(SECONDS.astype(float)),
        pa.array(DATES),
        pa.array(DATES.astype("datetime64[ms]")),
        pa.array(DATES.astype("datetime64[ns]")),
        pa.array(DATES.astype("datetime64[D]")),
        pa.array(DATES, pa.timestamp("s", "Europe/Berlin")),
    ],
    ids=["seconds", "floats", "seconds since", "ms", "ns", "dates", "with a zone"],
)
@pytest.mark.parametrize(
    "at",
    [
        int(SECONDS[3]),
        str(SECONDS[3]),
        str(DATES[3])[:10],
        DATES[3].item().date(),
        DATES[3].item(),
        DATES[3].item().replace(tzinfo=datetime.UTC),
        DATES[3],
    ],
    ids=["seconds", "text", "date text", "date", "datetime", "with a zone", "datetime64"],
)
def test_time_split_in_every_unit(times, at):
    split = time_split(timed(times), at=at)
    assert [row[:2] for row in rows_of(split.train)] == [(1, "a"), (2, "a"), (1, "b")]
    assert [row[:2] for row in rows_of(split.warm)] == [(2, "b")]
    assert [row[:2] for row in rows_of(split.new_items)] == [(1, "c"), (2, "c")]
    assert [row[:2] for row in rows_of(split.new_users)] == [(3, "a")]
    assert [row[:2] for row in rows_of(split.new_both)] == [(3, "c")]
    ages = {task: days(part.timestamps - split.at) for task, part in split.tasks().items()}
    assert {task: list(found) for task, found in ages.items()} == {
        "warm": [0.0],
        "new_items": [1.0, 4.0],
        "new_users": [2.0],
        "new_both": [3.0],
    }


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([0.1, 0.3, 0.5]))
def test_time_split_is_a_partition_in_time(seed, test):
    frame = make_frame(seed)
    frame["timestamp"] = np.random.default_rng(seed).integers(0, 50, len(frame))  # many ties
    split = time_split(frame, test=test)
    parts = [split.train, *split.tasks().values()]
    everything = sorted(row for part in parts for row in rows_of(part))
    assert everything == sorted(tuple(row) for row in frame.itertuples(index=False))
    answered = np.concatenate([part.timestamps for part in split.tasks().values()])
    assert split.train.timestamps.max() < answered.min() == split.at
    assert len(answered) >= test * len(frame)
    known = split_by_known(
        split.train, Ratings.from_pandas(frame).select(frame.timestamp >= split.at)
    )
    assert rows_of(known.new_both) == rows_of(split.new_both)


def test_time_split_refusals():
    table = timed(pa.array(SECONDS))
    with pytest.raises(InputError, match="no rating is left to train on.*2014-05-13 to 2014-05-24"):
        time_split(table, at="2014-05-01")
    with pytest.raises(InputError, match="no rating is left to answer"):
        time_split(table, at="2020-01-01")
    with pytest.raises(InputError, match="at must be a date.*got 'soon'"):
        time_split(table, at="soon")
    with pytest.raises(InputError, match="test must be a share"):
        time_split(table, test=1)
    with pytest.raises(InputError, match="no timestamps"):
        time_split(make_frame())
