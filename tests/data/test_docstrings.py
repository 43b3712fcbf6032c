"""The examples in the docstrings of simrec.data run as printed."""

import doctest
import importlib
import pkgutil

import pytest

from simrec import data, errors

MODULES = [errors, *pkgutil.walk_packages(data.__path__, "simrec.data.")]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: getattr(module, "name", "errors"))
def test_examples_run(module):
    found = importlib.import_module(getattr(module, "name", "simrec.errors"))
    assert doctest.testmod(found).failed == 0
