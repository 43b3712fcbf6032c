"""One model on one split in a process of its own, and the file that keeps what came out."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from peers import Peer, peer_class

import simrec
from simrec import Ratings, cold_start_split, make_synthetic
from simrec.data.split import ColdStartSplit
from simrec.scoring.metrics import rmse

# Lower ends of the bins of an entity's number of training ratings: 0, 1-4, 5-9, ...
BINS = (0, 1, 5, 10, 20, 50, 100, 200, 500)
_THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)


@dataclass(frozen=True)
class Data:
    """Where the tables are, and what is rated how."""

    name: str
    ratings: str | None
    items: str | None
    users: str | None
    train: str | None = None
    test: str | None = None
    bounds: tuple[float, float] | None = None
    liked: float = 4.0

    @property
    def rated(self) -> bool:
        """Whether there are ratings, or only pairs."""
        return "rating" in pq.read_schema(self.ratings).names

    def split(self, seed: int) -> ColdStartSplit:
        """Give the ratings; of a table of pairs all are 1."""
        rating = "rating" if self.rated else None
        ratings = Ratings.from_parquet(self.ratings, rating=rating)
        return cold_start_split(ratings, random_state=seed)

    def features(self) -> tuple[pa.Table | None, pa.Table | None]:
        """Give the features of items and of users."""
        items = pq.read_table(self.items) if self.items else None
        users = pq.read_table(self.users) if self.users else None
        return items, users

    def read(self, seed: int) -> tuple[Ratings, dict[str, Ratings], Any, Any]:
        """Give training ratings, ratings to predict by task, features of items and of users."""
        if self.train:
            train = Ratings.from_parquet(self.train)
            tasks = {"test": Ratings.from_parquet(self.test)}
        else:
            split = self.split(seed)
            train, tasks = split.train, split.tasks()
        return train, tasks, *self.features()


def tables_in(directory: Path) -> dict[str, str | None]:
    """Find the tables of a data set by their names."""
    files = {name: directory / f"{name}.parquet" for name in ("ratings", "items", "users")}
    return {name: str(file) if file.exists() else None for name, file in files.items()}


def synthetic_in(out: Path) -> Path:
    """Give the directory of synthetic data, made unless it is there."""
    directory = out / "synthetic"
    if not (directory / "ratings.parquet").exists():
        make_synthetic(n_users=2_000, n_items=1_000, n_ratings=100_000).write(directory)
    return directory


@dataclass(frozen=True)
class Run:
    """One model on one split, `key` saying which and with which code."""

    script: ClassVar[str] = __file__

    data: Data
    model: str
    seed: int

    @classmethod
    def from_json(cls, text: str) -> "Run":
        """Take a run that `Results` has handed to another process."""
        task = json.loads(text)
        bounds = task["data"].pop("bounds")
        data = Data(**task.pop("data"), bounds=tuple(bounds) if bounds else None)
        return cls(data, **task)

    def key(self) -> dict[str, Any]:
        return {
            "data": self.data.name,
            "model": self.model,
            "seed": self.seed,
            "code": peer_class(self.model).fingerprint(),
        }


def measure(run: Run) -> dict[str, Any]:
    """Fit and predict, here and now."""
    train, tasks, items, users = run.data.read(run.seed)
    bounds = run.data.bounds or (float(train.values.min()), float(train.values.max()))
    kind = peer_class(run.model)
    kind.load()
    peer = kind(bounds, run.data.liked, run.seed)
    result = fit(peer, train, items, users)
    clock = time.perf_counter()
    result |= errors(peer, train, tasks)
    result["predict_s"] = time.perf_counter() - clock
    return result


def fit(
    peer: Peer, train: Ratings, items: pa.Table | None, users: pa.Table | None
) -> dict[str, Any]:
    """Fit, and say what it took."""
    before, clock, cpu = peak_memory(), time.perf_counter(), time.process_time()
    peer.fit(train, items, users)
    return {
        "fit_s": time.perf_counter() - clock,
        "fit_cpu_s": time.process_time() - cpu,
        "peak_mb": peak_memory(),
        "before_fit_mb": before,
        "n_train": len(train),
    }


def errors(peer: Peer, train: Ratings, tasks: dict[str, Ratings]) -> dict[str, Any]:
    """Predict the ratings of each task, and say how wrong it was."""
    result: dict[str, Any] = {"rmse": {}, "n": {}}
    # Sum of squared errors and number of ratings in each bin, where the other side is known.
    bins = {side: np.zeros((2, len(BINS))) for side in ("item", "user")}
    for task, ratings in tasks.items():
        if not len(ratings):
            continue
        table = ratings.to_arrow()
        predictions = np.asarray(peer.predict(table.select(["user_id", "item_id"])))
        if not np.isfinite(predictions).all():
            raise ValueError(f"{peer.name}: predictions are not all finite ({task})")
        result["rmse"][task] = rmse(ratings.values, predictions)
        result["n"][task] = len(ratings)
        squares = (predictions - ratings.values) ** 2
        counts = {
            "item": _counts(train.items, train.item_rows, table.column("item_id")),
            "user": _counts(train.users, train.user_rows, table.column("user_id")),
        }
        for side, other in (("item", "user"), ("user", "item")):
            at = np.searchsorted(BINS, counts[side], side="right") - 1
            known = counts[other] > 0
            bins[side][0] += np.bincount(at[known], squares[known], len(BINS))
            bins[side][1] += np.bincount(at[known], minlength=len(BINS))
    result["bins"] = {side: table.tolist() for side, table in bins.items()}
    return result


def _counts(ids: Any, rows: np.ndarray, wanted: pa.ChunkedArray) -> np.ndarray:
    return np.append(np.bincount(rows, minlength=len(ids)), 0)[ids.rows(wanted)]


def python_environment() -> dict[str, str]:
    """Give an environment in which another Python finds this SimRec and these modules."""
    here = Path(__file__).resolve().parent
    paths = [str(here), str(Path(simrec.__file__).resolve().parents[1])]
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3"}
    environment = {**quiet, **os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    # Modules are compiled once, as they are where a package is installed.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment


def peak_memory() -> float:
    """Give the most memory this process had so far, in MB."""
    try:
        # Not getrusage: what it gives starts with the parent's.
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return int(status.split("VmHWM:")[1].split()[0]) / 1024
    except (OSError, IndexError):
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most / (2**20 if sys.platform == "darwin" else 2**10)


class Results:
    """What was measured, one JSON object a line; a killed benchmark goes on where it was."""

    def __init__(self, directory: Path, name: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / f"{name}.jsonl"

    def find(self, run: Run) -> dict[str, Any] | None:
        """Give the last result of a run, if there is one of the same code."""
        key, found = run.key(), None
        for line in self._lines():
            if line["key"] == key:
                found = line
        return found

    def measure(self, run: Run, threads: int | None = None) -> dict[str, Any]:
        """Run in a process of its own, and keep the result unless it failed."""
        task = json.dumps({**asdict(run), "data": asdict(run.data)})
        env = python_environment()
        if threads:
            env.update(dict.fromkeys(_THREADS, str(threads)))
        command = [sys.executable, str(Path(run.script).resolve()), task]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        line = {"key": run.key(), "threads": threads, "when": time.strftime("%Y-%m-%d %H:%M")}
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
            return {**line, "error": last[0], "log": done.stderr}
        line |= json.loads(done.stdout.strip().splitlines()[-1])
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return line

    def _lines(self) -> Iterator[dict[str, Any]]:
        if not self.path.exists():
            return
        for text in self.path.read_text(encoding="utf-8").splitlines():
            try:
                yield json.loads(text)
            except json.JSONDecodeError:
                continue  # cut off by a kill


if __name__ == "__main__":
    print(json.dumps(measure(Run.from_json(sys.argv[1]))))
