import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simrec.data import paths
from simrec.data.source import open_source
from simrec.jobs.io.parts import PartWriter
from simrec.jobs.score import score

NASTY = [
    "a/b",
    "../../x",
    "..",
    ".",
    "",
    "a=b",
    "%2F",
    "a b",
    "ü",
    "\n",
    "__HIVE_DEFAULT_PARTITION__",
]


@pytest.mark.parametrize("value", [*NASTY, None])
@pytest.mark.parametrize("key", ["cat", "a/b", "..", "_hidden", ".dot", "x=y"])
def test_any_value_is_one_directory_and_comes_back(key, value):
    path = paths.to_directory([(key, value), ("other", "1")])
    assert path.count("/") == 1 and ".." not in path.split("/")
    assert not path.startswith(("_", "."))
    back = paths.partition_of("base", f"base/{path}/part.parquet")
    assert back == ((key, value), ("other", "1"))


@pytest.fixture
def nasty_pairs(tables):
    pairs = pq.read_table(tables / "pairs.parquet")
    values = [*NASTY, None]
    return pairs.append_column("cat", pa.array([values[k % len(values)] for k in range(4000)]))


def read_back(out):
    source = open_source(out)
    return dict(
        zip(source.read()["note"].to_pylist(), source.read()["cat"].to_pylist(), strict=True)
    )


def test_partitions_of_the_input_are_kept(nasty_pairs, model_directory, tmp_path):
    for number, value in enumerate(["a%2Fb", "..%2F..%2F..%2Fescaped", "plain"]):
        directory = tmp_path / "deep" / "pairs" / f"cat={value}"
        directory.mkdir(parents=True)
        part = nasty_pairs.slice(1000 * number, 1000).drop_columns(["cat"])
        pq.write_table(part, directory / "x.parquet")
    out = tmp_path / "deep" / "out"
    assert score(model_directory, tmp_path / "deep" / "pairs", out)["rows_out"] == 3000
    assert set(read_back(out).values()) == {"a/b", "../../../escaped", "plain"}
    assert {p.name for p in tmp_path.iterdir()} == {"deep"}
    assert {p.name for p in out.iterdir() if p.is_dir()} == {
        *("cat=a%2Fb", "cat=..%2F..%2F..%2Fescaped", "cat=plain")
    }


@pytest.mark.parametrize("name", ["../x.parquet", "/tmp/x.parquet", "a/../../x.parquet"])
def test_no_part_is_written_outside(tmp_path, name):
    (tmp_path / "out").mkdir()
    with pytest.raises(ValueError, match="not inside"):
        table = pa.table({"a": [1]})
        PartWriter(str(tmp_path / "out"), {}).write(name, [table], table.schema)
    shutil.rmtree(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
