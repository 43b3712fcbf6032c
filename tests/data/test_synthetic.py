"""Synthetic data: its shape, its seeds, and the committed sample."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simrec.data import synthetic
from simrec.data.ratings import Ratings
from simrec.data.synthetic import make_synthetic
from simrec.errors import InputError


@pytest.fixture(scope="module")
def data():
    return make_synthetic(n_users=2000, n_items=1200, n_ratings=200_000, random_state=3)


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
    assert ratings.mean > synthetic.MEAN + 0.2  # the mean over all pairs


def test_same_seed_same_data():
    first, second, other = (make_synthetic(50, 40, 300, random_state=s) for s in (1, 1, 2))
    for name in ("ratings", "items", "users"):
        assert getattr(first, name).equals(getattr(second, name))
        assert not getattr(first, name).equals(getattr(other, name))


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
