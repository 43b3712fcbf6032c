"""Imports go one way, and heavy packages stay where they belong."""

import ast
import os
import re
import subprocess
import sys
from functools import cache

import pytest
from processes import imported_by

# Each part may import itself, those after it, and the helpers at the end.
LAYERS = ["cli", "jobs", "serve", "evaluation", "model", "simec", "scoring", "data"]
HELPERS = {
    "errors",
    "storage",
    "console",
    "__init__",
}
TENSORFLOW = {"tensorflow", "tf_keras", "keras", "tensorflow_recommenders"}


@cache
def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path):
    """Give (line, module) for each import of a file, those inside functions too."""
    return list(_imports(path))


def _imports(path):
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, node.module
            # `from simrec.jobs import ray` imports a module too.
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def part(module):
    pieces = module.split(".")
    return pieces[1] if len(pieces) > 1 else "__init__"


@pytest.fixture(scope="module")
def sources(repository):
    root = repository / "simrec"
    return {path.relative_to(root).as_posix(): path for path in root.rglob("*.py")}


def test_imports_go_one_way(sources):
    wrong = []
    for name, path in sources.items():
        here = name.split("/")[0].removesuffix(".py")
        for line, module in imports(path):
            if not module.startswith("simrec"):
                continue
            there = part(module)
            if here == "storage" and there not in ("storage", "errors", "__init__", "__version__"):
                wrong.append(f"simrec/{name}:{line} imports {module}")
            if here not in LAYERS or there not in LAYERS:
                if here in HELPERS and there in LAYERS:
                    wrong.append(f"simrec/{name}:{line} imports {module}")
                continue
            if LAYERS.index(there) < LAYERS.index(here):
                wrong.append(f"simrec/{name}:{line} imports {module}")
    assert wrong == []


def test_how_a_fit_runs_does_not_know_what_is_fitted(sources):
    wrong = [
        f"simrec/{name}:{line} imports {module}"
        for name, path in sources.items()
        for line, module in imports(path)
        if name.startswith("model/run/")
        and module.startswith("simrec.model.")
        and not module.startswith("simrec.model.run")
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("packages", "allowed"),
    [
        (TENSORFLOW, lambda name: name == "simec/keras.py"),
        ({"ray"}, lambda name: name == "jobs/engine/ray.py"),
        ({"xgboost"}, lambda name: name == "jobs/engine/collective.py"),
        (
            {"sentence_transformers", "transformers", "torch", "huggingface_hub"},
            lambda name: name == "data/features/content.py",
        ),
        ({"fastapi", "starlette", "pydantic", "uvicorn"}, lambda name: name.startswith("serve/")),
        ({"faiss"}, lambda name: name == "model/export/formats.py"),
        ({"matplotlib"}, lambda name: name.startswith("evaluation/report")),
        ({"pickle", "joblib", "dill", "cloudpickle", "marshal", "shelve"}, lambda name: False),
    ],
    ids=["tensorflow", "ray", "xgboost", "sentences", "service", "faiss", "matplotlib", "pickle"],
)
def test_packages_stay_where_they_belong(sources, packages, allowed):
    wrong = [
        f"simrec/{name}:{line} imports {module}"
        for name, path in sources.items()
        for line, module in imports(path)
        if module.split(".")[0] in packages and not allowed(name)
    ]
    assert wrong == []


def test_only_the_command_line_prints(sources):
    wrong = []
    for name, path in sources.items():
        for node in ast.walk(parsed(path)):
            is_print = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"
            if is_print and name != "cli.py":
                wrong.append(f"simrec/{name}:{node.lineno}")
    assert wrong == []


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import simrec", TENSORFLOW | {"pandas", "pyarrow", "scipy"}),
        ("import simrec.cli", TENSORFLOW | {"pandas", "pyarrow", "scipy", "numpy"}),
        (
            "import simrec.scoring.metrics, simrec.scoring.pairs, simrec.scoring.topk",
            TENSORFLOW | {"ray", "matplotlib"},
        ),
        (
            "import simrec.model.two_tower, simrec.jobs.score, simrec.jobs.recommend,"
            "simrec.jobs.train, simrec.jobs.evaluate, simrec.jobs.pipeline,"
            "simrec.jobs.serve, simrec.model.export.formats",
            TENSORFLOW | {"ray", "faiss", "matplotlib"},
        ),
    ],
    ids=["simrec", "cli", "metrics and scoring", "jobs"],
)
def test_importing_stays_light(code, absent):
    assert absent & imported_by(code) == set()


@pytest.fixture(scope="module")
def tests(repository):
    paths = (repository / "tests").rglob("*.py")
    return {path.relative_to(repository).as_posix(): ast.parse(path.read_text()) for path in paths}


def called(function):
    """Give the names of what a function calls, `assert` being one."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            yield "assert"
        elif isinstance(node, ast.Call):
            yield getattr(node.func, "attr", getattr(node.func, "id", ""))


def test_every_test_can_fail(tests):
    """By an assertion of its own, or of a function of its file."""
    idle = []
    for name, tree in tests.items():
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        calls = {function.name: set(called(function)) for function in functions}
        asserting, more = set(), {"assert", "raises", "fail"}
        more |= {c for found in calls.values() for c in found if c.startswith("assert_")}
        while more - asserting:
            asserting |= more
            more = {function for function, found in calls.items() if found & asserting}
        idle += [f"{name}: {f}" for f in calls if f.startswith("test_") and f not in asserting]
    assert idle == []


def test_tests_import_public_names_only(tests):
    private = [
        f"{name}:{node.lineno} {alias.name}"
        for name, tree in tests.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("simrec")
        for alias in node.names
        if any(re.match("_[^_]", word) for word in [*node.module.split("."), alias.name])
    ]
    assert private == []
    for name, tree in tests.items():
        imported = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("simrec")
            for alias in node.names
        }
        private += [
            f"{name}:{node.lineno} {ast.unparse(node)}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr)
            if isinstance(node.value, ast.Name) and node.value.id in imported
        ]
    assert private == []


def test_help_is_quick():
    def busy(*words):
        """Processor seconds of a command, which do not depend on what else runs."""
        times = []
        for _ in range(3):
            process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = status
            assert status == 0
            times.append(usage.ru_utime + usage.ru_stime)
        return min(times)

    assert busy("-m", "simrec.cli", "--help") <= busy("-c", "pass") + 0.4


# What a person asks for: the options of two commands, and the filters of lists.
MANY_ARGUMENTS = {
    "jobs/train.py: train",
    "jobs/recommend.py: recommend",
    "model/answer/lists.py: recommend",
    "model/answer/lists.py: audience",
}


def test_functions_have_few_arguments(sources):
    """At most eight, but for those of `MANY_ARGUMENTS`."""
    many = set()
    for name, path in sources.items():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
                if sum(one.arg not in ("self", "cls") for one in given) > 8:
                    many.add(f"{name}: {node.name}")
    assert many == MANY_ARGUMENTS


def test_modules_are_small(sources):
    """At most 400 lines, and 300 of code: without documentation, comments and blank lines."""
    long = {}
    for name, path in sources.items():
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 400, name
        documentation = set()
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                documentation.update(range(node.lineno, node.end_lineno + 1))
        lines = [
            line
            for number, line in enumerate(text.splitlines(), start=1)
            if number not in documentation and line.strip() and not line.strip().startswith("#")
        ]
        if len(lines) > 300:
            long[name] = len(lines)
    assert long == {}
