"""Batch jobs at scale: time against bare Parquet reading and writing, peak memory, kill -9.

    python benchmarks/jobs.py [--pairs 20000000] [--users 200000] [--items 50000] [--dim 64]

Each measurement is a process of its own, so that its peak memory is its own.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _report import machine
from scipy import sparse

from simrec.data.ids import IdMap
from simrec.data.sides import USUAL, Side, Sides
from simrec.model.head import Encoder, StoredHead
from simrec.model.lists.blend import Blend
from simrec.model.rating.layout import Layout
from simrec.model.rating.part import RatingPart
from simrec.model.tower import Tower
from simrec.model.two_tower import TwoTower
from simrec.scoring.output import Output
from simrec.storage.files import sha256

BARE = """
import sys, pyarrow as pa, pyarrow.parquet as pq
source, scores, out = sys.argv[1:]
score = pq.read_table(scores, columns=["score"])["score"]
import time
started, busy = time.perf_counter(), time.process_time()
table = pq.read_table(source).append_column("score", score)
pq.write_table(table, out, compression="zstd")
print(time.perf_counter() - started, time.process_time() - busy)
"""


# The same job on a cluster of two nodes on this machine, one of which is killed after some parts.
RAY = """
import json, sys, threading, time
from pathlib import Path
import ray
from ray.cluster_utils import Cluster
from simrec.jobs.engine.batch import BatchOptions
from simrec.jobs.score import score
model, pairs, out = map(Path, sys.argv[1:])
quiet = {"object_store_memory": 500 * 2**20}
cluster = Cluster(initialize_head=True,
                  head_node_args={"num_cpus": 1, "include_dashboard": False, **quiet})
second = cluster.add_node(num_cpus=1, **quiet)
ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
killed = []

def kill():
    parts = out.with_name(out.name + ".partial")
    while len(list(parts.glob("part-*.parquet"))) < 4:
        time.sleep(0.01)
    cluster.remove_node(second, allow_graceful=False)
    killed.append(len(list(parts.glob("part-*.parquet"))))

threading.Thread(target=kill, daemon=True).start()
result = score(model, pairs, out, batch=BatchOptions(engine="ray"))
print(json.dumps({"killed_after_parts": killed[0], "parts": result["parts"],
                  "seconds": result["seconds"]}))
"""


def make_model(path: Path, n_users: int, n_items: int, dim: int) -> None:
    """Save a model with random vectors: scoring does not care what they mean."""
    rng = np.random.default_rng(0)
    model, sizes = TwoTower(embedding_dim=dim, bounds=(1, 5)), Sides(n_items, n_users)
    layout = Layout(embedding_dim=dim, scale=1.0)

    def tower(side: Side) -> Tower:
        n = sizes[side]
        none = sparse.csr_matrix((n, 0), dtype=np.float32)
        return Tower(side, IdMap(pa.array(np.arange(n))), np.ones(n, np.int64), None, none)

    def head(side: Side) -> StoredHead:
        width = layout.width
        vectors = rng.standard_normal((sizes[side], width), np.float32) / np.float32(width**0.5)
        return StoredHead(vectors, Encoder(np.zeros((1, width), np.float32)), vectors.mean(axis=0))

    model.towers_ = Sides.of(tower)
    output = Output(1, 5, 3.5, "clip")
    model.parts_ = {"rating": RatingPart(Sides.of(head), output, layout, (1, 5), None)}
    model.rated_ = sparse.csr_matrix((n_users, n_items), dtype=np.float32)
    model.liked_ = model.rated_.astype(np.int8)
    ones = Sides(np.ones((2, 1), np.float32), np.ones((3, 1), np.float32))
    model.blend_ = Blend({"rating": ones})
    model.schema_, model.chosen_, model.history_ = {}, {}, []
    model.parent_, model.updates_, model.columns_ = None, [], USUAL
    model.save(path)


def make_pairs(path: Path, n: int, n_users: int, n_items: int) -> None:
    rng = np.random.default_rng(1)
    schema = pa.schema([("user_id", pa.int64()), ("item_id", pa.int64())])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for start in range(0, n, 1 << 20):
            size = min(1 << 20, n - start)
            columns = [rng.integers(0, n_users, size), rng.integers(0, n_items, size)]
            writer.write_table(pa.table(columns, schema=schema))


def measure(*words: object) -> tuple[float, float, float, str]:
    """Run a command; return seconds, processor seconds, peak memory in GB, and what it printed."""
    started = time.perf_counter()
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(list(map(str, words)), stdout=output, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        if status != 0:
            errors.seek(0)
            raise SystemExit(f"failed: {words}\n{errors.read()}")
        output.seek(0)
        busy = usage.ru_utime + usage.ru_stime
        return seconds, busy, usage.ru_maxrss / 1e6, output.read()


def simrec(*words: object) -> tuple[object, ...]:
    return (sys.executable, "-m", "simrec.cli", *words)


def content(directory: Path) -> dict[str, str]:
    return {p.name: sha256(p) for p in directory.iterdir() if p.name != "_summary.json"}


def kills(work: Path, command: tuple[object, ...], seconds: float, reference: dict) -> list[dict]:
    """Kill the job ten times, at a random moment each time; start it again until it is done."""
    chance = random.Random(0)
    found = []
    for attempt in range(10):
        out = work / f"killed{attempt}"
        process = subprocess.Popen(
            list(map(str, (*command, "--out", out))),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        moment = chance.uniform(0, seconds)
        time.sleep(moment)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        *_, text = measure(*command, "--out", out, "--json")
        kept = json.loads(text)["parts_from_earlier_run"]
        equal = content(out) == reference
        found.append({"killed_after": round(moment, 2), "parts_kept": kept, "equal": equal})
        shutil.rmtree(out)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=20_000_000)
    parser.add_argument("--users", type=int, default=200_000)
    parser.add_argument("--items", type=int, default=50_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--runs", type=int, default=3, help="of scoring; the best counts")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    results: dict[str, object] = {
        "machine": machine(),
        "pairs": options.pairs,
        "users": options.users,
        "items": options.items,
        "dim": options.dim,
    }
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        make_model(work / "model", options.users, options.items, options.dim)
        make_pairs(work / "pairs.parquet", options.pairs, options.users, options.items)

        score = simrec("score", "--model", work / "model", "--pairs", work / "pairs.parquet")
        times, bare = [], []
        for attempt in range(options.runs):
            out = work / f"scores{attempt}"
            seconds, busy, memory, text = measure(*score, "--out", out, "--json")
            times.append((json.loads(text)["seconds"], seconds, busy, memory))
            words = (sys.executable, "-c", BARE, work / "pairs.parquet", out, work / "bare.parquet")
            bare.append(tuple(map(float, measure(*words)[3].split())))
        start = measure(sys.executable, "-c", "import simrec.jobs.score, simrec.model.two_tower")
        job, whole = min(t[0] for t in times), min(t[1] for t in times)
        plain, plain_busy = min(b[0] for b in bare), min(b[1] for b in bare)
        results["score"] = {
            "seconds": job,
            "seconds_with_start": round(whole, 2),
            "bare_read_and_write_seconds": round(plain, 2),
            "ratio": round(job / plain, 2),
            "ratio_with_start": round(whole / plain, 2),
            # Less noisy than times on the wall where other processes share the machine.
            "processor_ratio": round((min(t[2] for t in times) - start[1]) / plain_busy, 2),
            "pairs_per_second": round(options.pairs / job),
            "peak_memory_gb": round(max(t[3] for t in times), 2),
        }
        print(json.dumps(results["score"], indent=2), flush=True)
        reference = content(work / "scores0")
        results["kill"] = kills(work, score, whole, reference)
        print(json.dumps(results["kill"], indent=2), flush=True)

        *_, text = measure(
            *(sys.executable, "-c", RAY),
            *(work / "model", work / "pairs.parquet", work / "on-ray"),
        )
        on_ray = json.loads(text.strip().splitlines()[-1])
        results["ray"] = {**on_ray, "equal": content(work / "on-ray") == reference}
        print(json.dumps(results["ray"], indent=2), flush=True)

        recommend = simrec("recommend", "--model", work / "model", "--k", 10)
        seconds, busy, memory, text = measure(*recommend, "--out", work / "top", "--json")
        results["recommend"] = {
            "seconds": round(seconds, 2),
            "processor_seconds": round(busy, 2),
            "users_per_second": json.loads(text)["rows_per_second"],
            "peak_memory_gb": round(memory, 2),
        }
        print(json.dumps(results["recommend"], indent=2), flush=True)
    options.out.mkdir(exist_ok=True)
    (options.out / "jobs.json").write_text(json.dumps(results, indent=2) + "\n")
    (options.out / "jobs.md").write_text(table(results))


def table(results: dict) -> str:
    """Write the results as Markdown."""
    score, recommend, ray, kill = (results[n] for n in ("score", "recommend", "ray", "kill"))
    equal = sum(one["equal"] for one in kill)
    kept = ", ".join(str(one["parts_kept"]) for one in kill)
    rows = [
        (
            f"`score`, {results['pairs']:,} pairs, d = {results['dim']}",
            f"{score['seconds']:.1f} s, {score['ratio']:.2f} times bare pyarrow "
            f"({score['processor_ratio']:.2f} of the processor's time)",
            "<= 2",
        ),
        ("the same, peak memory", f"{score['peak_memory_gb']:.2f} GB", "< 2 GB"),
        (
            f"`recommend`, 10 of {results['items']:,} items for {results['users']:,} users",
            f"{recommend['seconds']:.0f} s, {recommend['users_per_second']:,} users a second",
            "-",
        ),
        ("the same, peak memory", f"{recommend['peak_memory_gb']:.2f} GB", "< 2 GB"),
        (
            "`score`, killed (-9) at ten random moments and started again",
            f"{equal} of {len(kill)} equal to the byte (parts kept: {kept})",
            "all",
        ),
        (
            "`score` on Ray, two nodes, one killed",
            f"{'equal' if ray['equal'] else 'NOT equal'} to the byte; killed after "
            f"{ray['killed_after_parts']} of {ray['parts']} parts, {ray['seconds']:.1f} s in all",
            "equal",
        ),
    ]
    lines = ["| what | measured | to reach |", "| --- | --- | --- |"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines) + f"\n\n{results['machine']}\n"


if __name__ == "__main__":
    main()
