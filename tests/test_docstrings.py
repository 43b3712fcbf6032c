"""Examples in docstrings run as printed, and everything public has one."""

import copy
import doctest
import importlib
import inspect
import pkgutil

import pytest

import simrec

# The examples of methods go on from that of their class.
CLASSES = ["FeatureEncoder", "Ratings", "SimEc", "TwoTower"]
PUBLIC = [name for name in simrec.__all__ if name != "__version__"]
# Their methods run as those of the class.
BASES = ["Answers", "ListAnswers", "FittedModel"]


def run(name, docstring, names):
    """Run an example; return the names it has made."""
    test = doctest.DocTestParser().get_doctest(docstring, names, name, None, 0)
    assert test.examples, f"{name} has no example"
    said = []
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(test, out=said.append, clear_globs=False)
    assert not said, "".join(said)
    return test.globs


def methods(cls):
    for name, member in inspect.getmembers_static(cls):
        if isinstance(member, classmethod | staticmethod):
            member = member.__func__
        if isinstance(member, property):
            member = member.fget
        if not name.startswith("_") and inspect.isfunction(member):
            yield name, member


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """What the example of each class has made, by class."""
    import numpy as np
    import pandas as pd

    made = {}

    def start(name):
        if name not in made:
            cls = getattr(simrec, name)
            names = {"np": np, "pd": pd, "Ratings": simrec.Ratings, name: cls}
            made[name] = run(name, inspect.getdoc(cls), names)
        return made[name]

    return start


SLOW = pytest.mark.slow
FUNCTIONS = [name for name in PUBLIC if name not in CLASSES]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=SLOW) if n == "report" else n for n in FUNCTIONS]
)
def test_functions(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    function = getattr(simrec, name)
    run(name, inspect.getdoc(function), {"np": importlib.import_module("numpy"), name: function})


@pytest.mark.parametrize("name", CLASSES)
def test_methods(name, started, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for method, function in methods(getattr(simrec, name)):
        names = dict(started(name))
        if name == "TwoTower":
            names["model"] = copy.deepcopy(names["model"])  # some examples change it
        run(f"{name}.{method}", inspect.getdoc(function), names)


INNER = [
    info.name
    for package in ("data", "evaluation", "scoring", "simec", "model")
    for info in pkgutil.walk_packages([f"{simrec.__path__[0]}/{package}"], f"simrec.{package}.")
]


OUTSIDE = ["simrec.errors", "simrec.console"]


@pytest.mark.parametrize("module", [*OUTSIDE, *INNER])
def test_inner_functions(module, tmp_path, monkeypatch):
    """What is not public has examples where they help; those of classes ran above."""
    monkeypatch.chdir(tmp_path)
    found = importlib.import_module(module)
    finder = doctest.DocTestFinder(exclude_empty=True)
    for test in finder.find(found):
        first = test.name.removeprefix(f"{module}.").split(".")[0]
        if test.examples and first not in [*PUBLIC, *BASES]:
            run(test.name, test.docstring, dict(vars(found)))
