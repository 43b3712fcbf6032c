"""The output g: its inverse, its slopes, and what it makes of uncertainty."""

import numpy as np
import pytest

from simrec.scoring.output import IDENTITY, Output

SIGMOID = Output(1.0, 5.0, shift=0.4)


def test_link_is_the_inverse_short_of_the_ends():
    z = np.linspace(-4, 4, 9)
    np.testing.assert_allclose(SIGMOID.link(SIGMOID(z)) - 0.4, z, atol=1e-6)
    ends = SIGMOID.link(np.array([-3.0, 1.0, 5.0, 9.0], np.float32))
    assert ends.dtype == np.float32 and np.isfinite(ends).all()
    assert ends[0] == ends[1] < -5 and ends[2] == ends[3] > 5
    ratings = np.array([0.5, 7.0])
    assert Output(1, 5, kind="clip").link(ratings) is ratings is IDENTITY.link(ratings)


def test_slopes_are_the_derivative():
    z = np.linspace(-3, 3, 7)
    numeric = (SIGMOID(z + 1e-5) - SIGMOID(z - 1e-5)) / 2e-5
    np.testing.assert_allclose(SIGMOID.slopes(z), numeric, atol=1e-6)
    assert SIGMOID.slopes(np.zeros(1))[0] == pytest.approx(numeric[3])
    assert (Output(1, 5, kind="clip").slopes(z) == 1).all()


def test_variance_is_that_of_samples():
    rng, z, of_z = np.random.default_rng(0), np.array([-2.0, 0.0, 1.5]), np.array([0.2, 4.0, 1.0])
    drawn = SIGMOID(z + np.sqrt(of_z) * rng.normal(size=(200_000, 3)))
    found = SIGMOID.variance(z, of_z)
    np.testing.assert_allclose(found, np.mean((drawn - SIGMOID(z)) ** 2, 0), rtol=0.02)
    assert SIGMOID.variance(z, np.zeros(3)).max() == 0
    assert Output(1, 5, kind="clip").variance(z, of_z) is of_z
