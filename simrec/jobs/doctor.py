"""Look at the machine and the installation, and try the model once."""

import contextlib
import os
import platform
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = (
    *("simrec", "numpy", "scipy", "pandas", "pyarrow", "tensorflow", "tf-keras"),
    *("tensorflow-recommenders", "ray", "matplotlib"),
)


def doctor() -> dict[str, Any]:
    """Report versions, threads and memory, and try a small model."""
    from simrec.scoring.threads import processors

    report: dict[str, Any] = {"job": "doctor", "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            report[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            report[package] = "not installed"
    report |= {"platform": platform.platform(), "processors": processors()}
    with contextlib.suppress(AttributeError, OSError, ValueError):
        pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        report["memory_gb"] = round(pages / 1e9, 1)
    started = time.perf_counter()
    try:
        self_test()
        report["self_test"] = f"passed in {time.perf_counter() - started:.1f} s"
    except Exception as error:  # whatever is wrong is what the doctor is asked for
        report["self_test"] = f"failed: {type(error).__name__}: {error}"
    return {**report, "healthy": report["self_test"].startswith("passed")}


def self_test() -> None:
    """Fit, save, load and score a tiny model."""
    import numpy as np

    from simrec.data.synthetic import make_synthetic
    from simrec.model.two_tower import TwoTower

    data = make_synthetic(n_users=40, n_items=30, n_ratings=300)
    model = TwoTower(embedding_dim=2, bounds=(0.5, 5))
    model.fit(data.ratings, items=data.items, users=data.users)
    expected = model.predict(data.ratings)
    with tempfile.TemporaryDirectory() as directory:
        model.save(Path(directory) / "model")
        loaded = TwoTower.load(Path(directory) / "model")
        if not np.array_equal(loaded.predict(data.ratings), expected):
            raise RuntimeError("a model scores differently after saving and loading")
    if not ((expected >= 0.5) & (expected <= 5)).all():
        raise RuntimeError("predictions leave their bounds")
