"""Training by several workers against training by one: answers, time, memory, traffic, faults.

    python benchmarks/distributed.py agree [--data DIR] [--workers 1 2 3]
    python benchmarks/distributed.py memory [--ratings 20_000_000 --users 1_000_000]
    python benchmarks/distributed.py fragments
    python benchmarks/distributed.py faults

agree      One, two and three workers on one split: errors of each task, list quality, CPU seconds,
           seconds in sums. DIR holds ratings, items and users (.parquet); synthetic without it.
memory     Peak memory of a worker, above what it has at its start (imports, Ray), on synthetic
           ratings: of 1, 2 and 4 workers.
fragments  Which process reads which fragment of the ratings, and whether it holds an array that is
           as long as all users.
faults     Workers killed and stopped, strangers at their ports, the network cut between two
           network namespaces, a node of a Ray cluster and the training itself killed, and disks
           that become full (small tmpfs mounts), all in the middle, as root: each ends in the
           same model or a clear error. --only REGEX runs the rows that match, and keeps the
           others of the earlier results.

Workers are processes of this machine, started by Ray, and share its cores: several are not faster
here than one. All trainings are `simrec train`, as anybody runs it.
"""

import argparse
import re
import shutil
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _faults import compared, faults_table
from _longest import as_long_as, watched
from _report import machine
from _train import train

from simrec import Ratings, TwoTower, cold_start_split, evaluate, make_synthetic

TASKS = ("warm", "new_items", "new_users", "new_both")
# Sweeps where only memory is measured: it is the same in each.
_FEW = ("--epochs", "2", "--folds", "2")


def write_split(directory: Path, data: Path | None, seed: int, n_users: int = 3000) -> Any:
    """Write the training tables of a split; return the split."""
    if data is None:
        data = directory / "synthetic"
        n_items, n_ratings = n_users // 3, 66 * n_users
        make_synthetic(n_users=n_users, n_items=n_items, n_ratings=n_ratings).write(data)
    split = cold_start_split(Ratings.from_parquet(data / "ratings.parquet"), random_state=seed)
    for name in ("items", "users"):
        shutil.copy(data / f"{name}.parquet", directory / f"{name}.parquet")
    table = split.train.to_arrow()
    (directory / "ratings").mkdir()
    step = -(-len(table) // 8)
    for i in range(8):
        pq.write_table(table.slice(i * step, step), directory / "ratings" / f"{i}.parquet")
    return split


def agree(arguments: argparse.Namespace, directory: Path) -> str:
    """Train with each number of workers, and write the table."""
    split = write_split(directory, arguments.data, arguments.seed)
    lines = [
        "| training | " + " | ".join(TASKS) + " | known users, NDCG@10 | s | CPU s, all workers "
        "| sums | MB summed | s in sums | share of time |",
        "|" + " --- |" * 12,
    ]
    errors, models = [], []
    for n in arguments.workers:
        result = train(directory, directory / f"model-{n}", *arguments.options, workers=n)
        table = evaluate(TwoTower.load(directory / f"model-{n}"), split)
        found = table.set_index("task")
        errors.append([float(found.loc[task, "rmse"]) for task in TASKS])
        workers = result["workers"]
        sums, seconds = workers[0]["sums"], max(one["seconds_in_sums"] for one in workers)
        cells = [f"{error:.5f}" for error in errors[-1]]
        cells += [f"{found.loc['warm', 'ndcg@10']:.4f}", f"{result['seconds']:.1f}"]
        cells += [f"{sum(one['cpu_seconds'] for one in workers):.1f}", f"{sums:,}"]
        cells += [f"{workers[0]['bytes_summed'] / 1e6:.0f}", f"{seconds:.1f}"]
        cells += [f"{seconds / result['seconds']:.0%}"]
        models.append(directory / f"model-{n}")
        lines.append(f"| {n} worker{'s' * (n > 1)} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    worst = float(np.abs(np.array(errors) - errors[0]).max())
    lines += ["", f"Largest difference between RMSEs of a task: {worst:.6f}."]
    for n, model in zip(arguments.workers[1:], models[1:], strict=True):
        lines.append(f"{n} against {arguments.workers[0]}: {compared(models[0], model)}.")
    return "\n".join(lines)


def write_large(directory: Path, n_ratings: int, n_users: int, n_items: int) -> None:
    """Write ratings of many users in files, in no order, with a few features."""
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 20, n_users), rng.integers(0, 50, n_items)
    taste = rng.normal(0, 0.7, (20, 50))
    (directory / "ratings").mkdir(parents=True)
    piece = 500_000
    for number, start in enumerate(range(0, n_ratings, piece)):
        n = min(piece, n_ratings - start)
        users = rng.integers(0, n_users, n)
        items = (n_items * rng.beta(0.6, 2.0, n)).astype(np.int64)
        values = 3 + taste[groups[0][users], groups[1][items]] + rng.normal(0, 0.8, n)
        columns = {"user_id": users, "item_id": items, "rating": np.clip(np.rint(values), 1, 5)}
        pq.write_table(pa.table(columns), directory / "ratings" / f"{number:05d}.parquet")
    for name, group in zip(("users", "items"), groups, strict=True):
        ids = np.arange(len(group))
        table = {f"{name[:-1]}_id": ids, "group": group.astype(str), "number": rng.random(len(ids))}
        pq.write_table(pa.table(table), directory / f"{name}.parquet", row_group_size=100_000)


def memory(arguments: argparse.Namespace, directory: Path) -> str:
    """Measure the peak of each worker."""
    write_large(directory, arguments.ratings, arguments.users, arguments.items)
    lines = [
        f"{arguments.ratings:,} ratings, {arguments.users:,} users, {arguments.items:,} items.",
        "",
        "| workers | peak MB of a worker | above its start | of one worker's | s | CPU s "
        "| against the first model |",
        "|" + " --- |" * 7,
    ]
    plain: Path | None = None
    peaks: list[float] = []
    for n in arguments.workers:
        out = directory / f"model-{len(peaks)}"
        result = train(directory, out, *_FEW, *arguments.options, workers=n)
        worst = max(result["workers"], key=lambda one: one["peak_bytes"])
        peaks.append((worst["peak_bytes"] - worst["bytes_at_start"]) / 2**20)
        cpu = sum(one["cpu_seconds"] for one in result["workers"])
        cells = [
            f"{worst['peak_bytes'] / 2**20:.0f}",
            f"{peaks[-1]:.0f}",
            f"{peaks[-1] / peaks[0]:.2f}",
        ]
        plain = plain or out
        cells += [f"{result['seconds']:.0f}", f"{cpu:.0f}", compared(plain, out)]
        lines.append(f"| {n} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
        if out != plain:
            shutil.rmtree(out)

    return "\n".join(lines)


def fragments(arguments: argparse.Namespace, directory: Path) -> str:
    """Show who reads what: ratings in no order, and the same sorted by user."""
    write_large(directory, 400_000, 20_000, 500)
    tables = {"in no order": directory}
    whole = pq.read_table(directory / "ratings").sort_by("user_id")
    other = directory / "sorted"
    (other / "ratings").mkdir(parents=True)
    users = whole["user_id"].to_numpy()
    edges = np.searchsorted(users, np.linspace(0, 20_000, 9))
    mixed = whole.take(np.random.default_rng(0).permutation(len(whole)))
    shutil.rmtree(directory / "ratings")
    (directory / "ratings").mkdir()
    for i, (start, end) in enumerate(pairwise(edges)):
        pq.write_table(whole.slice(start, end - start), other / "ratings" / f"{i}.parquet")
        pq.write_table(mixed.slice(start, end - start), directory / "ratings" / f"{i}.parquet")
    for name in ("items", "users"):
        shutil.copy(directory / f"{name}.parquet", other / f"{name}.parquet")
    tables["sorted by user"] = other
    lines = ["| ratings | fragments | read by two workers | each is read |"]
    lines.append("| --- | --- | --- | --- |")
    for name, data in tables.items():
        options = ("--verbose", *_FEW)
        log = train(data, directory / "model", *options, workers=2)["log"]
        read = re.findall(r"process (\d+) reads \S*ratings/(\S+)", log)
        readers: dict[str, set[str]] = {}
        for process, fragment in read:
            readers.setdefault(fragment, set()).add(process)
        twice = sum(len(who) > 1 for who in readers.values())
        again = len(read) / max(len(readers), 1)
        lines.append(f"| {name} | {len(readers)} | {twice} | {again:.0f} times |")
    lines += ["", *_longest(directory)]
    return "\n".join(lines)


def _longest(directory: Path) -> list[str]:
    """Look at the arrays of one worker and of two, with more users than ratings of a worker."""
    n_users = 200_000
    data = directory / "many users"
    write_large(data, 300_000, n_users, 500)
    lines = [
        f"Arrays of {n_users:,} rows, as many as users, of {300_000:,} ratings:",
        "",
        "| workers | lengths seen | times that one was as long as all users |",
        "| --- | --- | --- |",
    ]
    for n in (1, 2):
        folder = directory / f"watched-{n}"
        train(data, directory / "model", *_FEW, workers=n, env=watched(folder))
        seen, times = as_long_as(folder, n_users)
        lines.append(f"| {n} | {seen:,} | {times:,} |")
    return lines


def faults(arguments: argparse.Namespace, directory: Path) -> str:
    """Disturb trainings, resume them, and compare the models."""
    write_split(directory, arguments.data, arguments.seed, n_users=1500)
    file = arguments.out / "distributed-faults.md"
    earlier = file.read_text(encoding="utf-8") if file.exists() else ""
    options = ("--epochs", "12", "--folds", "3", *arguments.options)
    return faults_table(directory, options, arguments.only, earlier)


_PARTS = {
    "agree": agree,
    "memory": memory,
    "fragments": fragments,
    "faults": faults,
}


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=list(_PARTS))
    parser.add_argument("--data", type=Path, help="directory of the tables")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, nargs="+")
    parser.add_argument("--ratings", type=int, default=20_000_000)
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--only", default="", help="rows of faults that match")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments, arguments.options = parser.parse_known_args()
    arguments.workers = arguments.workers or (
        [1, 2, 4] if arguments.what == "memory" else [1, 2, 3]
    )
    with tempfile.TemporaryDirectory() as directory:
        table = _PARTS[arguments.what](arguments, Path(directory))
    name = "" if arguments.data is None else f", {arguments.data.name}"
    text = f"# Training by several workers: {arguments.what}{name}\n\n{table}\n\n"
    text += f"Measured on {machine()}.\n"
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / f"distributed-{arguments.what}.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
