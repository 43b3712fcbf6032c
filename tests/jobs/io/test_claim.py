import json
import threading

import pyarrow.parquet as pq
import pytest

from simrec import InputError, TwoTower
from simrec.jobs.engine.batch import BatchOptions
from simrec.jobs.io.outputs import check_apart, claim
from simrec.jobs.score import score
from simrec.jobs.train import DataOptions, train, update

OVER = BatchOptions(overwrite=True)


@pytest.mark.parametrize(
    ("out", "source", "what"),
    [
        ("in", "in", "is"),
        ("in/../in/", "in", "is"),
        ("link", "in", "is"),
        (".", "in", "holds"),
        ("in/out", "in", "lies in"),
        ("in", "in/a.parquet", "holds"),
        ("in/a.parquet", "in/a.parquet", "is"),
        ("in", "file://{root}/in", "is"),
    ],
)
def test_an_output_that_is_an_input_is_refused(tmp_path, monkeypatch, out, source, what):
    (tmp_path / "in").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "in")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=f": {what} pairs .*Give another path"):
        check_apart(out, pairs=source.format(root=tmp_path), items=None)


@pytest.mark.parametrize(
    ("out", "source"),
    [
        ("in2", "in"),
        ("in/out", "in/a.parquet"),
        ("out", "s3://bucket/out"),
        ("in/a.parquet.x", "in/a.parquet"),
    ],
)
def test_an_output_beside_its_input_is_fine(tmp_path, monkeypatch, out, source):
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path)
    check_apart(out, pairs=source)
    with claim(out, pairs=source):
        assert (tmp_path / f"{out}.lock").exists()
    assert {path.name for path in tmp_path.rglob("*")} == {"in"}


def test_score_does_not_delete_its_input(tables, model_directory, tmp_path):
    (tmp_path / "in1").mkdir()
    pq.write_table(pq.read_table(tables / "pairs.parquet"), tmp_path / "in1" / "a.parquet")
    with pytest.raises(InputError, match="is pairs"):
        score(model_directory, tmp_path / "in1", tmp_path / "in1", batch=OVER)
    # Tables that no job wrote are not replaced either, whatever they are for.
    with pytest.raises(InputError, match="other files and no job"):
        score(model_directory, tables / "pairs.parquet", tmp_path / "in1", batch=OVER)
    with pytest.raises(InputError, match="no job of SimRec wrote"):
        score(model_directory, tables / "pairs.parquet", tmp_path / "in1" / "a.parquet", batch=OVER)
    assert pq.read_table(tmp_path / "in1").num_rows == 4000


def test_a_directory_aside_that_is_not_ours_is_kept(tables, model_directory, tmp_path):
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "thesis.doc").write_text("years of work")
    with pytest.raises(InputError, match="holds thesis.doc, which no job wrote"):
        score(model_directory, tables / "pairs.parquet", tmp_path / "out", batch=OVER)
    assert (tmp_path / "out.partial" / "thesis.doc").exists()


def test_train_and_its_checkpoint_replace_only_what_is_ours(tables, tmp_path):
    foreign = tmp_path / "w"
    foreign.mkdir()
    (foreign / "manifest.json").write_text(json.dumps({"name": "somebody else's"}))
    (foreign / "precious.bin").write_bytes(b"1")
    data, model = DataOptions(tables / "ratings.parquet"), TwoTower(embedding_dim=2)
    for paths in ({"out": foreign}, {"out": tmp_path / "m", "checkpoint": foreign}):
        with pytest.raises(InputError, match="holds other files"):
            train(model, data, **paths)
    with pytest.raises(InputError, match="is out"):
        train(model, data, tmp_path / "m", checkpoint=tmp_path / "m")
    assert {p.name for p in foreign.iterdir()} == {"manifest.json", "precious.bin"}
    assert [p.name for p in tmp_path.iterdir()] == ["w"]


def test_update_leaves_its_model_as_it_is(tables, model_directory):
    data = DataOptions(tables / "ratings.parquet")
    with pytest.raises(InputError, match="is model"):
        update(model_directory, data, model_directory)
    TwoTower.load(model_directory)


def test_of_two_trainings_into_one_output_one_is_refused(tables, tmp_path, monkeypatch):
    data = DataOptions(tables / "ratings.parquet")
    begun, go_on = threading.Event(), threading.Event()
    load = DataOptions.load_ratings

    def wait(self, bounds):
        begun.set()
        go_on.wait(60)
        return load(self, bounds)

    monkeypatch.setattr(DataOptions, "load_ratings", wait)
    first = threading.Thread(target=train, args=(TwoTower(embedding_dim=2), data, tmp_path / "m"))
    first.start()
    begun.wait(60)
    try:
        with pytest.raises(InputError, match="writes to this output"):
            train(TwoTower(embedding_dim=3), data, tmp_path / "m")
    finally:
        go_on.set()
        first.join()
    assert TwoTower.load(tmp_path / "m").embedding_dim == 2
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
