"""Jobs that are killed, disturbed, repeated or in each other's way."""

import contextlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simrec import InputError, TwoTower
from simrec.jobs.engine import batch as engine
from simrec.jobs.engine.batch import BatchOptions
from simrec.jobs.io import parts
from simrec.jobs.score import score
from simrec.storage.files import lock, sha256

PARTS = BatchOptions(part_rows=400)
PARTS_OVER = BatchOptions(part_rows=400, overwrite=True)


def content(directory):
    """What a finished output holds, but for how long it took."""
    return {
        p.relative_to(directory).as_posix(): sha256(p)
        for p in directory.rglob("*")
        if p.is_file() and p.name != "_summary.json"
    }


@pytest.fixture
def pairs(tables, tmp_path):
    """Four files of 1,000 pairs."""
    whole = pq.read_table(tables / "pairs.parquet")
    (tmp_path / "pairs").mkdir()
    for k in range(4):
        path = tmp_path / "pairs" / f"{k}.parquet"
        pq.write_table(whole.slice(1000 * k, 1000), path, row_group_size=100)
    return tmp_path / "pairs"


def corrupt(path):
    data = bytearray(path.read_bytes())
    data[4:400] = bytes(396)
    path.write_bytes(data)


def run_score(model, pairs, out):
    score(model, pairs, out, batch=BatchOptions(part_rows=200))


def test_killed_at_random_moments(pairs, model_directory, tmp_path):
    started = time.perf_counter()
    run_score(model_directory, pairs, tmp_path / "reference")
    duration = time.perf_counter() - started
    reference = content(tmp_path / "reference")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["simrec.jobs.score", "simrec.model.two_tower"])
    chance = random.Random(0)
    killed = 0
    for attempt in range(3):
        out = tmp_path / f"out{attempt}"
        process = context.Process(target=run_score, args=(model_directory, pairs, out))
        process.start()
        time.sleep(chance.uniform(0, 1.5 * duration))
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        process.join()
        killed += not out.exists()
        run_score(model_directory, pairs, out)
        assert content(out) == reference
        assert {p.name for p in tmp_path.iterdir() if p.name.startswith(f"out{attempt}")} == {
            out.name
        }
    assert killed > 0


def test_a_job_goes_on_where_it_stopped(pairs, model_directory, tmp_path, monkeypatch):
    score(model_directory, pairs, tmp_path / "reference", batch=PARTS)
    calls = []
    write = parts.PartWriter.write

    def fail_later(self, name, tables, schema):
        calls.append(name)
        if len(calls) == 5:
            raise OSError(28, "No space left on device")
        return write(self, name, tables, schema)

    monkeypatch.setattr(parts.PartWriter, "write", fail_later)
    one = BatchOptions(part_rows=400, workers=1)
    with pytest.raises(OSError, match="No space left"):
        score(model_directory, pairs, tmp_path / "out", batch=one)
    assert not (tmp_path / "out").exists()
    done = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out.partial").glob("part-*")}
    assert len(done) == 4
    summary = score(model_directory, pairs, tmp_path / "out", batch=one)
    assert summary["parts_from_earlier_run"] == 4 and summary["parts"] == 12
    assert {n: (tmp_path / "out" / n).stat().st_mtime_ns for n in done} == done
    assert content(tmp_path / "out") == content(tmp_path / "reference")


def test_a_full_disk_is_named(pairs, model_directory, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError("Error writing bytes to file. Detail: [errno 28] No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    with pytest.raises(OSError, match="disk is full") as caught:
        score(model_directory, pairs, tmp_path / "out", batch=PARTS)
    assert "part-00000" in caught.value.filename
    assert {p.name for p in tmp_path.iterdir()} == {"pairs"}


def test_a_damaged_part_is_written_again(pairs, model_directory, tmp_path):
    score(model_directory, pairs, tmp_path / "out", batch=PARTS)
    reference = content(tmp_path / "out")
    # Take the finished job back to where it was before it was published.
    staging = tmp_path / "out.partial"
    shutil.move(tmp_path / "out", staging)
    manifest = json.loads((staging / "_manifest.json").read_text())
    for name in ("_manifest.json", "_SUCCESS", "_summary.json"):
        (staging / name).unlink()
    (staging / "_job.json").write_text(json.dumps(manifest["job"]))
    (staging / "_parts").mkdir()
    for unit, (name, file) in enumerate(manifest["parts"].items()):
        part = {"unit": unit, "rows_in": file["rows"], "files": {name: file}}
        (staging / "_parts" / f"{unit:06d}.json").write_text(json.dumps(part))
    (staging / "part-000003.parquet").write_bytes(b"")
    (staging / "part-000004.parquet").unlink()
    (staging / ".part-000005.parquet.left").write_bytes(b"from a killed writer")
    summary = score(model_directory, pairs, tmp_path / "out", batch=PARTS)
    assert summary["parts_from_earlier_run"] == 10
    assert content(tmp_path / "out") == reference


@pytest.mark.parametrize("when", ["simrec.storage.files.replace_directory", "_tidy"])
def test_killed_while_publishing(pairs, model_directory, tmp_path, monkeypatch, when):
    score(model_directory, pairs, tmp_path / "reference", batch=PARTS)
    name = when if "." in when else f"simrec.jobs.io.outputs.{when}"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(name, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        score(model_directory, pairs, tmp_path / "out", batch=PARTS)
    summary = score(model_directory, pairs, tmp_path / "out", batch=PARTS)
    assert summary["parts_from_earlier_run"] == (12 if "." in when else 0)
    assert content(tmp_path / "out") == content(tmp_path / "reference")
    assert {p.name for p in tmp_path.iterdir()} == {"out", "pairs", "reference"}


def test_a_complete_job_is_not_repeated(pairs, model_directory, tmp_path):
    score(model_directory, pairs, tmp_path / "out", batch=PARTS)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").iterdir()}
    assert score(model_directory, pairs, tmp_path / "out", batch=PARTS)["already_complete"]
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "out").iterdir()} == before


def test_another_jobs_output_is_refused_then_replaced(pairs, model_directory, tmp_path):
    out = tmp_path / "out"
    score(model_directory, pairs, out, batch=PARTS)
    before = content(out)
    with pytest.raises(InputError, match="output here already .*another columns.*--overwrite"):
        score(model_directory, pairs, out, select=("note",), batch=PARTS)
    assert content(out) == before
    # A job that fails leaves the old output as it was.
    corrupt(pairs / "3.parquet")
    with pytest.raises(InputError, match="3.parquet"):
        score(model_directory, pairs, out, select=("note",), batch=PARTS_OVER)
    assert content(out) == before
    (pairs / "3.parquet").unlink()
    score(model_directory, pairs, out, select=("note",), batch=PARTS_OVER)
    assert pq.read_table(out).column_names == ["note", "score"]
    assert {p.name for p in tmp_path.iterdir()} == {"pairs", "out"}


def test_parts_of_another_job_are_refused(pairs, model_directory, tmp_path):
    corrupt(pairs / "3.parquet")
    one = BatchOptions(part_rows=400, workers=1)
    with pytest.raises(InputError, match=r"3.parquet: cannot be read .*"):
        score(model_directory, pairs, tmp_path / "out", batch=one)
    assert (tmp_path / "out.partial").exists()
    with pytest.raises(InputError, match="parts of another job .*another columns"):
        score(model_directory, pairs, tmp_path / "out", select=("note",), batch=one)
    (pairs / "3.parquet").unlink()
    summary = score(model_directory, pairs, tmp_path / "out", batch=PARTS_OVER)
    assert summary["rows_out"] == 3000
    assert not (tmp_path / "out.partial").exists()


def test_foreign_directories_are_never_replaced(pairs, model_directory, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.doc").write_text("years of work")
    for options in (PARTS, PARTS_OVER):
        with pytest.raises(InputError):
            score(model_directory, pairs, tmp_path / "out", batch=options)
    assert (tmp_path / "out" / "thesis.doc").exists()


def test_outputs_are_local(pairs, model_directory, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="out: s3://bucket/x is a URI"):
        score(model_directory, pairs, "s3://bucket/x")
    assert {p.name for p in tmp_path.iterdir()} == {"pairs"}


def test_wide_rows_make_small_row_groups(tables, model_directory, tmp_path, monkeypatch):
    pairs = pq.read_table(tables / "pairs.parquet")
    wide = pairs.append_column("text", pa.array([f"{k}" * 5000 for k in range(4000)]))
    pq.write_table(wide, tmp_path / "pairs.parquet", compression="none", use_dictionary=False)
    monkeypatch.setattr(engine, "MEMORY", 10**6)
    score(model_directory, tmp_path / "pairs.parquet", tmp_path / "out")
    part = pq.ParquetFile(tmp_path / "out" / "part-000000.parquet").metadata
    groups = [part.row_group(i).num_rows for i in range(part.num_row_groups)]
    assert len(groups) > 2 and max(groups) < 2000


def test_a_model_that_changes_stops_the_job(tables, pairs, model_directory, tmp_path, monkeypatch):
    model = tmp_path / "model"
    shutil.copytree(model_directory, model)
    write = parts.PartWriter.write
    calls = []

    def retrain(self, name, tables_, schema):
        calls.append(name)
        if len(calls) == 3:
            TwoTower(embedding_dim=2, bounds=(1, 5)).fit(str(tables / "ratings.parquet")).save(
                model
            )
        return write(self, name, tables_, schema)

    monkeypatch.setattr(parts.PartWriter, "write", retrain)
    one = BatchOptions(part_rows=400, workers=1)
    with pytest.raises(InputError, match="the model directory changed while the job ran"):
        score(model, pairs, tmp_path / "out", batch=one)
    assert not (tmp_path / "out").exists()
    # The parts done before stay valid: with the model back, the job ends as if nothing happened.
    shutil.rmtree(model)
    shutil.copytree(model_directory, model)
    monkeypatch.undo()
    assert score(model, pairs, tmp_path / "out", batch=one)["parts_from_earlier_run"] == 2
    score(model_directory, pairs, tmp_path / "reference", batch=one)
    assert content(tmp_path / "out") == content(tmp_path / "reference")


def test_two_jobs_cannot_write_to_one_output(pairs, model_directory, tmp_path):
    file = tmp_path / "out.lock"
    with lock(file), pytest.raises(InputError, match=f"another job .process {os.getpid()}"):
        score(model_directory, pairs, tmp_path / "out")
    assert not file.exists()
    # A process that is gone, its number used again by another one.
    file.write_text(str(os.getpid()))
    score(model_directory, pairs, tmp_path / "out")
    assert not file.exists()


def test_threads_do_not_change_the_result(pairs, model_directory, tmp_path, monkeypatch):
    for workers in (1, 3):
        monkeypatch.setattr(engine, "MEMORY", workers * 10**6)
        options = BatchOptions(part_rows=400, workers=workers)
        score(model_directory, pairs, tmp_path / f"out{workers}", batch=options)
    assert content(tmp_path / "out1") == content(tmp_path / "out3")


def test_sizes():
    with pytest.raises(InputError, match="part_rows: expected at least 1"):
        BatchOptions(part_rows=0)


def test_an_empty_input_is_refused(tables, model_directory, tmp_path):
    empty = pq.read_table(tables / "pairs.parquet").slice(0, 0)
    pq.write_table(empty, tmp_path / "pairs.parquet")
    with pytest.raises(InputError, match="pairs.parquet: the table is empty"):
        score(model_directory, tmp_path / "pairs.parquet", tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["pairs.parquet"]


def test_an_empty_file_among_others_is_fine(pairs, model_directory, tmp_path):
    pq.write_table(pq.read_table(pairs / "0.parquet").slice(0, 0), pairs / "0.parquet")
    assert score(model_directory, pairs, tmp_path / "out", batch=PARTS)["rows_out"] == 3000
