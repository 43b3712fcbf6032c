"""Training by several workers against training by one: errors, time, memory and traffic.

    python benchmarks/distributed.py                         # synthetic ratings
    python benchmarks/distributed.py --data DIR              # ratings, items, users (.parquet)
    python benchmarks/distributed.py --data DIR --workers 1 2 3
    python benchmarks/distributed.py --costs                 # what a rating, a user, an item costs
    python benchmarks/distributed.py --shards 1000000        # a model of so many users in 8 shards

Workers are processes of this machine, connected as Ray Train connects them. They share its cores,
so that several are not faster here than one: what is shown is that they find the same, and what
they have to send each other. Another row is one worker that keeps checkpoints.
"""

import argparse
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
from _report import machine
from _shards import shards

from simrec import Ratings, TwoTower, cold_start_split, evaluate, make_synthetic

TASKS = ("warm", "new_items", "new_users", "new_both")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="directory of the tables")
    parser.add_argument("--bounds", type=float, nargs=2, default=(1.0, 5.0))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--costs", action="store_true", help="time the parts of a sweep")
    parser.add_argument("--shards", type=int, metavar="USERS", help="a model in 8 shards")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def work(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train as one of the workers, and measure."""
    settings = json.loads(arguments.worker)
    strategy, group = None, None
    if settings["workers"] > 1:
        from simrec.simec.keras import tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        group = _counted()
    split = cold_start_split(
        Ratings.from_parquet(arguments.data / "ratings.parquet"), random_state=arguments.seed
    )
    model = TwoTower(bounds=tuple(arguments.bounds), random_state=0)
    tables = {name: arguments.data / f"{name}.parquet" for name in ("items", "users")}
    with tempfile.TemporaryDirectory() as directory:
        kept = f"{directory}/checkpoint" if settings["checkpoint"] else None
        started, busy = time.perf_counter(), time.process_time()
        model.fit(split.train, **tables, strategy=strategy, checkpoint=kept)
        seconds, busy = time.perf_counter() - started, time.process_time() - busy
    table = evaluate(model, split)
    return {
        "rmse": dict(zip(table["task"], table["rmse"], strict=True)),
        "seconds": seconds,
        "cpu": busy,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "sums": group or {"n": 0, "bytes": 0, "seconds": 0.0},
    }


def _counted() -> dict[str, float]:
    """Count what workers send each other."""
    from simrec.model.run.strategy import StrategyGroup

    counts = {"n": 0, "bytes": 0, "seconds": 0.0}
    plain = StrategyGroup.sum

    def counted(self: StrategyGroup, array: np.ndarray) -> np.ndarray:
        started = time.perf_counter()
        total = plain(self, array)
        counts["n"] += 1
        counts["bytes"] += array.nbytes
        counts["seconds"] += time.perf_counter() - started
        return total

    StrategyGroup.sum = counted  # type: ignore[method-assign]
    return counts


def run(arguments: argparse.Namespace, workers: int, checkpoint: bool) -> dict[str, Any]:
    """Start the workers; give what the first one measured."""
    ports = []
    for _ in range(workers):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    settings = json.dumps({"workers": workers, "checkpoint": checkpoint})
    command = [sys.executable, __file__, "--data", str(arguments.data), "--worker", settings]
    command += ["--seed", str(arguments.seed), "--bounds", *map(str, arguments.bounds)]
    processes = []
    for rank in range(workers):
        environment = dict(os.environ)
        if workers > 1:
            cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
            task = {"type": "worker", "index": rank}
            environment["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
        processes.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        )
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("a worker has failed")
    return json.loads(outputs[0].strip().splitlines()[-1])


def compare(arguments: argparse.Namespace) -> str:
    """Train with each number of workers, and write the table."""
    rows = [(f"{n} worker{'s' * (n > 1)}", n, False) for n in arguments.workers]
    rows.append(("1 worker, checkpoints", 1, True))
    lines = [
        "| training | " + " | ".join(TASKS) + " | s | CPU s a worker | peak MB a worker "
        "| sums | MB summed | s in sums |",
        "|" + " --- |" * 11,
    ]
    errors = {}
    for name, workers, checkpoint in rows:
        result = run(arguments, workers, checkpoint)
        errors[name] = np.array([result["rmse"][task] for task in TASKS])
        cells = [f"{error:.5f}" for error in errors[name]]
        sums = result["sums"]
        cells += [f"{result['seconds']:.1f}", f"{result['cpu']:.1f}", f"{result['peak']:.0f}"]
        cells += [f"{sums['n']}", f"{sums['bytes'] / 1e6:.0f}", f"{sums['seconds']:.1f}"]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    first = next(iter(errors.values()))
    worst = max(float(np.abs(error - first).max()) for error in errors.values())
    return "\n".join([*lines, "", f"Largest difference between RMSEs of a task: {worst:.6f}."])


def costs(
    n_users: int = 200_000, n_items: int = 20_000, n_ratings: int = 4_000_000, repeats: int = 9
) -> str:
    """Time the parts of a sweep, by what their time grows with."""
    from simrec.model.fit.known_entities import ITEMS, USERS, Problem, fit_known
    from simrec.model.fit.linear_encoder import Inputs, marginal
    from simrec.model.fit.observed import Observed, n_threads
    from simrec.model.fit.posterior import Belief, Scales, posterior_covariance, statistics, update
    from simrec.model.fit.prepare import prepare

    data = make_synthetic(n_users=n_users, n_items=n_items, n_ratings=n_ratings, random_state=0)
    prepared = prepare(TwoTower(), data.ratings, data.items, data.users)
    observed, D = Observed.of(prepared.ratings), 17
    n_items, n_users = observed.items.n_rows, observed.n_users  # a few have no rating
    sides = (observed.items, observed.users)
    rng, scales = np.random.default_rng(0), Scales.start(D)
    features = prepared.users.X
    inputs = Inputs(features, prepared.users.groups, sides[USERS], sides[ITEMS])
    belief = Belief(
        rng.normal(0, 0.1, (n_items, D)).astype(np.float32),
        np.broadcast_to(np.eye(D, dtype=np.float32) * 0.01, (n_items, D, D)),
    )
    prior = np.zeros((n_users, D), np.float32)
    B = np.zeros((len(inputs.groups), D), np.float32)

    def sweep() -> dict[str, float]:
        times: dict[str, float] = {}

        def timed(name: str, work: Any) -> Any:
            started = time.process_time()
            made = work()
            times[name] = times.get(name, 0.0) + time.process_time() - started
            return made

        stats = timed("rating", lambda: statistics(sides[USERS], belief))
        covariance = timed("entity", lambda: posterior_covariance(stats, scales))
        evidence = timed("entity", lambda: marginal(stats, scales, covariance))
        timed("entity", lambda: update(stats, prior, scales, covariance))
        Y = timed("step, rating", lambda: inputs.forward(B))
        Z = timed("step, entity", lambda: (evidence.S @ Y[:, :, None])[:, :, 0])
        timed("step, rating", lambda: inputs.backward(Z))
        return times

    runs = [sweep() for _ in range(repeats)]
    tracemalloc.start()
    sparse = (prepared.items.X, features)
    problem = Problem(observed, sparse, (prepared.items.groups, prepared.users.groups))
    fit_known(problem, D - 1, 2, rng, lambda logs: None)
    sweeping = tracemalloc.get_traced_memory()[1]

    def row(part: str, name: str, n: int) -> str:
        values = np.array([run[name] for run in runs]) / n * 1e6
        cells = [f"{value:.3g}" for value in (np.median(values), values.min(), values.max())]
        return f"| {part} | " + " | ".join(cells) + " |"

    lines = [
        f"{n_ratings:,} ratings, {n_users:,} users, {n_items:,} items, d = 16; CPU time on "
        f"{n_threads()} threads, {repeats} repeats.",
        "",
        "| part | CPU microseconds, median | least | most |",
        "| --- | --- | --- | --- |",
        row("statistics of a side, a rating", "rating", n_ratings),
        row("posterior of an entity", "entity", n_users),
        row("a step of gradients, a rating", "step, rating", n_ratings),
        row("a step of gradients, an entity", "step, entity", n_users),
        "",
        f"Memory at the peak of a sweep: {sweeping / (n_users + n_items):.0f} bytes an entity.",
    ]
    return "\n".join(lines)


def main() -> None:
    """Run it."""
    arguments = parse()
    if arguments.worker:
        print(json.dumps(work(arguments)))
        return
    if arguments.shards:
        with tempfile.TemporaryDirectory() as directory:
            table = shards(Path(directory), arguments.shards)
        title, name = "A model in shards", "shards.md"
    elif arguments.costs:
        title, name, table = "What training costs", "distributed-costs.md", costs()
    else:
        if arguments.data is None:
            arguments.data = Path(tempfile.mkdtemp()) / "synthetic"
            make_synthetic(n_users=3000, n_items=1000, n_ratings=200_000).write(arguments.data)
            arguments.bounds = (0.5, 5.0)
        title, name = f"Training by several workers, {arguments.data.name}", "distributed.md"
        table = compare(arguments)
    text = f"# {title}\n\n{table}\n\nMeasured on {machine()}.\n"
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / name).write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
