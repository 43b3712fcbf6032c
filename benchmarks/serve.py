"""The service under load: times of requests, then ten minutes of all that can go wrong.

A model of the asked size is put together from a small fitted one: vectors are drawn like its own,
as many as there are to be. A process of its own serves it, on one core; requests come at a steady
rate over keep-alive connections, and the time of each counts from when it was due. Beside it, in
the same run: the same product by plain NumPy, and the SavedModel that the model is exported as, in
a process of TensorFlow alone.

    python benchmarks/serve.py --minutes 0      # the load
    python benchmarks/serve.py --no-load        # the soak, ten minutes; needs schemathesis

The soak: feedback and lists all the time; the process is killed, its model is replaced by a good
and by a damaged one, 50 clients send their requests byte by byte, schemathesis sends what its
OpenAPI description allows and forbids, valid requests are spoiled in many ways until 10,000 were
refused, and the disk is full (a tmpfs of a namespace of its own).
"""

import argparse
import asyncio
import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pyarrow as pa
from scipy import sparse

from simrec import TwoTower, make_synthetic
from simrec.data.ids import IdMap
from simrec.model.posterior.evidence import Evidence, PackedPosterior
from simrec.serve.log import Log

PORT = int(os.environ.get("PORT", "8765"))
ADDRESS = f"http://127.0.0.1:{PORT}"
RESULTS = Path(__file__).parent / "results" / "serve.md"
MALFORMED = 10_000
# Seconds that are measured at a time, and the cores that others may use in quiet ones.
SEGMENT, QUIET = 3.0, 0.1
SAVED_MODEL = """
import sys, time, numpy as np, tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
ask = tf.saved_model.load(sys.argv[1]).signatures["known_users"]
given = dict(k=tf.constant(10), exclude=tf.zeros([1, 0], tf.int64))
users = [tf.constant([i], tf.int64) for i in range(100)]
for user in users[:10]:
    ask(user_id=user, **given)
cpu, taken = time.process_time(), []
for user in users:
    begin = time.perf_counter()
    ask(user_id=user, **given)["item_id"].numpy()
    taken.append(1000 * (time.perf_counter() - begin))
print(10 * (time.process_time() - cpu), *np.percentile(taken, [50, 99]))
"""


def build(path: Path, n_items: int, n_users: int, data: Path | None = None) -> None:
    """Write a model with so many items and users: rows of a small one, items with noise."""
    # Of 130 items lists have 129 coordinates, as the published row.
    tables = make_synthetic(n_users=600, n_items=130, n_ratings=15_000)
    ratings, items, users = tables.ratings, tables.items, tables.users
    if data is not None:
        ratings, items, users = (data / f"{n}.parquet" for n in ("ratings", "items", "users"))
    model = TwoTower(random_state=0).fit(ratings, items=items, users=users)
    rng = np.random.default_rng(0)
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
    place = table.column_names.index("title")
    titles = pa.array([f"Item {i}" for i in range(n_items)])
    towers.items.table = table.set_column(place, "title", titles)
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
        for name_of in ("inputs", "fitted", "likes"):  # a number for each item
            if hasattr(part, name_of):
                changed[name_of] = np.asarray(getattr(part, name_of))[rows["items"]]
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
    model.liked_ = model.rated_.astype(np.int8)
    model.save(path)


class Server:
    """A service in a process of its own, on one core."""

    def __init__(self, model: Path, state: Path, *before: str) -> None:
        self.command = [*before, sys.executable, "-m", "simrec.cli", "serve", "--model", str(model)]
        self.command += ["--port", str(PORT), "--state", str(state), "--poll", "1", "--quiet"]
        self.start()

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        core = {max(os.sched_getaffinity(0))}
        self.process = subprocess.Popen(
            self.command, env=environment, preexec_fn=lambda: os.sched_setaffinity(0, core)
        )
        for _ in range(1200):
            time.sleep(0.25)
            if self.process.poll() is not None:
                raise SystemExit("the service did not start; is the port taken?")
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{ADDRESS}/readyz").status_code == 200:
                    return
        raise SystemExit("the service was not ready within five minutes")

    def cpu(self) -> float:
        """Return the CPU seconds that it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float:
        """Return the private memory that it holds, in MB: without the files it maps."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"RssAnon:\s+(\d+)", text)[1]) / 1024

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal, and wait for the end."""
        self.process.send_signal(number)
        self.process.wait()


async def post(stream: tuple, path: str, body: bytes) -> tuple[int, bytes]:
    """Send a request over a connection that stays; httpx would cost as much as the service."""
    reader, writer = stream
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    start = await reader.readuntil(b"\r\n\r\n")
    length = int(re.search(rb"(?i)content-length: (\d+)", start)[1])
    return int(start.split(b" ", 2)[1]), await reader.readexactly(length)


async def load(make, rate: float, seconds: float) -> np.ndarray:
    """Send requests at a steady rate; return the milliseconds of each since it was due."""
    taken: list[float] = []
    free: asyncio.Queue = asyncio.Queue()
    for _ in range(16):
        free.put_nowait(await asyncio.open_connection("127.0.0.1", PORT))

    async def one(due: float, body: bytes) -> None:
        stream = await free.get()
        status, answer = await post(stream, "/recommend", body)
        taken.append(1000 * (time.perf_counter() - due))
        assert status == 200, answer
        free.put_nowait(stream)

    requests = [json.dumps(make()).encode() for _ in range(int(rate * seconds))]
    first, tasks = time.perf_counter() + 0.05, []
    for i, body in enumerate(requests):
        due = first + i / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(one(due, body)))
    await asyncio.gather(*tasks)
    while not free.empty():
        free.get_nowait()[1].close()
    return np.array(taken)


def ticks(*processes: int) -> tuple[int, int]:
    """Return the clock ticks that all processors have worked, and those of some processes."""
    fields = [int(one) for one in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    own = 0
    for process in processes:
        text = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        own += int(text[11]) + int(text[12])
    return sum(fields) - fields[3] - fields[4], own


def quiet_load(server: Server, make, given: argparse.Namespace) -> list[float]:
    """Send requests for some seconds at a time; return figures of the quietest.

    Others may work on the machine. Seconds count by the CPU time that other processes used in
    them, whatever the requests took. Waits for quiet ones until patience is over.
    """
    found, until = [], time.monotonic() + given.patience
    wanted = max(round(given.seconds / SEGMENT), 1)
    own = server.process.pid, os.getpid()
    while sum(busy < QUIET for busy, *_ in found) < wanted:
        before, cpu, start = ticks(*own), server.cpu(), time.monotonic()
        taken = asyncio.run(load(make, given.rate, SEGMENT))
        after, cpu = ticks(*own), 1000 * (server.cpu() - cpu) / len(taken)
        busy = (after[0] - before[0]) - (after[1] - before[1])
        busy /= os.sysconf("SC_CLK_TCK") * (time.monotonic() - start)
        found.append((max(busy, 0.0), cpu, taken))
        if time.monotonic() > until and len(found) >= wanted:
            break
    best = sorted(found, key=lambda one: one[0])[:wanted]
    times = np.concatenate([one[2] for one in best])
    others, cpu = (float(np.mean([one[i] for one in best])) for i in (0, 1))
    return [cpu, *np.percentile(times, [50, 99]), others]


def kinds(n_items: int, n_users: int, rng: np.random.Generator) -> dict:
    """Return what makes requests, by name."""

    def known(**more) -> dict:
        return {"user_id": int(rng.integers(n_users)), **more}

    def five(**more) -> dict:
        items = rng.choice(n_items, 5, replace=False)
        ratings = [{"item_id": int(i), "rating": float(rng.integers(1, 6))} for i in items]
        return {"ratings": ratings, "where": {"year": {">=": 1990}}, **more}

    return {
        ("known user", "uptake"): lambda: known(rank_by="uptake"),
        ("five ratings and a filter", "uptake"): lambda: five(rank_by="uptake"),
        ("known user", "both"): known,
        ("five ratings and a filter", "both"): five,
    }


def numpy_row(n: int, width: int) -> list[float]:
    """Time a product with all items and its ten best, by NumPy alone."""
    V = np.random.default_rng(0).standard_normal((n, width), np.float32)
    q, cpu, taken = V[0].copy(), time.process_time(), []
    for _ in range(100):
        begin = time.perf_counter()
        z = V @ q
        np.argpartition(z, -10)[-10:]
        taken.append(1000 * (time.perf_counter() - begin))
    return [10 * (time.process_time() - cpu), *np.percentile(taken, [50, 99])]


def saved_model_row(model: TwoTower, rank_by: str) -> list[float]:
    """Time the ten best for a known user by the exported SavedModel, of a hundred users."""
    quiet = os.environ | {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    with tempfile.TemporaryDirectory() as folder:
        few = model.guests(user_ids=np.arange(100))
        few.export(f"{folder}/1", "savedmodel", rank_by=rank_by)
        command = [sys.executable, "-c", SAVED_MODEL, f"{folder}/1"]
        done = subprocess.run(
            command, env=quiet, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    return [float(one) for one in done.stdout.split()[-3:]]


def latency(server: Server, path: Path, given: argparse.Namespace) -> list[str]:
    """Measure all kinds of requests, beside NumPy and TensorFlow; return rows of a table."""
    model = TwoTower.load(path)
    n_items, n_users = len(model.items_), len(model.users_)
    widths = {name: model.ranking(name)[0].items.width for name in ("uptake", "both")}
    rows = []
    for (kind, by), make in kinds(n_items, n_users, np.random.default_rng(1)).items():
        asyncio.run(load(make, given.rate, 3))
        rows.append([f"service, {kind}, by {by}", widths[by], *quiet_load(server, make, given)])
        print(rows[-1], flush=True)
    for by, width in widths.items():
        rows.append(["NumPy product and argpartition", width, *numpy_row(n_items, width)])
        rows.append([f"exported SavedModel, by {by}", width, *saved_model_row(model, by)])
    taken = []
    with httpx.Client(base_url=ADDRESS, timeout=60) as http:
        for item in range(n_items, n_items + 10):
            row = {"item_id": item, "title": "New", "year": 1999, "genres": ["Drama"]}
            begin = time.perf_counter()
            http.post("/items", json={"rows": [row]}).raise_for_status()
            found = http.post("/recommend", json={"user_id": 1, "items": [item]}).json()
            taken.append(1000 * (time.perf_counter() - begin))
            assert found["items"][0]["item_id"] == item, found
    rankable = f"{np.median(taken):.0f} ms (at most {max(taken):.0f}, of ten)"
    lines = ["| what | coordinates | CPU ms | p50 ms | p99 ms | others, cores |"]
    lines += ["| --- | --- | --- | --- | --- | --- |"]
    for name, width, cpu, p50, p99, *busy in rows:
        others = "".join(f"{one:.2f}" for one in busy)
        lines.append(f"| {name} | {width:,} | {cpu:.1f} | {p50:.1f} | {p99:.1f} | {others} |")
    return [*lines, "", f"A new item is in an answer {rankable} after it was sent."]


def sample(schema: dict, description: dict, rng: np.random.Generator) -> object:
    """Return a value that a schema allows; of an object's optional fields, some."""
    if "$ref" in schema:
        return sample(description["components"]["schemas"][schema["$ref"][21:]], description, rng)
    if "anyOf" in schema:
        return sample(schema["anyOf"][rng.integers(len(schema["anyOf"]))], description, rng)
    if "enum" in schema or "const" in schema:
        return schema["const"] if "const" in schema else str(rng.choice(schema["enum"]))
    kind = schema.get("type")
    if kind == "object":
        needed = schema.get("required", [])
        fields = schema.get("properties", {"year": {"type": "integer"}})
        return {
            name: sample(field, description, rng)
            for name, field in fields.items()
            if name in needed or rng.random() < 0.4
        }
    if kind == "array":
        return [
            sample(schema.get("items", {}), description, rng) for _ in range(rng.integers(1, 4))
        ]
    plain = {"integer": int(rng.integers(1, 9)), "number": 3.0, "boolean": True, "string": "7"}
    return plain.get(kind)


def spoiled(description: dict, rng: np.random.Generator) -> tuple[str, str, bytes]:
    """Return path, content type and body of a request that was valid."""
    posts = [path for path, one in description["paths"].items() if "post" in one]
    path, kind = posts[rng.integers(len(posts))], "application/json"
    content = description["paths"][path]["post"]["requestBody"]["content"]
    value = sample(content["application/json"]["schema"], description, rng)
    wrong = [10**40, -1, 1e300, "x" * 5000, "\udfff", "\0", [], {}, [[]], {"a": {"b": 1}}, True]
    deep = json.loads("[" * 200 + "]" * 200)
    way = rng.integers(8)
    if way < 4:  # a wrong value somewhere, a field that is missing, one too many
        at = value
        while (inner := _nested(at)) and rng.random() < 0.7:
            at = inner[rng.integers(len(inner))]
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        new = deep if way == 3 else wrong[rng.integers(len(wrong))]
        if way == 0 and isinstance(at, dict):
            at["surprise"] = new
        elif keys:
            at[keys[rng.integers(len(keys))]] = new
    body = json.dumps(value).encode()
    if way == 4:
        body = body[: rng.integers(len(body))]
    elif way == 5:
        kind = str(rng.choice(["text/plain", "application/xml", "multipart/form-data", "x", ""]))
    elif way == 6:
        body = rng.bytes(int(rng.integers(1, 2000)))
    elif way == 7:
        n = int(10 ** rng.uniform(1, 5))
        body = b'{"where":' + b'{"not":' * n + b"{}" + b"}" * n + b"}"
    return path, kind, body


def _nested(value: dict | list) -> list:
    values = value.values() if isinstance(value, dict) else value
    return [one for one in values if isinstance(one, dict | list) and one]


class Soak:
    """Feedback and lists all the time, while things go wrong."""

    def __init__(self, model: Path, state: Path, n_items: int, n_users: int) -> None:
        self.model, self.state, self.sizes = model, state, (n_items, n_users)
        self.statuses: Counter[int] = Counter()
        self.acknowledged: set[str] = set()
        self.memory: list[list[float]] = [[]]
        self.counted: Counter[str] = Counter()
        self.after: list[str] = []
        self.lines: list[str] = []
        self.done = False

    async def traffic(self) -> None:
        """Send a rating and ask for two lists in turn; a refused connection is tried again."""
        rng, n, make = np.random.default_rng(3), 0, []
        make = list(kinds(*self.sizes, rng).values())
        async with httpx.AsyncClient(base_url=ADDRESS, timeout=60) as client:
            while not self.done:
                n += 1
                pair = [int(rng.integers(size)) for size in reversed(self.sizes)]
                event = {"user_id": pair[0], "item_id": pair[1], "rating": 3.0, "list_id": f"s{n}"}
                with contextlib.suppress(httpx.TransportError):
                    answer = await client.post("/feedback", json={"events": [event]})
                    self.statuses[answer.status_code] += 1
                    if answer.status_code == 200:
                        self.acknowledged.add(f"s{n}")
                    for one in (make[n % 4], make[(n + 1) % 4]):
                        answer = await client.post("/recommend", json=one())
                        self.statuses[answer.status_code] += 1
                await asyncio.sleep(0.1)

    async def slow_clients(self) -> None:
        """Time lists for 20 seconds, then while 50 requests are sent byte by byte."""
        body = b'{"user_id": 1}' + b" " * 300
        head = f"POST /recommend HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        streams = [await asyncio.open_connection("127.0.0.1", PORT) for _ in range(50)]
        for _, writer in streams:
            writer.write(head.encode())
        taken: list[list[float]] = [[], []]
        async with httpx.AsyncClient(base_url=ADDRESS, timeout=60) as client:
            for i in range(80):
                for _, writer in streams if i >= 40 else ():
                    writer.write(body[i : i + 1])
                begin = time.perf_counter()
                answer = await client.post("/recommend", json={"user_id": i})
                taken[i // 40].append(1000 * (time.perf_counter() - begin))
                self.statuses[answer.status_code] += 1
                await asyncio.sleep(0.5)
        for _, writer in streams:
            writer.close()
        before, beside = map(np.median, taken)
        self.lines.append(f"lists take {before:.0f} ms, beside 50 slow clients {beside:.0f} ms")

    async def schemathesis(self, examples: int) -> None:
        """Send what the OpenAPI description allows and what it forbids."""
        if importlib.util.find_spec("schemathesis") is None:
            self.lines.append("schemathesis is not installed: no malformed requests were sent")
            return
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"{ADDRESS}/openapi.json"]
        command += ["--checks", "not_a_server_error", "--max-examples", str(examples)]
        command += ["--phases", "fuzzing", "--mode", "all", "--seed", "1", "--no-color"]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        text = (await process.communicate())[0].decode()
        if process.returncode:
            print(text)
        found = re.search(r"Test cases:\s+([^\n]+?)\n", text)
        what = found[1].strip() if found else "no cases"
        end = "no 5xx" if process.returncode == 0 else f"exit code {process.returncode}"
        self.lines.append(f"schemathesis: {what}; {end}")

    async def malformed(self, wanted: int) -> None:
        """Send spoiled requests until so many were refused."""
        rng, found = np.random.default_rng(4), Counter()
        description = httpx.get(f"{ADDRESS}/openapi.json", timeout=60).json()

        async def send(client: httpx.AsyncClient) -> None:
            while sum(n for status, n in found.items() if status >= 400) < wanted:
                path, kind, body = spoiled(description, rng)
                answer = await client.post(path, content=body, headers={"Content-Type": kind})
                found[answer.status_code] += 1
                if answer.status_code >= 500:
                    print(path, kind, body[:300], answer.text, flush=True)

        async with httpx.AsyncClient(base_url=ADDRESS, timeout=60) as client:
            await asyncio.gather(*(send(client) for _ in range(4)))
        bad = sum(n for status, n in found.items() if status >= 500)
        self.lines.append(
            f"spoiled requests: answers {dict(sorted(found.items()))}; {bad or 'no'} 5xx"
        )

    async def watch(self, server: Server) -> None:
        """Note the memory of the process."""
        while not self.done:
            with contextlib.suppress(OSError, TypeError):
                self.memory[-1].append(server.memory())
            await asyncio.sleep(2)

    async def run(self, server: Server, minutes: float, examples: int) -> None:
        """Let things go wrong, one after the other, while there is traffic."""
        pause = 60 * minutes / 15
        until = time.monotonic() + 60 * minutes
        background = [
            asyncio.create_task(self.traffic()),
            asyncio.create_task(self.watch(server)),
        ]
        first = TwoTower.load(self.model)
        manifest = (self.model / "manifest.json").read_bytes()
        for what in ("kill", "swap", "slow", "bad", "schemathesis", "malformed", "swap", "kill"):
            await asyncio.sleep(pause)
            if what == "kill":
                text = httpx.get(f"{ADDRESS}/metrics", timeout=60).text
                counted = re.findall(r"simrec_model_(swaps|refused)_total (\d+)", text)
                counted += re.findall(r'path="\S+",status="(5\d\d)"} (\d+)', text)
                for name, count in counted:
                    self.counted[name] += int(count)
                server.kill()
                self.memory.append([])
                await asyncio.to_thread(server.start)
            elif what == "swap":
                await asyncio.to_thread(first.save, self.model)
            elif what == "bad":
                damaged = manifest.replace(b"sha256", b"sha257", 1)[:-3]
                (self.model / "manifest.json").write_bytes(damaged)
                await asyncio.sleep(4)
                await asyncio.to_thread(first.save, self.model)
            elif what == "slow":
                await self.slow_clients()
            elif what == "malformed":
                await self.malformed(MALFORMED)
            else:
                await self.schemathesis(examples)
            self.after.append(f"{what} {server.memory():.0f}")
        await asyncio.sleep(max(pause, until - time.monotonic()))
        self.done = True
        await asyncio.gather(*background)

    def report(self) -> list[str]:
        """Return what was counted."""
        kept = {row.get("list_id") for kind, row in Log(self.state).new() if kind == "ratings"}
        lost = self.acknowledged - kept
        longest = max(self.memory, key=len)
        third = max(len(longest) // 3, 1)
        start, end = np.median(longest[third : 2 * third]), np.median(longest[-third:])
        return [
            f"answers to steady traffic: {dict(sorted(self.statuses.items()))}",
            f"feedback: {len(self.acknowledged):,} acknowledged, {len(lost)} lost",
            *self.lines,
            "what the service counted until the last kill: swaps of models, refused ones, and any "
            f"5xx by its status: {dict(self.counted)}",
            f"private memory, MB, after {', '.join(self.after)}",
            f"memory of the process that lived longest ({2 * len(longest)} s), private: "
            f"{start:.0f} MB in the middle third, {end:.0f} MB in the last",
        ]


@contextlib.contextmanager
def small_disk(model: Path, state: Path) -> Iterator[tuple[Server, Path]]:
    """Serve with a state on a disk of 1 MB, seen in a namespace of its own."""
    script = 'mount -t tmpfs -o size=1m tmpfs "$0" && exec "$@"'
    state.mkdir(exist_ok=True)
    server = Server(model, state, "unshare", "-rm", "sh", "-c", script, str(state))
    try:
        yield server, Path(f"/proc/{server.process.pid}/root{state}")
    finally:
        server.kill(signal.SIGTERM)


def full_disk(model: Path, state: Path) -> list[str]:
    """Fill the disk of the log: 507 while it is full, and nothing that was acknowledged is lost."""
    statuses, sent, lists = Counter(), 0, Counter()
    with small_disk(model, state) as (_, disk), httpx.Client(base_url=ADDRESS, timeout=60) as http:

        def feedback(times: int) -> int:
            done = 0
            for _ in range(times):
                event = {"user_id": 1, "item_id": sent + done, "rating": 3.0, "list_id": "x" * 90}
                status = http.post("/feedback", json={"events": [event]}).status_code
                statuses[status] += 1
                done += status == 200
                lists[http.post("/recommend", json={"user_id": 2}).status_code] += 1
            return done

        sent += feedback(20)
        with contextlib.suppress(OSError), open(disk / "filler", "wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass
        sent += feedback(60)
        (disk / "filler").unlink()
        sent += feedback(20)
        copy = state.with_name("copy")
        shutil.copytree(disk, copy)
    kept = sum(kind == "ratings" for kind, _ in Log(copy).new())
    return [
        f"full disk: feedback is answered {dict(sorted(statuses.items()))}, lists "
        f"{dict(lists)}; {sent} acknowledged, {kept} kept"
    ]


def machine() -> str:
    """Say what it ran on, and how busy that was."""
    text = Path("/proc/cpuinfo").read_text()
    name = re.search(r"model name\s*:\s*(.+)", text)
    busy = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    return f"{os.cpu_count()} cores ({name[1] if name else 'unknown'}), load averages {busy}"


def main() -> None:
    """Build, serve, measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--rate", type=float, default=50)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--patience", type=float, default=120, help="seconds to wait for quiet")
    parser.add_argument("--minutes", type=float, default=10, help="of the soak; 0 for none")
    parser.add_argument("--examples", type=int, default=900, help="of schemathesis, by endpoint")
    parser.add_argument("--model", type=Path, help="where the model is, or is kept")
    parser.add_argument("--data", type=Path, help="ratings, items and users to fit it to")
    parser.add_argument("--no-load", action="store_true", help="only the soak")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        path = given.model or root / "model"
        if not path.exists():
            build(path, given.items, given.users, given.data)
        sections = {}
        if not given.no_load:
            server = Server(path, root / "state")
            try:
                lines = latency(server, path, given)
            finally:
                server.kill(signal.SIGTERM)
            sections["Load"] = [
                f"{given.items:,} items, {given.users:,} users, one core, {given.rate:g} a second. "
                "CPU is that of the service by request, or of one product; others, the cores that "
                f"other processes used in the quietest {given.seconds:g} seconds, which count. "
                + machine(),
                "",
                *lines,
            ]
        if given.minutes:
            copied = root / "soaked"
            shutil.copytree(path, copied)
            soak = Soak(copied, root / "soak", given.items, given.users)
            server = Server(copied, root / "soak")
            try:
                asyncio.run(soak.run(server, given.minutes, given.examples))
            finally:
                server.kill(signal.SIGTERM)
            found = [*soak.report(), *full_disk(path, root / "small")]
            sections[f"Soak, {given.minutes:g} minutes"] = [f"- {one}" for one in found]
        text = given.out.read_text() if given.out.exists() else ""
        kept = dict(re.findall(r"## ([^\n]+)\n\n(.*?)\n(?=\n## |\Z)", text, re.S))
        kept = {
            name: body for name, body in kept.items() if name[:4] not in {n[:4] for n in sections}
        }
        kept |= {name: "\n".join(lines) for name, lines in sections.items()}
        pages = [f"## {name}\n\n{body}\n" for name, body in sorted(kept.items())]
        given.out.write_text("# `benchmarks/serve.py`\n\n" + "\n".join(pages))
        print(given.out.read_text())


if __name__ == "__main__":
    main()
