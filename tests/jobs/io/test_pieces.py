"""Ratings read piece by piece: the same as read at once, and refused alike."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simrec import InputError
from simrec.jobs.io import pieces
from simrec.jobs.shared.data import DataOptions
from simrec.model.run import arrange
from simrec.model.run.scratch import Scratch


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(pieces, "_ROWS", 50)
    for module in (pieces, arrange):
        monkeypatch.setattr(module, "PIECE", 37)


def write(path, seed=0, n=400, **columns):
    """Write ratings in three files, a few pairs of them twice."""
    rng = np.random.default_rng(seed)
    table = {
        "user_id": rng.integers(-20, 20, n),
        "item_id": [f"i{k}" for k in rng.integers(0, 60, n)],
        "rating": rng.integers(1, 6, n).astype(np.float64),
        **columns,
    }
    path.mkdir()
    for i, start in enumerate(range(0, n, 150)):
        part = pa.table(table).slice(start, 150)
        pq.write_table(part, path / f"{i}.parquet", row_group_size=40)
    return DataOptions(ratings=path)


@pytest.mark.parametrize("more", [(), ("timestamp",), ("timestamp", "weight")])
def test_the_same_ratings_as_read_at_once(tmp_path, more):
    rng = np.random.default_rng(1)
    columns = {"timestamp": rng.integers(0, 9, 400), "weight": rng.random(400)}
    data = write(tmp_path / "ratings", **{name: columns[name] for name in more})
    found = pieces.read_pieces(data, (1, 5), Scratch(1, tmp_path))
    expected = data.load_ratings((1, 5))
    assert found.n_duplicates == expected.n_duplicates > 0
    assert found.users == expected.users
    assert found.items == expected.items
    for name in ("user_rows", "item_rows", "values", "timestamps", "weights"):
        one, other = getattr(found, name), getattr(expected, name)
        assert (one is None) == (other is None)
        if one is not None:
            assert one.dtype == other.dtype
            assert np.array_equal(one, other)
            assert not one.flags.writeable


def test_dates_and_pairs_without_ratings(tmp_path):
    days = pa.array(np.arange(400) % 7, pa.int32()).cast(pa.date32())
    data = write(tmp_path / "ratings", timestamp=days)
    data = DataOptions(ratings=data.ratings, rating=None)
    found = pieces.read_pieces(data, None, Scratch(1, tmp_path))
    expected = data.load_ratings(None)
    assert not found.has_ratings
    assert np.array_equal(found.timestamps, expected.timestamps)
    assert np.array_equal(found.values, expected.values)


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ({"rating": [float("nan")] * 400}, {}, "are NaN"),
        ({"rating": ["good"] * 400}, {}, "must be numbers"),
        ({"user_id": pa.array([None] * 400, pa.int64())}, {}, "have no id"),
        ({"rating": [9.0] * 400}, {}, "outside of the bounds"),
        ({}, {"rating": "stars"}, "no column 'stars'"),
        ({}, {"weight": "count"}, "no column 'count'"),
        ({}, {"duplicates": "error"}, "repeat a"),
    ],
)
def test_bad_tables_are_refused_as_they_are_at_once(tmp_path, columns, options, words):
    path = write(tmp_path / "ratings", **columns).ratings
    data = DataOptions(ratings=path, **options)
    with pytest.raises(InputError, match=words):
        pieces.read_pieces(data, (1, 5), Scratch(1, tmp_path))
    with pytest.raises(InputError, match=words):
        data.load_ratings((1, 5))
