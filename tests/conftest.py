"""Fixtures shared by the tests."""

import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import pytest

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("SIMREC_DATA", ROOT.parent / "shared" / "data"))


@pytest.fixture(scope="session")
def repository() -> Path:
    """The directory of the checkout."""
    return ROOT


def _real_data(name: str) -> Path:
    directory = DATA / name
    if not directory.is_dir():
        pytest.skip(
            f"real data not found: {directory} (set SIMREC_DATA to the directory that has {name})"
        )
    return directory


@pytest.fixture(scope="session")
def movielens() -> Path:
    """The directory of MovieLens 100K: ratings, items, users (.parquet)."""
    return _real_data("ml-100k")


@pytest.fixture(scope="session")
def movielens_1m() -> Path:
    """The directory of MovieLens 1M: ratings, items, users (.parquet)."""
    return _real_data("ml-1m")


@pytest.fixture(scope="session")
def mnist() -> Path:
    """The directory of the MNIST digits (.npz)."""
    return _real_data("mnist")
