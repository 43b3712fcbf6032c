"""Batch jobs read CSV wherever they read Parquet, as a stream."""

import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from simrec.cli import main
from simrec.data import files
from simrec.data.source import open_source
from simrec.data.tables import read_table
from simrec.errors import InputError
from simrec.jobs.engine.batch import BatchOptions
from simrec.jobs.evaluate import report
from simrec.jobs.recommend import recommend
from simrec.jobs.score import score
from simrec.jobs.train import DataOptions


@pytest.fixture(scope="module")
def written(tables, tmp_path_factory):
    """The tables as CSV; the pairs also in two compressed files."""
    root = tmp_path_factory.mktemp("csv")
    for name in ("pairs", "users", "items", "new_items"):
        csv.write_csv(pq.read_table(tables / f"{name}.parquet"), root / f"{name}.csv")
    pairs = pq.read_table(tables / "pairs.parquet")
    (root / "two").mkdir()
    for number, part in enumerate((pairs.slice(0, 1500), pairs.slice(1500))):
        sink = pa.BufferOutputStream()
        csv.write_csv(part, sink)
        text = gzip.compress(sink.getvalue().to_pybytes())
        (root / "two" / f"part-{number}.csv.gz").write_bytes(text)
    return root


@pytest.mark.parametrize("given", ["pairs.csv", "two"])
def test_scores_are_those_of_parquet(tables, written, model_directory, tmp_path, given):
    score(model_directory, tables / "pairs.parquet", tmp_path / "a.parquet")
    result = score(model_directory, written / given, tmp_path / "b.parquet")
    assert result["rows_in"] == result["rows_out"] == 4000
    assert pq.read_table(tmp_path / "b.parquet").equals(pq.read_table(tmp_path / "a.parquet"))


def test_lists(tables, written, model_directory, tmp_path):
    for kind, root in (("parquet", tables), ("csv", written)):
        given = {"users": root / f"users.{kind}", "items": root / f"new_items.{kind}"}
        recommend(model_directory, tmp_path / f"lists-{kind}.parquet", k=3, **given)
    found = [pq.read_table(tmp_path / f"lists-{kind}.parquet") for kind in ("parquet", "csv")]
    assert found[0].equals(found[1])


def test_types_are_those_of_all_rows_of_all_files(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "BLOCK", 64)
    lines = [f"{i},{i},{i}" for i in range(40)]
    (tmp_path / "0.csv").write_text("\n".join(["a,b,c", *lines, "1,2.5,x"]) + "\n")
    (tmp_path / "1.csv").write_text("a,b,c\n1.5,2,3\n")
    source = open_source(tmp_path)
    assert source.schema == pa.schema({"a": pa.float64(), "b": pa.float64(), "c": pa.string()})
    assert source.rows == 42
    found = source.read()
    assert found["c"].to_pylist() == [*map(str, range(40)), "x", "3"]
    assert found["b"][40].as_py() == 2.5
    whole = read_table(tmp_path / "0.csv")
    assert whole.schema.types == [pa.int64(), pa.float64(), pa.string()]


@pytest.mark.slow
def test_memory_is_that_of_a_block(tmp_path):
    with open(tmp_path / "large.csv", "w") as file:
        file.write("user_id,item_id\n")
        for i in range(260):
            file.write("".join(f"{i},{j:020d}\n" for j in range(10_000)))
    source = open_source(tmp_path / "large.csv")
    assert source.rows == 2_600_000
    (unit,) = source.units(1 << 20)
    before, most = pa.total_allocated_bytes(), 0
    for batch in source.batches(unit, ["user_id"], 10_000):
        assert batch.num_rows <= 10_000
        most = max(most, pa.total_allocated_bytes() - before)
    size = (tmp_path / "large.csv").stat().st_size
    assert size > 12e6 and most < 0.7 * size


def test_damage_and_change_are_said(written, model_directory, tmp_path, monkeypatch):
    bad = tmp_path / "bad.csv"
    bad.write_text("user_id,item_id\n1,2,3\n")
    with pytest.raises(InputError, match=r"bad\.csv: cannot be read as CSV"):
        open_source(bad)
    with pytest.raises(InputError, match="cannot be read as CSV .Empty"):
        bad.write_text("")
        open_source(bad)
    pairs = tmp_path / "pairs.csv"
    pairs.write_text((written / "pairs.csv").read_text())
    source = open_source(pairs)
    (unit,) = source.units(1 << 20)
    read = source.batches(unit)
    next(read)
    pairs.write_text((written / "pairs.csv").read_text()[:-200])
    with pytest.raises(InputError, match="changed or was replaced"):
        list(read)


def test_a_header_alone_and_columns_twice(model_directory, tmp_path):
    quiet = tmp_path / "quiet.csv"
    quiet.write_text("item_id,year,kind\n")
    result = recommend(model_directory, tmp_path / "none", items=quiet, new_items_only=True)
    assert result["rows_out"] == 0
    twice = tmp_path / "twice.csv"
    twice.write_text("user_id,item_id,item_id\n100,i01,i01\n")
    table = pa.table([[100], ["i01"], ["i01"]], names=["user_id", "item_id", "item_id"])
    pq.write_table(table, tmp_path / "twice.parquet")
    for name in ("twice.csv", "twice.parquet"):
        with pytest.raises(InputError, match="more than one column is called 'item_id'"):
            score(model_directory, tmp_path / name, tmp_path / "out")


def test_a_job_over_csv_resumes(written, model_directory, tmp_path, monkeypatch):
    from simrec.jobs.io.outputs import OutputDirectory

    add, done = OutputDirectory.add, []

    def stop(self, part):
        add(self, part)
        done.append(part)
        raise KeyboardInterrupt

    monkeypatch.setattr(OutputDirectory, "add", stop)
    with pytest.raises(KeyboardInterrupt):
        score(model_directory, written / "two", tmp_path / "out")
    monkeypatch.undo()
    score(model_directory, written / "two", tmp_path / "out")
    summary = json.loads((tmp_path / "out" / "_summary.json").read_text())
    assert len(done) == 1 and summary["parts_from_earlier_run"] == 1
    assert pq.read_table(tmp_path / "out").num_rows == 4000


@pytest.mark.parametrize("name", ["scores.csv", "scores.tsv", "scores.csv.gz"])
def test_an_output_is_what_its_name_says(tables, model_directory, tmp_path, name):
    score(model_directory, tables / "pairs.parquet", tmp_path / "a.parquet")
    out = tmp_path / name
    result = score(model_directory, tables / "pairs.parquet", out)
    assert out.is_file() and result["rows_out"] == 4000
    start = (gzip.decompress if name.endswith("gz") else bytes)(out.read_bytes())[:60].decode()
    assert ("\t" if ".tsv" in name else ",") in start.splitlines()[0]
    written, expected = read_table(out), pq.read_table(tmp_path / "a.parquet")
    assert written.drop_columns(["score"]).equals(expected.drop_columns(["score"]))
    np.testing.assert_allclose(written["score"], expected["score"], rtol=1e-6)
    assert score(model_directory, tables / "pairs.parquet", out)["already_complete"]
    with pytest.raises(InputError, match="there is output here already"):
        score(model_directory, tables / "pairs.parquet", out, select=("note",))
    batch = BatchOptions(overwrite=True)
    score(model_directory, tables / "pairs.parquet", out, select=("note",), batch=batch)
    assert read_table(out).column_names == ["note", "score"]


def test_csv_holds_no_lists_and_nothing_of_others_is_replaced(tables, model_directory, tmp_path):
    pairs = pq.read_table(tables / "pairs.parquet")
    pairs = pairs.append_column("seen", pa.array([[1, 2]] * len(pairs)))
    pq.write_table(pairs, tmp_path / "pairs.parquet")
    with pytest.raises(InputError, match=r"scores\.csv cannot hold column 'seen'.*\.parquet"):
        score(model_directory, tmp_path / "pairs.parquet", tmp_path / "scores.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["pairs.parquet"]
    (tmp_path / "mine.csv").write_text("a\n1\n")
    batch = BatchOptions(overwrite=True)
    with pytest.raises(InputError, match="no job of SimRec wrote"):
        score(model_directory, tables / "pairs.parquet", tmp_path / "mine.csv", batch=batch)


def test_a_report_is_html(model_directory, tables, tmp_path):
    with pytest.raises(InputError, match=r"x\.pdf: a report is an HTML page.*\.html"):
        report(model_directory, DataOptions(tables / "ratings.parquet"), tmp_path / "x.pdf")


@pytest.mark.parametrize("command", ["train", "score", "recommend"])
def test_help_mentions_csv(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert "CSV" in capsys.readouterr().out
