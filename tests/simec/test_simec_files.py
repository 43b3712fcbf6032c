import copy

import numpy as np
import pytest
import scipy.sparse as sp

from simrec import SimEc
from simrec.errors import InputError
from simrec.simec.keras import keras
from simrec.storage import artifacts

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 6)).astype(np.float32)
R = RNG.uniform(1, 5, size=(20, 9)).astype(np.float32)

CASES = {
    "linear": (SimEc(3, bounds=(1, 5), epochs=2), X, R),
    "deep": (SimEc(3, (4,), epochs=2), X, R),
    "identity": (SimEc(3, epochs=0, init="least_squares"), None, R),
    "sparse": (SimEc(3, epochs=0, init="least_squares"), sp.csr_matrix(X), sp.csr_matrix(R)),
    "relations": (SimEc(3, epochs=2), X, np.stack([R, R], 2)),
}


@pytest.fixture(scope="module")
def bounded(tmp_path_factory):
    """A SimEc with bounds, and where it is saved."""
    model, features, targets = CASES["linear"]
    path = tmp_path_factory.mktemp("bounded") / "model"
    model.fit(features, targets).save(path)
    return model, path


@pytest.mark.parametrize("case", CASES)
def test_loaded_model_gives_identical_answers(case, tmp_path):
    model, features, targets = CASES[case]
    model.fit(features, targets).save(tmp_path / "model")
    loaded = SimEc.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(features), model.predict(features))
    np.testing.assert_array_equal(loaded.last_layer_, model.last_layer_)
    assert loaded.get_params() == model.get_params()
    assert loaded.history_ == model.history_
    assert loaded.output_ == model.output_ and loaded.n_relations_ == model.n_relations_


def test_own_encoder_is_saved_as_it_was_trained(tmp_path):
    encoder = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    model = SimEc(3, encoder=encoder, epochs=2).fit(X, R)
    model.save(tmp_path / "model")
    loaded = SimEc.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    loaded.save(tmp_path / "again")
    np.testing.assert_array_equal(SimEc.load(tmp_path / "again").predict(X), model.predict(X))


def test_an_unfitted_model_is_not_saved(tmp_path):
    with pytest.raises(InputError, match="not fitted"):
        SimEc().save(tmp_path / "model")


def test_a_digit_changed_in_any_file_is_refused(bounded, tmp_path):
    """The output's shift, bounds, kinds and shapes change answers: they are under a checksum."""
    model, path = bounded
    shift, tried = repr(model.output_.shift), 0
    for file in path.glob("*.json"):
        text = file.read_text()
        for old, new in {
            shift: repr(model.output_.shift + 1),
            '"feature_kind": "dense"': '"feature_kind": "sparse"',
            '"embedding_dim": 3': '"embedding_dim": 2',
        }.items():
            if old not in text:
                continue
            tried += 1
            changed = tmp_path / f"{file.stem}-{tried}"
            changed.mkdir()
            for other in path.iterdir():
                (changed / other.name).write_bytes(other.read_bytes())
            (changed / file.name).write_text(text.replace(old, new))
            with pytest.raises(InputError):
                SimEc.load(changed)
    assert tried >= 3


def at(data, *keys):
    for key in keys:
        data = data[key]
    return data


LEARNED, ENCODER = ("documents", "learned"), ("documents", "networks", "encoder")
BROKEN = {
    "no documents": lambda a: a["documents"].clear(),
    "no networks": lambda a: at(a, "documents", "networks").clear(),
    "networks a list": lambda a: a["documents"].update(networks=[]),
    "no shift": lambda a: at(a, *LEARNED).pop("shift"),
    "shift a string": lambda a: at(a, *LEARNED).update(shift="0.5"),
    "shift a list": lambda a: at(a, *LEARNED).update(shift=[]),
    "unknown kind": lambda a: at(a, *LEARNED).update(feature_kind="other"),
    "other kind": lambda a: at(a, *LEARNED).update(feature_kind="sparse"),
    "shape a number": lambda a: at(a, *LEARNED).update(feature_shape=6),
    "other shape": lambda a: at(a, *LEARNED).update(feature_shape=[7]),
    "history a dict": lambda a: at(a, *LEARNED).update(history={}),
    "other widths": lambda a: at(a, *ENCODER).update(widths=[4]),
    "no last layer": lambda a: a["arrays"].pop("last_layer"),
    "last layer transposed": lambda a: a["arrays"].update(last_layer=a["arrays"]["last_layer"].T),
    "targets of other length": lambda a: a["arrays"].update(targets=np.arange(4)),
    "targets no integers": lambda a: a["arrays"].update(targets=np.zeros(9)),
    "no weights": lambda a: a["keras_weights"].clear(),
    "fewer weights": lambda a: a["keras_weights"].update(encoder=[np.zeros((6, 3))]),
    "unknown option": lambda a: a["config"].update(surprise=1),
    "option of another type": lambda a: a["config"].update(embedding_dim="3"),
    "bounds of another type": lambda a: a["config"].update(bounds="15"),
}


@pytest.mark.parametrize("change", BROKEN)
def test_parts_that_do_not_fit_are_input_errors(change, bounded, tmp_path):
    found = artifacts.load(bounded[1])
    parts = {
        "config": dict(found.manifest["config"]),
        "arrays": dict(found.arrays),
        "documents": copy.deepcopy(found.documents),
        "keras_weights": dict(found.keras_weights),
    }
    BROKEN[change](parts)
    artifacts.save(tmp_path / "model", "simec", **parts)
    with pytest.raises(InputError):
        SimEc.load(tmp_path / "model")
