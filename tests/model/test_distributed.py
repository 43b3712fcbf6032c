"""Workers that fit one model together find what one worker finds."""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from workers import Threads, in_threads

from simrec import InputError, TwoTower, cold_start_split, evaluate, make_synthetic
from simrec.data.ratings import Ratings
from simrec.data.sides import Sides
from simrec.jobs.train import DataOptions, train
from simrec.model.prepare import Encoding, prepare
from simrec.model.rating.fit import fit_rating
from simrec.model.rating.known_entities import Problem
from simrec.model.rating.observed import Observed
from simrec.model.run.checkpoint import Checkpoint
from simrec.model.run.divide import own_users
from simrec.model.run.fingerprint import fingerprint
from simrec.model.run.workers import ONE_WORKER, equal_parts

SETTINGS = {"embedding_dim": 4, "epochs": 5, "folds": 3, "bounds": (0.5, 5.0)}


def vectors(model, side):
    return model.parts_["rating"].heads[side].vectors


@pytest.fixture(scope="module")
def data():
    return make_synthetic(n_users=240, n_items=120, n_ratings=6000, random_state=1)


@pytest.fixture(scope="module")
def split(data):
    return cold_start_split(Ratings.from_arrow(data.ratings), random_state=0)


@pytest.fixture(scope="module")
def alone(data, split):
    return TwoTower(**SETTINGS).fit(split.train, items=data.items, users=data.users)


@pytest.fixture(scope="module")
def written(data, split, tmp_path_factory):
    """The training tables as files."""
    directory = tmp_path_factory.mktemp("written")
    pq.write_table(split.train.to_arrow(), directory / "ratings.parquet")
    pq.write_table(pa.table(data.items), directory / "items.parquet")
    pq.write_table(pa.table(data.users), directory / "users.parquet")
    return directory


def rmse(model, split):
    return evaluate(model, split)["rmse"].to_numpy()


def fit_towers(data, split, group, report=lambda logs: None, checkpoint=None):
    """Fit ratings as one of the workers, to its own users."""
    ratings, users = own_users(split.train, data.users, group)
    encoding = Encoding(Sides(None, None), 2, 10)
    prepared = prepare(ratings, None, Sides(data.items, users), encoding, group)
    X, groups = (prepared.sides.map(lambda side, n=n: getattr(side, n)) for n in ("X", "groups"))
    problem = Problem(Observed.of(prepared.ratings, group), X, groups)
    rng = np.random.default_rng(0)
    return fit_rating(problem, 4, 5, 3, (), rng, report, checkpoint)


def test_parts_are_about_equal_and_never_empty():
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 50, 1000)
    edges = equal_parts(counts, 7)
    sums = np.add.reduceat(counts, edges[:-1])
    assert edges[0] == 0 and edges[-1] == 1000
    assert sums.max() - sums.min() <= 100
    for heavy in ([100, 1, 1], [1, 100, 1], [1, 1, 100], [1, 1, 1]):
        assert equal_parts(np.array(heavy), 3).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("size", [2, 3])
def test_workers_together_are_as_good_as_one(data, split, size):
    one = fit_towers(data, split, ONE_WORKER)
    results = in_threads(size, lambda group: fit_towers(data, split, group))
    rows = [len(towers.known.users.posterior.mean) for towers in results]
    assert sum(rows) == split.train.n_users and max(rows) < 0.7 * split.train.n_users
    for towers in results:  # each has the items, and of the users its own
        items = towers.known.items.posterior.mean
        np.testing.assert_allclose(items, one.known.items.posterior.mean, atol=1e-4)
        assert towers.new.users.penalty.strength == one.new.users.penalty.strength
        assert towers.new.items.error == pytest.approx(one.new.items.error, abs=1e-4)
        assert towers.new.users.error == pytest.approx(one.new.users.error, abs=1e-4)
        np.testing.assert_allclose(towers.both_weights, one.both_weights, atol=1e-2)
    users = np.vstack([towers.known.users.posterior.mean for towers in results])
    np.testing.assert_allclose(users, one.known.users.posterior.mean, atol=1e-4)


MANY_WAYS = {
    "default": {},
    "a sigmoid": {"rating_output": "sigmoid"},
    "two SimEcs": {"method": "simec", "epochs": 10},
    "hidden layers": {"hidden_layers": (4,)},
}


@pytest.mark.parametrize("way", MANY_WAYS)
def test_every_part_and_method_is_divided(data, split, way):
    def fit(group):
        settings = {**SETTINGS, **MANY_WAYS[way]}
        tables = {"items": data.items, "users": data.users}
        return TwoTower(**settings).fit(split.train, **tables, strategy=group)

    one = fit(ONE_WORKER)
    for model in in_threads(2, fit):  # each ends with the users of both
        assert model.users_ == one.users_
        for name, part in one.parts_.items():
            for side, head in part.heads.named():
                found = model.parts_[name].heads[side]
                np.testing.assert_allclose(found.vectors, head.vectors, atol=2e-3)
                np.testing.assert_allclose(found.prior, head.prior, atol=2e-3)
        np.testing.assert_allclose(rmse(model, split), rmse(one, split), atol=1e-4)
        assert model.uptake_weight_ == pytest.approx(one.uptake_weight_, rel=1e-4)
        assert abs(model.rated_ - one.rated_).max() == 0


@pytest.mark.parametrize("way", ["two SimEcs", "hidden layers"])
def test_networks_learn_from_a_sample_of_very_many_users(data, split, way, monkeypatch):
    for module in ("simrec.model.ordered.part", "simrec.model.rating.networks"):
        monkeypatch.setattr(f"{module}.MOST_RATINGS", 2000)

    def fit(group):
        settings = {**SETTINGS, **MANY_WAYS[way]}
        tables = {"items": data.items, "users": data.users}
        return TwoTower(**settings).fit(split.train, **tables, strategy=group)

    one, (two, _) = fit(ONE_WORKER), in_threads(2, fit)
    np.testing.assert_allclose(rmse(two, split), rmse(one, split), atol=2e-3)
    assert (rmse(one, split) < 1.1 * split.train.values.std()).all()


@pytest.mark.parametrize("size", [1, 3])
def test_a_checkpoint_of_two_workers_is_one_for_any_number(data, split, tmp_path, size):
    one = fit_towers(data, split, ONE_WORKER)

    def killed(group):
        losses = []

        def report(logs):
            losses.append(logs)
            if len(losses) == 3:
                raise KeyboardInterrupt

        fit_towers(data, split, group, report, Checkpoint(tmp_path / "kept", {}, workers=group))

    def resumed(group):
        logs = []
        kept = Checkpoint(tmp_path / "kept", {}, resume=True, workers=group)
        towers = fit_towers(data, split, group, logs.append, kept)
        assert len([log for log in logs if "loss" in log]) == 5
        return towers

    assert any(isinstance(error, KeyboardInterrupt) for error in in_threads(2, killed))
    found = [resumed(ONE_WORKER)] if size == 1 else in_threads(size, resumed)
    users = np.vstack([towers.known.users.posterior.mean for towers in found])
    np.testing.assert_allclose(users, one.known.users.posterior.mean, atol=1e-4)
    for towers in found:
        assert towers.new.users.error == pytest.approx(one.new.users.error, abs=1e-4)


def test_what_identifies_data_does_not_depend_on_the_workers(data, split):
    def found(group):
        ratings, users = own_users(split.train, data.users, group)
        encoding = Encoding(Sides(None, None), 2, 10)
        return fingerprint(prepare(ratings, None, Sides(data.items, users), encoding, group))

    assert set(in_threads(3, found)) == {found(ONE_WORKER)}
    values = split.train.values.copy()
    values[0] += 0.5
    other = dataclasses.replace(split.train, values=values)
    encoding = Encoding(Sides(None, None), 2, 10)
    changed = prepare(other, None, Sides(data.items, data.users), encoding)
    assert fingerprint(changed) != found(ONE_WORKER)


def test_a_checkpoint_that_not_all_workers_see(tmp_path):
    def read(group):
        path = tmp_path / "kept"
        kept = Checkpoint(path if group.rank == 0 else tmp_path / "elsewhere", {}, True, group)
        return kept.read("sweeps")

    Checkpoint(tmp_path / "kept", {}).write("sweeps", {}, {}, 0.0)
    errors = in_threads(2, read)
    assert any(isinstance(e, InputError) and "all workers see" in str(e) for e in errors)


def test_more_workers_than_users_are_refused(data):
    few = Ratings.from_arrow(pa.table({"user_id": [1, 1], "item_id": [1, 2], "rating": [1.0, 2]}))
    with pytest.raises(InputError, match="3 workers for 1 users"):
        own_users(few, None, Threads(0, 3, [], None))


def test_one_worker_alone_changes_no_bit(data, split, alone):
    from simrec.simec.keras import tf

    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    array = np.arange(3.0)
    assert ONE_WORKER.sum(array) is array and ONE_WORKER.first(array) is array
    model = TwoTower(**SETTINGS)
    model.fit(split.train, items=data.items, users=data.users, strategy=strategy)
    assert vectors(model, "items").tobytes() == vectors(alone, "items").tobytes()
    assert vectors(model, "users").tobytes() == vectors(alone, "users").tobytes()
    assert model.chosen_ == alone.chosen_


def test_several_devices_of_one_machine_are_one_worker(data, split, alone):
    from simrec.model.run.strategy import StrategyWorkers, workers_of
    from simrec.simec.keras import tf

    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    assert workers_of(strategy) is ONE_WORKER
    array = np.arange(6).reshape(2, 3)
    np.testing.assert_array_equal(StrategyWorkers(strategy).sum(array), array)
    with pytest.raises(TypeError, match=r"tf.distribute.Strategy"):
        TwoTower().fit(split.train, strategy="mirrored")


_WORKER = """
import json, sys
from simrec.simec.keras import tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
from simrec import TwoTower
directory, out, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
tables = [f"{directory}/{name}.parquet" for name in ("ratings", "items", "users")]
ratings, features = tables[0], {"items": tables[1], "users": tables[2]}
TwoTower(**settings).fit(ratings, **features, strategy=strategy).save(out)
"""


def test_two_processes_fit_one_model(written, split, alone, tmp_path):
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    workers = []
    for rank in range(2):
        cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
        config = {"cluster": cluster, "task": {"type": "worker", "index": rank}}
        words = [sys.executable, "-c", _WORKER, str(written), str(tmp_path / f"model-{rank}")]
        environment = {**os.environ, "TF_CONFIG": json.dumps(config)}
        workers.append(subprocess.Popen([*words, json.dumps(SETTINGS)], env=environment))
    try:
        assert [worker.wait(timeout=120) for worker in workers] == [0, 0]
    finally:
        for worker in workers:
            worker.kill()
    models = [TwoTower.load(tmp_path / f"model-{rank}") for rank in range(2)]
    users = [m.parts_["rating"].heads.users.vectors for m in models]
    np.testing.assert_array_equal(*users)
    found, expected = (m.parts_["rating"].evidence.sides.users.own for m in (models[0], alone))
    np.testing.assert_allclose(found.mean, expected.mean, atol=1e-3)
    np.testing.assert_allclose(found.factors, expected.factors, atol=1e-3)
    np.testing.assert_allclose(rmse(models[0], split), rmse(alone, split), atol=1e-3)


def kill_a_worker(checkpoint, killed):
    """Wait for a checkpoint, then end one of the workers of this test as a crash would."""
    for _ in range(6000):
        if (checkpoint / "manifest.json").exists():
            break
        time.sleep(0.02)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_worker = (process / "cmdline").read_bytes().startswith(b"ray::_work")
        except OSError:
            continue
        if is_worker and os.getpid() in ancestors(int(process.name)):
            os.kill(int(process.name), signal.SIGKILL)
            killed.append(process.name)
            return


def ancestors(pid):
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        yield pid


def test_a_training_on_ray_survives_the_loss_of_a_worker(written, split, alone, tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed (pip install 'simrec[ray]')")
    tables = DataOptions(*(written / f"{name}.parquet" for name in ("ratings", "items", "users")))
    killed = []
    checkpoint = tmp_path / "model.checkpoint"
    killer = threading.Thread(target=kill_a_worker, args=(checkpoint, killed), daemon=True)
    killer.start()
    result = train(TwoTower(**SETTINGS), tables, tmp_path / "model", engine="ray", workers=2)
    killer.join()
    assert len(killed) == 1
    assert result["ratings"] == len(split.train)
    assert not checkpoint.exists()
    model = TwoTower.load(tmp_path / "model")
    np.testing.assert_allclose(rmse(model, split), rmse(alone, split), atol=1e-3)


def test_a_pipeline_trains_on_the_cluster_of_its_engine(tmp_path, monkeypatch):
    from simrec.jobs import pipeline

    calls = []
    monkeypatch.setattr("simrec.jobs.pipeline.call", lambda function, values: calls.append(values))
    text = "[data]\nratings='r'\n[model]\nfolds=3\n[train]\nout='m'\n{}\n[engine]\n{}"
    for train_options, engine, expected in (
        ("", "engine='ray'\nworkers=3\nmemory='2GB'", {"engine": "ray", "workers": 3}),
        ("workers=2", "engine='ray'\nworkers=3", {"engine": "ray", "workers": 2}),
        ("engine='local'", "engine='ray'\nworkers=3", {"engine": "local"}),
        ("", "workers=3", {}),
    ):
        path = tmp_path / "pipeline.toml"
        path.write_text(text.format(train_options, engine))
        list(pipeline.run(path))
        values = calls.pop()
        assert {k: values[k] for k in ("engine", "workers", "memory") if k in values} == expected


def test_processes_of_one_machine_train_in_shards(written, split, alone, tmp_path):
    tables = DataOptions(*(written / f"{name}.parquet" for name in ("ratings", "items", "users")))
    result = train(TwoTower(**SETTINGS), tables, tmp_path / "model", workers=2)
    assert result["ratings"] == len(split.train) and result["users"] == split.train.n_users
    assert len(result["workers"]) == 2 and result["workers"][0]["sums"] > 100
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model"]
    assert (tmp_path / "model" / "users-00001-of-00002.arrow").exists()
    model = TwoTower.load(tmp_path / "model")
    np.testing.assert_allclose(rmse(model, split), rmse(alone, split), atol=1e-4)
    with pytest.raises(InputError, match="--engine ray"):
        train(TwoTower(), tables, tmp_path / "other", address="here:1")
    with pytest.raises(InputError, match="workers: expected a number from 1 on"):
        train(TwoTower(), tables, tmp_path / "other", workers=0)


def test_an_error_of_a_worker_is_told_as_one_machine_tells_it(written, tmp_path):
    ratings = pq.read_table(written / "ratings.parquet")
    values = ratings["rating"].to_numpy().copy()
    values[-1] = np.nan
    place = ratings.column_names.index("rating")
    pq.write_table(ratings.set_column(place, "rating", [values]), tmp_path / "ratings.parquet")
    with pytest.raises(InputError, match="rating"):
        train(TwoTower(), DataOptions(tmp_path / "ratings.parquet"), tmp_path / "m", workers=2)
    assert [p.name for p in tmp_path.iterdir()] == ["ratings.parquet"]
