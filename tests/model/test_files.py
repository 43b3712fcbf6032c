"""Model directories whose checksums are right and whose content is not."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pytest

from simrec import InputError, TwoTower
from simrec.storage.arrays import id_arrays, write_npy
from simrec.storage.artifacts import write_manifest


@pytest.fixture
def model(model_directory, tmp_path):
    shutil.copytree(model_directory, tmp_path / "model")
    return tmp_path / "model"


def sign(model, config=None, facts=None):
    """Write the manifest anew, as anybody can."""
    found = json.loads((model / "manifest.json").read_text())
    given = {**found["config"], **(config or {})}, found["facts"] if facts is None else facts
    write_manifest(model, found["kind"], *given)


def put(model, name, array):
    write_npy(model / f"{name}.npy", array)


def cut(model, name, rows):
    put(model, name, np.load(model / f"{name}.npy")[:rows])


def ids(model, values):
    for name, array in id_arrays("items_ids", pa.array(values)).items():
        put(model, name, array)


def document(model, name, content):
    (model / f"{name}.json").write_text(json.dumps(content))


def fill(model, name, value):
    array = np.load(model / f"{name}.npy")
    array[-1] = value
    put(model, name, array)


def change(model, name, **values):
    """Change some values of a document."""
    document(model, name, {**json.loads((model / f"{name}.json").read_text()), **values})


def lists_factors(model):
    """Name an array of factors of lists."""
    return min(path.stem for path in model.glob("lists_*_items.npy"))


def output(model, content):
    document(model, "parts", {"rating": content})


BAD = {
    "fewer vectors": lambda m: cut(m, "rating_items_vectors", 3),
    "another width": lambda m: put(m, "rating_users_vectors", np.zeros((60, 3), np.float32)),
    "both of another width": lambda m: [
        put(m, f"rating_users_{name}", np.zeros(shape, np.float32))
        for name, shape in [("vectors", (60, 3)), ("weights", (17, 3)), ("prior", (3,))]
    ],
    "vectors of integers": lambda m: put(m, "rating_items_vectors", np.zeros((50, 18), np.int32)),
    "infinite vectors": lambda m: fill(m, "rating_items_vectors", np.inf),
    "NaN weights": lambda m: fill(m, "rating_items_weights", np.nan),
    "fewer weights": lambda m: cut(m, "rating_items_weights", 3),
    "an index beyond the features": lambda m: fill(m, "items_features_indices", 10**6),
    "a negative index": lambda m: fill(m, "items_features_indices", -1),
    "a start beyond the data": lambda m: fill(m, "items_features_indptr", 10**8),
    "fewer starts": lambda m: cut(m, "items_features_indptr", 3),
    "no ids": lambda m: (m / "items_ids_text.npy").unlink(),
    "counts that are no integers": lambda m: put(m, "items_n_ratings", np.full(50, np.nan)),
    "fewer counts": lambda m: cut(m, "items_n_ratings", 3),
    "ids twice": lambda m: ids(m, ["a"] * 50),
    "ids in another order": lambda m: ids(m, [f"{k:02d}" for k in range(50)][::-1]),
    "fewer ids": lambda m: ids(m, ["a"]),
    "an id beyond the text": lambda m: fill(m, "items_ids_offsets", 10**6),
    "a missing array": lambda m: (m / "rating_items_prior.npy").unlink(),
    "a missing document": lambda m: (m / "parts.json").unlink(),
    "an output of another kind": lambda m: output(m, {"kind": "exec"}),
    "bounds the wrong way": lambda m: output(m, {"lower": 5, "upper": 1}),
    "half a bound": lambda m: output(m, {"lower": 5}),
    "bounds of text": lambda m: output(m, {"lower": "1", "upper": "5"}),
    "an infinite shift": lambda m: (m / "parts.json").write_text('{"rating": {"shift": 1e999}}'),
    "an output that is a list": lambda m: output(m, [1]),
    "an encoder of nothing": lambda m: document(m, "items_encoder", {}),
    "fewer posteriors": lambda m: cut(m, "rating_evidence_items_warm_factors", 3),
    "posteriors of another width": lambda m: put(
        m, "rating_evidence_users_warm_mean", np.zeros((60, 2), np.float32)
    ),
    "a scale of ratings that is no number": lambda m: document(
        m, "rating", {"embedding_dim": 4, "scale": {}}
    ),
    "ratings without spread": lambda m: put(m, "rating_evidence_units", np.array([3.0, 0.0])),
    "no parts": lambda m: document(m, "parts", {}),
    "a part of another kind": lambda m: document(m, "parts", {"exec": {}}),
    "no component with a weight": lambda m: [path.unlink() for path in m.glob("lists_*.npy")],
    "NaN weights of lists": lambda m: fill(m, lists_factors(m), np.nan),
    "fewer kinds of items": lambda m: cut(m, lists_factors(m), 1),
    "a slope that is no number": lambda m: change(m, "uptake", slope="1"),
    "a slope that is no fraction": lambda m: change(m, "uptake", slope=True),
    "an unknown number of uptake": lambda m: change(m, "uptake", exec=1),
    "a mean weight of 0": lambda m: change(m, "uptake", mean_weight=0),
    "a mean weight of text": lambda m: change(m, "uptake", mean_weight="1"),
    "no mean weight": lambda m: document(m, "uptake", {}),
    "items without pairs": lambda m: change(m, "uptake", typical_pairs=0),
    "less than no ratings": lambda m: put(m, "items_n_ratings", np.full(50, -1)),
    "likes from text on": lambda m: change(m, "popularity", liked="4"),
    "a fading of text": lambda m: change(
        m, "popularity", fading={"rate": "1", "until": 0, "scale": 1}
    ),
    "fewer likes": lambda m: cut(m, "popularity_likes", 3),
    "infinite likes": lambda m: fill(m, "popularity_likes", np.inf),
    "fewer inputs of histories": lambda m: cut(m, "uptake_inputs", 3),
    "NaN inputs of histories": lambda m: fill(m, "uptake_inputs", np.nan),
    "items that are fitted by half": lambda m: put(m, "uptake_fitted", np.full(50, 0.5)),
    "fewer kinds of users": lambda m: cut(m, "uptake_maps", 2),
    "maps to another width": lambda m: put(
        m, "uptake_maps", np.load(m / "uptake_maps.npy")[:, :, 1:]
    ),
    "infinite maps": lambda m: fill(m, "uptake_maps", np.inf),
    "fewer features of users": lambda m: cut(m, "uptake_projection", 1),
    "no spread": lambda m: fill(m, "uptake_spread", 0),
    "a spread of fewer coordinates": lambda m: cut(m, "uptake_spread", 1),
    "a rated item beyond the items": lambda m: fill(m, "rated_indices", 10**6),
    "fewer users who rated": lambda m: cut(m, "rated_indptr", 3),
    "fewer vectors of uptake": lambda m: cut(m, "uptake_items_vectors", 3),
    "no precision": lambda m: (m / "rating_evidence_users_warm_precisions_L.npy").unlink(),
}


@pytest.mark.parametrize("damage", BAD.values(), ids=BAD)
def test_parts_that_do_not_fit_together_are_refused(model, damage):
    damage(model)
    sign(model)
    with pytest.raises(InputError, match=str(model)):
        TwoTower.load(model)


@pytest.mark.parametrize("config", [{"no_such_option": 1}, {"self": 3}])
def test_other_options_are_refused(model, config):
    sign(model, config=config)
    with pytest.raises(InputError, match=str(model)):
        TwoTower.load(model).predict(pa.table({"user_id": [100], "item_id": ["i00"]}))


@pytest.mark.parametrize(
    "config", [{"bounds": "x"}, {"bounds": [5, 1]}, {"random_state": -1}, {"min_count": True}]
)
def test_options_that_no_fit_takes_are_refused(model, config):
    sign(model, config=config)
    with pytest.raises(InputError, match=str(model)):
        TwoTower.load(model)


@pytest.mark.parametrize("name", ["schema", "chosen", "history", "parent", "updates"])
def test_facts_of_another_kind_are_refused(model, name):
    found = json.loads((model / "manifest.json").read_text())["facts"]
    sign(model, facts={**found, name: True})
    with pytest.raises(InputError, match=f"{name} is True"):
        TwoTower.load(model)


def test_missing_facts_are_refused(model):
    sign(model, facts={})
    with pytest.raises(InputError, match="do not fit together.*schema"):
        TwoTower.load(model)


def test_a_model_saved_twice_has_the_same_bytes(model, tmp_path):
    loaded = TwoTower.load(model)
    for name in ("a", "b"):
        loaded.save(tmp_path / name)
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


@pytest.mark.parametrize("name", ["rating_evidence_users_warm_mean", "uptake_items_vectors"])
def test_ratings_that_a_damaged_model_cannot_learn_change_nothing(model, name):
    put(model, name, np.full_like(np.load(model / f"{name}.npy"), 3e38))
    sign(model)
    loaded = TwoTower.load(model)
    pairs = pa.table({"user_id": [100, 101], "item_id": ["i01", "i02"]})
    before = loaded.predict(pairs)
    day = pairs.append_column("rating", pa.array([1.0, 5.0]))
    with np.errstate(all="ignore"), pytest.raises(InputError, match="no finite numbers"):
        loaded.update(day)
    assert np.array_equal(loaded.predict(pairs), before)


def test_a_method_that_fails_is_no_damage(model, monkeypatch):
    loaded = TwoTower.load(model)
    before = loaded.predict(pa.table({"user_id": [100], "item_id": ["i01"]}))

    def fails(*_):
        raise np.linalg.LinAlgError("did not converge")

    monkeypatch.setattr(type(loaded.parts_["rating"]), "with_ratings", fails)
    day = pa.table({"user_id": [100], "item_id": ["i01"], "rating": [1.0]})
    with pytest.raises(np.linalg.LinAlgError, match="did not converge"):
        loaded.update(day)
    assert np.array_equal(loaded.predict(day), before)
