"""Reading tables: every form they come in, and what is said when they cannot be read."""

import gzip

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from simrec.data.tables import describe, read_table
from simrec.errors import InputError

TABLE = pa.table({"item_id": [3, 1, 2], "title": ["c", "a", "b"], "year": [1990, None, 2001]})


def test_every_form_gives_the_same_table(tmp_path):
    path = tmp_path / "items.parquet"
    pq.write_table(TABLE, path)
    frame = TABLE.to_pandas(types_mapper=pd.ArrowDtype)
    for source in (TABLE, TABLE.to_batches()[0], frame, path, str(path), tmp_path):
        assert read_table(source).to_pylist() == TABLE.to_pylist()


def test_columns_come_in_the_order_asked_for(tmp_path):
    pq.write_table(TABLE, tmp_path / "items.parquet")
    for source in (TABLE, TABLE.to_pandas(), tmp_path / "items.parquet", tmp_path):
        read = read_table(source, ["year", "item_id"], optional=["title", "plot"])
        assert read.column_names == ["year", "item_id", "title"]


def test_a_missing_value_of_pandas_is_null():
    frame = pd.DataFrame({"x": [1.0, np.nan], "s": ["a", None], "t": [pd.Timestamp(0), pd.NaT]})
    read = read_table(frame)
    assert [read.column(name).null_count for name in ("x", "s", "t")] == [1, 1, 1]


def test_nan_of_arrow_stays_nan(tmp_path):
    table = pa.table({"x": [1.0, float("nan")]})
    pq.write_table(table, tmp_path / "x.parquet")
    assert read_table(table).column("x").null_count == 0
    assert read_table(tmp_path / "x.parquet").column("x").null_count == 0


def test_directory_is_read_in_the_order_of_its_paths_and_notes_are_skipped(tmp_path):
    for number in (2, 0, 1):
        pq.write_table(pa.table({"a": [number]}), tmp_path / f"part-{number}.parquet")
    (tmp_path / "README.md").write_text("not data")
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".part-0.parquet.crc").write_bytes(b"x")
    assert read_table(tmp_path).column("a").to_pylist() == [0, 1, 2]


def test_hive_partitions_become_columns(tmp_path):
    for year in (2023, 2024):
        folder = tmp_path / "ratings" / f"year={year}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"a": [year - 2000]}), folder / "part.parquet")
    read = read_table(tmp_path / "ratings")
    assert read.to_pylist() == [{"a": 23, "year": 2023}, {"a": 24, "year": 2024}]
    assert read_table(tmp_path / "ratings", ["year"]).column("year").to_pylist() == [2023, 2024]
    # A partition folder given by itself is just a directory, a file in it just a file.
    assert read_table(tmp_path / "ratings" / "year=2023").column_names == ["a"]
    assert read_table(tmp_path / "ratings/year=2023/part.parquet").column_names == ["a"]


def test_a_single_partition_gives_its_column_too(tmp_path):
    (tmp_path / "country=de").mkdir()
    pq.write_table(pa.table({"a": [1]}), tmp_path / "country=de" / "part.parquet")
    assert read_table(tmp_path).to_pylist() == [{"a": 1, "country": "de"}]


def test_parts_of_other_widths_and_with_other_columns_fit_together(tmp_path):
    pq.write_table(pa.table({"a": pa.array([1], pa.int32())}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"a": [2**40], "b": ["x"]}), tmp_path / "1.parquet")
    assert read_table(tmp_path).to_pylist() == [{"a": 1, "b": None}, {"a": 2**40, "b": "x"}]


def test_parts_of_other_types_do_not(tmp_path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"a": ["one"]}), tmp_path / "1.parquet")
    with pytest.raises(
        InputError, match=r"1\.parquet: column .a. is string, expected int64.*same column types"
    ):
        read_table(tmp_path)


def test_missing_path_names_it_and_the_nearest(tmp_path):
    pq.write_table(TABLE, tmp_path / "ratings.parquet")
    with pytest.raises(InputError, match=r"rating\.parquet: no such file.*'ratings\.parquet'"):
        read_table(tmp_path / "rating.parquet")
    with pytest.raises(InputError, match="items .*nowhere.*no such file"):
        read_table(tmp_path / "nowhere" / "x.parquet", name="items")


def test_directory_without_files(tmp_path):
    with pytest.raises(InputError, match="no Parquet or CSV files: the directory holds none"):
        read_table(tmp_path)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"user_id,item_id\n1,2\n" * 10])
def test_not_a_parquet_file(tmp_path, content):
    path = tmp_path / "ratings.parquet"
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"ratings\.parquet: cannot be read.*{len(content)} byt"):
        read_table(path)


def test_truncated_part_of_a_directory_is_named(tmp_path):
    for number in range(3):
        pq.write_table(pa.table({"a": np.arange(1000)}), tmp_path / f"part-{number}.parquet")
    whole = (tmp_path / "part-1.parquet").read_bytes()
    (tmp_path / "part-1.parquet").write_bytes(whole[:-20])
    with pytest.raises(InputError, match=r"part-1\.parquet: cannot be read as Parquet"):
        read_table(tmp_path)


@pytest.mark.parametrize("n_files", [1, 3])
def test_damaged_pages_are_found_and_the_file_named(tmp_path, n_files):
    values = np.random.default_rng(0).integers(0, 1 << 40, 5000)
    for number in range(n_files):
        pq.write_table(pa.table({"a": values}), tmp_path / f"part-{number}.parquet")
    path = tmp_path / f"part-{n_files - 1}.parquet"
    content = bytearray(path.read_bytes())
    content[4:2000] = b"\xff" * 1996  # page headers, not the footer
    path.write_bytes(bytes(content))
    with pytest.raises(InputError, match=rf"part-{n_files - 1}\.parquet: cannot be read"):
        read_table(path if n_files == 1 else tmp_path)


def test_missing_columns_are_named_with_the_nearest(tmp_path):
    table = pa.table({"user_id": [1], "itemId": [1], "Rating": [1.0]})
    pq.write_table(table, tmp_path / "r.parquet")
    for source in (table, table.to_pandas(), tmp_path / "r.parquet"):
        with pytest.raises(InputError) as error:
            read_table(source, ["user_id", "item_id", "rating"])
        message = str(error.value)
        assert "no column 'item_id', 'rating'" in message
        assert "'itemId'" in message and "'Rating'" in message
        assert "The columns are: user_id, itemId, Rating" in message


def test_an_index_with_a_name_is_a_column_and_any_other_left_out(tmp_path):
    """As a frame, saved by pandas, and as an Arrow table."""
    by_id = TABLE.to_pandas().set_index("item_id")
    sampled = TABLE.to_pandas().iloc[[1, 2, 0]]  # pandas saves the index of a sample
    named = TABLE.to_pandas().set_axis([5, 3, 9]).rename_axis("row")
    for number, frame in enumerate([by_id, sampled]):
        path = tmp_path / f"{number}.parquet"
        frame.to_parquet(path)
        frame.to_csv(tmp_path / f"{number}.csv")
        for source in (frame, path, pa.Table.from_pandas(frame)):
            assert set(read_table(source).column_names) == set(TABLE.column_names)
            assert read_table(source, ["item_id"]).column_names == ["item_id"]
    assert "__index_level_0__" in pq.read_schema(tmp_path / "1.parquet").names
    assert read_table(tmp_path / "1.csv").column_names == TABLE.column_names
    assert read_table(pd.read_csv(tmp_path / "1.csv")).column_names == TABLE.column_names
    named.to_parquet(tmp_path / "2.parquet")
    for source in (named, tmp_path / "2.parquet"):
        assert set(read_table(source).column_names) == {*TABLE.column_names, "row"}
        assert read_table(source, ["row"]).column("row").to_pylist() == [5, 3, 9]


def test_columns_are_renamed(tmp_path):
    table = TABLE.rename_columns(["asin", "title", "year"])
    pq.write_table(table, tmp_path / "items.parquet")
    rename = {"asin": "item_id"}
    for source in (table, table.to_pandas(), tmp_path, table.to_pandas().set_index("asin")):
        assert read_table(source, rename=rename).column("item_id").to_pylist() == [3, 1, 2]
        read = read_table(source, ["year", "item_id"], rename=rename)
        assert read.column_names == ["year", "item_id"]
    # Under its new name already: nothing to do.
    assert read_table(TABLE, rename=rename).column_names == TABLE.column_names
    with pytest.raises(InputError, match="no column 'asin'"):
        read_table(TABLE.drop_columns(["item_id"]), rename=rename)
    with pytest.raises(InputError, match="'asin' is to be used as 'item_id', but there is"):
        read_table(table.append_column("item_id", [[1, 2, 3]]), rename=rename)


def test_columns_of_one_name():
    frame = pd.DataFrame([[1, 2]], columns=["a", "a"])
    table = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    for source in (frame, table):
        with pytest.raises(InputError, match="more than one column is called 'a'"):
            read_table(source)


def test_empty_tables():
    empty = TABLE.slice(0, 0)
    for source in (empty, empty.to_pandas()):
        with pytest.raises(InputError, match=r"items .*empty \(no rows\)"):
            read_table(source, name="items")
        assert read_table(source, allow_empty=True).num_rows == 0


def test_a_column_of_mixed_types_is_named_with_an_example():
    frame = pd.DataFrame({"zip": pd.Series(["12345", "23456", 34567], dtype=object)})
    with pytest.raises(InputError, match=r"'zip' mixes types \(1 int, 2 str\).*row 2: zip=34567"):
        read_table(frame)


@pytest.mark.parametrize("source", [None, 3, [1, 2], {"a": [1]}, np.zeros(3)])
def test_what_is_no_table(source):
    with pytest.raises(InputError, match=r"not a table.*DataFrame.*Parquet"):
        read_table(source)


def test_describe():
    assert describe("x/ratings.parquet") == "x/ratings.parquet"
    assert describe(TABLE, "items") == "items (Arrow table)"
    assert describe(TABLE.to_pandas(), "users") == "users (DataFrame)"


CSV = 'item_id,title,year,score\n1,a,1990,0.5\n2,,NA,1\n3,"NA",2001,\n'


def test_csv_is_read_wherever_parquet_is(tmp_path):
    (tmp_path / "plain.csv").write_text(CSV)
    with gzip.open(tmp_path / "packed.csv.gz", "wt") as file:
        file.write(CSV)
    folder = tmp_path / "folder" / "day=1"
    folder.mkdir(parents=True)
    (folder / "part.csv").write_text(CSV)
    expected = pa.table(
        {
            "item_id": [1, 2, 3],
            "title": ["a", None, "NA"],
            "year": [1990, None, 2001],
            "score": [0.5, 1.0, None],
        }
    )
    assert read_table(tmp_path / "plain.csv").equals(expected)
    assert read_table(tmp_path / "packed.csv.gz").equals(expected)
    assert read_table(tmp_path / "folder").column_names == [*expected.column_names, "day"]
    assert read_table(tmp_path / "plain.csv", ["year", "item_id"]).column_names == [
        "year",
        "item_id",
    ]


def test_csv_that_changes_its_mind_about_a_type(tmp_path):
    rows = [f"{i},{i}" for i in range(350_000)] + ["350000,many"]
    (tmp_path / "r.csv").write_text("a,b\n" + "\n".join(rows) + "\n")
    read = read_table(tmp_path / "r.csv")
    assert read.column("b")[0].as_py() == "0" and read.column("b")[-1].as_py() == "many"


@pytest.mark.parametrize("content", [b"", b"a,b\n1\n", b"a,b\n1,2,3\n"])
def test_broken_csv_is_named(tmp_path, content):
    (tmp_path / "r.csv").write_bytes(content)
    with pytest.raises(InputError, match=r"r\.csv: cannot be read as CSV"):
        read_table(tmp_path / "r.csv")


def test_a_directory_of_partitions_that_differ(tmp_path):
    for year in (2023, 2024):
        folder = tmp_path / f"year={year}"
        folder.mkdir()
        values = pa.array([year], pa.int32() if year == 2023 else pa.int64())
        columns = {"a": values} | ({"b": ["x"]} if year == 2024 else {})
        pq.write_table(pa.table(columns), folder / "part.parquet")
    whole = read_table(tmp_path)
    assert whole.to_pylist()[0] == {"a": 2023, "b": None, "year": 2023}
    assert read_table(f"file://{tmp_path}").equals(whole)
    assert read_table(f"{tmp_path}/year=2024").column("a").to_pylist() == [2024]


def test_a_file_whose_name_looks_like_a_glob(tmp_path):
    pq.write_table(TABLE, tmp_path / "x[1].parquet")
    assert read_table(tmp_path / "x[1].parquet").equals(TABLE)


def test_types_that_few_functions_take_are_decoded(tmp_path):
    words = pa.array(["a", "a", None])
    table = pa.table(
        {
            "runs": pc.run_end_encode(words),
            "view": words.cast(pa.string_view()),
            "views": pa.array([["a"], [], None], pa.list_(pa.string_view())),
            "list_view": pa.array([[1], [], None], pa.list_view(pa.int64())),
            "uuid": pa.array([b"0" * 16] * 3, pa.uuid()),
        }
    )
    read = read_table(table)
    assert [str(column.type) for column in read.columns] == [
        "string",
        "large_string",
        "large_list<item: large_string>",
        "large_list<item: int64>",
        "fixed_size_binary[16]",
    ]
    for name in ("runs", "view"):
        assert read.column(name).to_pylist() == words.to_pylist()
    assert read.column("views").to_pylist() == [["a"], [], None]


def test_strings_of_several_files(tmp_path):
    pq.write_table(TABLE, tmp_path / "0.parquet")
    pq.write_table(TABLE, tmp_path / "1.parquet")
    read = read_table(tmp_path)
    assert read.column("year").type == pa.int64()
    assert read.to_pylist() == TABLE.to_pylist() * 2


def test_names_that_are_no_unicode():
    frame = pd.DataFrame([[1]], columns=pd.Index(["\ud800"], dtype=object))
    with pytest.raises(InputError, match="cannot be named in Arrow"):
        read_table(frame)
    with pytest.raises(InputError, match="or holds what Arrow has no type for"):
        read_table(pd.DataFrame({"a": pd.Series(["\ud800"], dtype=object)}))
