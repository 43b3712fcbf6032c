"""Trainings that are disturbed in the middle, against one that is not; run by `distributed.py`."""

import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _network import cluster_of_two, connect_to_all, listening, train_workers
from _train import Training, train

from simrec import TwoTower
from simrec.storage import artifacts

# Bytes of a disk that will be full.
_DISK = 512 << 20
# Seconds after which a silent worker is lost, in these trainings.
_TIMEOUT = 30
_TWO_SIMECS = ("--no-refine",)
Words = tuple[str, ...]


@dataclass(frozen=True)
class Ended:
    """How a disturbed training ended: what it said, when after the disturbance, and its model."""

    said: str
    seconds: float
    model: Path | None


@dataclass
class Faults:
    """Disturbs trainings on the tables of a directory."""

    directory: Path
    options: Words

    def rows(self) -> Iterator[tuple[str, Callable[[], Ended], Words]]:
        """Yield what happens, how to do it, and further options of the training."""
        yield "kill -9 of a worker", partial(self.signalled, signal.SIGKILL), ()
        yield "SIGSTOP of a worker", partial(self.signalled, signal.SIGSTOP), ()
        yield "a stranger at the ports: `GET /` during the sweeps", self.stranger, ()
        yield (
            "a stranger at the ports from the start on: `GET /`, and silence",
            partial(self.stranger, from_start=True),
            (),
        )
        yield "the network between two machines is cut", self.network_cut, ()
        yield "one of three nodes of a cluster is killed: 3 -> 2 workers", self.node_killed, ()
        for stage, name, more, workers in (
            ("sweeps", "in the sweeps, resumed with 2 workers", (), 2),
            ("sweeps", "in the sweeps, resumed with 3 workers", (), 3),
            ("ratings learned", "in uptake, resumed with 2 workers", (), 2),
            ("sweeps", "in the item SimEc, resumed with 2 workers", _TWO_SIMECS, 2),
        ):
            does = partial(self.killed, more, stage, workers)
            yield f"kill -9 of the training {name}", does, more
        for what in ("exchange", "checkpoint", "output"):
            yield f"the disk of the {what} is full", partial(self.full, what), ()

    def begun(self, *options: str, workers: int = 2, stage: str = "sweeps") -> Training:
        """Start a training, and wait until it has written a checkpoint of a stage."""
        training = self.started(*options, workers=workers)
        wait_for(Path(f"{training.out}.checkpoint"), stage, training)
        return training

    def started(self, *options: str, workers: int = 2) -> Training:
        """Start a training."""
        words = (*self.options, *options, "--timeout", str(_TIMEOUT))
        return Training(self.directory, self.directory / "disturbed", *words, workers=workers)

    def signalled(self, number: signal.Signals) -> Ended:
        """Send a signal to one of two workers; the training goes on by itself."""
        training = self.begun()
        os.kill(train_workers(training.process.pid)[-1], number)
        return self.ended(training, "lost a worker")

    def stranger(self, from_start: bool = False) -> Ended:
        """Connect to all ports at which the workers listen."""
        training = self.started()
        if not from_start:
            wait_for(Path(f"{training.out}.checkpoint"), "sweeps", training)
        done = threading.Event()
        with ExitStack() as stack:
            ports: set[int] = set()

            def disturb() -> None:
                while not done.is_set():
                    new = listening(train_workers(training.process.pid)) - ports
                    ports.update(new)
                    connect_to_all(new, stack, silent=from_start)
                    if not from_start:
                        return
                    time.sleep(0.005)

            thread = threading.Thread(target=disturb, daemon=True)
            thread.start()
            try:
                ended = self.ended(training, "lost a worker", may_fail=True)
            finally:
                done.set()
                thread.join()
        return Ended(f"{len(ports)} ports; {ended.said}", ended.seconds, ended.model)

    def network_cut(self) -> Ended:
        """Cut the cable between two network namespaces with a worker in each."""
        with cluster_of_two() as cluster:
            training = Training(
                self.directory,
                self.directory / "disturbed",
                *(*self.options, "--timeout", str(_TIMEOUT), "--engine", "ray"),
                *("--address", cluster.address),
                workers=2,
                env=cluster.environment,
                prefix=cluster.prefix,
            )
            wait_for(Path(f"{training.out}.checkpoint"), "sweeps", training)
            cluster.cut()
            return self.ended(training, "lost a worker")

    def node_killed(self) -> Ended:
        """Kill one of three nodes, on which one of three workers is."""
        from ray.cluster_utils import Cluster

        room: dict[str, Any] = {"object_store_memory": 100 * 2**20}
        cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **room}
        )
        try:
            nodes = [cluster.add_node(num_cpus=1, **room) for _ in range(3)]
            where = ("--engine", "ray", "--address", cluster.address)
            training = self.begun(*where, workers=3)
            cluster.remove_node(nodes[-1], allow_graceful=False)
            return self.ended(training, "lost a worker")
        finally:
            cluster.shutdown()

    def killed(self, more: Words, stage: str, workers: int) -> Ended:
        """Kill the training at a stage, and resume it."""
        training = self.begun(*more, stage=stage)
        training.process.send_signal(signal.SIGKILL)
        training.process.communicate()
        if training.out.exists():
            raise SystemExit("half a model is there")
        resumed = self.started(*more, "--resume", workers=workers)
        return self.ended(resumed, "going on from")

    def full(self, what: str) -> Ended:
        """Fill the disk of one of a training's directories in the middle, make room, resume."""
        with small_disk(self.directory / "disk") as disk:
            out, kept = self.directory / "full", self.directory / "kept"
            if what == "checkpoint":
                kept = disk / "kept"
            else:
                out = disk / "full"
            options = (*self.options, "--checkpoint", str(kept))
            if what == "exchange":
                _fill(disk, left=200_000)
            training = Training(self.directory, out, *options, workers=2)
            if what != "exchange":
                wait_for(kept, "sweeps", training)
                while training.process.poll() is None:
                    _fill(disk)
                    time.sleep(0.01)
            ended = training.ended()
            if ended.code != 1 or out.exists():
                raise SystemExit(f"ended with {ended.code}, or half a model is there:\n{ended.log}")
            left = [path.name for path in disk.iterdir() if path.name not in ("ballast", "kept")]
            if left:
                raise SystemExit(f"left on the disk: {left}")
            (disk / "ballast").unlink()
            train(self.directory, out, *options, "--resume", workers=2)
            found = self.directory / "found"
            shutil.copytree(out, found)
            shutil.rmtree(out)
        return Ended(_line(ended.log, "disk is full"), ended.seconds, found)

    def ended(self, training: Training, words: str, may_fail: bool = False) -> Ended:
        """Wait for the end; return it with the line of the log that has some words."""
        started = time.perf_counter()
        found = training.ended()
        seconds = time.perf_counter() - started
        if found.code and not may_fail:
            raise SystemExit(f"ended with {found.code}:\n{found.log}")
        if found.code:
            return Ended(_line(found.log, "failed"), seconds, None)
        return Ended(_line(found.log, words), seconds, training.out)


def faults_table(directory: Path, options: Words, only: str = "", earlier: str = "") -> str:
    """Disturb trainings in many ways; return a table.

    Rows whose name does not match `only` are taken over from an earlier text.
    """
    kept = {line.split(" | ")[0]: line for line in earlier.splitlines() if line.startswith("| ")}
    whole: dict[Words, Path] = {}
    lines = [
        f"A silent worker is lost after {_TIMEOUT} s (`--timeout {_TIMEOUT}`). Seconds: from the "
        "disturbance to the end of the training, or of the one that is resumed; others work on "
        "the machine.",
        "",
        "| what happens | what is said | s | model against that of an undisturbed training |",
        "| --- | --- | --- | --- |",
    ]
    for name, does, more in Faults(directory, options).rows():
        if not re.search(only, name):
            lines += [kept[f"| {name}"]] if f"| {name}" in kept else []
            continue
        if more not in whole:
            whole[more] = directory / f"whole-{len(whole)}"
            train(directory, whole[more], *options, *more, workers=2)
        ended = does()
        model = "no model" if ended.model is None else compared(whole[more], ended.model)
        lines.append(f"| {name} | {ended.said} | {ended.seconds:.0f} | {model} |")
        print(lines[-1], flush=True)
        for path in directory.glob("disturbed*"):
            shutil.rmtree(path)
        shutil.rmtree(directory / "found", ignore_errors=True)
    return "\n".join(lines)


def compared(one: Path, other: Path) -> str:
    """Compare two models."""
    ids = [artifacts.read_manifest(path)["model_id"] for path in (one, other)]
    if ids[0] == ids[1]:
        return "the same bytes"
    left, right = TwoTower.load(one), TwoTower.load(other)
    if _choices(left) != _choices(right):
        return f"other choices: {_choices(left)}, {_choices(right)}"
    worst = {
        f"{part} of {side}": np.abs(np.asarray(a.vectors) - np.asarray(b.vectors)).max(0)
        for part in left.parts_
        for (side, a), (_, b) in zip(
            left.parts_[part].heads.named(), right.parts_[part].heads.named(), strict=True
        )
    }
    if not any(found.any() for found in worst.values()):
        return "the same vectors, bit by bit"
    layout = getattr(left.parts_["rating"], "layout", None)
    known = max(
        float(found[: None if layout is None else layout.embedding_dim + 2].max())
        for name, found in worst.items()
        if name.startswith("rating")
    )
    every = max(float(found.max()) for found in worst.values())
    return f"the same choices; known entities within {known:.0e}, all within {every:.0e}"


def _choices(model: TwoTower) -> dict[str, object]:
    """Return what was chosen from a few values, without what is measured on the way."""
    measured = re.compile("expected|weight|half_life|ridge")
    return {k: v for k, v in model.chosen_.items() if not measured.search(k)}


def wait_for(kept: Path, stage: str, training: Training) -> None:
    """Wait until a checkpoint of a stage is there."""
    while training.process.poll() is None:
        try:
            if f'"stage": "{stage}"' in (kept / "state.json").read_text(encoding="utf-8"):
                return
        except OSError:
            pass
        time.sleep(0.01)
    raise SystemExit(f"the training ended before: {training.ended().log}")


@contextmanager
def small_disk(path: Path) -> Iterator[Path]:
    """Mount a disk in memory."""
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)
        path.rmdir()


def _fill(disk: Path, left: int = 0) -> None:
    """Take all the room that there is but for some bytes."""
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize - left
    if free > 0:
        with open(disk / "ballast", "ab") as file:
            try:
                os.posix_fallocate(file.fileno(), file.tell(), free)
                file.truncate(file.tell() + free)
            except OSError:
                pass  # somebody else was faster


def _line(log: str, words: str) -> str:
    """Return the last line of a log with some words, without directories."""
    found = [line for line in log.splitlines() if words in line]
    if not found:
        return "-"
    return re.sub(r"/\S*/", "", found[-1]).replace("|", "/")[:250]
