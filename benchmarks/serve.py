"""The service under load: times of requests, a kill, a swap, a full log, malformed requests.

A model of the asked size is put together from a small fitted one: vectors are drawn like its own,
as many as there are to be. A process of its own serves it; requests come at a steady rate, as they
would from many clients, and the time of each counts from when it was due.

    python benchmarks/serve.py [--items 100000] [--users 1000000] [--seconds 20] [--rate 50]
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import numpy as np
import pyarrow as pa

from simrec import TwoTower, make_synthetic

PORT = 8765
ADDRESS = f"http://127.0.0.1:{PORT}"


def build(path: Path, n_items: int, n_users: int, seed: int = 0) -> None:
    """Write a model with so many items and users: rows of a small one, with noise."""
    from dataclasses import replace

    from scipy import sparse

    from simrec.data.ids import IdMap
    from simrec.model.posterior.evidence import Evidence, PackedPosterior

    data = make_synthetic(n_users=600, n_items=400, n_ratings=20_000)
    model = TwoTower(random_state=0).fit(data.ratings, items=data.items, users=data.users)
    rng = np.random.default_rng(seed)
    sizes = {"items": n_items, "users": n_users}
    rows = {side: rng.integers(len(model.towers_[side].ids), size=n) for side, n in sizes.items()}

    def grown(array: np.ndarray, side: str) -> np.ndarray:
        found = np.asarray(array)[rows[side]]
        if side == "items" and found.ndim == 2 and found.dtype == np.float32:
            spread = 0.3 * np.asarray(array).std(0)
            for start in range(0, len(found), 1 << 16):
                block = found[start : start + (1 << 16)]
                block += spread * rng.standard_normal(block.shape, np.float32)
        return found

    towers = model.towers_.map(lambda tower: tower)
    for side, tower in towers.named():
        tower.ids = IdMap(pa.array(np.arange(sizes[side]), pa.int64()))
        tower.counts = np.asarray(tower.counts)[rows[side]]
        tower.features = tower.features[rows[side]]
    table = towers.items.table.take(pa.array(rows["items"]))
    towers.items.table = table.set_column(
        0, "title", pa.array([f"Item {i}" for i in range(n_items)])
    )
    parts = {}
    for name, part in model.parts_.items():
        changed = {
            "heads": type(part.heads)(
                *(
                    replace(head, vectors=grown(head.vectors, side))
                    for side, head in part.heads.named()
                )
            )
        }
        if hasattr(part, "numbers"):
            changed["numbers"] = np.asarray(part.numbers)[rows["items"]]
        if hasattr(part, "factors"):
            changed["factors"] = type(part.heads)(
                *(np.asarray(one)[rows[side]] for side, one in part.factors.named())
            )
        if isinstance(getattr(part, "evidence", None), Evidence):
            sides = []
            for side, one in part.evidence.sides.named():
                new = {
                    n: np.asarray(getattr(one, n))[rows[side]]
                    for n in ("history", "history_weights", "out_of_fold", "warmth")
                }
                for n in ("warm", "cold"):
                    packed = getattr(one, n)
                    new[n] = packed and PackedPosterior(
                        np.asarray(packed.mean)[rows[side]], np.asarray(packed.factors)[rows[side]]
                    )
                sides.append(replace(one, **new))
            changed["evidence"] = replace(part.evidence, sides=type(part.heads)(*sides))
        parts[name] = replace(part, **changed)
    model.parts_ = parts
    counts = np.full(n_users, 5)
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    indices = rng.integers(n_items, size=int(indptr[-1])).astype(np.int32)
    model.rated_ = sparse.csr_matrix(
        (np.ones(len(indices), np.float32), indices, indptr), shape=(n_users, n_items)
    )
    model.rated_.sum_duplicates()
    width = model.ranking("both")[0].items.width
    model.save(path)
    print(f"model: {n_items:,} items, {n_users:,} users, {width} coordinates")


def start(path: Path, state: Path) -> subprocess.Popen:
    """Start the service and wait until it is ready."""
    command = [sys.executable, "-m", "simrec.cli", "serve", "--model", str(path)]
    command += ["--port", str(PORT), "--state", str(state), "--poll", "1", "--quiet"]
    process = subprocess.Popen(command)
    while True:
        try:
            if httpx.get(f"{ADDRESS}/readyz").status_code == 200:
                return process
        except httpx.HTTPError:
            time.sleep(0.2)


def bodies(kind: str, n_items: int, n_users: int, rng: np.random.Generator) -> dict:
    """Return a request of a kind."""
    if kind == "known user":
        return {"user_id": int(rng.integers(n_users))}
    items = rng.choice(n_items, 5, replace=False)
    ratings = [{"item_id": int(i), "rating": float(rng.integers(1, 6))} for i in items]
    return {"ratings": ratings, "where": {"year": {">=": 1990}}}


async def load(kind: str, rate: float, seconds: float, n_items: int, n_users: int) -> np.ndarray:
    """Send requests at a steady rate; return the milliseconds of each since it was due."""
    rng, taken = np.random.default_rng(1), []
    async with httpx.AsyncClient(base_url=ADDRESS, timeout=60) as client:

        async def one(due: float, body: dict) -> None:
            answer = await client.post("/recommend", json=body)
            assert answer.status_code == 200, answer.text
            taken.append(1000 * (time.perf_counter() - due))

        first, tasks = time.perf_counter(), []
        for i in range(int(rate * seconds)):
            due = first + i / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.create_task(one(due, bodies(kind, n_items, n_users, rng))))
        await asyncio.gather(*tasks)
    return np.array(taken)


def soak(path: Path, state: Path, n_items: int, n_users: int, rounds: int) -> None:
    """Kill the process, swap the model and send nonsense; count what was acknowledged."""
    process, rng, sent, bad = start(path, state), np.random.default_rng(2), 0, 0
    memory = []
    for turn in range(rounds):
        with httpx.Client(base_url=ADDRESS, timeout=60) as client:
            for _ in range(50):
                pair = {
                    "user_id": int(rng.integers(n_users)),
                    "item_id": int(rng.integers(n_items)),
                }
                answer = client.post("/feedback", json={"events": [{**pair, "rating": 3.0}]})
                sent += answer.status_code == 200
            for _ in range(200):
                noise = bytes(rng.integers(32, 127, 60).astype(np.uint8))
                content = rng.choice([b'{"user_id":' + noise, noise, b'{"where":{"year":{"~":1}}}'])
                answer = client.post("/recommend", content=bytes(content))
                bad += answer.status_code >= 500
            text = client.get("/metrics").text
            memory.append(float(text.split("process_resident_memory_bytes ")[-1].split()[0]) / 1e6)
        if turn % 2:
            os.utime(path / "manifest.json")  # the same model again: loaded beside, swapped
            time.sleep(2)
        else:
            process.send_signal(signal.SIGKILL)
            process.wait()
            process = start(path, state)
    process.terminate()
    process.wait()
    from simrec.serve.log import Log

    kept = sum(kind == "ratings" for kind, _ in Log(state).all())
    print(f"feedback: {sent} acknowledged, {kept} kept; {bad} answers of 5xx")
    print("memory, MB: " + ", ".join(f"{one:.0f}" for one in memory))


def main() -> None:
    """Build, serve, measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--rate", type=float, default=50)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path, state = Path(directory) / "model", Path(directory) / "state"
        build(path, given.items, given.users)
        process = start(path, state)
        V = np.random.default_rng(0).standard_normal((given.items, 129), np.float32)
        q, times = V[0].copy(), []
        for _ in range(50):
            begin = time.perf_counter()
            np.argpartition(V @ q, -10)
            times.append(1000 * (time.perf_counter() - begin))
        print(f"NumPy product and argpartition: median {np.median(times):.1f} ms")
        for kind in ("known user", "five ratings and a filter"):
            asyncio.run(load(kind, given.rate, 2, given.items, given.users))
            taken = asyncio.run(load(kind, given.rate, given.seconds, given.items, given.users))
            p50, p99 = np.percentile(taken, [50, 99])
            print(f"{kind}: p50 {p50:.1f} ms, p99 {p99:.1f} ms at {given.rate:g}/s")
        begin = time.perf_counter()
        row = {"item_id": given.items + 5, "title": "New", "year": 1999, "genres": ["Drama"]}
        httpx.post(f"{ADDRESS}/items", json={"rows": [row]}, timeout=60).raise_for_status()
        body = {"user_id": 1, "items": [given.items + 5]}
        found = httpx.post(f"{ADDRESS}/recommend", json=body, timeout=60).json()
        assert found["items"][0]["item_id"] == given.items + 5, json.dumps(found)
        print(f"a new item, ranked: {1000 * (time.perf_counter() - begin):.0f} ms")
        process.terminate()
        process.wait()
        soak(path, state, given.items, given.users, given.rounds)


if __name__ == "__main__":
    main()
