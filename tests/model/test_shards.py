"""A model whose users are in shards answers as one in one piece does, and reads what it needs."""

import copy
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from workers import in_threads

from simrec import InputError, SimEc, TwoTower
from simrec.model import files as model_files
from simrec.model.head import Network
from simrec.storage import artifacts, manifest
from simrec.storage.arrays import write_npy
from simrec.storage.rows import StoredArray

SETTINGS = {
    "default": {"embedding_dim": 4},
    "hidden layers": {"embedding_dim": 2, "epochs": 2},
    "two SimEcs": {"embedding_dim": 3, "refine": False, "epochs": 5},
    "uptake alone": {"embedding_dim": 4},
    "ids of text": {"embedding_dim": 2, "epochs": 2},
}


def texts(column):
    """Ids of text, in another order than the numbers."""
    return [f"u{str(i)[::-1]}" for i in column.to_pylist()]


@pytest.fixture(scope="module")
def data(tables):
    """Tables by name, with a few users that have features and no ratings."""
    found = {
        name: pq.read_table(tables / f"{name}.parquet")
        for name in ("ratings", "items", "users", "new_users", "pairs")
    }
    rated = found["ratings"].filter(pa.compute.less(found["ratings"]["user_id"], 155))
    return {**found, "ratings": rated}


def of_kind(kind, table):
    """A table as a kind of model takes it."""
    if kind == "uptake alone" and "rating" in table.column_names:
        table = table.drop_columns(["rating"])
    if kind == "ids of text" and "user_id" in table.column_names:
        place = table.column_names.index("user_id")
        table = table.set_column(place, "user_id", [texts(table["user_id"])])
    return table


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(kind, marks=pytest.mark.slow if kind == "hidden layers" else ())
        for kind in SETTINGS
    ],
)
def saved(request, data, tmp_path_factory):
    """A model of a kind, in one piece and in 3 and 8 shards."""
    kind = request.param
    given = {name: of_kind(kind, table) for name, table in data.items()}
    bounds = None if kind == "uptake alone" else (1, 5)
    model = TwoTower(bounds=bounds, **SETTINGS[kind])
    model.fit(given["ratings"], items=given["items"], users=given["users"])
    if kind == "hidden layers":
        add_network(model)
    root = tmp_path_factory.mktemp("shards")
    model.save(root / "1")
    for shards in (3, 8):
        model.save(root / str(shards), shards=shards)
    return kind, root, given


def add_network(model):
    """Add a network to the encoder of users, as a fit with hidden layers does in far more time."""
    features = model.towers_.users.features
    R = np.random.default_rng(0).normal(size=(features.shape[0], 5))
    simec = SimEc(embedding_dim=3, hidden_layers=(4,), epochs=1).fit(features, R)
    head = model.parts_["rating"].heads.users
    place = np.random.default_rng(1).normal(size=(3, head.width)).astype(np.float32)
    head.encoder.networks.append(Network(simec, place))


def later(given):
    """Ratings that come later: of known users of one shard, a new user, and a new item."""
    known, items = given["users"]["user_id"], given["items"]["item_id"]
    new = given["new_users"]["user_id"]
    table = {
        "user_id": pa.concat_arrays([c for col in (known[3:6], new[:1]) for c in col.chunks]),
        "item_id": [items[0].as_py(), items[45].as_py(), "i22b", items[7].as_py()],
    }
    if "rating" in given["ratings"].column_names:
        table["rating"] = [5.0, 1.0, 3.0, 4.0]
    return pa.table(table)


def contents(model):
    """All that a model is, in one piece."""
    found = model_files.content(model, False)
    arrays = {**found.arrays, **found.whole("items"), **found.whole("users")}
    for side, tower in model.towers_.named():
        arrays[f"{side} ids"] = np.array(tower.ids.ids.to_pylist())
        arrays[f"{side} counts"] = np.asarray(tower.counts)
    return arrays


def assert_same(one, other):
    left, right = contents(one), contents(other)
    assert left.keys() == right.keys()
    for name, array in left.items():
        np.testing.assert_array_equal(array, right[name], err_msg=name)


def answers(kind, model, given):
    """What a model says, of users in all shards."""
    pairs, users = given["pairs"].slice(0, 300), given["users"]["user_id"]
    yield model.predict(pairs).tolist()
    few = pa.table({"user_id": given["new_users"]["user_id"][:2], "item_id": ["i00", "i45"]})
    yield model.predict(few, users=given["new_users"]).tolist()
    yield model.predict(few, unknown="prior").tolist()
    if kind in ("default", "hidden layers", "ids of text"):
        yield model.predict(pairs, return_std=True)[1].tolist()
        yield model.predict(few, unknown="prior", return_std=True)[1].tolist()
        yield model.recommend(users[5:9], k=4, explore=1.0)
    for some in (None, users[40:43]):
        yield model.recommend(some, k=4, output="arrow").to_pydict()
    yield model.recommend(given["new_users"].slice(0, 2), k=3, output="arrow").to_pydict()
    yield model.embed_users(users[::7], output="arrow").to_pydict()
    yield model.explain(users[57].as_py(), "i03", output="arrow").to_pydict()
    yield model.similar_users(users[58].as_py(), k=5, output="arrow").to_pydict()
    yield model.similar_items("i04", k=5, output="arrow").to_pydict()
    if kind == "two SimEcs":
        yield model.item_simec_.last_layer_.tolist()
        yield model.user_simec_.last_layer_.tolist()


@pytest.mark.parametrize("shards", [3, 8])
def test_answers_are_those_of_one_piece(saved, shards):
    kind, root, given = saved
    one, other = (TwoTower.load(root / name) for name in ("1", str(shards)))
    assert other.users_.sizes == tuple(np.diff([60 * i // shards for i in range(shards + 1)]))
    for left, right in zip(answers(kind, one, given), answers(kind, other, given), strict=True):
        assert str(left) == str(right)
    assert_same(one, other)


@pytest.mark.parametrize("shards", [3, 8])
def test_what_happens_later_is_what_happens_to_one_piece(saved, shards, tmp_path):
    _, root, given = saved
    one, other = (TwoTower.load(root / name) for name in ("1", str(shards)))
    for model in (one, other):
        model.update(later(given))
        model.fold_in(
            later(given).slice(3).set_column(0, "user_id", given["new_users"]["user_id"][2:3]),
            users=given["new_users"].slice(2, 3),
        )
        model.fold_in(None, users=given["users"].slice(56, 2))
        model.forget(given["users"]["user_id"].take([9, 58]))
    assert_same(one, other)
    other.save(tmp_path / "later")
    again = TwoTower.load(tmp_path / "later")
    assert len(again.users_.sizes) == shards
    assert_same(one, again)


def test_one_piece_is_written_as_ever(saved, tmp_path):
    """From shards back to one piece, and in other shards: the same bytes as from the fit."""
    _, root, _ = saved
    model = TwoTower.load(root / "8")
    for name in ("1", "3"):
        model.save(tmp_path / name, shards=int(name))
        assert_same_files(tmp_path / name, root / name)
        assert_same(TwoTower.load(tmp_path / name), model)
    assert not any("-of-" in file.name for file in (root / "1").iterdir())


def assert_same_files(one, other):
    assert sorted(os.listdir(one)) == sorted(os.listdir(other))
    for file in one.iterdir():
        assert file.read_bytes() == (other / file.name).read_bytes(), file.name


def test_no_array_as_long_as_the_users_is_outside_of_the_shards(saved):
    _, root, _ = saved
    found = model_files.content(TwoTower.load(root / "3"), True)
    long = {name: array.shape for name, array in found.arrays.items() if 60 in array.shape}
    assert long == {}
    assert {len(rows) for rows in found.rows.users.values()} == {60}
    assert {matrix.shape[0] for matrix in found.sparse.users.values()} == {60}
    assert {len(rows) for rows in found.rows.items.values()} == {50}


@pytest.fixture
def model(saved, tmp_path):
    """A copy in 3 shards."""
    shutil.copytree(saved[1] / "3", tmp_path / "model")
    return tmp_path / "model"


def test_workers_write_their_own_shards(saved, model, tmp_path):
    """Each has its users only; what they write together is what one writes."""
    parts = [TwoTower.load(model, shard=i) for i in range(3)]
    assert [len(part.users_) for part in parts] == [20, 20, 20]
    assert all(isinstance(part.rated_.indptr, np.ndarray) for part in parts)
    pairs = saved[2]["pairs"]
    inside = pairs.filter(pa.array(parts[1].users_.contains(pairs["user_id"])))
    whole = TwoTower.load(model)
    assert parts[1].predict(inside).tolist() == whole.predict(inside).tolist()
    ids = in_threads(3, lambda w: model_files.save(parts[w.rank], tmp_path / "out", workers=w))
    assert ids == [artifacts.read_manifest(model)["model_id"]] * 3
    assert_same_files(tmp_path / "out", model)
    with pytest.raises(InputError, match="3 workers write one each, not 2"):
        raise in_threads(3, lambda w: model_files.save(parts[0], tmp_path / "x", 2, w))[0]
    with pytest.raises(InputError, match="has 3 shards, and none with the number 3"):
        TwoTower.load(model, shard=3)
    with pytest.raises(InputError, match="has 0 shards"):
        TwoTower.load(saved[1] / "1", shard=0)


ONE_KIND = pytest.mark.parametrize("saved", ["default"], indirect=True)


@ONE_KIND
def test_only_shards_that_are_asked_for_are_read(saved, model, monkeypatch):
    read = []
    checked = StoredArray.read
    monkeypatch.setattr(
        StoredArray, "read", lambda self: [read.append(self.file.name), checked(self)][1]
    )
    loaded = TwoTower.load(model)
    assert read == []
    users = loaded.users_.shards[1].first
    loaded.predict(users, "i01", return_std=True)
    loaded.recommend([users], k=3)
    loaded.explain(users, "i01")
    assert read and all("-00001-of-00003" in name for name in read)
    given = saved[2]
    loaded = TwoTower.load(model)
    read.clear()
    loaded.update(later(given).slice(0, 1))
    loaded.save(model)
    # A user of the first shard, and an item: its lists are learned from all users'.
    assert {name for name in read if "-00000-" not in name} == {
        f"{name}-{number}-of-00003.npy"
        for number in ("00001", "00002")
        for name in (
            "ease_users_vectors",
            "rated_data",
            "rated_indices",
            "rated_indptr",
            "uptake_users_vectors",
        )
    }


@ONE_KIND
def test_a_changed_byte_in_any_shard_is_refused_when_it_is_read(saved, model):
    for number, file in enumerate(sorted(model.glob("*-00001-of-*"))):
        content = file.read_bytes()
        changed = bytearray(content)
        changed[(20, 70, len(content) // 2, -1)[number % 4]] ^= 1
        file.write_bytes(changed)
        with pytest.raises(InputError, match=rf"{file.name}.*checksum"):
            contents(TwoTower.load(model))
        file.write_bytes(content)
    contents(TwoTower.load(model))


@ONE_KIND
def test_a_damaged_shard_stays_damaged_in_a_later_version(saved, model, tmp_path):
    file = model / "rating_users_vectors-00002-of-00003.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    loaded = TwoTower.load(model)
    loaded.update(later(saved[2]).slice(0, 1))
    loaded.save(tmp_path / "next")
    user = loaded.users_.shards[2].first
    for one in (loaded, TwoTower.load(tmp_path / "next")):
        assert np.isfinite(one.predict(one.users_.shards[0].first, "i00")).all()
        with pytest.raises(InputError, match="vectors-00002-of-00003.npy.*checksum"):
            one.predict(user, "i00")


def inodes(directory, number):
    name = f"-{number:05d}-of-"
    return {file.name: file.stat().st_ino for file in directory.iterdir() if name in file.name}


@ONE_KIND
@pytest.mark.parametrize("links", [True, False])
def test_an_update_links_the_shards_it_does_not_touch(saved, model, tmp_path, links, monkeypatch):
    if not links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError("no links")))
    loaded, given = TwoTower.load(model), saved[2]
    parent = artifacts.read_manifest(model)
    loaded.update(later(given).slice(0, 2))
    loaded.save(tmp_path / "next")
    for number in (1, 2):
        before, after = inodes(model, number), inodes(tmp_path / "next", number)
        assert before.keys() == after.keys()
        assert all((before[name] == after[name]) is links for name in before)
    assert not set(inodes(model, 0).values()) >= set(inodes(tmp_path / "next", 0).values())
    now = artifacts.read_manifest(tmp_path / "next")
    assert now["facts"]["parent"] == parent["model_id"]
    assert now["facts"]["counts"]["users"] == 60
    again = TwoTower.load(tmp_path / "next")
    assert_same(again, TwoTower.load(saved[1] / "1").update(later(given).slice(0, 2)))
    # In place too, and what was loaded before answers as before.
    old = TwoTower.load(model)
    expected = TwoTower.load(saved[1] / "3").predict(given["pairs"])
    again.save(model)
    assert old.predict(given["pairs"]).tolist() == expected.tolist()
    assert_same(TwoTower.load(model), again)
    # A file that has taken the name of a shard since is not mistaken for it.
    old.save(tmp_path / "old")
    assert TwoTower.load(tmp_path / "old").predict(given["pairs"]).tolist() == expected.tolist()


@ONE_KIND
def test_more_shards_than_users_and_ids_of_another_width(saved, tmp_path):
    given = saved[2]
    one = TwoTower.load(saved[1] / "1").forget(given["users"]["user_id"][5:])
    one.save(tmp_path / "many", shards=7)
    many = TwoTower.load(tmp_path / "many")
    assert_same(one, many)
    wide = later(given).set_column(0, "user_id", pa.array([2**40, -5, 100, 130], pa.int64()))
    assert_same(one.update(wide), many.update(wide))
    many.save(tmp_path / "later")
    assert_same(one, TwoTower.load(tmp_path / "later"))
    for wrong in (0, -1, True, 1.5, 1_001):
        with pytest.raises(InputError, match="shards must be a whole number"):
            one.save(tmp_path / "wrong", shards=wrong)


@ONE_KIND
def test_shards_travel_between_processes(model):
    loaded = TwoTower.load(model)
    tower, head = loaded.towers_.users, loaded.parts_["rating"].heads.users
    for rows in (tower.counts, head.vectors):
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(rows)), rows)
    matrix = pickle.loads(pickle.dumps(loaded.rated_))
    assert (matrix.tocsr() != loaded.rated_.tocsr()).nnz == 0
    assert pickle.loads(pickle.dumps(tower.ids)) == tower.ids
    assert_same(copy.deepcopy(loaded), loaded)


def resign(model, rename=None, drop=None, documents=None):
    """Change what is listed, and sign it as anybody can."""
    for old, new in (rename or {}).items():
        (model / old).rename(model / new)
    for name in drop or ():
        (model / name).unlink()
    for name, content in (documents or {}).items():
        (model / f"{name}.json").write_text(json.dumps(content))
    found = json.loads((model / "manifest.json").read_text())
    manifest.write(model, found["kind"], found["config"], found["facts"])


def shards_json(model, **changes):
    return {"shards": {**json.loads((model / "shards.json").read_text()), **changes}}


def put(model, name, array):
    write_npy(model / f"{name}.npy", array)


def users(model, number, ids=None, n_ratings=None):
    for name, array in (("users_ids", ids), ("users_n_ratings", n_ratings)):
        if array is not None:
            put(model, f"{name}-{number:05d}-of-00003", array)


VECTORS = "rating_users_vectors-{}-of-00003"
LISTINGS = {
    "a shard missing": lambda m: resign(m, drop=[f"{VECTORS.format('00001')}.npy"]),
    "a shard of another number": lambda m: resign(
        m, rename={f"{VECTORS.format('00002')}.npy": "rating_users_vectors-00002-of-00004.npy"}
    ),
    "all of another number": lambda m: resign(
        m,
        rename={
            f"{VECTORS.format(f'0000{i}')}.npy": f"rating_users_vectors-0000{i}-of-00004.npy"
            for i in range(3)
        },
    ),
    "a shard beyond the last": lambda m: resign(
        m, rename={f"{VECTORS.format('00002')}.npy": f"{VECTORS.format('00003')}.npy"}
    ),
    "in shards and in one piece": lambda m: [
        put(m, "rating_users_vectors", np.zeros((60, 18), np.float32)),
        resign(m),
    ],
    "a document in shards": lambda m: resign(
        m, documents={f"parts-0000{i}-of-00003": {} for i in range(3)}
    ),
    "no shards of ids": lambda m: resign(
        m, drop=[f"users_ids-0000{i}-of-00003.npy" for i in range(3)]
    ),
    "ids in one piece": lambda m: [
        put(m, "users_ids", np.arange(100, 160)),
        resign(m, drop=[f"users_ids-0000{i}-of-00003.npy" for i in range(3)]),
    ],
    "an array in one piece": lambda m: [
        put(m, "rated_data", np.zeros(9, np.float32)),
        resign(m, drop=[f"rated_data-0000{i}-of-00003.npy" for i in range(3)]),
    ],
    "no word on the shards": lambda m: resign(m, drop=["shards.json"]),
    "fewer ranges": lambda m: resign(m, documents=shards_json(m, rows=[20, 40])),
    "ranges of other lengths": lambda m: resign(m, documents=shards_json(m, rows=[10, 30, 20])),
    "negative rows": lambda m: resign(m, documents=shards_json(m, rows=[-20, 60, 20])),
    "rows of text": lambda m: resign(m, documents=shards_json(m, rows=["20", "20", "20"])),
    "ranges that overlap": lambda m: resign(m, documents=shards_json(m, first=[100, 119, 140])),
    "ranges in another order": lambda m: resign(
        m, documents=shards_json(m, first=[140, 120, 100], last=[159, 139, 119])
    ),
    "ids of another kind": lambda m: resign(
        m, documents=shards_json(m, first=["100", "120", "140"], last=["119", "139", "159"])
    ),
    "ids of no kind": lambda m: resign(m, documents=shards_json(m, first=[{}, 120, 140])),
    "ids of another type": lambda m: [users(m, 1, np.arange(120, 140, dtype=np.int32)), resign(m)],
    "counts that are no integers": lambda m: [
        [users(m, i, n_ratings=np.ones(20)) for i in range(3)],
        resign(m),
    ],
    "counts of another type": lambda m: [users(m, 1, n_ratings=np.ones(20)), resign(m)],
    "shards that are a list": lambda m: resign(m, documents={"shards": []}),
    "one shard longer": lambda m: [
        put(m, VECTORS.format("00001"), np.zeros((21, 18), np.float32)),
        put(m, VECTORS.format("00000"), np.zeros((19, 18), np.float32)),
        resign(m),
    ],
    "one shard wider": lambda m: [
        put(m, VECTORS.format("00001"), np.zeros((20, 19), np.float32)),
        resign(m),
    ],
    "one shard of integers": lambda m: [
        put(m, VECTORS.format("00001"), np.zeros((20, 18), np.int32)),
        resign(m),
    ],
    "starts of another length": lambda m: [
        put(m, "rated_indptr-00001-of-00003", np.zeros(20, np.int64)),
        resign(m),
    ],
}


@ONE_KIND
@pytest.mark.parametrize("damage", LISTINGS.values(), ids=LISTINGS)
def test_shards_that_do_not_fit_together_are_refused(model, damage):
    damage(model)
    with pytest.raises(InputError, match=str(model)):
        TwoTower.load(model)


CONTENT = {
    "infinite vectors": lambda m: put(
        m, VECTORS.format("00001"), np.full((20, 18), np.inf, np.float32)
    ),
    "an item beyond the items": lambda m: put(
        m, "rated_indices-00001-of-00003", np.load(m / "rated_indices-00001-of-00003.npy") + 50
    ),
    "a start beyond the data": lambda m: put(
        m, "rated_indptr-00001-of-00003", np.arange(21, dtype=np.int64) * 1000
    ),
    "a feature beyond the features": lambda m: put(
        m,
        "users_features_indices-00001-of-00003",
        np.load(m / "users_features_indices-00001-of-00003.npy") - 1000,
    ),
    "ids in another order": lambda m: users(m, 1, np.arange(120, 140)[::-1]),
    "an id of another shard": lambda m: users(m, 1, np.arange(119, 139)),
    "other ids at the end": lambda m: users(m, 1, np.arange(120, 160, 2)),
    "fewer ids": lambda m: users(m, 1, np.arange(120, 139)),
    "other counts": lambda m: users(m, 1, n_ratings=np.zeros(20, np.int64)),
}


@ONE_KIND
@pytest.mark.parametrize("damage", CONTENT.values(), ids=CONTENT)
def test_no_content_of_a_shard_is_believed(model, damage):
    damage(model)
    resign(model)
    loaded = TwoTower.load(model)
    with pytest.raises(InputError, match=str(model)):
        contents(loaded)
    with pytest.raises(InputError, match=str(model)):
        contents(TwoTower.load(model, shard=1))


@ONE_KIND
def test_a_kill_between_shards_leaves_no_model(saved, tmp_path):
    code = (
        "import os, sys, signal; from pathlib import Path\n"
        "from simrec import TwoTower; from simrec.storage import artifacts\n"
        "model = TwoTower.load(sys.argv[1])\n"
        "write, n = artifacts.write_shard, []\n"
        "def dying(*given):\n"
        "    n.append(1)\n"
        "    return os.kill(os.getpid(), signal.SIGKILL) if len(n) == 3 else write(*given)\n"
        "artifacts.write_shard = dying\n"
        "model.save(sys.argv[2], shards=4)\n"
    )
    out = tmp_path / "out"
    words = [sys.executable, "-c", code, str(saved[1] / "1"), str(out)]
    done = subprocess.run(words, cwd=Path(__file__).parents[2])
    assert done.returncode == -9
    assert not out.exists() and len(list(tmp_path.iterdir())) == 1
    TwoTower.load(saved[1] / "1").save(out, shards=4)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    TwoTower.load(out)
