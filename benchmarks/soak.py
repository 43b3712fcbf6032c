"""Soak: random kills, flipped bytes, forged files, races and odd tables over all jobs.

    python benchmarks/soak.py [--minutes 30] [--seed 0]

A row of the table counts what was tried and how it ended. Every end but "wrong" is as promised:
after a kill the job is started again and its output equals that of a run without one, byte for
byte, with nothing left beside it; a changed or forged model gives an InputError or finite answers,
never a crash; of two jobs on one output at least one is done and the output is whole. What is wrong
is listed, the directory is kept, and the exit code is 1.
"""

import argparse
import contextlib
import json
import logging
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from simrec import InputError, TwoTower, console, make_synthetic
from simrec.jobs.engine.batch import BatchOptions
from simrec.jobs.evaluate import report
from simrec.jobs.recommend import audience, recommend
from simrec.jobs.score import score
from simrec.jobs.serve import export
from simrec.jobs.train import DataOptions, train, update
from simrec.storage.artifacts import write_manifest
from simrec.storage.files import sha256

DONE, REFUSED, FAILED = 0, 2, 3
CONTEXT = multiprocessing.get_context("forkserver")
# What a job leaves out of its output: it says how long it took, or when.
TIMES = ("_summary.json", "manifest.json", "export.json")


def jobs(root: Path) -> dict[str, Callable[[Path], object]]:
    """Name each job, as a function of its output."""
    model, pairs, items = root / "model", root / "pairs", root / "items.parquet"
    data = DataOptions(root / "ratings.parquet", items, root / "users.parquet")
    few = DataOptions(root / "few.parquet")
    parts = BatchOptions(part_rows=500)
    return {
        "train": lambda out: train(TwoTower(embedding_dim=4, bounds=(0.5, 5)), data, out),
        "update": lambda out: update(model, few, out),
        "score": lambda out: score(model, pairs, out, batch=parts),
        "score, CSV": lambda out: score(model, root / "csv", out, batch=parts),
        "score, one file": lambda out: score(model, pairs, out, batch=parts),
        "recommend": lambda out: recommend(
            model, out, exclude=root / "ratings.parquet", batch=BatchOptions(part_rows=30)
        ),
        "audience": lambda out: audience(model, out, items=items, batch=BatchOptions(part_rows=30)),
        "export": lambda out: export(model, out, format="parquet"),
        "report": lambda out: report(model, data, out),
    }


SUFFIX = {"score, one file": ".parquet", "report": ".html"}


def prepare(root: Path) -> None:
    """Write the tables and the model that all rounds share."""
    rng = np.random.default_rng(0)
    made = make_synthetic(n_users=200, n_items=150, n_ratings=4000, random_state=0)
    made.write(root)
    users, items = made.users["user_id"].to_numpy(), made.items["item_id"].to_numpy()
    (root / "pairs").mkdir()
    (root / "csv").mkdir()
    for k in range(4):
        pairs = {"user_id": rng.choice(users, 2000), "item_id": rng.choice(items, 2000)}
        group = pa.array(rng.choice(["a/b", "..", "", "x"], 2000))
        table = pa.table({**pairs, "group": group, "note": np.arange(2000)})
        pq.write_table(table, root / "pairs" / f"{k}.parquet", row_group_size=250)
        csv.write_csv(table, root / "csv" / f"{k}.csv")
    few = pa.table({"user_id": users[:5], "item_id": items[:5], "rating": [3.0] * 5})
    pq.write_table(few, root / "few.parquet")
    jobs(root)["train"](root / "model")
    two_simecs = TwoTower(embedding_dim=4, bounds=(0.5, 5), refine=False)
    two_simecs.fit(made.ratings, items=made.items, users=made.users).save(root / "two_simecs")


def child(root: Path, name: str, out: Path, log: Path) -> None:
    """Run a job in a process of its own; the exit code says how it ended."""
    logging.disable(logging.CRITICAL)
    code = DONE
    try:
        jobs(root)[name](out)
    except InputError as error:
        code, text = REFUSED, str(error)
    except BaseException:
        code, text = FAILED, traceback.format_exc()
    if code:
        log.write_text(text)
    os._exit(code)


def content(out: Path) -> dict[str, str]:
    """Give the checksum of each file of an output, but for those that say how long it took."""
    found = [out] if out.is_file() else sorted(p for p in out.rglob("*") if p.is_file())
    sums = {p.relative_to(out.parent).as_posix(): sha256(p) for p in found if p.name not in TIMES}
    return {name.partition("/")[2]: value for name, value in sums.items()}


class Soak:
    """Rounds of trouble, and the count of their ends."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.chance = root, random.Random(seed)
        self.counts: Counter[tuple[str, str, str]] = Counter()
        self.wrong: list[str] = []
        self.rounds = 0
        self.names = list(jobs(root))
        self.reference: dict[str, dict[str, str]] = {}
        self.seconds: dict[str, float] = {}
        for name in self.names:
            started = time.perf_counter()
            out = self.place(name)
            if self.finish(self.start(name, out)) != DONE:
                raise SystemExit(f"{name} fails undisturbed: {self.log(out).read_text()}")
            self.seconds[name] = time.perf_counter() - started
            self.reference[name] = content(out)

    def place(self, name: str) -> Path:
        """Give an output in a directory of its own."""
        self.rounds += 1
        directory = self.root / f"round-{self.rounds}"
        directory.mkdir()
        return directory / f"out{SUFFIX.get(name, '')}"

    def log(self, out: Path) -> Path:
        return self.root / f"{out.parent.name}.log"

    def start(self, name: str, out: Path) -> multiprocessing.Process:
        process = CONTEXT.Process(target=child, args=(self.root, name, out, self.log(out)))
        process.start()
        return process

    def finish(self, process: multiprocessing.Process) -> int:
        process.join(600)
        if process.exitcode is None:
            process.kill()
            process.join()
        return process.exitcode

    def count(
        self, kind: str, what: str, end: str, detail: str = "", keep: Path | None = None
    ) -> None:
        self.counts[kind, what, end] += 1
        if end == "wrong":
            self.wrong.append(f"{kind}, {what}: {detail}")
        elif keep is not None:
            shutil.rmtree(keep)

    def check(self, kind: str, name: str, out: Path, code: int, end: str) -> None:
        """Compare an output with the reference, and look for leftovers."""
        problem = ""
        if code != DONE:
            problem = f"exit code {code}: {self.log(out).read_text() if code > 0 else 'a signal'}"
        elif name != "report" and content(out) != self.reference[name]:
            problem = f"{out}: other bytes than undisturbed"
        elif left := {p.name for p in out.parent.iterdir()} - {out.name, "out.checkpoint"}:
            problem = f"{out}: left behind {sorted(left)}"
        self.count(kind, name, "wrong" if problem else end, problem, out.parent)

    def kill(self) -> None:
        """Kill a job at a random moment, perhaps damage what it left, and start it again."""
        name = self.chance.choice(self.names)
        out = self.place(name)
        process = self.start(name, out)
        time.sleep(self.chance.uniform(0, 1.2 * self.seconds[name]))
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        killed = self.finish(process) == -signal.SIGKILL
        if killed and out.exists() and out.is_dir() and not any(out.iterdir()):
            self.count("kill", name, "wrong", f"{out}: empty after a kill")
        parts = sorted(out.with_name(f"{out.name}.partial").rglob("part-*.parquet"))
        if parts and self.chance.random() < 0.3:
            self.flip_byte(self.chance.choice(parts))
            self.counts["flip", "a part of a killed job", "written again"] += 1
        code = self.finish(self.start(name, out))
        self.check("kill", name, out, code, "same bytes" if killed else "done before")

    def flip_byte(self, file: Path) -> None:
        data = bytearray(file.read_bytes())
        if data:
            data[self.chance.randrange(len(data))] ^= 1 << self.chance.randrange(8)
            file.write_bytes(data)

    def copy(self) -> tuple[Path, Path]:
        model = self.place("train")
        shutil.copytree(self.root / self.chance.choice(("model", "two_simecs")), model)
        return model, self.chance.choice(sorted(f for f in model.iterdir() if f.stat().st_size))

    def flip(self) -> None:
        """Flip one bit of a model."""
        model, file = self.copy()
        self.flip_byte(file)
        what = "manifest" if file.name == "manifest.json" else f"model, {file.suffix[1:]}"
        try:
            TwoTower.load(model)
            self.count("flip", what, "wrong", f"{file} is believed")
        except InputError:
            self.count("flip", what, "refused", keep=model.parent)
        except Exception:
            self.count("flip", what, "wrong", traceback.format_exc())

    def forge(self) -> None:
        """Damage a file of a model, make its checksums right, load it and ask it all."""
        model, file = self.copy()
        if file.name == "manifest.json":
            shutil.rmtree(model.parent)
            return
        for _ in range(self.chance.choice((1, 8, 64))):
            self.flip_byte(file)
        found = json.loads((model / "manifest.json").read_text())
        write_manifest(model, found["kind"], found["config"], found["facts"])
        process = CONTEXT.Process(target=answer, args=(self.root, model, self.log(model)))
        process.start()
        code = self.finish(process)
        end = {DONE: "finite answers", REFUSED: "refused"}.get(code, "wrong")
        log = self.log(model)
        detail = f"{file}: exit code {code} {log.read_text() if log.exists() else ''}"
        self.count("forge", file.suffix[1:], end, detail, model.parent)

    def race(self) -> None:
        """Start a job twice on one output."""
        name = self.chance.choice(self.names)
        out = self.place(name)
        both = [self.start(name, out) for _ in range(2)]
        codes = sorted(self.finish(process) for process in both)
        if codes not in ([DONE, DONE], [DONE, REFUSED]):
            self.check("race", name, out, codes[-1] if codes[0] == DONE else codes[0], "")
            return
        self.check("race", name, out, DONE, "one refused" if codes[1] else "one after the other")

    def load_while_saved(self) -> None:
        """Load a model again and again while another process replaces it."""
        model, _ = self.copy()
        stop = CONTEXT.Event()
        process = CONTEXT.Process(target=save_again_and_again, args=(model, stop))
        process.start()
        try:
            for _ in range(20):
                TwoTower.load(model)
                self.count("race", "load while saved", "loaded")
        except Exception:
            self.count("race", "load while saved", "wrong", traceback.format_exc())
        stop.set()
        self.finish(process)
        shutil.rmtree(model.parent)

    def table(self) -> None:
        """Predict for a random table."""
        loaded = TwoTower.load(self.root / "model")
        table = odd_table(self.chance)
        try:
            scores = loaded.predict(table, unknown="prior")
            fine = len(scores) == len(table) and np.isfinite(scores).all()
            detail = f"{table.schema}: {scores}"
            self.count("table", "predict", "finite answers" if fine else "wrong", detail)
        except InputError:
            self.count("table", "predict", "refused")
        except Exception:
            self.count("table", "predict", "wrong", f"{table.schema}\n{traceback.format_exc()}")


def answer(root: Path, model: Path, log: Path) -> None:
    """Load a model that anybody may have made; predict, recommend, explain, update."""
    code = DONE
    try:
        loaded = TwoTower.load(model)
        pairs = pq.read_table(root / "pairs" / "0.parquet", columns=["user_id", "item_id"])
        items = pq.read_table(root / "items.parquet")
        with np.errstate(all="ignore"):
            found = [loaded.predict(pairs, items=items, unknown="prior")]
            found.append(loaded.recommend(k=5)["score"])
            found.append(loaded.explain(pairs["user_id"][0], pairs["item_id"][0])["contribution"])
            found.append(loaded.similar_items(pairs["item_id"][0], k=3)["similarity"])
            loaded.update(root / "few.parquet")
            found.append(loaded.predict(pairs, items=items, unknown="prior"))
        if not all(np.isfinite(one).all() for one in found):
            raise RuntimeError("answers are not finite")
    except InputError:
        code = REFUSED
    except BaseException:
        code = FAILED
        log.write_text(traceback.format_exc())
    os._exit(code)


def save_again_and_again(model: Path, stop) -> None:
    loaded = TwoTower.load(model)
    while not stop.is_set():
        loaded.save(model)


def odd_table(chance: random.Random) -> pa.Table:
    """Make a table of pairs with ids of odd types, nulls, chunks and encodings."""
    n = chance.choice((0, 1, 7))

    def column() -> pa.Array | pa.ChunkedArray:
        values = chance.choice(
            (
                [chance.randrange(200) for _ in range(n)],
                [chance.choice(("a", "", "\0", "ü", "1")) for _ in range(n)],
                [chance.choice((None, 3)) for _ in range(n)],
                np.array([chance.choice((2**63, 5)) for _ in range(n)], np.uint64),
                [chance.uniform(-9, 9) for _ in range(n)],
                [[1]] * n,
                [b"\xff"] * n,
            )
        )
        made = pa.array(values)
        how = chance.randrange(5)
        if how == 0:
            with contextlib.suppress(pa.ArrowException):
                made = made.dictionary_encode()
        elif how == 1:
            with contextlib.suppress(pa.ArrowException):
                made = made.cast(chance.choice((pa.int8(), pa.uint64(), pa.string_view())))
        elif how == 2:
            made = pa.chunked_array([made.slice(0, 0), made, made.slice(0, 0)])
        return made

    names = chance.choice((["user_id", "item_id"], ["item_id", "user_id"], ["user_id", "rating"]))
    return pa.table([column() for _ in names], names=names)


def main() -> int:
    """Run until the time is over, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    CONTEXT.set_forkserver_preload(["simrec.jobs.score", "simrec.model.two_tower"])
    root = Path(tempfile.mkdtemp(prefix="simrec-soak-"))
    prepare(root)
    soak = Soak(root, options.seed)
    kinds = [soak.kill, soak.flip, soak.forge, soak.race, soak.load_while_saved, soak.table]
    weights = [4, 8, 4, 2, 1, 8]
    end = time.monotonic() + 60 * options.minutes
    while time.monotonic() < end:
        soak.chance.choices(kinds, weights)[0]()
    rows = [
        {"kind": kind, "what": what, "end": end, "count": count}
        for (kind, what, end), count in sorted(soak.counts.items())
    ]
    print(console.table(rows))
    print(f"\n{sum(soak.counts.values()):,} in all, {len(soak.wrong)} wrong (seed {options.seed})")
    if soak.wrong:
        print("\n".join(["", *soak.wrong, "", f"kept: {root}"]), file=sys.stderr)
        return 1
    shutil.rmtree(root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
