"""Look at the machine and the installation, and try the model once."""

import os
import platform
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = (
    "simrec",
    "tensorflow",
    "tf-keras",
    "tensorflow-recommenders",
    "numpy",
    "scipy",
    "pandas",
    "pyarrow",
    "ray",
    "matplotlib",
)


def doctor() -> dict[str, Any]:
    """Report versions, the Keras switch, threads and memory, and run a small self-test."""
    from simrec.scoring.topk import processors

    report: dict[str, Any] = {"job": "doctor", "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            report[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            report[package] = "not installed"
    report["platform"] = platform.platform()
    report["processors"] = processors()
    report["memory_gb"] = memory_gb()
    try:
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
