"""Look at the machine and the installation, and try the model once."""

import os
import platform
import re
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

# The oldest version that will do, as in setup.py; empty where any will.
PACKAGES = {
    "simrec": "",
    "tensorflow": "2.21",
    "tf-keras": "2.21",
    "tensorflow-recommenders": "0.7.7",
    "numpy": "2",
    "scipy": "1.11",
    "pandas": "2.1",
    "pyarrow": "16",
    "ray": "",
    "matplotlib": "",
}
# Of the extra `tensorflow`: networks need them, default models do not.
_OPTIONAL = ("tensorflow", "tf-keras", "tensorflow-recommenders")


def doctor() -> dict[str, Any]:
    """Report versions, the Keras switch, threads and memory, and run a small self-test."""
    from simrec.scoring.threads import processors

    report: dict[str, Any] = {"job": "doctor", "python": platform.python_version()}
    wrong = []
    for package, oldest in PACKAGES.items():
        try:
            report[package] = found = metadata.version(package)
        except metadata.PackageNotFoundError:
            report[package] = found = "not installed"
        absent = found == "not installed" and package in _OPTIONAL
        if oldest and not absent and _numbers(found) < _numbers(oldest):
            wrong.append(f"{package} {found}: needs {oldest} (pip install '{package}>={oldest}')")
    report["platform"] = platform.platform()
    report["processors"] = processors()
    report["memory_gb"] = memory_gb()
    if wrong:
        # Not tried: an import of the wrong version fails with a message about something else.
        return {**report, "wrong": wrong, "self_test": "not run", "healthy": False}
    try:
        if report["tensorflow"] == "not installed":
            report["tensorflow"] += " (for networks: pip install 'simrec[tensorflow]')"
        else:
            started = time.perf_counter()
            from simrec.simec.keras import keras, tf

            report["keras"] = f"{keras.__version__} (TF_USE_LEGACY_KERAS=1)"
            report["gpus"] = len(tf.config.list_physical_devices("GPU"))
            report["tensorflow_import_seconds"] = round(time.perf_counter() - started, 2)
        started = time.perf_counter()
        self_test()
        report["self_test"] = f"passed in {time.perf_counter() - started:.1f} s"
        report["healthy"] = True
    except Exception as error:  # whatever is wrong is what the doctor is asked for
        report["self_test"] = f"failed: {type(error).__name__}: {error}"
        report["healthy"] = False
    return report


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers a version begins with; none where there is no version."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def self_test() -> None:
    """Fit, save, load and score a tiny model."""
    import numpy as np
    import pyarrow as pa

    from simrec.model.two_tower import TwoTower

    rng = np.random.default_rng(0)
    ratings = pa.table(
        {
            "user_id": np.repeat(np.arange(20), 10),
            "item_id": np.concatenate([rng.permutation(30)[:10] for _ in range(20)]),
            "rating": rng.integers(1, 6, 200).astype(np.float32),
        }
    )
    items = pa.table({"item_id": np.arange(30), "x": rng.normal(size=30)})
    users = pa.table({"user_id": np.arange(20), "x": rng.normal(size=20)})
    model = TwoTower(embedding_dim=2, bounds=(1, 5)).fit(ratings, items=items, users=users)
    expected = model.predict(ratings)
    with tempfile.TemporaryDirectory() as directory:
        model.save(Path(directory) / "model")
        loaded = TwoTower.load(Path(directory) / "model")
        if not np.array_equal(loaded.predict(ratings), expected):
            raise RuntimeError("a model scores differently after saving and loading")
    if not ((expected >= 1) & (expected <= 5)).all():
        raise RuntimeError("predictions leave their bounds")


def memory_gb() -> float | None:
    """Return the memory of this machine in GB, None if it cannot be told."""
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (ValueError, OSError):
        return None
