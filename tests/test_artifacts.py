import hashlib
import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from simrec import InputError, artifacts, files

CONTENT = {
    "kind": "two_tower",
    "config": {"embedding_dim": 4, "bounds": (1, 5)},
    "arrays": {"item_vectors": np.arange(12, dtype=np.float32).reshape(3, 4)},
    "tables": {"items": pa.table({"item_id": ["a", "b", "c"]})},
    "documents": {"item_encoder": {"columns": ["year"], "mean": np.float32(0.5)}},
    "keras_weights": {"encoder": [np.ones((2, 3), np.float32), np.zeros(3, np.float32)]},
    "facts": {"n_ratings": np.int64(7)},
}


def digest(content):
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def sign(model, manifest):
    """Write a manifest with the checksums that it should have, as anybody can."""
    sums = {name: entry["sha256"] for name, entry in manifest["files"].items()}
    content = {"kind": manifest["kind"], "config": manifest["config"], "files": sums}
    manifest["model_id"] = digest(content)[:16]
    manifest["sha256"] = digest({k: v for k, v in manifest.items() if k != "sha256"})
    (model / "manifest.json").write_text(files.to_json(manifest))


@pytest.fixture
def model(tmp_path):
    artifacts.save(tmp_path / "model", **CONTENT)
    return tmp_path / "model"


def test_round_trip(model):
    loaded = artifacts.load(model, kind="two_tower")
    np.testing.assert_array_equal(loaded.arrays["item_vectors"], CONTENT["arrays"]["item_vectors"])
    assert isinstance(loaded.arrays["item_vectors"], np.memmap)
    assert loaded.tables["items"].equals(CONTENT["tables"]["items"])
    assert loaded.documents == {"item_encoder": {"columns": ["year"], "mean": 0.5}}
    assert [w.tolist() for w in loaded.keras_weights["encoder"]] == [
        w.tolist() for w in CONTENT["keras_weights"]["encoder"]
    ]
    assert loaded.config == {"embedding_dim": 4, "bounds": [1, 5]}
    assert loaded.facts == {"n_ratings": 7}
    assert set(loaded.manifest["files"]) == {f.name for f in model.iterdir()} - {"manifest.json"}
    in_memory = artifacts.load(model, mmap=False)
    assert not isinstance(in_memory.arrays["item_vectors"], np.memmap)
    assert in_memory.tables["items"].equals(loaded.tables["items"])


def test_equal_models_have_equal_bytes_and_ids(model, tmp_path):
    again = artifacts.save(tmp_path / "again", **{**CONTENT, "facts": {"n_ratings": 8}})
    assert again == artifacts.load(model).model_id
    other = artifacts.save(tmp_path / "other", **{**CONTENT, "config": {"embedding_dim": 5}})
    assert other != again


def test_loading_and_saving_need_no_tensorflow(model):
    code = (
        "import sys; from simrec import artifacts; artifacts.load(sys.argv[1]);"
        "assert not {'tensorflow', 'tf_keras', 'keras'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(model)], check=True)


@pytest.mark.parametrize("offset", [0, 0.5, 1.0])
def test_any_changed_byte_is_refused(model, offset):
    for file in sorted(model.iterdir()):
        content = bytearray(file.read_bytes())
        position = min(int(offset * len(content)), len(content) - 1)
        changed = bytearray(content)
        changed[position] ^= 1
        file.write_bytes(changed)
        with pytest.raises(InputError, match=rf"{file.name}.*(checksum|readable manifest)"):
            artifacts.load(model)
        file.write_bytes(content)
    artifacts.load(model)


def test_a_changed_manifest_is_refused(model):
    manifest = json.loads((model / "manifest.json").read_text())
    manifest["config"]["embedding_dim"] = 8
    (model / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="manifest was changed"):
        artifacts.load(model)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda m: (m / "items.arrow").unlink(),
            "items.arrow: listed in manifest.json but missing",
        ),
        (lambda m: (m / "item_vectors.npy").write_bytes(b""), "item_vectors.npy: 0 bytes"),
        (lambda m: (m / "manifest.json").unlink(), "no manifest.json"),
        (lambda m: (m / "manifest.json").write_text("{"), "not a readable manifest"),
        (
            lambda m: (m / "manifest.json").write_text(
                f'{{"format_version": {artifacts.FORMAT_VERSION}}}'
            ),
            "lacks",
        ),
        (lambda m: (m / "manifest.json").write_text('{"format_version": 99}'), "format version 99"),
    ],
)
def test_damage_is_named(model, damage, message):
    damage(model)
    with pytest.raises(InputError, match=message):
        artifacts.load(model)


def test_not_a_model(tmp_path, model):
    with pytest.raises(InputError, match="does not exist"):
        artifacts.load(tmp_path / "absent")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        artifacts.load(tmp_path / "file")
    with pytest.raises(InputError, match="'two_tower' model, expected 'simec'"):
        artifacts.load(model, kind="simec")


def test_a_manifest_cannot_point_outside(model):
    manifest = json.loads((model / "manifest.json").read_text())
    secret = model.parent / "secret.json"
    secret.write_text("{}")
    manifest["files"]["../secret.json"] = {"sha256": files.sha256(secret), "bytes": 2}
    sign(model, manifest)
    with pytest.raises(InputError, match="no file of a model"):
        artifacts.load(model)


def test_objects_are_never_saved(tmp_path):
    with pytest.raises(TypeError, match="only numbers"):
        artifacts.save(
            tmp_path / "m", **{**CONTENT, "arrays": {"x": np.array(["a", None], dtype=object)}}
        )
    with pytest.raises(ValueError, match="no plain JSON"):
        artifacts.save(tmp_path / "m", **{**CONTENT, "documents": {"x": {"y": float("nan")}}})
    with pytest.raises(ValueError, match="cannot name a part"):
        artifacts.save(tmp_path / "m", **{**CONTENT, "documents": {"../x": {}}})
    assert list(tmp_path.iterdir()) == []


def test_saving_replaces_a_model_but_nothing_else(tmp_path, model):
    artifacts.save(model, **{**CONTENT, "config": {"embedding_dim": 5}})
    assert artifacts.load(model).config == {"embedding_dim": 5}
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_text("")
    with pytest.raises(InputError, match="holds other files"):
        artifacts.save(tmp_path / "photos", **CONTENT)
    assert (tmp_path / "photos" / "a.jpg").exists()
    (tmp_path / "empty").mkdir()
    artifacts.save(tmp_path / "empty", **CONTENT)
    (tmp_path / "link").symlink_to(model)
    artifacts.save(tmp_path / "link", **CONTENT)
    assert (tmp_path / "link").is_symlink()
    assert artifacts.load(model).config["embedding_dim"] == 4


@pytest.mark.parametrize("exchange", [True, False])
def test_a_failed_save_leaves_the_old_model(tmp_path, model, monkeypatch, exchange):
    if not exchange:
        monkeypatch.setattr(files, "_exchange", lambda a, b: False)
    before = artifacts.load(model).model_id

    def fail(source, target):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files, "replace_directory", fail)
        with pytest.raises(OSError, match="No space"):
            artifacts.save(model, **{**CONTENT, "config": {"embedding_dim": 5}})
    assert artifacts.load(model).model_id == before
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    artifacts.save(model, **{**CONTENT, "config": {"embedding_dim": 5}})
    assert artifacts.load(model).model_id != before
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_a_loaded_model_survives_its_replacement(model):
    loaded = artifacts.load(model)
    values = loaded.arrays["item_vectors"].tolist()
    artifacts.save(model, **{**CONTENT, "arrays": {"item_vectors": np.zeros((3, 4))}})
    assert loaded.arrays["item_vectors"].tolist() == values
