"""Trainings that are disturbed in the middle, against one that is not; run by `distributed.py`."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from _train import start, train

from simrec import TwoTower, artifacts

_STAGES = {"sweeps": "in the sweeps", "ratings learned": "in uptake", "item SimEc": "in the second"}
# Bytes of a disk that will be full.
_DISK = 512 << 20
Words = tuple[str, ...]


def faults_table(directory: Path, options: Words, only: str = "") -> str:
    """Disturb trainings in many ways, each resumed; return a table."""
    rows: list[tuple[str, Callable[[], tuple[str, Path]], Words, int]] = [
        ("a worker is killed", lambda: worker_killed(directory, options), (), 2)
    ]
    for stage, more, workers in (
        ("sweeps", (), 2),
        ("sweeps", (), 3),
        ("ratings learned", (), 2),
        ("item SimEc", ("--method", "simec"), 2),
    ):
        name = f"kill -9 of the training {_STAGES[stage]}{' SimEc' * bool(more)}, resumed with "
        rows.append(
            (
                f"{name}{workers} workers",
                lambda s=stage, m=more, n=workers: killed(directory, (*options, *m), s, n),
                more,
                2,
            )
        )
    rows.append(
        ("a node of a Ray cluster is killed", lambda: node_killed(directory, options), (), 2)
    )
    for what in ("exchange", "checkpoint", "output", "scratch"):
        rows.append(
            (f"the disk of the {what} is full", lambda w=what: full(directory, options, w), (), 2)
        )
    whole: dict[Words, Path] = {}
    lines = ["| what happened | what was told | model against that of an undisturbed training |"]
    lines.append("| --- | --- | --- |")
    for name, run, more, workers in rows:
        if only not in name:
            continue
        if more not in whole:
            whole[more] = directory / f"whole-{len(whole)}"
            train(directory, whole[more], *options, *more, workers=workers)
        told, found = run()
        lines.append(f"| {name} | {told} | {compared(whole[more], found)} |")
        print(lines[-1], flush=True)
        shutil.rmtree(found)
    return "\n".join(lines)


def compared(one: Path, other: Path) -> str:
    """Compare two models."""
    ids = [artifacts.read_manifest(path)["model_id"] for path in (one, other)]
    if ids[0] == ids[1]:
        return "the same bytes"
    left, right = TwoTower.load(one), TwoTower.load(other)
    worst = {
        f"{part} of {side}": np.abs(np.asarray(a.vectors) - np.asarray(b.vectors)).max(0)
        for part in left.parts_
        for (side, a), (_, b) in zip(
            left.parts_[part].heads.named(), right.parts_[part].heads.named(), strict=True
        )
    }
    if not any(found.any() for found in worst.values()):
        return "the same vectors, bit by bit, in other shards"
    layout = getattr(left.parts_["rating"], "layout", None)
    known = max(
        float(found[: None if layout is None else layout.embedding_dim + 2].max())
        for name, found in worst.items()
        if name.startswith("rating")
    )
    every = max(float(found.max()) for found in worst.values())
    return f"coordinates of known entities within {known:.0e}, all within {every:.0e}"


def wait_for(kept: Path, stage: str, process: "subprocess.Popen[str]") -> None:
    """Wait until a checkpoint of a stage is there."""
    while process.poll() is None:
        try:
            if f'"stage": "{stage}"' in (kept / "state.json").read_text(encoding="utf-8"):
                return
        except OSError:
            pass
        time.sleep(0.01)
    raise SystemExit(f"the training ended before: {process.communicate()[1]}")


def worker_killed(directory: Path, options: Words) -> tuple[str, Path]:
    """Kill one of two workers; the training goes on by itself."""
    out = directory / "killed"
    process = start(directory, out, *options, workers=2)
    wait_for(Path(f"{out}.checkpoint"), "sweeps", process)
    os.kill(_workers(process.pid)[-1], signal.SIGKILL)
    return _told(process.communicate()[1], "lost a worker"), out


def killed(directory: Path, options: Words, stage: str, workers: int) -> tuple[str, Path]:
    """Kill the training at a stage, and resume it."""
    out = directory / "killed"
    process = start(directory, out, *options, workers=2)
    wait_for(Path(f"{out}.checkpoint"), stage, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    if out.exists():
        raise SystemExit("half a model is there")
    log = train(directory, out, *options, "--resume", workers=workers)["log"]
    return _told(log, "going on from"), out


def node_killed(directory: Path, options: Words) -> tuple[str, Path]:
    """Kill one of three nodes, one on which a worker is; the training goes on by itself."""
    from ray.cluster_utils import Cluster

    room = {"object_store_memory": 100 * 2**20}
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **room}
    )
    try:
        nodes = [cluster.add_node(num_cpus=1, **room) for _ in range(3)]
        out = directory / "killed"
        where = ("--engine", "ray", "--address", cluster.address)
        process = start(directory, out, *options, *where, workers=2)
        wait_for(Path(f"{out}.checkpoint"), "sweeps", process)
        for node in nodes:
            raylet = node.all_processes["raylet"][0].process.pid
            if _workers(raylet, b"ray::_work"):
                cluster.remove_node(node, allow_graceful=False)
                break
        else:
            raise SystemExit("no node has a worker")
        return _told(process.communicate()[1], "lost a worker"), out
    finally:
        cluster.shutdown()


def full(directory: Path, options: Words, what: str) -> tuple[str, Path]:
    """Fill the disk of one of a training's directories in the middle, make room, and resume."""
    with small_disk(directory / "disk") as disk:
        out, kept = directory / "full", directory / "kept"
        if what in ("exchange", "output"):
            out = disk / "full"
        elif what == "checkpoint":
            kept = disk / "kept"
        else:
            options = (*options, "--memory", "1MB", "--scratch", str(disk))
        options = (*options, "--checkpoint", str(kept))
        if what == "exchange":
            _fill(disk, left=200_000)
        process = start(directory, out, *options, workers=2)
        if what != "exchange":
            wait_for(kept, "sweeps", process)
            while process.poll() is None:
                _fill(disk)
                time.sleep(0.01)
        log = process.communicate()[1]
        if process.returncode != 1 or out.exists():
            raise SystemExit(f"ended with {process.returncode}, or half a model is there:\n{log}")
        left = [path.name for path in disk.iterdir() if path.name not in ("ballast", "kept")]
        if left:
            raise SystemExit(f"left on the disk: {left}")
        (disk / "ballast").unlink()
        train(directory, out, *options, "--resume", workers=2)
        found = directory / "found"
        shutil.copytree(out, found)
        shutil.rmtree(out)
    return _told(log, "disk is full", str(directory)), found


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


def _told(log: str, words: str, cut: str = "\0") -> str:
    """Return the line of a log with some words, without paths."""
    found = [line for line in log.splitlines() if words in line]
    if not found:
        return "-"
    line = re.sub(r"^.*?(/|the training)", r"\1", found[-1])
    line = re.sub(r" Node IP.*", "", line)
    return re.sub(r"/\S*/", "", line.replace(cut, ""))[:200]


def _workers(pid: int, words: bytes = b"spawn_main") -> list[int]:
    """Return the children of a process that are workers."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [c for c in map(int, text.split()) if words in Path(f"/proc/{c}/cmdline").read_bytes()]
