import shutil

import pyarrow as pa
import pytest

from simrec.data.files import partition_of
from simrec.jobs.io.parts import PartWriter


@pytest.mark.parametrize(
    ("directory", "value"),
    [
        ("cat=plain", "plain"),
        ("cat=a%2Fb", "a/b"),
        ("cat=..%2F..%2Fx", "../../x"),
        ("cat=a=b", "a=b"),
        ("cat=", ""),
        ("cat=__HIVE_DEFAULT_PARTITION__", None),
    ],
)
def test_any_value_of_a_directory_is_read(directory, value):
    back = partition_of("base", f"base/{directory}/other=1/part.parquet")
    assert back == (("cat", value), ("other", "1"))


@pytest.mark.parametrize("name", ["../x.parquet", "/tmp/x.parquet", "a/../../x.parquet"])
def test_no_part_is_written_outside(tmp_path, name):
    (tmp_path / "out").mkdir()
    with pytest.raises(ValueError, match="not inside"):
        table = pa.table({"a": [1]})
        PartWriter(str(tmp_path / "out"), {}).write(name, [table], table.schema)
    shutil.rmtree(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
