import hashlib
import io
import json
import multiprocessing
import os
import time

import numpy as np
import pyarrow as pa
import pytest
from processes import imported_by, on_a_small_disk

from simrec import InputError
from simrec.storage import artifacts, files
from simrec.storage.arrays import id_arrays
from simrec.storage.artifacts import FORMAT_VERSION

IDS = pa.array(["a", "bé", "c"])
CONTENT = {
    "kind": "two_tower",
    "config": {"embedding_dim": 4, "bounds": (1, 5)},
    "arrays": {
        "item_vectors": np.arange(12, dtype=np.float32).reshape(3, 4),
        **id_arrays("items", IDS),
    },
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
    assert not loaded.arrays["item_vectors"].flags.owndata
    assert loaded.ids("items").equals(IDS)
    assert loaded.documents == {"item_encoder": {"columns": ["year"], "mean": 0.5}}
    assert [w.tolist() for w in loaded.keras_weights["encoder"]] == [
        w.tolist() for w in CONTENT["keras_weights"]["encoder"]
    ]
    assert loaded.manifest["config"] == {"embedding_dim": 4, "bounds": [1, 5]}
    assert loaded.facts == {"n_ratings": 7}
    assert set(loaded.manifest["files"]) == {f.name for f in model.iterdir()} - {"manifest.json"}


def test_equal_models_have_equal_bytes_and_ids(model, tmp_path):
    again = artifacts.save(tmp_path / "again", **{**CONTENT, "facts": {"n_ratings": 8}})
    assert again == artifacts.load(model).model_id
    other = artifacts.save(tmp_path / "other", **{**CONTENT, "config": {"embedding_dim": 5}})
    assert other != again


def test_loading_and_saving_need_no_tensorflow(model):
    code = "import sys; from simrec.storage import artifacts; artifacts.load(sys.argv[1])"
    assert not {"tensorflow", "tf_keras", "keras"} & imported_by(code, model)


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


def test_no_byte_of_the_manifest_is_without_a_checksum(model):
    file = model / "manifest.json"
    content = file.read_bytes()
    for position in range(0, len(content), 3):
        changed = bytearray(content)
        changed[position] ^= 1
        file.write_bytes(changed)
        with pytest.raises(InputError):
            artifacts.read_manifest(model)


def change(manifest, path, value):
    for key in path[:-1]:
        manifest = manifest[key]
    manifest[path[-1]] = value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("facts",), 3),
        (("config",), []),
        (("kind",), None),
        (("files",), []),
        (("files", "items_text.npy"), "x"),
        (("files", "items_text.npy"), {"sha256": 1, "bytes": 2}),
        (("files", "items_text.npy", "bytes"), True),
        (("format",), "another"),
        (("simrec",), 1),
    ],
)
def test_a_manifest_of_other_types_is_refused(model, path, value):
    manifest = json.loads((model / "manifest.json").read_text())
    change(manifest, path, value)
    content = {k: v for k, v in manifest.items() if k != "sha256"}
    manifest["sha256"] = digest(content)
    (model / "manifest.json").write_text(files.to_json(manifest))
    with pytest.raises(InputError, match="manifest.json"):
        artifacts.load(model)


@pytest.mark.parametrize("text", ["[]", "3", "null", "{}", '{"format_version": NaN}', "[" * 10**5])
def test_other_json_is_no_manifest(model, text):
    (model / "manifest.json").write_text(text)
    with pytest.raises(InputError, match="manifest"):
        artifacts.load(model)


def npy(descr, shape, data=b"", fortran=False):
    buffer = io.BytesIO()
    header = {"descr": descr, "fortran_order": fortran, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue() + data


def arrow(table, **options):
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(**options)
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("item_vectors.npy", npy("|O", (1,), b"cos\nsystem\n(S'true'\ntR.")),
        ("item_vectors.npy", npy("<f4", (1 << 40,))),
        ("item_vectors.npy", npy("<f4", (1 << 62, 1 << 62))),
        ("item_vectors.npy", npy("<f4", (-1,))),
        ("item_vectors.npy", npy("<f4", (3, 4), bytes(40))),
        ("item_vectors.npy", npy("<f4", (3, 4), bytes(56))),
        ("item_vectors.npy", npy(">f4", (3, 4), bytes(48))),
        ("item_vectors.npy", npy("<U4", (3, 4), bytes(192))),
        ("item_vectors.npy", npy("|b1", (3, 4), b"\x02" * 12)),
        ("item_vectors.npy", npy("<M8[s]", (6,), bytes(48))),
        ("item_vectors.npy", b""),
        ("item_vectors.npy", b"\x93NUMPY\x01\x00\xff\xff{"),
        ("encoder.weights.0000.npy", npy("<f4", (1 << 40,))),
        ("encoder.weights.0000.npy", npy("<f4", (2, 3), bytes(20))),
        # Formats that are never read, so that nothing is ever unpacked.
        ("items.arrow", arrow(pa.table({"item_id": ["a" * 10**6]}), compression="zstd")),
        ("encoder.weights.npz", b"PK\x05\x06"),
        ("items.pickle", b"cos\nsystem\n(S'true'\ntR."),
        ("item_encoder.json", b"[" * 10**5),
        ("item_encoder.json", b'{"a": NaN}'),
        ("item_encoder.json", b"\xff"),
    ],
)
def test_no_array_is_believed(model, name, content):
    (model / name).write_bytes(content)
    manifest = json.loads((model / "manifest.json").read_text())
    entry = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    manifest["files"][name] = entry
    sign(model, manifest)
    with pytest.raises(InputError, match=name):
        artifacts.load(model)


def int32(*values):
    return npy("<i4", (len(values),), np.array(values, "<i4").tobytes())


def text(content):
    return npy("|u1", (len(content),), content)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("items_offsets.npy", int32(0, 1, 1 << 30, 4)),
        ("items_offsets.npy", int32(0, 1, 1 << 30)),
        ("items_offsets.npy", int32(0, 3, 1, 4)),
        ("items_offsets.npy", int32(-1, 1, 3, 4)),
        ("items_offsets.npy", int32()),
        ("items_offsets.npy", npy("<i2", (2,), bytes([0, 0, 5, 0]))),
        ("items_offsets.npy", npy("<f4", (4,), bytes(16))),
        ("items_offsets.npy", npy("<i4", (2, 2), bytes(16))),
        ("items_text.npy", text(b"abc")),
        ("items_text.npy", text(b"ab\xff\xffc")),
        ("items_text.npy", npy("<u2", (5,), bytes(10))),
        ("items_text.npy", npy("|i1", (5,), b"abcde")),
        ("items.npy", npy("<f8", (3,), bytes(24))),
        ("items.npy", npy("<i8", (3, 1), bytes(24))),
    ],
)
def test_no_offset_of_an_id_is_believed(model, name, content):
    (model / name).write_bytes(content)
    manifest = json.loads((model / "manifest.json").read_text())
    manifest["files"][name] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    sign(model, manifest)
    with pytest.raises(InputError, match=str(model)):
        artifacts.load(model).ids("items")


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string()])
def test_ids_of_any_length_come_back(tmp_path, type_):
    for ids in (["", "a", "xyz", "ü"], [""], []):
        array = pa.array(["before", *ids, "after"], type_).slice(1, len(ids))
        artifacts.save(tmp_path / "m", "x", {}, id_arrays("users", array), {})
        assert artifacts.load(tmp_path / "m").ids("users").equals(array)
    for dtype in (np.int8, np.uint64, np.int64):
        numbers = pa.array(np.array([1, 100], dtype))
        artifacts.save(tmp_path / "m", "x", {}, id_arrays("users", numbers), {})
        assert artifacts.load(tmp_path / "m").ids("users").equals(numbers)


def test_arrays_that_are_read_are_as_they_were(tmp_path):
    arrays = {
        "none": np.zeros((0, 3), np.float32),
        "one": np.array(3.5),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "flags": np.array([True, False]),
    }
    artifacts.save(tmp_path / "m", "x", {}, arrays, {})
    loaded = artifacts.load(tmp_path / "m").arrays
    for name, array in arrays.items():
        assert loaded[name].dtype == array.dtype and loaded[name].shape == array.shape
        assert (loaded[name] == array).all()
        assert not loaded[name].flags.writeable


def test_checked_arrays(model):
    loaded = artifacts.load(model)
    assert loaded.array("item_vectors", (3, None)).shape == (3, 4)
    for shape, kinds in [((4, 4), "f"), ((3,), "f"), ((3, 4), "i")]:
        with pytest.raises(InputError, match="item_vectors.npy: float32 of shape"):
            loaded.array("item_vectors", shape, kinds)
    with pytest.raises(InputError, match="no array 'absent'"):
        loaded.array("absent", (1,))
    loaded.arrays["item_vectors"] = np.array([[1, np.nan]])
    with pytest.raises(InputError, match="NaN or infinite"):
        loaded.array("item_vectors", (1, 2))


@pytest.mark.parametrize(
    ("indices", "starts"),
    [
        *(([0, 3], [0, 1, 2]), ([0, -1], [0, 1, 2]), ([0, 1], [0, 2, 1]), ([0, 1], [1, 1, 2])),
        # Differences of these are positive, by overflow.
        ([0, 1], [0, 2**63 - 1, -(2**63), -1, 2]),
    ],
)
def test_sparse_indices_out_of_range_are_refused(model, indices, starts):
    loaded = artifacts.load(model)
    parts = {"data": np.ones(2, np.float32), "indices": indices, "indptr": starts}
    loaded.arrays.update({f"x_{k}": np.array(v) for k, v in parts.items()})
    with pytest.raises(InputError, match="out of range"):
        loaded.csr_matrix("x", (len(starts) - 1, 3))


def test_sparse_numbers_of_half_precision_are_refused(model):
    loaded = artifacts.load(model)
    parts = {"data": np.ones(2, np.float16), "indices": [0, 1], "indptr": [0, 1, 2]}
    loaded.arrays.update({f"x_{k}": np.array(v) for k, v in parts.items()})
    with pytest.raises(InputError, match="the type is wrong"):
        loaded.csr_matrix("x", (2, 3))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda m: (m / "items_text.npy").unlink(),
            "items_text.npy: listed in manifest.json but missing",
        ),
        (lambda m: (m / "item_vectors.npy").write_bytes(b""), "item_vectors.npy: 0 bytes"),
        (lambda m: (m / "manifest.json").unlink(), "no manifest.json"),
        (lambda m: (m / "manifest.json").write_text("{"), "not a readable manifest"),
        (
            lambda m: (m / "manifest.json").write_text(f'{{"format_version": {FORMAT_VERSION}}}'),
            "lacks",
        ),
        (lambda m: (m / "manifest.json").write_text('{"format_version": 99}'), "format version 99"),
        (
            lambda m: (m / "manifest.json").write_text('{"format_version": 5, "simrec": "0.1"}'),
            r"format version 5; .*Train the model again, or use the SimRec that wrote it \(0.1\)",
        ),
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
    assert artifacts.load(model).manifest["config"] == {"embedding_dim": 5}
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
    assert artifacts.load(model).manifest["config"]["embedding_dim"] == 4


def test_a_foreign_directory_with_a_manifest_is_not_replaced(tmp_path, model):
    foreign = tmp_path / "extension"
    foreign.mkdir()
    (foreign / "manifest.json").write_text(
        '{"manifest_version": 3, "name": "my browser extension"}'
    )
    (foreign / "thesis.doc").write_text("years of work")
    for content in ('{"manifest_version": 3}', "{", "[]", '{"files": {"thesis.doc": {}}}'):
        (foreign / "manifest.json").write_text(content)
        with pytest.raises(InputError, match="holds other files and no model"):
            artifacts.save(foreign, **CONTENT)
        artifacts.remove(foreign, "two_tower")
    (model / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"other files than a model, such as 'notes.txt'"):
        artifacts.save(model, **CONTENT)
    artifacts.remove(model, "two_tower")
    (model / "notes.txt").unlink()
    artifacts.remove(model, "another kind")
    assert (foreign / "thesis.doc").exists() and model.exists()
    artifacts.remove(model, "two_tower")
    assert not model.exists()


def test_a_damaged_model_can_be_replaced(model):
    (model / "manifest.json").write_bytes((model / "manifest.json").read_bytes()[:-9])
    (model / "items_text.npy").unlink()
    artifacts.save(model, **CONTENT)
    loaded = artifacts.load(model)
    assert loaded.ids("items").equals(IDS) and loaded.facts == {"n_ratings": 7}
    assert loaded.documents == {"item_encoder": {"columns": ["year"], "mean": 0.5}}


def save_again_and_again(path, stop, exchange):
    if not exchange:
        files.exchange = lambda a, b: False
    k = 0
    while not stop.is_set():
        k += 1
        value = np.full((3, 4), k, np.float32)
        artifacts.save(path, **{**CONTENT, "arrays": {"item_vectors": value}})


@pytest.mark.parametrize("exchange", [True, False])
def test_loading_while_another_process_saves(model, exchange):
    context = multiprocessing.get_context("fork")
    stop = context.Event()
    process = context.Process(target=save_again_and_again, args=(model, stop, exchange))
    process.start()
    try:
        seen, n_loaded, end = set(), 0, time.monotonic() + 60
        while (n_loaded < 100 or len(seen) <= 3) and time.monotonic() < end:
            n_loaded += 1
            loaded = artifacts.load(model)
            artifacts.read_manifest(model)
            if not (loaded.arrays["item_vectors"] == CONTENT["arrays"]["item_vectors"]).all():
                assert len(np.unique(loaded.arrays["item_vectors"])) == 1
            seen.add(loaded.model_id)
    finally:
        stop.set()
        process.join()
    assert len(seen) > 3 and process.exitcode == 0
    assert [p.name for p in model.parent.iterdir()] == ["model"]


def test_leftovers_of_killed_processes_are_removed(tmp_path):
    left = [tmp_path / name for name in (".model.abcdef01.new", ".model.abcdef02.old")]
    for directory in left:
        directory.mkdir()
        (directory / "part.npy").write_bytes(b"half")
    (tmp_path / ".model.abcdef03").write_text("half of a text")
    others = [".model.mine.new", ".other.abcdef01.new", ".model.abcdef0.new"]
    for name in others:
        (tmp_path / name).mkdir()
    with files.own_directory(tmp_path / "model", ".new") as alive:
        artifacts.save(tmp_path / "model", **CONTENT)
        assert {p.name for p in tmp_path.iterdir()} == {*others, "model", alive.name}
    # Killed between the two renames that replace a directory where there is no exchange.
    old = tmp_path / ".model.abcdef04.old"
    old.mkdir()
    os.rename(tmp_path / "model", old / "model")
    files.remove_leftovers(tmp_path / "model")
    artifacts.load(tmp_path / "model")
    assert not old.exists()


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
def test_the_umask_is_honoured(tmp_path, mask):
    before = os.umask(mask)
    try:
        artifacts.save(tmp_path / "model", **CONTENT)
        files.write_text(tmp_path / "text", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "model").stat().st_mode & 0o777 == 0o777 & ~mask
    for file in [tmp_path / "text", *(tmp_path / "model").iterdir()]:
        assert file.stat().st_mode & 0o777 == 0o666 & ~mask


def test_a_full_disk_is_named_while_saving(tmp_path):
    code = (
        "import numpy as np; from simrec.storage import artifacts\n"
        "artifacts.save('small/m', 'x', {}, {'a': np.ones(10**6)}, {})"
    )
    outcome = on_a_small_disk(code, tmp_path)
    assert "the disk is full" in outcome.stderr and "small/m" in outcome.stderr
    assert outcome.stdout == ""


@pytest.mark.parametrize("exchange", [True, False])
def test_a_failed_save_leaves_the_old_model(tmp_path, model, monkeypatch, exchange):
    if not exchange:
        monkeypatch.setattr(files, "exchange", lambda a, b: False)
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
