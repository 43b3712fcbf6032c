"""The cold-start split: a partition, by a recipe that anyone can repeat."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simrec.data.ratings import Ratings
from simrec.data.split import ColdStartSplit, cold_start_split
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
        assert part.density == 0
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
