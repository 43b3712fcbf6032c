import json

import numpy as np
import pytest
import scipy.sparse as sp

from simrec import SimEc
from simrec.errors import InputError
from simrec.simec.keras import keras

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 6)).astype(np.float32)
R = RNG.uniform(1, 5, size=(20, 9)).astype(np.float32)

CASES = {
    "linear": (SimEc(3, bounds=(1, 5), epochs=2), X, R),
    "deep": (SimEc(3, (4,), decoder_weight=1.0, epochs=2), X, R),
    "identity": (SimEc(3, epochs=2), None, R),
    "sparse": (SimEc(3, epochs=2), sp.csr_matrix(X), sp.csr_matrix(R)),
    "relations": (SimEc(3, epochs=2, relation_weights=(1, 2)), X, np.stack([R, R], 2)),
}


@pytest.mark.parametrize("case", CASES)
def test_loaded_model_gives_identical_answers(case, tmp_path):
    model, features, targets = CASES[case]
    model.fit(features, targets).save(tmp_path / "model")
    loaded = SimEc.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(features), model.predict(features))
    np.testing.assert_array_equal(loaded.last_layer_, model.last_layer_)
    assert loaded.get_params() == model.get_params()
    if case == "deep":
        Y = model.transform(features)
        np.testing.assert_array_equal(loaded.inverse_transform(Y), model.inverse_transform(Y))


def test_own_encoder_is_saved_without_code(tmp_path):
    encoder = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    model = SimEc(3, encoder=encoder, epochs=2).fit(X, R)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(SimEc.load(tmp_path / "model").predict(X), model.predict(X))
    code = keras.Sequential([*encoder.layers, keras.layers.Lambda(lambda y: y * 2)])
    with pytest.raises(InputError, match="Lambda"):
        SimEc(3, encoder=code, epochs=1).fit(X, R).save(tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_lambda_smuggled_into_the_layers_is_not_run(tmp_path):
    SimEc(3, epochs=1).fit(X, R).save(tmp_path / "model")
    layers = json.loads((tmp_path / "model" / "layers.json").read_text())
    layers["encoder"]["config"]["layers"][1]["class_name"] = "Lambda"
    (tmp_path / "model" / "layers.json").write_text(json.dumps(layers))
    with pytest.raises(InputError):
        SimEc.load(tmp_path / "model")


def test_an_unfitted_model_is_not_saved(tmp_path):
    with pytest.raises(InputError, match="not fitted"):
        SimEc().save(tmp_path / "model")
