"""CSV as people have it: delimiters, decimal commas, encodings, quotes, ids with leading zeros."""

import gzip

import pyarrow as pa
import pytest

from simrec.data import files
from simrec.data.files import reading_options
from simrec.data.source import open_source
from simrec.data.tables import read_table
from simrec.errors import InputError

ROWS = [
    {"item_id": 1, "title": "Amélie; or | not", "price": 3.5},
    {"item_id": 2, "title": 'a "quoted"\nline', "price": 10.0},
    {"item_id": 3, "title": None, "price": -0.25},
]


def written(delimiter, decimal="."):
    def field(value):
        if value is None:
            return ""
        if isinstance(value, float):
            return str(value).replace(".", decimal)
        return '"' + value.replace('"', '""') + '"' if isinstance(value, str) else str(value)

    lines = [ROWS[0].keys(), *([field(v) for v in row.values()] for row in ROWS)]
    return "\r\n".join(delimiter.join(line) for line in lines) + "\r\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16"])
@pytest.mark.parametrize("marks", [",.", ";,", "\t.", "|,"])
def test_how_a_file_is_written_is_found(tmp_path, marks, encoding):
    path = tmp_path / "items.csv"
    path.write_bytes(written(*marks).encode(encoding))
    assert read_table(path).to_pylist() == ROWS
    source = open_source(path)
    (unit,) = source.units(10)
    assert pa.concat_tables(source.batches(unit, None, 2)).to_pylist() == ROWS


def test_tsv_and_files_without_an_ending(tmp_path):
    for name in ("items.tsv", "u.item"):
        (tmp_path / name).write_text(written("\t"))
        assert read_table(tmp_path / name)["price"].to_pylist() == [3.5, 10.0, -0.25]
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.tsv.gz").write_bytes(gzip.compress(written("\t").encode()))
    assert len(read_table(tmp_path / "folder")) == 3


def test_what_is_not_found_is_given(tmp_path):
    path = tmp_path / "u.data"
    path.write_text("196\t242\t3\t881250949\n186\t302\t3\t891717742\n")
    with pytest.raises(InputError, match=r"first row holds numbers.*u\.data#columns=user_id"):
        read_table(path)
    with pytest.raises(InputError, match="'delimeter' does not say how"):
        read_table(f"{path}#delimeter=tab")
    names = "user_id,item_id,rating,timestamp"
    with pytest.raises(InputError, match=f"say all 4: .*u.data#columns={names}$"):
        read_table(path)
    with pytest.raises(InputError, match="2 names in #columns=a,b, but 4 columns: 196, 242"):
        read_table(f"{path}#columns=a,b")
    found = read_table(f"{path}#columns={names}", ["item_id", "rating"])
    assert found.to_pylist() == [{"item_id": 242, "rating": 3}, {"item_id": 302, "rating": 3}]
    odd = tmp_path / "odd.csv"
    odd.write_bytes("a%b\n1,5%Ж\n".encode("cp1251"))
    given = f"{odd}#delimiter=%25&decimal=,&encoding=cp1251"
    assert read_table(given).to_pylist() == [{"a": 1.5, "b": "Ж"}]
    assert reading_options("s3://x/y.csv#delimiter=;") == ("s3://x/y.csv", {"delimiter": ";"})
    (tmp_path / "a#b=1.csv").write_text("x\ny\n")  # a name like any other
    assert read_table(tmp_path / "a#b=1.csv").to_pylist() == [{"x": "y"}]


def test_a_first_row_of_values_is_no_row_of_names(tmp_path):
    path = tmp_path / "u.item"
    path.write_text("1|Toy Story|0|0|1|1\n2|GoldenEye|0|1|0|0\n")
    with pytest.raises(InputError, match=r"say all 6: .*u\.item#columns=item_id,title,\.\.\.$"):
        read_table(path)
    path.write_text("1|24|M\n2|53|F\n")
    with pytest.raises(InputError, match=r"say them: #columns=NAME,NAME,\.\.\. after its path"):
        read_table(path, ["user_id"])
    with pytest.raises(InputError) as error:
        read_table(f"{path}#columns=item_id,age,gender", ["a", "b", "c", "d"], name="items")
    assert str(error.value).startswith(f"items ({path}): no column 'a', 'b', 'c', 'd'. The columns")


def test_ids_with_leading_zeros_stay_text(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "BLOCK", 64)
    lines = [f"{i},{i},{i},{'' if i < 130 else i}" for i in range(100, 140)]
    (tmp_path / "a.csv").write_text(
        "\n".join(["item_id,n,year,late", *lines, "010526,-3,2.5,7", "007,4,NA,"]) + "\n"
    )
    found = read_table(tmp_path / "a.csv")
    assert found["item_id"].to_pylist()[-2:] == ["010526", "007"]
    assert found.schema.types == [pa.string(), pa.int64(), pa.float64(), pa.int64()]
    (tmp_path / "b.csv").write_text("item_id,n,year,late\n12,0,0,99999999999999999999\n")
    both = read_table(tmp_path)
    assert both["item_id"].to_pylist()[-3:] == ["010526", "007", "12"]
    assert both["late"].to_pylist()[-1] == "99999999999999999999"
    assert both["n"].to_pylist()[-1] == 0


def test_fields_that_look_like_other_delimiters(tmp_path):
    (tmp_path / "a.csv").write_text("item_id,genres,note\n1,a|b,x;y\n2,c|d,z;w\n")
    assert read_table(tmp_path / "a.csv")["genres"].to_pylist() == ["a|b", "c|d"]
    (tmp_path / "b.csv").write_text("item_id;tags\n1;1,2\n2;3,x\n")  # no decimal comma
    assert read_table(tmp_path / "b.csv")["tags"].to_pylist() == ["1,2", "3,x"]
    (tmp_path / "c.csv").write_text("item_id\n1\n2\n")
    assert read_table(tmp_path / "c.csv")["item_id"].to_pylist() == [1, 2]
