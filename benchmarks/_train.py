"""Run `simrec train`, as anybody runs it, in a process of its own."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def start(data: Path, out: Path, *options: str, workers: int = 1) -> subprocess.Popen[str]:
    """Start `simrec train` on the tables of a directory."""
    command = [sys.executable, "-m", "simrec.cli", "train", "--ratings", str(data / "ratings")]
    for name in ("items", "users"):
        command += [f"--{name}", str(data / f"{name}.parquet")]
    command += ["--out", str(out), "--workers", str(workers), "--json", "-", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def train(data: Path, out: Path, *options: str, workers: int = 1) -> dict[str, Any]:
    """Run `simrec train`; return what it tells."""
    started = time.perf_counter()
    process = start(data, out, *options, workers=workers)
    stdout, stderr = process.communicate()
    if process.returncode:
        raise SystemExit(f"{process.args}\n{stderr}")
    result = json.loads(stdout)
    result |= {"elapsed": time.perf_counter() - started, "log": stderr}
    return result
