"""Run `simrec train`, as anybody runs it, in a process of its own."""

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Environment = dict[str, str] | None


@dataclass(frozen=True)
class End:
    """How a training ended."""

    code: int
    output: str
    log: str
    seconds: float


class Training:
    """`simrec train` on the tables of a directory, as it runs."""

    def __init__(
        self,
        data: Path,
        out: Path,
        *options: str,
        workers: int = 1,
        env: Environment = None,
        prefix: tuple[str, ...] = (),
    ) -> None:
        command = [*prefix, sys.executable, "-m", "simrec.cli", "train"]
        command += ["--ratings", str(data / "ratings")]
        for name in ("items", "users"):
            command += [f"--{name}", str(data / f"{name}.parquet")]
        command += ["--out", str(out), "--workers", str(workers), "--json", "-", *options]
        self.out, self._started = out, time.perf_counter()
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=env)

    def ended(self) -> End:
        """Wait for its end."""
        output, log = self.process.communicate()
        return End(self.process.returncode, output, log, time.perf_counter() - self._started)


def train(
    data: Path, out: Path, *options: str, workers: int = 1, env: Environment = None
) -> dict[str, Any]:
    """Run `simrec train`; return what it tells."""
    end = Training(data, out, *options, workers=workers, env=env).ended()
    if end.code:
        raise SystemExit(f"{options}\n{end.log}")
    return {**json.loads(end.output), "elapsed": end.seconds, "log": end.log}
