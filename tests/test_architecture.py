"""Imports go one way, and heavy packages stay where they belong."""

import ast
import os
import subprocess
import sys

import pytest

# Each part may import itself, those after it, and the helpers at the end.
LAYERS = ["cli", "jobs", "evaluation", "model", "simec", "scoring", "data"]
HELPERS = {
    "errors",
    "artifacts",
    "stored",
    "rows",
    "manifest",
    "files",
    "untrusted",
    "console",
    "__init__",
}
TENSORFLOW = {"tensorflow", "tf_keras", "keras", "tensorflow_recommenders"}


def imports(path):
    """Give (line, module) for each import of a file, those inside functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
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
            if here not in LAYERS or there not in LAYERS:
                if here in HELPERS and there in LAYERS:
                    wrong.append(f"simrec/{name}:{line} imports {module}")
                continue
            if LAYERS.index(there) < LAYERS.index(here):
                wrong.append(f"simrec/{name}:{line} imports {module}")
    assert wrong == []


@pytest.mark.parametrize(
    ("packages", "allowed"),
    [
        (TENSORFLOW, lambda name: name == "simec/keras.py"),
        ({"ray"}, lambda name: name.startswith("jobs/engine/ray")),
        ({"faiss"}, lambda name: name == "model/export/faiss_index.py"),
        ({"matplotlib"}, lambda name: name.startswith("evaluation/report")),
        ({"pickle", "joblib", "dill", "cloudpickle", "marshal", "shelve"}, lambda name: False),
    ],
    ids=["tensorflow", "ray", "faiss", "matplotlib", "pickle"],
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
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
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
            "import simrec.evaluation.metrics, simrec.scoring.pairs, simrec.scoring.topk",
            TENSORFLOW | {"ray", "matplotlib"},
        ),
        (
            "import simrec.model.two_tower, simrec.jobs.score, simrec.jobs.recommend,"
            "simrec.jobs.embed, simrec.jobs.train, simrec.jobs.evaluate, simrec.jobs.pipeline,"
            "simrec.jobs.export, simrec.model.export.formats",
            TENSORFLOW | {"ray", "faiss", "matplotlib"},
        ),
    ],
    ids=["simrec", "cli", "metrics and scoring", "jobs"],
)
def test_importing_stays_light(code, absent):
    check = f"{code}\nimport sys\nprint(sorted(set({sorted(absent)!r}) & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


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


# The one public class, with its documented methods and no mixins.
LONGEST = {"model/two_tower.py": 420}


def test_modules_are_small(sources):
    """Lines of code, without documentation, comments and blank lines."""
    long = {}
    for name, path in sources.items():
        text = path.read_text(encoding="utf-8")
        documentation = set()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                documentation.update(range(node.lineno, node.end_lineno + 1))
        lines = [
            line
            for number, line in enumerate(text.splitlines(), start=1)
            if number not in documentation and line.strip() and not line.strip().startswith("#")
        ]
        if len(lines) > LONGEST.get(name, 300):
            long[name] = len(lines)
    assert long == {}
