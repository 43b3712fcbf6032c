"""Workers that fit one model together find what one worker finds."""

import dataclasses
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from workers import fit_together, in_threads, own_users

from simrec import InputError, TwoTower, cold_start_split, evaluate, make_synthetic
from simrec.data.ratings import Ratings
from simrec.data.sides import Sides
from simrec.jobs.io.portions import Portions
from simrec.jobs.train import DataOptions, train
from simrec.model import fit as model_fit
from simrec.model.checkpoint import Checkpoint, fingerprint
from simrec.model.head import Saved
from simrec.model.params import Settings
from simrec.model.posterior.observed import Observed
from simrec.model.posterior.problem import Problem
from simrec.model.prepare import Encoding, prepare
from simrec.model.run.workers import ONE_WORKER, WorkerLost, equal_parts

SETTINGS = {"embedding_dim": 4, "epochs": 5, "folds": 3, "bounds": (0.5, 5.0)}
RATINGS_ALONE = {**SETTINGS, "lists": False}


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
    settings = Settings(4, 5, folds=3)
    rng = np.random.default_rng(0)
    return model_fit.fit_towers(problem, settings, rng, report, checkpoint)


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
        np.testing.assert_allclose(towers.both.weights, one.both.weights, atol=1e-2)
    users = np.vstack([towers.known.users.posterior.mean for towers in results])
    np.testing.assert_allclose(users, one.known.users.posterior.mean, atol=1e-4)


MANY_WAYS = {
    "default": {},
    "a sigmoid": {"rating_output": "sigmoid", "lists": False},
    "two SimEcs": {"refine": False},
    "hidden layers": {"hidden_layers": (4,), "lists": False},
}


@pytest.mark.parametrize(
    "way",
    [pytest.param(w, marks=pytest.mark.slow if w == "hidden layers" else ()) for w in MANY_WAYS],
)
def test_every_part_and_method_is_divided(data, split, alone, way, tmp_path):
    settings = {**SETTINGS, **MANY_WAYS[way]}
    one = alone
    if way != "default":
        one = TwoTower(**settings).fit(split.train, items=data.items, users=data.users)
    tables = data.items, data.users
    model = fit_together(TwoTower(**settings), 2, split.train, *tables, tmp_path / "model")
    assert model.users_ == one.users_
    for name, part in one.parts_.items():
        for side, head in part.heads.named():
            found = model.parts_[name].heads[side]
            np.testing.assert_allclose(np.asarray(found.vectors), head.vectors, atol=2e-3)
            np.testing.assert_allclose(found.prior, head.prior, atol=2e-3)
    np.testing.assert_allclose(rmse(model, split), rmse(one, split), atol=1e-4)
    assert list(model.blend_.factors) == list(one.blend_.factors)
    for name, factors in one.blend_.factors.items():
        for side, expected in factors.named():
            np.testing.assert_allclose(model.blend_.factors[name][side], expected, rtol=1e-3)
    everyone = np.arange(len(one.users_))
    assert abs(model.rated_[everyone] - one.rated_).max() == 0


@pytest.mark.parametrize(
    "way", ["two SimEcs", pytest.param("hidden layers", marks=pytest.mark.slow)]
)
@pytest.mark.slow
def test_networks_learn_from_a_sample_of_very_many_users(data, split, way, monkeypatch, tmp_path):
    monkeypatch.setattr("simrec.model.new_entities.fit.MOST_RATINGS", 2000)
    settings = {**SETTINGS, **MANY_WAYS[way]}
    one = TwoTower(**settings).fit(split.train, items=data.items, users=data.users)
    tables = data.items, data.users
    two = fit_together(TwoTower(**settings), 2, split.train, *tables, tmp_path / "model")
    np.testing.assert_allclose(rmse(two, split), rmse(one, split), atol=2e-3)
    assert (rmse(one, split) < 1.1 * split.train.values.std()).all()


@pytest.mark.parametrize("size", [1, pytest.param(3, marks=pytest.mark.slow)])
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

    Checkpoint(tmp_path / "kept", {}).write("sweeps", Saved(), {}, 0.0)
    errors = in_threads(2, read)
    assert any(isinstance(e, InputError) and "all workers see" in str(e) for e in errors)


def test_one_worker_alone_changes_nothing():
    array = np.arange(3.0)
    assert ONE_WORKER.sum(array) is array and ONE_WORKER.first(array) is array


def test_an_attempt_does_not_read_what_another_has_exchanged(written, split, tmp_path, monkeypatch):
    tables = DataOptions(*(written / f"{name}.parquet" for name in ("ratings", "items", "users")))
    portions = Portions.of(tables, tmp_path / "scratch")
    # As if the first attempt had ended before its files were deleted.
    monkeypatch.setattr("simrec.jobs.io.portions.shutil.rmtree", lambda *a, **more: None)

    def read(group):
        attempt = portions.attempt(group)
        ratings, users = portions.read(None, group, attempt)
        return attempt, len(ratings), len(users)

    for number, size in enumerate((3, 2)):
        attempts, ratings, users = zip(*in_threads(size, read), strict=True)
        assert set(attempts) == {number}
        assert sum(ratings) == len(split.train) and sum(users) == len(pq.read_table(tables.users))


def collective_of(size, work, timeout=20):
    """Call ``work(workers)`` on workers that sum over the network; a communicator has a thread."""
    pytest.importorskip("xgboost", reason="XGBoost is not installed (pip install 'simrec[ray]')")
    from simrec.jobs.engine.collective import joined

    told, there = [], threading.Event()

    def broadcast(arguments):
        if arguments is not None:
            told.append(arguments)
            there.set()
        there.wait(timeout)
        return told[0]

    def one(group):
        with joined(group.rank, size, "127.0.0.1", timeout, broadcast) as workers:
            return work(workers)

    return in_threads(size, one)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_sums_over_the_network(size):
    rng = np.random.default_rng(0)
    arrays = [
        (100 * rng.normal(size=(size, *shape))).astype(kind)
        for kind in ("float64", "float32", "int64", "uint8", "uint64")
        for shape in ((1,), (7, 3), (100_000,), (0, 4))
    ]
    found = collective_of(size, lambda workers: [workers.sum(a[workers.rank]) for a in arrays])
    for mine in found:
        for one, same, array in zip(mine, found[0], arrays, strict=True):
            assert one.tobytes() == same.tobytes()  # all workers get the same bits
            expected = array.sum(0, dtype=array.dtype)
            np.testing.assert_allclose(one, expected, rtol=1e-6, atol=1e-4)
    told = collective_of(size, lambda workers: workers.agreed({"rank": workers.rank}))
    assert told == [{"rank": 0}] * size


@pytest.mark.slow
def test_a_silent_worker_is_lost_in_time():
    wake = threading.Event()

    def work(workers):
        if workers.rank == 1:
            wake.wait(60)
            return None
        started = time.monotonic()
        try:
            workers.total(1.0)
        finally:
            wake.set()
            assert time.monotonic() - started < 30

    errors = collective_of(2, work, timeout=3)
    assert isinstance(errors[0], WorkerLost) and "no longer answers" in str(errors[0])


def kill_a_worker(checkpoint, killed):
    """Wait for a checkpoint, then end one of the workers of this test as a crash would."""
    for _ in range(6000):
        if (checkpoint / "manifest.json").exists():
            break
        time.sleep(0.02)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_worker = (process / "cmdline").read_bytes().startswith(b"ray::RayTrainWorker")
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


@pytest.fixture(scope="module")
def ray():
    """One Ray for all trainings of this module."""
    ray = pytest.importorskip("ray", reason="Ray is not installed (pip install 'simrec[ray]')")
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


@pytest.mark.slow
def test_a_training_survives_the_loss_of_a_worker(ray, written, split, alone, tmp_path, caplog):
    tables = DataOptions(*(written / f"{name}.parquet" for name in ("ratings", "items", "users")))
    killed = []
    checkpoint = tmp_path / "model.checkpoint"
    killer = threading.Thread(target=kill_a_worker, args=(checkpoint, killed), daemon=True)
    killer.start()
    result = train(TwoTower(**RATINGS_ALONE), tables, tmp_path / "model", engine="ray", workers=2)
    killer.join()
    assert len(killed) == 1 and "has lost a worker" in caplog.text
    assert result["ratings"] == len(split.train)
    assert not checkpoint.exists()
    model = TwoTower.load(tmp_path / "model")
    np.testing.assert_allclose(rmse(model, split), rmse(alone, split), atol=1e-3)


def test_a_pipeline_trains_on_the_cluster_of_its_engine(written, tmp_path, monkeypatch):
    from simrec.jobs import pipeline

    calls = []
    monkeypatch.setattr("simrec.jobs.pipeline.call", lambda function, values: calls.append(values))
    ratings = written / "ratings.parquet"
    text = f"[data]\nratings='{ratings}'\n[model]\nfolds=3\n[train]\nout='m'\n{{}}\n[engine]\n{{}}"
    for train_options, engine, expected in (
        ("", "engine='ray'\nworkers=3\npart_rows=9", {"engine": "ray", "workers": 3}),
        ("workers=2", "engine='ray'\nworkers=3", {"engine": "ray", "workers": 2}),
        ("engine='local'", "engine='ray'\nworkers=3", {"engine": "local"}),
        ("", "workers=3", {}),
    ):
        path = tmp_path / "pipeline.toml"
        path.write_text(text.format(train_options, engine))
        list(pipeline.run(path))
        values = calls.pop()
        assert {k: values[k] for k in ("engine", "workers", "part_rows") if k in values} == expected


@pytest.mark.slow
def test_processes_of_one_machine_train_together(ray, written, split, alone, tmp_path):
    tables = DataOptions(*(written / f"{name}.parquet" for name in ("ratings", "items", "users")))
    result = train(TwoTower(**RATINGS_ALONE), tables, tmp_path / "model", workers=2)
    assert result["ratings"] == len(split.train) and result["users"] == split.train.n_users
    assert len(result["workers"]) == 2 and result["workers"][0]["sums"] > 100
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model"]
    model = TwoTower.load(tmp_path / "model")
    np.testing.assert_allclose(rmse(model, split), rmse(alone, split), atol=1e-4)
    with pytest.raises(InputError, match="--engine ray"):
        train(TwoTower(), tables, tmp_path / "other", address="here:1")
    with pytest.raises(InputError, match="timeout: expected seconds from 1 on"):
        train(TwoTower(), tables, tmp_path / "other", workers=2, timeout=0)
    with pytest.raises(InputError, match="workers: expected a number from 1 on"):
        train(TwoTower(), tables, tmp_path / "other", workers=0)


@pytest.mark.slow
def test_an_error_of_a_worker_is_told_as_one_machine_tells_it(ray, written, tmp_path):
    ratings = pq.read_table(written / "ratings.parquet")
    values = ratings["rating"].to_numpy().copy()
    values[-1] = np.nan
    place = ratings.column_names.index("rating")
    pq.write_table(ratings.set_column(place, "rating", [values]), tmp_path / "ratings.parquet")
    with pytest.raises(InputError, match="rating"):
        train(TwoTower(), DataOptions(tmp_path / "ratings.parquet"), tmp_path / "m", workers=2)
    assert [p.name for p in tmp_path.iterdir()] == ["ratings.parquet"]
