"""Fixtures shared by the tests."""

import logging
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# One process per processor runs tests: more threads in each would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")
# Ray gives way to all else by default: its workers would wait for the tests of other processes.
os.environ.setdefault("RAY_worker_niceness", "0")

import pytest
from hypothesis import settings

# The same examples in every run: a failure can be repeated, and comes with the change that made it.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("SIMREC_DATA", ROOT.parent / "shared" / "data"))


def pytest_collection_modifyitems(items):
    """Start with the files that wait for Ray, so that no process waits for them in the end."""
    long = {item.path for item in items if {"cluster", "ray"} & {*item.fixturenames}}
    items.sort(key=lambda item: item.path not in long)


@pytest.fixture(autouse=True)
def log_level():
    """The command line sets how much is logged: not for the tests that follow."""
    log = logging.getLogger("simrec")
    log.setLevel(logging.NOTSET)
    yield
    log.setLevel(logging.NOTSET)


@pytest.fixture(scope="session", autouse=True)
def one_draw():
    """Hold out from small data once instead of eight times: most tests are not about lists."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simrec.model.lists.fit.LEAST_DRAWS", 1)
        patch.setattr("simrec.model.lists.fit.MOST_DRAWS", 1)
        yield


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


@pytest.fixture(scope="session")
def tables(tmp_path_factory) -> Path:
    """Small Parquet tables: ratings, items, users, new_items, new_users, pairs.

    User ids are integers, item ids strings. The last ten items have features and no ratings;
    new_items and new_users are unknown to a model trained on items and users.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    n_users, n_items, n_new = 60, 50, 8
    directory = tmp_path_factory.mktemp("tables")

    def features(n: int) -> dict:
        return {
            "year": rng.integers(1950, 2020, n),
            "kind": rng.choice(["drama", "comedy", "crime"], n),
        }

    items = {"item_id": [f"i{i:02d}" for i in range(n_items)], **features(n_items)}
    users = {"user_id": np.arange(100, 100 + n_users), **features(n_users)}
    new_items = {"item_id": [f"n{i}" for i in range(n_new)], **features(n_new)}
    new_users = {"user_id": np.arange(900, 900 + n_new), **features(n_new)}
    cells = rng.permutation(n_users * (n_items - 10))[:900]
    user, item = cells // (n_items - 10), cells % (n_items - 10)
    taste = 3 + (users["kind"][user] == items["kind"][item]) + rng.normal(0, 0.5, len(cells))
    ratings = {
        "user_id": users["user_id"][user],
        "item_id": np.array(items["item_id"])[item],
        "rating": np.clip(np.round(taste), 1, 5).astype(np.float32),
    }
    pairs = {
        "user_id": rng.choice(users["user_id"], 4000),
        "item_id": rng.choice(items["item_id"], 4000),
        "note": np.arange(4000),
    }
    for name, table in {
        "ratings": ratings,
        "items": items,
        "users": users,
        "new_items": new_items,
        "new_users": new_users,
        "pairs": pairs,
    }.items():
        pq.write_table(pa.table(table), directory / f"{name}.parquet", row_group_size=400)
    return directory


@pytest.fixture(scope="session")
def model_directory(tables, tmp_path_factory) -> Path:
    """A model trained on `tables`."""
    from simrec import TwoTower

    path = tmp_path_factory.mktemp("model") / "model"
    model = TwoTower(embedding_dim=4, bounds=(1, 5), random_state=0)
    model.fit(
        str(tables / "ratings.parquet"),
        items=str(tables / "items.parquet"),
        users=str(tables / "users.parquet"),
    ).save(path)
    return path
