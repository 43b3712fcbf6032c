"""What is committed: parts of one input, intact parts of an earlier run, the same bytes twice."""

import os
import shutil

import pyarrow.parquet as pq
import pytest

from simrec import InputError
from simrec.jobs.engine.batch import BatchOptions
from simrec.jobs.io import parts
from simrec.jobs.score import score
from simrec.storage.files import sha256

ONE = BatchOptions(part_rows=1000, workers=1)


@pytest.fixture
def pairs(tables, tmp_path):
    table = pq.read_table(tables / "pairs.parquet")
    pq.write_table(table, tmp_path / "pairs.parquet", row_group_size=1000)
    # The same rows in another order: same schema, same row groups, same size to the byte or not.
    other = table.take(list(range(3999, -1, -1)))
    pq.write_table(other, tmp_path / "other.parquet", row_group_size=1000)
    return tmp_path / "pairs.parquet"


@pytest.mark.parametrize("how", ["renamed", "renamed with its time", "written over"])
def test_a_file_replaced_in_mid_job(pairs, model_directory, tmp_path, monkeypatch, how):
    write = parts.PartWriter.write
    calls = []

    def replace_then_write(self, name, tables, schema):
        calls.append(name)
        if len(calls) == 3:
            stat = pairs.stat()
            if how == "written over":
                pairs.write_bytes((tmp_path / "other.parquet").read_bytes())
            else:
                if "time" in how:
                    os.utime(tmp_path / "other.parquet", ns=(stat.st_atime_ns, stat.st_mtime_ns))
                os.replace(tmp_path / "other.parquet", pairs)
        return write(self, name, tables, schema)

    monkeypatch.setattr(parts.PartWriter, "write", replace_then_write)
    with pytest.raises(InputError, match=r"pairs.parquet: the file changed or was replaced"):
        score(model_directory, pairs, tmp_path / "out", batch=ONE)
    assert not (tmp_path / "out").exists()
    assert len(list((tmp_path / "out.partial").glob("part-*"))) == 2


def test_a_part_with_a_flipped_byte_is_written_again(pairs, model_directory, tmp_path, monkeypatch):
    score(model_directory, pairs, tmp_path / "reference", batch=ONE)
    write = parts.PartWriter.write

    def fail_at_last(self, name, tables, schema):
        if name == "part-000003.parquet":
            raise RuntimeError("killed")
        return write(self, name, tables, schema)

    with monkeypatch.context() as patch:
        patch.setattr(parts.PartWriter, "write", fail_at_last)
        with pytest.raises(RuntimeError, match="killed"):
            score(model_directory, pairs, tmp_path / "out", batch=ONE)
    part = tmp_path / "out.partial" / "part-000001.parquet"
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    assert score(model_directory, pairs, tmp_path / "out", batch=ONE)["parts_from_earlier_run"] == 2
    for file in (tmp_path / "reference").glob("part-*"):
        assert sha256(file) == sha256(tmp_path / "out" / file.name)


def test_a_single_file_written_twice_has_the_same_bytes(pairs, model_directory, tmp_path):
    out = tmp_path / "out.parquet"
    digests = set()
    for _ in range(2):
        score(model_directory, pairs, out, batch=ONE)
        digests.add(sha256(out))
        assert score(model_directory, pairs, out, batch=ONE)["already_complete"]
        out.unlink()
    assert len(digests) == 1


def test_a_complete_output_that_lost_a_part_is_not_called_complete(
    pairs, model_directory, tmp_path
):
    out = tmp_path / "out"
    score(model_directory, pairs, out, batch=ONE)
    (out / "part-000002.parquet").unlink()
    with pytest.raises(InputError, match="part-000002.parquet is missing or changed"):
        score(model_directory, pairs, out, batch=ONE)
    over = BatchOptions(part_rows=1000, workers=1, overwrite=True)
    assert score(model_directory, pairs, out, batch=over)["rows_out"] == 4000
    # What somebody else has put there is kept.
    (out / "thesis.doc").write_text("years of work")
    (out / "part-000002.parquet").unlink()
    with pytest.raises(InputError, match="such as 'thesis.doc'"):
        score(model_directory, pairs, out, batch=over)
    shutil.rmtree(out)
