import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processes import imported_by

from simrec import InputError, TwoTower
from simrec.jobs.engine.batch import BatchOptions
from simrec.jobs.score import score

SMALL_PARTS = BatchOptions(part_rows=400)


@pytest.fixture(scope="module")
def model(model_directory):
    return TwoTower.load(model_directory)


def new_pairs(tables, path):
    """Write known, new and mixed pairs."""
    new_users = pq.read_table(tables / "new_users.parquet")["user_id"].to_pylist()
    new_items = pq.read_table(tables / "new_items.parquet")["item_id"].to_pylist()
    users = [100, new_users[0], 101, new_users[1]]
    items = ["i00", "i01", new_items[0], new_items[1]]
    pq.write_table(pa.table({"user_id": users, "item_id": items}), path)
    return path


def test_scores_equal_predictions(tables, model, model_directory, tmp_path):
    summary = score(model_directory, tables / "pairs.parquet", tmp_path / "out", batch=SMALL_PARTS)
    pairs, result = pq.read_table(tables / "pairs.parquet"), pq.read_table(tmp_path / "out")
    assert result.column_names == ["user_id", "item_id", "note", "score"]
    assert result.drop_columns("score").equals(pairs)
    np.testing.assert_array_equal(result["score"].to_numpy(), model.predict(pairs))
    assert summary["rows_in"] == summary["rows_out"] == 4000
    assert summary["parts"] == 10
    assert json.loads((tmp_path / "out" / "_summary.json").read_text()) == summary


def test_the_output_directory(tables, model_directory, tmp_path):
    score(model_directory, tables / "pairs.parquet", tmp_path / "out", batch=SMALL_PARTS)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "_SUCCESS").exists()
    manifest = json.loads((tmp_path / "out" / "_manifest.json").read_text())
    assert sum(part["rows"] for part in manifest["parts"].values()) == 4000
    from simrec.storage.files import sha256

    for name, part in manifest["parts"].items():
        assert sha256(tmp_path / "out" / name) == part["sha256"]
        about = pq.read_schema(tmp_path / "out" / name).metadata
        assert about[b"simrec.model_id"].decode() == manifest["job"]["model_id"]
    first = pq.ParquetFile(tmp_path / "out" / "part-000000.parquet").metadata
    assert first.row_group(0).column(0).compression == "ZSTD"


def test_a_single_file(tables, model_directory, tmp_path):
    out = tmp_path / "out.parquet"
    score(model_directory, tables / "pairs.parquet", out, batch=SMALL_PARTS)
    assert {p.name for p in tmp_path.iterdir()} == {"out.parquet", ".out.parquet.json"}
    assert pq.ParquetFile(out).metadata.num_rows == 4000
    again = score(model_directory, tables / "pairs.parquet", out, batch=SMALL_PARTS)
    assert again["already_complete"]


def test_new_ids_are_scored_by_their_features(tables, model, model_directory, tmp_path):
    pairs = new_pairs(tables, tmp_path / "pairs.parquet")
    features = {"items": tables / "new_items.parquet", "users": tables / "new_users.parquet"}
    score(model_directory, pairs, tmp_path / "out", **features)
    expected = model.predict(str(pairs), **{k: str(v) for k, v in features.items()})
    scores = pq.read_table(tmp_path / "out")["score"].to_numpy()
    np.testing.assert_allclose(scores, expected, rtol=1e-6)
    assert len(set(scores.tolist())) == 4


def test_unknown_ids(tables, model, model_directory, tmp_path):
    pairs = new_pairs(tables, tmp_path / "pairs.parquet")
    with pytest.raises(InputError, match="column user_id: 2 rows .* example 900.* --unknown prior"):
        score(model_directory, pairs, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["pairs.parquet"]
    summary = score(model_directory, pairs, tmp_path / "prior", unknown="prior")
    assert summary["unknown_users"] == summary["unknown_items"] == 2
    np.testing.assert_allclose(
        pq.read_table(tmp_path / "prior")["score"].to_numpy(),
        model.predict(str(pairs), unknown="prior"),
        rtol=1e-6,
    )
    summary = score(model_directory, pairs, tmp_path / "skip", unknown="skip")
    assert summary["rows_dropped"] == 3 and summary["rows_out"] == 1


def test_null_ids_and_wrong_types(tables, model_directory, tmp_path):
    path = tmp_path / "pairs.parquet"
    pq.write_table(pa.table({"user_id": [100, None], "item_id": ["i00", "i01"]}), path)
    with pytest.raises(InputError, match=r"pairs.parquet .*'user_id': 1 of 2 rows have no id"):
        score(model_directory, path, tmp_path / "out")
    pq.write_table(pa.table({"user_id": ["x100"], "item_id": ["i00"]}), path)
    with pytest.raises(InputError, match="pairs.parquet"):
        score(model_directory, path, tmp_path / "out")
    pq.write_table(pa.table({"user": [100], "item_id": ["i00"]}), path)
    with pytest.raises(InputError, match=r"no column 'user_id'\. Did you mean 'user'"):
        score(model_directory, path, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["pairs.parquet"]


def test_repeated_new_ids_are_refused(tables, model_directory, tmp_path):
    new = pq.read_table(tables / "new_items.parquet")
    pq.write_table(pa.concat_tables([new, new.slice(0, 1)]), tmp_path / "items.parquet")
    with pytest.raises(InputError, match="1 rows repeat the item_id of another, such as 'n0'"):
        score(
            model_directory,
            tables / "pairs.parquet",
            tmp_path / "out",
            items=tmp_path / "items.parquet",
        )


def test_select(tables, model_directory, tmp_path):
    score(model_directory, tables / "pairs.parquet", tmp_path / "a", select=("note",))
    assert pq.read_table(tmp_path / "a").column_names == ["note", "score"]
    with pytest.raises(InputError, match=r"no column 'nota'\. Did you mean 'note'"):
        score(model_directory, tables / "pairs.parquet", tmp_path / "b", select=("nota",))
    with pytest.raises(InputError, match="has a column 'score' already"):
        scored = pq.read_table(tables / "pairs.parquet").append_column(
            "score", pa.array(np.zeros(4000))
        )
        pq.write_table(scored, tmp_path / "scored.parquet")
        score(model_directory, tmp_path / "scored.parquet", tmp_path / "d")


def test_partitions_are_columns_of_the_output(tables, model_directory, tmp_path):
    pairs = pq.read_table(tables / "pairs.parquet")
    days = pa.array([f"d{k % 3}" for k in range(len(pairs))])
    pq.write_to_dataset(pairs.append_column("day", days), tmp_path / "in", partition_cols=["day"])
    whole = score(model_directory, tables / "pairs.parquet", tmp_path / "whole")
    assert whole["rows_out"] == 4000
    expected = pq.read_table(tmp_path / "whole").sort_by("note")
    for out in ("parts", "one.parquet"):
        score(model_directory, tmp_path / "in", tmp_path / out)
        scored = pq.read_table(tmp_path / out).sort_by("note")
        assert scored["day"].to_pylist() == days.to_pylist()
        assert scored.select(expected.column_names).equals(expected)


def test_known_ids_need_no_tensorflow(tables, model_directory, tmp_path):
    code = "import sys; from simrec.cli import main; assert main(sys.argv[1:]) == 0"
    words = ["score", "--model", model_directory, "--pairs", tables / "pairs.parquet"]
    found = imported_by(code, *words, "--out", tmp_path / "out")
    assert not {"tensorflow", "tf_keras", "keras", "pandas"} & found
