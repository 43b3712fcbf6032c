import numpy as np
import pytest

from simrec import SimEc
from simrec.errors import InputError
from simrec.scoring.output import Output
from simrec.simec.keras import tf
from simrec.simec.network import ObservedLoss, predictions


def test_output_in_tensorflow_equals_the_one_in_numpy():
    z = np.linspace(-30, 30, 101, dtype=np.float32)
    for output in (Output(), Output(shift=2.0), Output.fit((1, 5), 3.6), Output(1, 5, 3, "clip")):
        np.testing.assert_allclose(predictions(output, tf.constant(z)), output(z), atol=1e-6)


def test_loss_is_the_mean_over_weighted_entries():
    rng = np.random.default_rng(0)
    target, z = rng.uniform(size=(2, 4, 6)).astype(np.float32)
    weight = (rng.random((4, 6)) < 0.5).astype(np.float32)
    seen = weight > 0
    cases = {
        "mse": ((target - z) ** 2, Output()),
        "mae": (np.abs(target - z), Output()),
        "bce": (np.log1p(np.exp(z)) - z * target, Output(0.0, 1.0, 0.0)),
    }
    for name, (pointwise, output) in cases.items():
        loss = ObservedLoss(name, output)
        assert float(loss(target, z)) == pytest.approx(pointwise.mean(), rel=1e-5)
        assert float(loss(target, z, weight)) == pytest.approx(pointwise[seen].mean(), rel=1e-5)
        assert float(loss(target, z, np.zeros_like(weight))) == 0.0


@pytest.mark.parametrize("name", ["mse", "mae", "bce"])
def test_unobserved_entries_have_exactly_zero_gradient(name):
    rng = np.random.default_rng(1)
    target = tf.constant(rng.uniform(size=(5, 7)), tf.float32)
    z = tf.constant(rng.normal(size=(5, 7)), tf.float32)
    weight = (rng.random((5, 7)) < 0.3).astype(np.float32)
    with tf.GradientTape() as tape:
        tape.watch(z)
        loss = ObservedLoss(name, Output(0.0, 1.0, 0.3))(target, z, tf.constant(weight))
    gradient = tape.gradient(loss, z).numpy()
    assert (gradient[weight == 0] == 0).all()
    assert (gradient[weight > 0] != 0).all()


def test_a_wrong_loss_is_named():
    with pytest.raises(InputError, match="mse, mae, bce"):
        SimEc(loss="hinge").fit(None, np.eye(4))
    with pytest.raises(InputError, match=r"bounds=\(0, 1\)"):
        SimEc(loss="bce").fit(None, np.eye(4))
