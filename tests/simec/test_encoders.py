import os
import subprocess
import sys

import numpy as np
import pytest

from simrec.errors import InputError
from simrec.simec.encoders import DenseStack, copy_encoder
from simrec.simec.keras import keras, tf


def test_identity_encoder_is_a_linear_one_on_one_hot_rows():
    encoder = DenseStack("identity", 5, (3,)).build(np.random.default_rng(0))
    table = encoder.get_weights()[0]
    np.testing.assert_array_equal(encoder(tf.range(5)), np.eye(5) @ table)


def test_sparse_and_dense_encoders_agree():
    x = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    x[x < 0.3] = 0
    x[2] = 0  # a row without any feature
    dense = DenseStack("dense", 4, (3, 2)).build(np.random.default_rng(1))
    sparse = DenseStack("sparse", 4, (3, 2)).build(np.random.default_rng(1))
    np.testing.assert_allclose(sparse(tf.sparse.from_dense(x)), dense(x), atol=1e-6)


def test_last_layer_has_no_nonlinearity():
    encoder = DenseStack("dense", 4, (3, 2), "relu").build(np.random.default_rng(1))
    values = encoder(np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)).numpy()
    assert values.min() < 0 < values.max()


def test_copy_leaves_the_given_model_alone_and_keeps_its_weights():
    given = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    copy = copy_encoder(given, (4,), 2)
    for a, b in zip(copy.get_weights(), given.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    copy.layers[0].kernel.assign_add(tf.ones((4, 2)))
    assert not np.array_equal(copy.get_weights()[0], given.get_weights()[0])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]), "takes inputs of shape"),
        (keras.Sequential([keras.Input((4,)), keras.layers.Dense(5)]), r"end it with Dense\(2\)"),
        ("a name", "must be a tf_keras model"),
    ],
)
def test_copy_checks_shapes(model, message):
    with pytest.raises(InputError, match=message):
        copy_encoder(model, (4,), 2)


@pytest.mark.slow
def test_keras_3_loaded_earlier_gives_the_cure():
    code = "import tensorflow as tf; tf.keras.Model; import simrec.simec.keras"
    # This process has the switch set already, and a child would inherit it.
    env = {k: v for k, v in os.environ.items() if k != "TF_USE_LEGACY_KERAS"}
    env["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert run.returncode != 0
    assert "set TF_USE_LEGACY_KERAS=1" in run.stderr
