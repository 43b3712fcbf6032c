"""Frames of other libraries, streams and rows, wherever a table is taken."""

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from simrec import Ratings
from simrec.data.tables import is_table, read_table, returned
from simrec.errors import InputError

TABLE = pa.table({"user_id": [1, 1, 2], "item_id": ["a", "b", "a"], "rating": [5.0, 3.0, 4.0]})


class Capsule:
    """A frame of which nothing is known but how it exports Arrow streams."""

    def __arrow_c_stream__(self, requested_schema=None):
        return TABLE.__arrow_c_stream__(requested_schema)


def forms():
    return [
        pl.from_arrow(TABLE),
        duckdb.from_arrow(TABLE),
        TABLE.to_reader(),
        TABLE.to_batches()[0],
        Capsule(),
        TABLE.to_pylist(),
    ]


@pytest.mark.parametrize("number", range(6))
def test_every_frame_is_the_same_table(number):
    source = forms()[number]
    assert is_table(source)
    assert read_table(source, ["item_id", "rating"]).to_pylist() == TABLE.select([1, 2]).to_pylist()
    assert Ratings.from_table(forms()[number]).to_arrow().to_pylist() == TABLE.to_pylist()


def test_a_row_is_a_table_of_one():
    row = {"item_id": 7, "year": 1999, "genres": ["War", "Drama"], "vector": [0.5, 1.0]}
    assert is_table(row) and read_table(row).to_pylist() == [row]
    with pytest.raises(InputError, match="not a table"):
        read_table({"item_id": [7]})
    assert not any(is_table(ids) for ids in (7, "7", [7], pl.Series([7]), pa.array([7]), {7}))


def test_a_stream_is_read_once():
    reader = TABLE.to_reader()
    read_table(reader)
    with pytest.raises(InputError, match=r"was read before.*read_all"):
        read_table(reader, allow_empty=True)


def test_results_in_kind():
    assert isinstance(returned(TABLE, "polars"), pl.DataFrame)
    assert returned(TABLE, "duckdb").fetchall() == [
        tuple(row.values()) for row in TABLE.to_pylist()
    ]
    with pytest.raises(InputError, match="output must be one of 'pandas', 'arrow', 'polars'"):
        returned(TABLE, "spark")
