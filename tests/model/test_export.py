"""Exports answer as the model does, with nothing of ours installed."""

import dataclasses
import datetime
import json
import os
import re
import subprocess
import sys
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from simrec import InputError, TwoTower, make_synthetic
from simrec.cli import main
from simrec.data.features import FeatureEncoder

# Runs in a process that has TensorFlow, but neither SimRec nor TFRS nor Keras 2.
PLAIN = """
import json, os, sys
absent = ["simrec", "tensorflow_recommenders"]
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in absent:
            raise ImportError(name + " is not to be had here")
sys.meta_path.insert(0, Absent())
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
absent.append("tf_keras")  # which TensorFlow itself looks for when it is imported
answers, loaded = [], {}
for call in json.load(open(sys.argv[1])):
    path = call["path"]
    loaded[path] = loaded.get(path) or tf.saved_model.load(path)
    function = loaded[path].signatures[call["signature"]]
    specs = function.structured_input_signature[1]
    inputs = {
        name: tf.reshape(tf.constant(values, specs[name].dtype), shape)
        for name, (values, shape) in call["inputs"].items()
    }
    try:
        answer = {
            name: [[v.decode() if isinstance(v, bytes) else v for v in row] for row in value]
            for name, value in
            ((name, tensor.numpy().tolist()) for name, tensor in function(**inputs).items())
        }
    except tf.errors.InvalidArgumentError as error:
        answer = {"error": error.message}
    answers.append(answer)
assert not {*absent} & {*sys.modules}
json.dump(answers, open(sys.argv[2], "w"))
"""

COLUMNS = {"code": "number", "member": "number", "born": "category", "level": "category"}


def user_features(n, seed):
    """A table with every sort of column that a graph can take."""
    rng = np.random.default_rng(seed)

    def some(values, share=0.1):
        return [None if rng.random() < share else value for value in values]

    days = [datetime.date(1990, 1, 1) + datetime.timedelta(int(d)) for d in rng.integers(0, 9, n)]
    tags = np.array(["a", "b", "b", "ü", f"rare{seed}"])
    return {
        "height in cm": some(rng.normal(170, 10, n)),
        "code": some([str(c) for c in rng.integers(0, 50, n)]),
        "city": some(rng.choice(["Rome", "Bonn", f"x{seed}"], n).tolist()),
        "level": some(rng.integers(1, 5, n).tolist()),
        "active": some((rng.random(n) < 0.5).tolist()),
        "member": some((rng.random(n) < 0.5).tolist()),
        "since": pa.array(some(days), pa.date32()),
        "born": pa.array(some(days), pa.date32()),
        "tags": some([rng.choice(tags, rng.integers(0, 5)).tolist() for _ in range(n)]),
        "groups": some([rng.integers(0, 6, rng.integers(0, 4)).tolist() for _ in range(n)]),
        "face": pa.array(some(rng.normal(size=(n, 3)).tolist()), pa.list_(pa.float32(), 3)),
    }


def inputs_of(table, encoder):
    """Raw columns as the graph takes them: values and shape of each input."""
    made = {}
    for column, kind in encoder.columns_.items():
        values = table[column]
        if pa.types.is_date(values.type):
            values = values.cast(pa.int32() if kind == "number" else pa.string())
        rows = values.to_pylist()
        text = any(isinstance(v, str) for r in rows for v in (r if isinstance(r, list) else [r]))
        none = "" if text else float("nan")
        if kind in ("list", "vector"):
            longest = max(len(row or []) for row in rows) + (kind == "list")
            rows = [(row or []) + [none] * (longest - len(row or [])) for row in rows]
            made[column] = list(chain(*rows)), [len(rows), longest]
        else:
            made[column] = [none if row is None else row for row in rows], [len(rows)]
    return {name.replace(" ", "_"): value for name, value in made.items()}


def ask(tmp_path, calls):
    (tmp_path / "calls.json").write_text(json.dumps(calls))
    (tmp_path / "plain.py").write_text(PLAIN)
    words = [sys.executable, "plain.py", "calls.json", "answers.json"]
    env = {k: v for k, v in os.environ.items() if k not in ("TF_USE_LEGACY_KERAS", "PYTHONPATH")}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads((tmp_path / "answers.json").read_text())


@pytest.fixture(scope="module")
def data():
    made = make_synthetic(n_users=70, n_items=90, n_ratings=1500, random_state=0)
    items = made.items.set_column(0, "item_id", made.items["item_id"].cast(pa.string()))
    ratings = made.ratings.set_column(
        made.ratings.column_names.index("item_id"),
        "item_id",
        made.ratings["item_id"].cast(pa.string()),
    )
    ids = np.concatenate([made.users["user_id"].to_numpy(), [501, 502, 503]])  # three not rated
    users = pa.table({"user_id": ids, **user_features(len(ids), 1)})
    new = pa.table({"user_id": np.arange(900, 940), **user_features(40, 2)})
    return {"ratings": ratings, "items": items, "users": users, "new": new}


@pytest.fixture(scope="module")
def model(data):
    model = TwoTower(embedding_dim=4, epochs=4, folds=2, knots=4, user_columns=COLUMNS)
    return model.fit(data["ratings"], items=data["items"], users=data["users"])


@pytest.fixture(scope="module")
def uptake(data):
    """A model of interactions, without features of users."""
    pairs = data["ratings"].select(["user_id", "item_id"])
    return TwoTower(embedding_dim=4).fit(pairs, items=data["items"])


@pytest.fixture(scope="module")
def directory(model, uptake, tmp_path_factory):
    path = tmp_path_factory.mktemp("exports")
    model.export(path / "rating", "savedmodel")
    uptake.export(path / "uptake", "savedmodel", unknown="prior")
    model.export(path / "user", "tower", side="user")
    model.export(path / "item", "tower", side="item")
    model.export(path / "parquet", "parquet")
    return path


@pytest.fixture(scope="module")
def asked(data, model):
    """Calls by name: export, signature, users, k, exclusions."""
    known = data["users"].slice(0, 12)
    mixed = pa.concat_tables([known, data["users"].slice(70), data["new"]])
    ids = model.items_.ids.to_pylist()
    # The best item of each user, so that leaving it out is seen; and all but two for the first.
    best = model.recommend(known["user_id"], k=1, exclude=None, output="arrow")[
        "item_id"
    ].to_pylist()
    all_but_two = [[""] * 200 for _ in range(len(known))]
    all_but_two[0][: len(ids) - 2] = ids[2:]
    return {
        "mixed": ("rating", "serving_default", mixed, 10, None),
        "new": ("rating", "new_users", data["new"], 3, None),
        "known": ("rating", "known_users", known, 1000, None),
        "without best": ("rating", "known_users", known, 5, [["no item", i, ""] for i in best]),
        "all but two": ("rating", "known_users", known, 5, all_but_two),
        "unknown": ("rating", "known_users", data["new"], 5, None),
        "nobody": ("rating", "known_users", known.slice(0, 0), 4, None),
        "uptake": ("uptake", "serving_default", known, 7, None),
        "uptake unknown": ("uptake", "serving_default", data["new"], 7, None),
    }


@pytest.fixture(scope="module")
def answers(data, model, directory, asked, tmp_path_factory):
    """What plain TensorFlow answers, by name."""
    calls = {}
    for name, (path, signature, users, k, exclude) in asked.items():
        exclude = exclude or [[] for _ in range(len(users))]
        width = len(exclude[0]) if exclude else 0
        inputs = {"k": [k, []], "exclude": [list(chain(*exclude)), [len(users), width]]}
        if signature != "new_users":
            inputs["user_id"] = [users["user_id"].to_pylist(), [len(users)]]
        if path == "rating" and signature != "known_users":
            inputs |= inputs_of(users, model.towers_.users.encoder)
        calls[name] = {"path": path, "signature": signature, "inputs": inputs}
    for side, table, encoder in [
        ("user", data["new"], model.towers_.users.encoder),
        ("item", data["items"], model.towers_.items.encoder),
    ]:
        inputs = inputs_of(table, encoder)
        calls[side] = {"path": side, "signature": "serving_default", "inputs": inputs}
    for call in calls.values():
        call["path"] = str(directory / call["path"])
    given = ask(tmp_path_factory.mktemp("plain"), list(calls.values()))
    return dict(zip(calls, given, strict=True))


def check_answer(answer, expected, users, k):
    """Compare with a table of `recommend`: the same scores, and the same ids but for ties."""
    assert len(answer["score"]) == len(users)
    for row, (_, own) in enumerate(expected.to_pandas().groupby("user_id", sort=False)):
        scores, ids = np.array(answer["score"][row]), answer["item_id"][row]
        there = np.isfinite(scores)
        assert there.sum() == len(own) <= k
        np.testing.assert_allclose(scores[there], own["score"], atol=1e-5)
        gaps = np.abs(np.diff(own["score"], prepend=np.inf, append=-np.inf))
        apart = np.minimum(gaps[1:], gaps[:-1]) > 2e-5
        same = np.array([a == b for a, b in zip(ids, own["item_id"], strict=False)])
        assert same[apart].all()


@pytest.mark.parametrize("name", ["mixed", "new", "known", "without best", "uptake"])
def test_plain_tensorflow_answers_as_the_model_does(name, asked, answers, model, uptake):
    path, signature, users, k, exclude = asked[name]
    fitted = uptake if path == "uptake" else model
    features = None if path == "uptake" or signature == "known_users" else users
    given = users["user_id"] if features is None else users
    expected = fitted.recommend(given, k=k + (exclude is not None), exclude=None, output="arrow")
    if exclude is not None:  # the best one of each user
        expected = expected.filter(pc.greater(expected["rank"], 1))
    check_answer(answers[name], expected, users, k)


def test_places_without_a_candidate_are_marked(answers, model):
    first = answers["all but two"]["item_id"][0], answers["all but two"]["score"][0]
    assert sorted(first[0][:2]) == sorted(model.items_.ids.to_pylist()[:2])
    assert first[0][2:] == [""] * 3
    assert first[1][2:] == [-np.inf] * 3
    assert answers["nobody"]["score"] == []


def test_an_unknown_user_without_features(answers, data, uptake):
    assert "does not know" in answers["unknown"]["error"]
    average = uptake.recommend(data["new"]["user_id"], k=7, unknown="prior", output="arrow")
    found = np.ravel(answers["uptake unknown"]["score"])
    np.testing.assert_allclose(found, average["score"], atol=1e-5)


def test_towers_give_vectors_of_new_entities(data, model, answers):
    users, items = (np.array(answers[side]["vector"]) for side in ("user", "item"))
    embedded = np.array(model.embed_users(data["new"], output="arrow")["vector"].to_pylist())
    np.testing.assert_allclose(users[:, :-1], embedded, atol=1e-5)
    assert (users[:, -1] == 1).all()
    ids = pa.array([f"new {i}" for i in range(len(data["items"]))])
    fresh = data["items"].set_column(0, "item_id", ids)
    listed = model.recommend(data["new"].slice(0, 1), k=len(ids), items=fresh, output="arrow")
    place = {item: i for i, item in enumerate(ids.to_pylist())}
    scores = np.empty(len(ids))
    for item, score in zip(listed["item_id"].to_pylist(), listed["score"].to_pylist(), strict=True):
        scores[place[item]] = score
    np.testing.assert_allclose(items @ users[0], scores, atol=1e-4)


def test_the_graph_encodes_as_the_encoder_does(data):
    from simrec.model.export.savedmodel import EncoderGraph
    from simrec.simec.keras import tf

    for knots in (0, 5):
        encoder = FeatureEncoder(COLUMNS, id_column="user_id", knots=knots).fit(data["users"])
        graph = EncoderGraph(encoder, "users", ("code",))
        assert {"height_in_cm": "height in cm", "code_": "code"}.items() <= graph.columns.items()
        names = {column: name for name, column in graph.columns.items()}
        for table in (data["users"], data["new"]):
            values = {
                name: tf.reshape(tf.constant(given, graph.inputs[name].dtype), shape)
                for column, (given, shape) in inputs_of(table, encoder).items()
                for name in [names[column.replace("height_in_cm", "height in cm")]]
            }
            wanted = encoder.transform(table).toarray()
            found = graph(values)
            assert tuple(found.dense_shape.numpy()) == wanted.shape
            dense = np.zeros_like(wanted)
            np.add.at(dense, tuple(found.indices.numpy().T), found.values.numpy())
            np.testing.assert_allclose(dense, wanted, atol=1e-6)


def test_columns_that_no_graph_can_take_are_refused_by_name():
    from simrec.model.export.savedmodel import EncoderGraph

    def refused(message, kind, values, type_=None):
        table = pa.table({"column": pa.array(values, type_)})
        encoder = FeatureEncoder({"column": kind}, min_count=1).fit(table)
        with pytest.raises(InputError, match=f"users: column 'column' .*{message}"):
            EncoderGraph(encoder, "users")

    refused("empty string", "list", [["", "a"], ["b"]])
    refused("empty string", "category", ["", None, "b"])
    refused("2\\*\\*53", "category", [2**60, 2**60 + 1])
    refused("durations", "category", [1, 2], pa.duration("s"))


@pytest.mark.slow
def test_columns_of_any_name_are_exported(data, tmp_path):
    """Python's keywords, names that differ in case only, names of our own inputs."""
    from simrec.simec.keras import tf

    names = ["class", "from", "A", "a", "self", "name", "k", "user_id_", "1st", "x y", "x_y"]
    rng = np.random.default_rng(0)
    users = {name: rng.normal(size=len(data["users"])) for name in names}
    users = pa.table({"user_id": data["users"]["user_id"], **users})
    model = TwoTower(embedding_dim=2, epochs=2, folds=2).fit(data["ratings"], users=users)
    model.export(tmp_path / "user", "tower", side="user")
    model.export(tmp_path / "all", "savedmodel")
    loaded = tf.saved_model.load(str(tmp_path / "user")).signatures["serving_default"]
    specs = loaded.structured_input_signature[1]
    assert len({name.lower() for name in specs}) == len(names)
    inputs = ["class_", "from_", "A", "a_", "self_", "name", "k", "user_id_", "c1st", "x_y", "x_y_"]
    assert set(specs) == set(inputs)
    given = {name: users[column].to_numpy() for name, column in zip(inputs, names, strict=True)}
    found = loaded(**{name: tf.constant(values) for name, values in given.items()})["vector"]
    X = model.towers_.users.encoder.transform(users)
    expected = model.ranking("both")[0].users.encode(X)
    np.testing.assert_allclose(found[:, : expected.shape[1]], expected, atol=1e-5)


def test_hidden_layers_are_exported(data, model, tmp_path):
    from simrec import SimEc
    from simrec.model.export.savedmodel import FoldedTower, save
    from simrec.model.head import Network
    from simrec.simec.encoders import DenseStack
    from simrec.simec.keras import tf

    tower, head = model.towers_.items, model.parts_["rating"].heads.items
    simec, n_features = SimEc(embedding_dim=2), tower.encoder.n_features_
    simec.encoder_ = DenseStack("sparse", n_features, (3, 2)).build(np.random.default_rng(0))
    simec.feature_kind_, simec.feature_shape_ = "sparse", (n_features,)
    place = np.ones((2, head.width), np.float32)
    encoder = dataclasses.replace(head.encoder, networks=[Network(simec, place)])
    deep = dataclasses.replace(head, encoder=encoder)
    save(FoldedTower(tower, deep, 3.5), tmp_path / "tower")
    loaded = tf.saved_model.load(str(tmp_path / "tower")).signatures["serving_default"]
    specs = loaded.structured_input_signature[1]
    inputs = {
        name: tf.reshape(tf.constant(np.array(values), specs[name].dtype), shape)
        for name, (values, shape) in inputs_of(data["items"], tower.encoder).items()
    }
    X = tower.encoder.transform(data["items"])
    expected = deep.encode(X)
    assert not np.allclose(expected, head.encode(X))
    np.testing.assert_allclose(loaded(**inputs)["vector"][:, :-1], expected, atol=1e-5)


@pytest.mark.parametrize("rank_by", ["both", "rating", "uptake"])
def test_inner_products_of_parquet_vectors_are_scores(model, tmp_path, rank_by):
    model.export(tmp_path / "out", "parquet", rank_by=rank_by)
    tables = {side: pq.read_table(tmp_path / f"out/{side}s.parquet") for side in ("user", "item")}
    found = {}
    for side, table in tables.items():
        assert pa.types.is_fixed_size_list(table["vector"].type)
        assert table["vector"].type.value_type == pa.float32()
        flat = table["vector"].combine_chunks().flatten().to_numpy()
        found[side] = flat.reshape(len(table), -1)
    ids = tables["item"]["item_id"].to_pylist()
    assert ids == model.items_.ids.to_pylist()
    z = dict(zip(ids, found["user"][3] @ found["item"].T, strict=True))
    user = tables["user"]["user_id"][3].as_py()
    listed = model.recommend([user], k=len(ids), exclude=None, rank_by=rank_by, output="arrow")
    expected = [z[item] for item in listed["item_id"].to_pylist()]
    np.testing.assert_allclose(listed["score"], expected, atol=1e-4)


def test_new_items_and_users_are_exported_by_their_features(data, model, tmp_path, monkeypatch):
    from simrec.model.export import formats

    monkeypatch.setattr(formats, "BLOCK", 16)  # several blocks
    fresh = data["items"].slice(0, 40).set_column(
        0, "item_id", pa.array([f"new {i}" for i in range(40)])
    )  # fmt: skip
    done = model.export(tmp_path / "out", "parquet", items=fresh, users=data["new"])
    assert (done["items"], done["users"]) == (40, 40)
    read = pq.read_table(tmp_path / "out" / "items.parquet")
    assert read["item_id"].to_pylist() == fresh["item_id"].to_pylist()
    embedded = model.embed_items(fresh, output="arrow")["vector"].to_pylist()
    np.testing.assert_array_equal(np.array(read["vector"].to_pylist())[:, :-1], embedded)
    twice = pa.concat_tables([fresh, fresh.slice(0, 1)])
    with pytest.raises(InputError, match="new 0"):
        model.export(tmp_path / "out", "parquet", items=twice)


@pytest.mark.parametrize("kind", ["flat", "ivf"])
def test_a_faiss_index_finds_the_best_items(model, tmp_path, monkeypatch, kind):
    faiss = pytest.importorskip("faiss", reason="Faiss is not installed: simrec[faiss]")
    monkeypatch.setattr("simrec.model.export.formats.FEW", 20_000 if kind == "flat" else 0)
    done = model.export(tmp_path / "out", "faiss")
    assert done["index"] == kind
    assert done["recall_at_10"] >= 0.95
    index = faiss.read_index(str(tmp_path / "out" / "items.faiss"))
    ids = pq.read_table(tmp_path / "out" / "items.parquet")["item_id"]
    assert ids.to_pylist() == model.items_.ids.to_pylist()
    users = np.array(model.embed_users(output="arrow")["vector"].to_pylist(), np.float32)
    one = np.ones((len(users), 1), np.float32)
    scores, rows = index.search(np.hstack([users, one]), 10)
    every = model.recommend(k=len(ids), exclude=None, output="arrow").to_pandas()
    names = np.array(ids.to_pylist())[rows]
    found, expected = [], []
    for best, (_, own) in zip(names, every.groupby("user_id", sort=False), strict=True):
        exact = own.set_index("item_id")["score"]
        # Items with the same score are as good.
        found.append((exact[best] >= exact.iloc[9] - 1e-5).mean())
        expected.append(exact[:10])
    assert np.mean(found) >= 0.9
    if kind == "flat":
        np.testing.assert_allclose(scores, expected, atol=1e-4)


def test_without_faiss_the_error_says_what_to_install(model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(InputError, match=r"pip install 'simrec\[faiss\]'"):
        model.export(tmp_path / "out", "faiss")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_exported_is_refused(model, uptake, tmp_path):
    for message, arguments in [
        ("format must be one of", {"format": "onnx"}),
        ("say which tower", {"format": "tower"}),
        ("no use for it", {"format": "faiss", "side": "item"}),
        ("side must be", {"format": "tower", "side": "items"}),
    ]:
        with pytest.raises(InputError, match=message):
            model.export(tmp_path / "out", **arguments)
    with pytest.raises(InputError, match="without features of users"):
        uptake.export(tmp_path / "out", "tower", side="user")
    with pytest.raises(InputError, match="not fitted"):
        TwoTower().export(tmp_path / "out", "parquet")


def test_the_command_exports_and_spares_what_is_not_its_own(model_directory, tmp_path, capsys):
    out = tmp_path / "vectors"
    words = ["export", "--model", str(model_directory), "--out", str(out), "--format", "parquet"]
    assert main([*words, "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    model_id = json.loads((model_directory / "manifest.json").read_text())["model_id"]
    assert done["model_id"] == model_id
    schema = pq.read_schema(out / "items.parquet")
    assert schema.metadata[b"simrec.model_id"].decode() == model_id
    assert main([*words, "--side", "item"]) == 0, "an export of ours is replaced"
    assert not (out / "users.parquet").exists()
    assert "items" in capsys.readouterr().out
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "note.txt").write_text("keep me")
    words[4] = str(tmp_path / "mine")
    assert main(words) == 2
    assert "Give a new path" in capsys.readouterr().err
    assert (tmp_path / "mine" / "note.txt").read_text() == "keep me"


@pytest.mark.slow
def test_the_page_runs(repository, tmp_path, monkeypatch, capsys):
    pytest.importorskip("faiss", reason="Faiss is not installed: simrec[faiss]")
    text = (repository / "docs" / "export.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    namespace = {}
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    for block in blocks[:1]:
        exec(compile(block, "docs/export.md", "exec"), namespace)
    # The commands of the page, and then the code that reads what they wrote.
    commands = re.findall(r"^    simrec (export .*)$", text, re.M)
    assert {command.split()[4] for command in commands} == {
        "savedmodel",
        "tower",
        "parquet",
        "faiss",
    }
    for command in commands:
        assert main([*command.split(), "--quiet"]) == 0
    for block in blocks[1:]:
        exec(compile(block, "docs/export.md", "exec"), namespace)
    assert "recall at 10" in capsys.readouterr().out
