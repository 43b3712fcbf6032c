"""Jobs on a model directory in shards write what they write from one piece."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simrec import TwoTower
from simrec.cli import main
from simrec.jobs.embed import embed
from simrec.jobs.engine.batch import BatchOptions
from simrec.jobs.export import export
from simrec.jobs.lookup import explain, similar
from simrec.jobs.recommend import recommend
from simrec.jobs.score import score
from simrec.jobs.train import DataOptions, update
from simrec.storage import artifacts


@pytest.fixture(scope="module")
def models(model_directory, tmp_path_factory):
    """The same model in one piece and in 4 shards."""
    path = tmp_path_factory.mktemp("shards") / "model"
    TwoTower.load(model_directory).save(path, shards=4)
    return model_directory, path


@pytest.fixture(scope="module")
def pairs(tables, tmp_path_factory):
    """Pairs of known users, of new ones, and of one that nobody knows."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.parquet"
    known = pq.read_table(tables / "pairs.parquet", columns=["user_id", "item_id"]).slice(0, 500)
    more = pa.table({"user_id": [900, 905, 7777], "item_id": ["i00", "i41", "i02"]})
    pq.write_table(pa.concat_tables([known, more]), path)
    few = {"user_id": [950, 950], "item_id": ["i00", "i01"], "rating": [5.0, 1.0]}
    pq.write_table(pa.table(few), path.parent / "few.parquet")
    return path


def same_files(one, other):
    files = sorted(p.relative_to(one).as_posix() for p in one.rglob("*.parquet"))
    assert files and files == sorted(
        p.relative_to(other).as_posix() for p in other.rglob("*.parquet")
    )
    for file in files:
        assert pq.read_table(one / file).equals(pq.read_table(other / file)), file


JOBS = {
    "score": lambda model, out, t, p, b: score(
        model, p, out, users=t / "new_users.parquet", unknown="prior", batch=b
    ),
    "score and skip": lambda model, out, t, p, b: score(model, p, out, unknown="skip", batch=b),
    "score known": lambda model, out, t, p, b: score(model, t / "pairs.parquet", out, batch=b),
    "score with feedback": lambda model, out, t, p, b: score(
        model, t / "pairs.parquet", out, feedback=p.parent / "few.parquet", batch=b
    ),
    "recommend": lambda model, out, t, p, b: recommend(model, out, k=3, batch=b),
    "recommend to some": lambda model, out, t, p, b: recommend(
        model, out, users=t / "new_users.parquet", k=3, explore=0.5, batch=b
    ),
    "embed": lambda model, out, t, p, b: embed(model, out, side="user", batch=b),
    "export": lambda model, out, t, p, b: export(model, out, format="parquet"),
}


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_output_is_that_of_one_piece(job, models, tables, pairs, tmp_path):
    for name, model in zip("ab", models, strict=True):
        job(model, tmp_path / name, tables, pairs, BatchOptions(part_rows=25))
    same_files(tmp_path / "a", tmp_path / "b")


def test_answers_are_those_of_one_piece(models):
    one, other = (
        [
            explain(model, user_id="141", item_id="i03"),
            similar(model, user_id="141", k=4),
            similar(model, item_id="i03", k=4),
        ]
        for model in models
    )
    assert one == other


def test_an_update_keeps_the_shards(models, tables, tmp_path):
    more = {"user_id": [101, 930], "item_id": ["i00", "i01"], "rating": [5.0, 1.0]}
    pq.write_table(pa.table(more), tmp_path / "more.parquet")
    data = DataOptions(str(tmp_path / "more.parquet"))
    for name, model in zip("ab", models, strict=True):
        update(model, data, tmp_path / name)
    loaded = TwoTower.load(tmp_path / "b")
    assert loaded.users_.sizes == (15, 15, 15, 16)
    pairs = pq.read_table(tables / "pairs.parquet")
    expected = TwoTower.load(tmp_path / "a").predict(pairs)
    np.testing.assert_array_equal(loaded.predict(pairs), expected)
    name = "rating_users_vectors-00001-of-00004.npy"
    assert (tmp_path / "b" / name).samefile(models[1] / name)


def test_train_in_shards(tables, tmp_path, capsys):
    words = ["train", "--ratings", str(tables / "ratings.parquet"), "--embedding-dim", "2"]
    words += ["--epochs", "1", "--shards", "3", "--out", str(tmp_path / "model")]
    assert main(words) == 0
    found = artifacts.read_manifest(tmp_path / "model")
    assert "rated_data-00002-of-00003.npy" in found["files"]
    assert len(TwoTower.load(tmp_path / "model").users_.sizes) == 3
    capsys.readouterr()
    assert main([*words[:-4], "--shards", "0", "--out", str(tmp_path / "other")]) == 2
    assert "shards must be a whole number" in capsys.readouterr().err
