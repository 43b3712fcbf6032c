import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simrec import InputError
from simrec.data.source import open_source
from simrec.data.tables import read_table


def table(start, n=10):
    return pa.table(
        {"user_id": np.arange(start, start + n), "item_id": [f"i{k}" for k in range(n)]}
    )


def write(path, content, **settings):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(content, path, **settings)
    return path


@pytest.fixture
def parts(tmp_path):
    """Three files of ten rows, two row groups each."""
    for k in range(3):
        write(tmp_path / "in" / f"part-{k}.parquet", table(10 * k), row_group_size=5)
    (tmp_path / "in" / "_SUCCESS").write_text("")
    (tmp_path / "in" / "notes.txt").write_text("not a table")
    return tmp_path / "in"


def users(source):
    return source.read()["user_id"].to_pylist()


def test_a_directory_is_read_in_the_order_of_paths(parts):
    assert users(open_source(parts)) == users(open_source(f"{parts}/")) == list(range(30))


def test_a_file_and_relative_paths(parts, monkeypatch):
    assert users(open_source(parts / "part-1.parquet")) == list(range(10, 20))
    monkeypatch.chdir(parts.parent)
    assert users(open_source("in")) == users(open_source("./in")) == list(range(30))


def test_uris(parts):
    assert users(open_source(f"file://{parts}")) == list(range(30))
    assert users(open_source(f"file://{parts}/part-1.parquet")) == list(range(10, 20))
    with pytest.raises(InputError, match="nosuch://"):
        open_source("nosuch://bucket/x")


def test_units_are_whole_row_groups(parts):
    source = open_source(parts)
    units = source.units(5)
    assert [unit.rows for unit in units] == [5] * 6
    assert [unit.rows for unit in source.units(7)] == [5] * 6
    assert [unit.rows for unit in source.units(10**6)] == [10, 10, 10]
    read = [b for unit in units for b in source.batches(unit, ["user_id"], batch_rows=3)]
    assert max(b.num_rows for b in read) == 3
    assert pa.concat_tables(read)["user_id"].to_pylist() == list(range(30))


def test_hive_partitions_become_columns(tmp_path):
    for day in ("2024-01-01", "2024-01-02"):
        for shard in (1, 2):
            write(tmp_path / f"day={day}" / f"shard={shard}" / "a.parquet", table(shard))
    write(tmp_path / "day=__HIVE_DEFAULT_PARTITION__" / "shard=3" / "a.parquet", table(0))
    source = open_source(tmp_path)
    assert source.schema.names == ["user_id", "item_id", "day", "shard"]
    assert source.schema.field("shard").type == pa.int32()
    whole = source.read()
    assert set(whole["day"].to_pylist()) == {"2024-01-01", "2024-01-02", None}
    assert set(whole["shard"].to_pylist()) == {1, 2, 3}
    assert source.read(["shard"]).column_names == ["shard"]


def test_columns_may_stand_in_another_order(tmp_path):
    write(tmp_path / "a.parquet", table(0))
    write(tmp_path / "b.parquet", table(10).select(["item_id", "user_id"]))
    assert users(open_source(tmp_path)) == list(range(20))


def test_integers_of_two_widths_and_columns_that_some_files_lack(tmp_path):
    """As `read_table` reads them."""
    narrow = table(0).set_column(0, "user_id", pa.array(range(10), pa.int32()))
    write(tmp_path / "a.parquet", narrow)
    write(tmp_path / "b.parquet", table(10).append_column("note", pa.array(["x"] * 10)))
    write(tmp_path / "c.parquet", table(20).append_column("note", pa.array(["y"] * 10)))
    source = open_source(tmp_path)
    assert source.schema.field("user_id").type == pa.int64()
    assert users(source) == list(range(30))
    read = [b for unit in source.units(10) for b in source.batches(unit, ["note", "user_id"], 4)]
    assert pa.concat_tables(read).equals(read_table(tmp_path, ["note", "user_id"]))
    assert read[0]["note"].to_pylist() == [None] * 4 and read[-1]["note"].to_pylist() == ["y"] * 2


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (pa.table({"user_id": [1]}), r"b.parquet: columns \['user_id'\], expected"),
        (
            pa.table({"user_id": ["x"], "item_id": ["i"]}),
            "b.parquet: column 'user_id' is string, expected int64",
        ),
    ],
)
def test_a_schema_that_changes_is_named(tmp_path, second, message):
    write(tmp_path / "a.parquet", table(0))
    write(tmp_path / "b.parquet", second)
    with pytest.raises(InputError, match=message):
        open_source(tmp_path)


def test_a_corrupt_footer_is_named(parts):
    (parts / "part-1.parquet").write_bytes(b"PAR1 this is not a table")
    with pytest.raises(InputError, match="part-1.parquet: cannot be read as Parquet"):
        open_source(parts)


def test_corrupt_pages_are_named(parts):
    source = open_source(parts)
    file = parts / "part-1.parquet"
    content = bytearray(file.read_bytes())
    content[4:200] = os.urandom(196)
    file.write_bytes(content)
    with pytest.raises(InputError, match="part-1.parquet: cannot be read"):
        source.read()


def test_a_file_that_changes_or_vanishes_is_named(parts):
    source = open_source(parts)
    write(parts / "part-1.parquet", pa.table({"other": [1]}))
    with pytest.raises(InputError, match="part-1.parquet"):
        source.read()
    write(parts / "part-1.parquet", table(0, 11), row_group_size=5)
    with pytest.raises(InputError, match="part-1.parquet: the file changed"):
        source.read()
    (parts / "part-1.parquet").unlink()
    with pytest.raises(InputError, match="part-1.parquet"):
        source.read()


def test_what_is_not_there_is_named(tmp_path, parts):
    with pytest.raises(InputError, match=r"pairs .*absent\): no such file"):
        open_source(tmp_path / "absent", "pairs")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no Parquet or CSV files"):
        open_source(tmp_path / "empty")
    with pytest.raises(InputError, match="Patterns are not expanded: give the directory"):
        open_source(f"{parts}/*.parquet")
    with pytest.raises(InputError, match=r"no column 'user'\. Did you mean 'user_id'"):
        open_source(parts).require("user")
