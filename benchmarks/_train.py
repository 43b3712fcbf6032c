"""Run `simrec train`, as anybody runs it, in a process of its own."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

Environment = dict[str, str] | None


def start(
    data: Path, out: Path, *options: str, workers: int = 1, env: Environment = None
) -> subprocess.Popen[str]:
    """Start `simrec train` on the tables of a directory."""
    command = [sys.executable, "-m", "simrec.cli", "train", "--ratings", str(data / "ratings")]
    for name in ("items", "users"):
        command += [f"--{name}", str(data / f"{name}.parquet")]
    command += ["--out", str(out), "--workers", str(workers), "--json", "-", *options]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=env)


def train(
    data: Path, out: Path, *options: str, workers: int = 1, env: Environment = None
) -> dict[str, Any]:
    """Run `simrec train`; return what it tells."""
    started = time.perf_counter()
    process = start(data, out, *options, workers=workers, env=env)
    stdout, stderr = process.communicate()
    if process.returncode:
        raise SystemExit(f"{process.args}\n{stderr}")
    result = json.loads(stdout)
    result |= {"elapsed": time.perf_counter() - started, "log": stderr}
    return result
