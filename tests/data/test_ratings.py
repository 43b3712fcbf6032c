"""Ratings: what is read, how duplicates are merged, and what is refused."""

import logging
from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simrec.data.ratings import Ratings, repeated_pairs
from simrec.data.split import cold_start_split
from simrec.errors import InputError

NAN = float("nan")

TABLE = pa.table(
    {
        "user_id": pa.array([30, 10, 30, 20], pa.int32()),
        "item_id": ["b", "a", "a", "c"],
        "rating": [4.5, 0.0, 3.0, 5.0],
        "timestamp": [40, 30, 20, 10],
    }
)


def replaced(**columns):
    table = TABLE
    for name, values in columns.items():
        place = table.column_names.index(name)
        values = values if isinstance(values, pa.Array) else pa.array(values)
        table = table.set_column(place, name, values)
    return table


def test_from_every_form(tmp_path):
    pq.write_table(TABLE, tmp_path / "r.parquet")
    for ratings in (
        Ratings.from_arrow(TABLE),
        Ratings.from_pandas(TABLE.to_pandas()),
        Ratings.from_parquet(tmp_path / "r.parquet"),
        Ratings.from_parquet(str(tmp_path)),
        Ratings.from_table(TABLE),
    ):
        assert ratings.to_arrow().to_pylist() == TABLE.to_pylist()
        assert (len(ratings), ratings.n_users, ratings.n_items) == (4, 3, 3)
        assert ratings.mean == pytest.approx(3.125)
        assert ratings.n_duplicates == 0


def test_from_a_partitioned_directory(tmp_path):
    for user in (20, 10, 30):
        rows = TABLE.filter(pa.compute.equal(TABLE["user_id"], user)).drop_columns("user_id")
        (tmp_path / f"user_id={user}").mkdir()
        pq.write_table(rows, tmp_path / f"user_id={user}" / "part.parquet")
    ratings = Ratings.from_parquet(tmp_path)
    assert ratings.to_arrow().column("user_id").to_pylist() == [10, 20, 30, 30]
    assert ratings.to_arrow().column("item_id").to_pylist() == ["a", "c", "b", "a"]


def test_rows_follow_the_input_and_ids_are_sorted():
    ratings = Ratings.from_arrow(TABLE)
    assert ratings.users.ids.equals(pa.array([10, 20, 30], pa.int32()))
    assert ratings.items.ids.to_pylist() == ["a", "b", "c"]
    assert ratings.user_rows.tolist() == [2, 0, 2, 1]
    assert ratings.item_rows.tolist() == [1, 0, 0, 2]
    assert ratings.user_rows.dtype == ratings.item_rows.dtype == np.int32
    assert ratings.values.dtype == np.float32
    assert ratings.timestamps.tolist() == [40, 30, 20, 10]


def test_matrix_stores_every_rating_zeros_included():
    matrix = Ratings.from_arrow(TABLE).to_csr()
    assert matrix.shape == (3, 3)
    assert matrix.nnz == 4
    assert matrix.dtype == np.float32
    assert matrix.has_sorted_indices
    stored = matrix.tocoo()
    assert (0, 0, 0.0) in zip(stored.row, stored.col, stored.data, strict=True)
    np.testing.assert_array_equal(matrix.toarray(), [[0, 0, 0], [0, 0, 5], [3, 4.5, 0]])


def test_other_column_names():
    table = TABLE.rename_columns(["who", "what", "stars", "when"])
    ratings = Ratings.from_table(
        table, user_id="who", item_id="what", rating="stars", timestamp="when"
    )
    assert ratings.to_arrow().to_pylist() == TABLE.to_pylist()


def test_interactions_without_ratings():
    table = TABLE.drop_columns(["rating"])
    with pytest.raises(InputError, match=r"no column 'rating'.*rating=None \(--rating none\)"):
        Ratings.from_table(table)
    ratings = Ratings.from_table(table, rating=None)
    assert ratings.values.tolist() == [1, 1, 1, 1]
    assert not ratings.has_ratings and not ratings.select([0, 2]).has_ratings
    assert Ratings.from_table(TABLE).has_ratings
    assert not any(r.has_ratings for r in cold_start_split(ratings).tasks().values())


def test_a_word_among_ratings_is_named_with_its_row(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text("user_id,item_id,rating\n1,a,9.0\n2,b,\n3,a,great\n4,b,2\n")
    with pytest.raises(InputError, match="1 of 4 rows are not numbers, .* row 2: .*'great'") as bad:
        Ratings.from_table(path)
    assert "astype" not in str(bad.value) and "9.0" not in str(bad.value)
    words = pa.array(["4", "-.5e1", " 3 ", "?"])
    for column in (words, words.dictionary_encode(), words.cast(pa.large_string())):
        with pytest.raises(InputError, match=r"1 of 4 rows are not numbers, .* row 3: .*'\?'"):
            Ratings.from_table(replaced(rating=column))
    with pytest.raises(InputError, match="such as '4'.*astype"):  # which works here
        Ratings.from_table(replaced(rating=pa.array(["4", "5", "3", None])))


@pytest.mark.parametrize(
    ("times", "first"),
    [
        (pa.array([4, 3, 2, 1], pa.uint32()), 4),
        (pa.array([4.5, 3.0, 2.0, 1.0]), 4.5),
        (pa.array([datetime(1970, 1, 2, 0, 0, 1)] * 4, pa.timestamp("ms")), 86401),
        (pa.array([datetime(1970, 1, 2)] * 4, pa.timestamp("ns")), 86400),
        (pa.array([date(1970, 1, 2)] * 4), 86400),
    ],
)
def test_times_in_seconds(times, first):
    ratings = Ratings.from_table(replaced(timestamp=times))
    assert ratings.seconds.dtype == np.float64
    assert ratings.seconds[0] == first
    assert Ratings.from_table(TABLE, timestamp=None).seconds is None


def test_timestamps_are_optional_by_default_only():
    table = TABLE.drop_columns(["timestamp"])
    assert Ratings.from_table(table).timestamps is None
    assert Ratings.from_table(TABLE, timestamp=None).timestamps is None
    with pytest.raises(InputError, match="no column 'when'"):
        Ratings.from_table(table, timestamp="when")


@pytest.mark.parametrize(
    ("times", "first"),
    [
        (pa.array([4, 3, 2, 1], pa.uint32()), 4),
        (pa.array([4.5, 3.0, 2.0, 1.0]), 4.5),
        (pa.array([datetime(2024, 1, 1)] * 4, pa.timestamp("ms")), np.datetime64("2024-01-01")),
        (
            pa.array([datetime(2024, 1, 1, tzinfo=UTC)] * 4, pa.timestamp("us", "UTC")),
            np.datetime64("2024-01-01"),
        ),
        (pa.array([date(2024, 1, 1)] * 4), np.datetime64("2024-01-01")),
    ],
)
def test_times_of_many_types(times, first):
    ratings = Ratings.from_table(replaced(timestamp=times))
    assert ratings.timestamps[0] == first
    assert ratings.to_arrow().num_rows == 4


def test_ratings_of_many_types():
    for values in (
        pa.array([4, 0, 3, 5], pa.int8()),
        pa.array([4, 0, 3, 5], pa.uint64()),
        pa.array([4, 0, 3, 5], pa.float32()),
        pa.array([Decimal(4), Decimal(0), Decimal(3), Decimal(5)]),
    ):
        assert Ratings.from_table(replaced(rating=values)).values.tolist() == [4, 0, 3, 5]


def test_ratings_are_immutable():
    ratings = Ratings.from_arrow(TABLE)
    with pytest.raises(AttributeError):
        ratings.values = None
    for array in (ratings.user_rows, ratings.item_rows, ratings.values, ratings.timestamps):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_ratings_share_no_memory_with_the_input():
    values, times = np.array([4.5, 0, 3, 5], np.float32), np.arange(4)
    columns = {"user_id": [1, 2, 3, 4], "item_id": [1, 2, 3, 4]}
    for make in (pa.table, pd.DataFrame):
        ratings = Ratings.from_table(make({**columns, "rating": values, "timestamp": times}))
        values[0], times[0] = 1, 9  # still writeable, and of no effect
        assert ratings.values[0] == 4.5
        assert ratings.timestamps[0] == 0
        values[0], times[0] = 4.5, 0


def test_ratings_come_back_as_they_are():
    ratings = Ratings.from_arrow(TABLE)
    assert Ratings.from_table(ratings) is ratings
    with pytest.raises(InputError, match="outside of the bounds"):
        Ratings.from_table(ratings, bounds=(1, 5))


# --- subsets ---


def test_select_by_mask_and_by_position():
    ratings = Ratings.from_arrow(TABLE)
    for which in (np.array([True, False, True, False]), np.array([0, 2]), [0, 2]):
        part = ratings.select(which)
        assert part.to_arrow().to_pylist() == TABLE.take([0, 2]).to_pylist()
        assert part.users.ids.to_pylist() == [30]
        assert part.items.ids.to_pylist() == ["a", "b"]
        assert part.to_csr().shape == (1, 2)
    assert ratings.select([2, 0]).to_arrow().to_pylist() == TABLE.take([2, 0]).to_pylist()
    assert len(ratings.select([])) == 0
    assert len(ratings.select(np.zeros(4, bool))) == 0
    assert ratings.select([-1]).values.tolist() == [5]


def test_select_refuses_what_makes_no_ratings():
    ratings = Ratings.from_arrow(TABLE)
    with pytest.raises(InputError, match="a boolean for each of 4 ratings"):
        ratings.select(np.array([True]))
    for twice in ([1, 1], [3, -1]):
        with pytest.raises(InputError, match="given twice"):
            ratings.select(twice)
    with pytest.raises(InputError, match="index 4 is out of bounds"):
        ratings.select([4])
    with pytest.raises(InputError, match="a boolean for each of 4 ratings, or positions"):
        ratings.select([0.5])


# --- duplicates ---


def test_the_latest_rating_stands_where_the_pair_came_first(caplog):
    table = pa.table(
        {
            "user_id": [1, 2, 1, 1],
            "item_id": [1, 1, 1, 2],
            "rating": [5.0, 3.0, 1.0, 2.0],
            "timestamp": [10, 0, 20, 0],
        }
    )
    with caplog.at_level(logging.WARNING):
        ratings = Ratings.from_table(table, name="ratings")
    assert ratings.n_duplicates == 1
    assert ratings.values.tolist() == [1, 3, 2]
    assert ratings.timestamps.tolist() == [20, 0, 0]
    assert ratings.user_rows.tolist() == [0, 1, 0]
    assert "1 of 4 rows" in caplog.text and "the latest rating" in caplog.text


def test_without_times_it_is_the_mean(caplog):
    table = pa.table({"user_id": [1, 1, 1], "item_id": [1, 1, 2], "rating": [5.0, 2.0, 4.0]})
    with caplog.at_level(logging.WARNING):
        ratings = Ratings.from_table(table)
    assert ratings.values.tolist() == [3.5, 4]
    assert ratings.n_duplicates == 1
    assert "the mean rating" in caplog.text


def test_times_that_do_not_decide_leave_the_mean_of_the_latest():
    table = pa.table(
        {
            "user_id": ["u"] * 4,
            "item_id": ["i"] * 4,
            "rating": [1.0, 2.0, 4.0, 9.0],
            "timestamp": pa.array([1, 7, 7, 3], pa.timestamp("s")),
        }
    )
    for order in ([0, 1, 2, 3], [3, 2, 1, 0]):
        ratings = Ratings.from_table(table.take(order))
        assert ratings.values.tolist() == [3]
        assert ratings.n_duplicates == 3


def test_repeated_interactions_count_once():
    table = pa.table({"user_id": [1, 1], "item_id": [1, 1]})
    ratings = Ratings.from_table(table, rating=None)
    assert ratings.values.tolist() == [1]
    assert ratings.n_duplicates == 1


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(1, 5)), min_size=1))
def test_the_mean_of_each_pair_as_pandas_has_it(rows):
    frame = pd.DataFrame(rows, columns=["user_id", "item_id", "rating"])
    expected = frame.groupby(["user_id", "item_id"], sort=False)["rating"].mean()
    ratings = Ratings.from_pandas(frame)
    found = ratings.to_arrow().to_pandas()
    assert list(zip(found.user_id, found.item_id, strict=True)) == expected.index.tolist()
    np.testing.assert_allclose(found.rating, expected, rtol=1e-6)
    assert ratings.n_duplicates == len(frame) - len(expected)


@pytest.mark.parametrize("n_repeated", [0, 1, 1000])
def test_few_repeated_pairs_among_many(n_repeated):
    # Large enough for several blocks and for hashes of different pairs to meet.
    rng = np.random.default_rng(0)
    n_items = 100_000
    keys = rng.choice(10**10, 400_000, replace=False)
    keys[-n_repeated or len(keys) :] = keys[:n_repeated]
    keys = rng.permutation(keys)
    users, items = (keys // n_items).astype(np.int32), (keys % n_items).astype(np.int32)
    _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    expected = np.flatnonzero(counts[inverse] > 1)
    np.testing.assert_array_equal(repeated_pairs(users, items, n_items), expected)
    order = np.argsort(keys)
    expected = np.flatnonzero(counts[inverse][order] > 1)
    np.testing.assert_array_equal(repeated_pairs(users[order], items[order], n_items), expected)


# --- bad input ---


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (
            {"user_id": pa.array([1, None, None, 2])},
            ["'user_id'", "2 of 4", "row 1", "item_id='a'"],
        ),
        (
            {"item_id": ["a", "b", None, "c"]},
            ["'item_id'", "1 of 4", "no id", "row 2", "user_id=30"],
        ),
        ({"user_id": [1.0, float("nan"), 2.0, 3.0]}, ["'user_id'", "1 of 4", "no id", "row 1"]),
        ({"user_id": [1.0, 2.0, 3.0, 4.0]}, ["'user_id'", "double", "1.0", "astype('int64')"]),
        ({"item_id": [True, False, True, True]}, ["'item_id'", "bool", "integers or strings"]),
        ({"rating": [1.0, None, 2.0, 3.0]}, ["'rating'", "1 of 4", "null", "row 1", "user_id=10"]),
        ({"rating": [1.0, float("nan"), 2.0, 3.0]}, ["'rating'", "1 of 4", "NaN", "row 1", "Drop"]),
        ({"rating": [1.0, 2.0, float("inf"), 3.0]}, ["'rating'", "1 of 4", "infinite", "row 2"]),
        ({"rating": [1.0, 2.0, 1e300, 3.0]}, ["'rating'", "too large for float32", "row 2"]),
        ({"rating": ["4", "5", "3", "2"]}, ["'rating'", "string", "'4'", "numbers", "astype"]),
        ({"rating": [True, True, False, True]}, ["'rating'", "bool", "numbers"]),
        ({"timestamp": [1, 2, None, 3]}, ["'timestamp'", "1 of 4", "row 2", "timestamp=None"]),
        ({"timestamp": ["2024"] * 4}, ["'timestamp'", "string", "'2024'", "timestamp=None"]),
        ({"timestamp": [1.0, 2.0, float("nan"), 3.0]}, ["'timestamp'", "NaN", "row 2"]),
        ({"timestamp": pa.array([2**64 - 1] * 4, pa.uint64())}, ["'timestamp'", "timestamp=None"]),
    ],
)
def test_bad_rows_are_named(columns, words, tmp_path):
    path = tmp_path / "bad.parquet"
    pq.write_table(replaced(**columns), path)
    with pytest.raises(InputError) as error:
        Ratings.from_parquet(path)
    message = str(error.value)
    assert "bad.parquet" in message
    for word in words:
        assert word in message


def test_nan_of_a_frame_is_refused_too():
    frame = TABLE.to_pandas()
    frame.loc[1, "rating"] = np.nan
    with pytest.raises(InputError, match="'rating': 1 of 4 rows have no rating"):
        Ratings.from_pandas(frame)
    frame = TABLE.to_pandas().astype({"user_id": float})
    frame.loc[3, "user_id"] = np.nan
    with pytest.raises(InputError, match="'user_id': 1 of 4 rows have no id"):
        Ratings.from_pandas(frame)


def test_ratings_outside_of_the_bounds():
    with pytest.raises(InputError) as error:
        Ratings.from_table(TABLE, bounds=(1, 4), name="ratings")
    message = str(error.value)
    assert "ratings (Arrow table): 3 of 4 ratings lie outside of the bounds 1 to 4" in message
    assert "they go from 0 to 5" in message
    assert "row 0: user_id=30, item_id='b', rating=4.5" in message
    assert "wider bounds" in message
    assert len(Ratings.from_table(TABLE, bounds=(0, 5))) == 4


def test_bounds_are_rounded_as_the_ratings_are():
    values = [0.1, 0.7, 0.3, 0.9]
    for kind in (pa.float32(), pa.float64()):
        table = replaced(rating=pa.array(values, kind))
        assert len(Ratings.from_table(table, bounds=(0.1, 0.9))) == len(values)
        assert Ratings.from_table(table).check_bounds(0.1, 0.9) is None


@pytest.mark.parametrize(
    "bounds", [(5, 1), (1, 1), (1,), (0, float("inf")), 5, ("a", "b"), (1, 2, 3)]
)
def test_bounds_that_are_none(bounds):
    with pytest.raises(InputError, match="bounds must be the lowest and the highest"):
        Ratings.from_table(TABLE, bounds=bounds)


def test_missing_column_and_empty_table_and_same_column():
    with pytest.raises(InputError, match=r"no column 'user_id'.*Did you mean 'userid'"):
        Ratings.from_table(TABLE.rename_columns(["userid", "item_id", "rating", "timestamp"]))
    with pytest.raises(InputError, match="empty"):
        Ratings.from_table(TABLE.slice(0, 0))
    with pytest.raises(InputError, match="different columns"):
        Ratings.from_table(TABLE, user_id="item_id")


def test_truncated_file_is_named(tmp_path):
    path = tmp_path / "cut.parquet"
    pq.write_table(TABLE, path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InputError, match=r"cut\.parquet: cannot be read as Parquet"):
        Ratings.from_parquet(path)


def test_movielens(movielens):
    ratings = Ratings.from_parquet(movielens / "ratings.parquet", bounds=(1, 5))
    assert (len(ratings), ratings.n_users, ratings.n_items) == (100_000, 943, 1682)
    assert ratings.mean == pytest.approx(3.52986)
    assert ratings.n_duplicates == 0
    assert ratings.to_arrow().equals(pq.read_table(movielens / "ratings.parquet"))


def test_ids_of_two_widths_are_one_type(tmp_path):
    kinds = (pa.int32(), pa.int64())
    for kind in kinds:
        rows = {"user_id": pa.array([1, 2], kind), "item_id": pa.array([7, 8], kind)}
        rows["rating"] = pa.array([1.0, 2.0]) if kind == kinds[0] else pa.array([1, 2])
        rows["timestamp"] = pa.array([1, 2], kind)
        pq.write_table(pa.table(rows), tmp_path / f"{kind}.parquet")
    ratings = Ratings.from_parquet(tmp_path)
    assert ratings.users.type == pa.int64() and ratings.users.ids.to_pylist() == [1, 2]
    assert len(ratings) == 2 and ratings.n_duplicates == 2
    narrow, wide = (Ratings.from_parquet(tmp_path / f"{kind}.parquet").items for kind in kinds)
    assert narrow.union(wide).type == pa.int64() and narrow.rows(wide.ids).tolist() == [0, 1]
