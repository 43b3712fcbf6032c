"""Updating from the command line."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simrec import TwoTower
from simrec.cli import main
from simrec.jobs.train import DataOptions, update
from simrec.model import files


@pytest.fixture(scope="module")
def feedback(tables, tmp_path_factory):
    """Ratings of two new users: one likes what the other does not."""
    path = tmp_path_factory.mktemp("feedback") / "few.parquet"
    rows = {
        "user_id": [900, 900, 900, 901, 901, 901],
        "item_id": ["i00", "i01", "i02"] * 2,
        "rating": [5.0, 5.0, 5.0, 1.0, 1.0, 1.0],
    }
    pq.write_table(pa.table(rows), path)
    return path


def test_bad_ratings_of_a_newcomer_are_named(model_directory, tmp_path, capsys):
    bad = pa.table({"user_id": [900], "item_id": ["i00"], "rating": [99.0]})
    pq.write_table(bad, tmp_path / "bad.parquet")
    words = ["recommend", "--model", str(model_directory)]
    assert main([*words, "--new-user", str(tmp_path / "bad.parquet")]) == 2
    assert "bad.parquet): 1 of 1 ratings lie outside" in capsys.readouterr().err


def test_update(tables, model_directory, feedback, tmp_path):
    data = DataOptions(feedback, users=tables / "new_users.parquet")
    result = update(model_directory, data, tmp_path / "model")
    assert (result["ratings"], result["new_users"], result["items"]) == (6, 8, 3)
    loaded, before = TwoTower.load(tmp_path / "model"), TwoTower.load(model_directory)
    assert loaded.parent_ == before.model_id_ == result["parent"]
    assert loaded.model_id_ == result["model_id"]
    assert len(loaded.users_) == len(before.users_) + 8
    words = ["--model", str(model_directory), "--out", str(tmp_path / "again")]
    words += ["--ratings", str(feedback), "--users", str(tables / "new_users.parquet")]
    assert main(["update", *words, "--quiet"]) == 0
    assert TwoTower.load(tmp_path / "again").model_id_ == loaded.model_id_


def test_update_without_anybody_new(model_directory, feedback, tmp_path):
    nobody = tmp_path / "nobody"
    nobody.mkdir()  # as a service makes it
    result = update(model_directory, DataOptions(feedback, nobody, nobody), tmp_path / "model")
    assert (result["ratings"], result["new_items"], result["new_users"]) == (6, 0, 2)


def test_update_refuses_a_model_of_vectors_only(model_directory, feedback, tmp_path, capsys):
    # As a model without posteriors is; those that were fitted have them.
    files.load(TwoTower, model_directory, evidence=False).save(tmp_path / "model")
    words = ["update", "--model", str(tmp_path / "model"), "--ratings", str(feedback)]
    assert main([*words, "--out", str(tmp_path / "again")]) == 2
    assert "vectors only" in capsys.readouterr().err
    assert {p.name for p in tmp_path.iterdir()} == {"model"}


def test_interactions_without_ratings(tables, feedback, tmp_path, capsys):
    """Train, score, recommend and update by pairs alone; there is no rating to rank by."""

    def run(*words):
        code = main([*map(str, words), "--quiet"])
        return code, capsys.readouterr().err

    data = [w for n in ("items", "users") for w in (f"--{n}", tables / f"{n}.parquet")]
    model, ratings = tmp_path / "model", tables / "ratings.parquet"
    words = ("--rating", "none", "--embedding-dim", 3, "--out", model)
    assert run("train", "--ratings", ratings, *data, *words) == (0, "")
    loaded, pairs = TwoTower.load(model), tables / "pairs.parquet"
    assert "uptake" in loaded.parts_ and "rating" not in loaded.parts_
    assert run("score", "--model", model, "--pairs", pairs, "--out", tmp_path / "s") == (0, "")
    scores = pq.read_table(tmp_path / "s")["score"].to_numpy()
    np.testing.assert_array_equal(scores, loaded.predict(pairs))
    recommend = ("recommend", "--model", model, "--k", 4)
    assert run(*recommend, "--out", tmp_path / "r") == (0, "")
    expected = loaded.recommend(k=4, output="arrow")
    assert pq.read_table(tmp_path / "r")["item_id"].to_pylist() == expected["item_id"].to_pylist()
    code, err = run(*recommend, "--rank-by", "rating", "--out", tmp_path / "x")
    assert code == 2 and "no rating" in err
    one = pq.read_table(feedback).slice(0, 3)
    pq.write_table(one, tmp_path / "one.parquet")
    more = ("--new-user", tmp_path / "one.parquet", "--users", tables / "new_users.parquet")
    assert run(*recommend, *more)[0] == 0
    few = ("--ratings", feedback, "--rating", "none", "--out", tmp_path / "updated")
    assert run("update", "--model", model, *few)[0] == 0
    updated = TwoTower.load(tmp_path / "updated")
    assert updated.rated_.nnz == loaded.rated_.nnz + 6
    assert len(updated.users_) == len(loaded.users_) + 2


def test_an_id_of_one_list_is_of_the_kind_of_the_model(model_directory, capsys):
    assert main(["recommend", "--model", str(model_directory), "--user", "anna"]) == 2
    assert "whole numbers, got 'anna'" in capsys.readouterr().err
