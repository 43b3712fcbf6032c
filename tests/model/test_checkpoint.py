"""A training that was killed goes on from its checkpoint to the same model."""

import errno
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import numpy as np
import pytest
from workers import in_threads

from simrec import InputError, TwoTower, make_synthetic
from simrec.cli import main
from simrec.jobs.engine.ray import is_lost
from simrec.jobs.train import DataOptions, train
from simrec.model import checkpoint as module
from simrec.model import fit as fit_module
from simrec.model.checkpoint import Checkpoint
from simrec.model.head import Saved
from simrec.model.lists.blend import Blend
from simrec.model.params import Settings
from simrec.model.run.progress import Progress
from simrec.model.run.workers import WorkerLost, written_together
from simrec.storage.artifacts import read_manifest

SETTINGS = {"embedding_dim": 4, "epochs": 6, "folds": 2, "lists": False}


def vectors(model, side):
    return model.parts_["rating"].heads[side].vectors


class Killed(Exception):
    """Stands for a kill between two epochs."""


@pytest.fixture(scope="module")
def data():
    return make_synthetic(n_users=80, n_items=50, n_ratings=1000, random_state=2)


@pytest.fixture(autouse=True)
def _at_every_epoch(monkeypatch):
    monkeypatch.setattr(module, "SHARE", np.inf)


def fit(model, data, **arguments):
    return model.fit(data.ratings, items=data.items, users=data.users, **arguments)


@contextmanager
def killed_at(epoch):
    """Kill a fit at the end of an epoch."""
    told = Progress.epoch

    def kill(self, stage, logs):
        told(self, stage, logs)
        if len(self.history) == epoch + 1:
            raise Killed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Progress, "epoch", kill)
        yield


@pytest.fixture(scope="module")
def whole(data):
    """A training that nobody has killed."""
    return fit(TwoTower(**SETTINGS), data)


@pytest.fixture
def half_done(data, tmp_path):
    """A checkpoint of a training with the settings for ratings."""
    path = tmp_path / "checkpoint"
    with killed_at(3):
        fit(TwoTower(**SETTINGS), data, checkpoint=path)
    return path


@pytest.mark.parametrize("epoch", [0, 3, 7])
def test_going_on_changes_no_bit(data, whole, tmp_path, epoch):
    path = tmp_path / "checkpoint"
    with killed_at(epoch):
        fit(TwoTower(**SETTINGS), data, checkpoint=path)
    model = fit(TwoTower(**SETTINGS), data, checkpoint=path, resume=True)
    assert_same(model, whole)


def assert_same(model, whole):
    """Compare all that was learned, bit by bit, and what was told on the way."""
    for part, expected in zip(model.parts_.values(), whole.parts_.values(), strict=True):
        for head, same in zip(part.heads, expected.heads, strict=True):
            assert head.vectors.tobytes() == same.vectors.tobytes()
            assert head.encoder.weights.tobytes() == same.encoder.weights.tobytes()
    assert model.chosen_ == whole.chosen_
    losses = [{k: v for k, v in logs.items() if k != "seconds"} for logs in model.history_]
    assert losses == [{k: v for k, v in logs.items() if k != "seconds"} for logs in whole.history_]


def killed(*arguments, **more):
    raise Killed


WAYS = {
    "default": {"lists": True},
    "vectors only": {"keep_evidence": False},
    "two SimEcs": {"refine": False},
}


@pytest.mark.parametrize("way", WAYS)
def test_what_ratings_have_taught_is_not_learned_again(data, tmp_path, monkeypatch, way):
    settings, path = {**SETTINGS, **WAYS[way]}, tmp_path / "checkpoint"
    whole = fit(TwoTower(**settings), data)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Settings, "quick", killed)  # the first thing after ratings
        patch.setattr(Blend, "single", killed)
        fit(TwoTower(**settings), data, checkpoint=path)
    plain = fit_module.fit_ratings

    def fits_of_lists_only(prepared, *arguments):
        if len(prepared.ratings) == len(data.ratings):
            raise Killed
        return plain(prepared, *arguments)

    monkeypatch.setattr(fit_module, "fit_ratings", fits_of_lists_only)
    model = fit(TwoTower(**settings), data, checkpoint=path, resume=True)
    assert_same(model, whole)
    model.save(tmp_path / "model")
    whole.save(tmp_path / "whole")
    assert model.model_id_ == whole.model_id_
    other = TwoTower(**{**settings, "keep_evidence": not model.keep_evidence})
    with pytest.raises(InputError, match="with other keep_evidence"):
        fit(other, data, checkpoint=path, resume=True)


@pytest.mark.parametrize("items", [True, False])
def test_the_sweeps_of_the_item_simec_go_on(data, tmp_path, items):
    settings = {**SETTINGS, "refine": False}
    tables = {"items": data.items if items else None, "users": data.users}
    whole = TwoTower(**settings).fit(data.ratings, **tables)
    path = tmp_path / "checkpoint"
    with killed_at(3):
        TwoTower(**settings).fit(data.ratings, **tables, checkpoint=path)
    model = TwoTower(**settings).fit(data.ratings, **tables, checkpoint=path, resume=True)
    assert_same(model, whole)
    for simec, expected in ((m.item_simec_, whole.item_simec_) for m in [model]):
        assert simec.get_params() == expected.get_params()
        assert simec.history_ == expected.history_
        np.testing.assert_array_equal(simec.last_layer_, expected.last_layer_)


@pytest.mark.slow
def test_an_encoder_of_ones_own_is_part_of_the_settings(data, whole, tmp_path):
    from simrec.simec.keras import keras

    def fitted(seed, **arguments):
        first = keras.initializers.GlorotUniform(seed)
        n = whole.item_simec_.feature_shape_[0]
        layers = [keras.Input((n,)), keras.layers.Dense(5, kernel_initializer=first)]
        model = TwoTower(**settings, item_encoder=keras.Sequential(layers))
        return fit(model, data, checkpoint=tmp_path / "checkpoint", **arguments)

    settings = {**SETTINGS, "refine": False, "epochs": 2}
    assert_same(fitted(0, resume=False), fitted(0, resume=True))
    with pytest.raises(InputError, match=r"with other item_encoder\."):
        fitted(1, resume=True)


def test_a_checkpoint_changes_nothing_and_is_not_used_unasked(data, whole, half_done, caplog):
    Checkpoint(half_done, {})
    assert "not used" in caplog.text and not half_done.exists()
    model = fit(TwoTower(**SETTINGS), data, checkpoint=half_done)
    assert vectors(model, "users").tobytes() == vectors(whole, "users").tobytes()


def test_nothing_there_to_go_on_from(data, tmp_path, caplog):
    fit(TwoTower(**SETTINGS), data, checkpoint=tmp_path / "none", resume=True)
    assert "starting from the beginning" in caplog.text
    with pytest.raises(InputError, match="say which checkpoint"):
        fit(TwoTower(), data, resume=True)


def test_other_settings_and_data_are_refused(data, half_done):
    other = TwoTower(**{**SETTINGS, "epochs": 7, "random_state": 1})
    with pytest.raises(InputError, match=r"another training, with other epochs, random_state\."):
        fit(other, data, checkpoint=half_done, resume=True)
    fewer = data.ratings.slice(1)
    with pytest.raises(InputError, match=r"another training, with other data\."):
        TwoTower(**SETTINGS).fit(
            fewer, items=data.items, users=data.users, checkpoint=half_done, resume=True
        )
    with pytest.raises(InputError, match="with other data"):
        TwoTower(**SETTINGS).fit(data.ratings, items=data.items, checkpoint=half_done, resume=True)


@pytest.mark.parametrize("name", ["covariance.npy", "state.json", "manifest.json"])
def test_a_damaged_checkpoint_is_refused(data, half_done, name):
    file = half_done / name
    file.write_bytes(file.read_bytes()[:-9] + b"123456789")
    with pytest.raises(InputError, match=r"damaged checkpoint .*Train without resume"):
        fit(TwoTower(**SETTINGS), data, checkpoint=half_done, resume=True)
    model = fit(TwoTower(**SETTINGS), data, checkpoint=half_done)
    assert vectors(model, "users").any()


def test_nothing_else_is_replaced(data, whole, tmp_path):
    model = TwoTower(**SETTINGS)
    whole.save(tmp_path / "model")
    with pytest.raises(InputError, match="'two_tower', no checkpoint"):
        fit(model, data, checkpoint=tmp_path / "model")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    with pytest.raises(InputError, match="other files"):
        fit(model, data, checkpoint=tmp_path / "notes")
    module.clear(tmp_path / "model")
    module.clear(tmp_path / "notes")
    assert (tmp_path / "model").exists() and (tmp_path / "notes" / "a.txt").exists()


def test_checkpoints_take_a_small_share_of_the_time(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(module, "SHARE", 0.05)
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock[0])
    kept = Checkpoint(tmp_path / "checkpoint", {})
    assert kept.due()
    clock[0] = 2.0
    kept.write("sweeps", Saved(), {}, started=1.0)
    written = [second for second in range(2, 80) if (clock.__setitem__(0, second), kept.due())[1]]
    assert written[0] == 22


@pytest.mark.slow
def test_a_training_killed_hard_goes_on_to_the_same_model(tmp_path):
    make_synthetic(n_users=300, n_items=120, n_ratings=4_000, random_state=0).write(tmp_path)
    words = ["train", "--quiet"]
    for name in ("ratings", "items", "users"):
        words += [f"--{name}", str(tmp_path / f"{name}.parquet")]
    assert main([*words, "--out", str(tmp_path / "whole")]) == 0
    words += ["--out", str(tmp_path / "out")]
    process = subprocess.Popen([sys.executable, "-m", "simrec.cli", *words])
    manifest = tmp_path / "out.checkpoint" / "manifest.json"
    while not manifest.exists() and process.poll() is None:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert manifest.exists() and not (tmp_path / "out").exists()
    assert main([*words, "--resume"]) == 0
    ids = [read_manifest(tmp_path / name)["model_id"] for name in ("whole", "out")]
    assert ids[0] == ids[1]
    assert not manifest.parent.exists()


def no_room(*arguments, **more):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_training_whose_disk_is_full_goes_on_when_there_is_room(data, tmp_path, monkeypatch):
    data.write(tmp_path)
    tables = DataOptions(*(tmp_path / f"{name}.parquet" for name in ("ratings", "items", "users")))
    whole = train(TwoTower(**SETTINGS), tables, tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(OSError, match="with --resume") as caught:
        patch.setattr("simrec.model.files.write_rows", no_room)  # the model, not its checkpoints
        train(TwoTower(**SETTINGS), tables, tmp_path / "out")
    assert caught.value.filename == str(tmp_path / "out")
    assert "the disk is full" in caught.value.strerror
    assert str(tmp_path / "out.checkpoint") in caught.value.strerror
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".out.*.new"))
    found = train(TwoTower(**SETTINGS), tables, tmp_path / "out", resume=True)
    assert found["model_id"] == whole["model_id"]


def test_a_worker_names_the_full_disk_and_nothing_is_left(tmp_path):
    def write(group):
        with written_together(tmp_path / "kept", group):
            if group.rank == 1:
                no_room()
            group.total(0.0)

    error = in_threads(2, write)[1]
    assert isinstance(error, OSError) and error.filename == str(tmp_path / "kept")
    assert "the disk is full" in str(error)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (WorkerLost("a worker is gone"), True),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), False),
        (InputError("ratings: no"), False),
        (np.linalg.LinAlgError("Matrix is not positive definite"), False),
        (FloatingPointError("overflow"), False),
        (MemoryError(), False),
    ],
)
def test_only_a_lost_worker_is_a_reason_to_start_again(error, lost):
    assert is_lost(error) is lost
