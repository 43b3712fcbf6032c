"""A model with its users in shards against the same model in one piece: results and costs."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy import sparse

from simrec import InputError, TwoTower, make_synthetic
from simrec.data.ids import IdMap
from simrec.data.sides import Sides
from simrec.model import files
from simrec.storage.rows import Rows, blocks

_FITTED = 1_000  # users that are fitted; the others are copies of them
_ITEMS = 500
_PAIRS, _LISTS, _LATER, _NEW = 500_000, 10_000, 2_000, 500

_FOLD_IN = (
    "import sys; from simrec import TwoTower; model, ratings, out = sys.argv[1:]\n"
    "TwoTower.load(model).fold_in(ratings).save(out)\n"
)
_MEASURE = (
    "import json, os, subprocess, sys\n"
    "process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)\n"
    "_, status, usage = os.wait4(process.pid, 0)\n"
    "busy = usage.ru_utime + usage.ru_stime\n"
    "print(json.dumps([status, busy, usage.ru_maxrss / 1024]))\n"
)
_FIRST = (
    "import sys; from simrec import TwoTower; model, user, item = sys.argv[1:]\n"
    "print(TwoTower.load(model).predict(int(user), int(item))[0])\n"
)


def large_model(n_users: int) -> TwoTower:
    """Make a model of many users without a long fit: each fitted user many times, under new ids."""
    data = make_synthetic(n_users=_FITTED, n_items=_ITEMS, n_ratings=20 * _FITTED)
    model = TwoTower(embedding_dim=8, epochs=4)
    model.fit(data.ratings, items=data.items, users=data.users)
    times = n_users // _FITTED
    users = model.towers_.users

    def tiled(rows: np.ndarray) -> np.ndarray:
        return np.tile(rows, (times,) + (1,) * (rows.ndim - 1))

    def stacked(matrix: Any) -> Any:
        return sparse.vstack([matrix] * times, format="csr")

    n = times * len(users.ids)
    ids = IdMap(pa.array(np.arange(n)))
    grown = replace(users, ids=ids, counts=tiled(users.counts), features=stacked(users.features))
    model.towers_ = Sides(model.towers_.items, grown)
    model.rated_ = stacked(model.rated_)
    if model.liked_ is not None:
        model.liked_ = stacked(model.liked_)
    for name, part in model.parts_.items():
        head = part.heads.users
        more: dict[str, Any] = {
            "heads": part.heads.with_side("users", replace(head, vectors=tiled(head.vectors)))
        }
        if name == "uptake":
            more["fitted"] = part.fitted.with_side("users", tiled(part.fitted.users))
        else:
            kept = part.evidence.sides.users
            rows = {name: tiled(getattr(kept, name)) for name in _rows_of(kept)}
            both = {
                name: replace(one, mean=tiled(one.mean), factors=tiled(one.factors))
                for name, one in (("warm", kept.warm), ("cold", kept.cold))
            }
            sides = part.evidence.sides.with_side("users", replace(kept, **rows, **both))
            more["evidence"] = replace(part.evidence, sides=sides)
        model.parts_[name] = replace(part, **more)
    return model


def _rows_of(kept: Any) -> list[str]:
    return [name for name in ("history", "pull", "cold", "warmth") if hasattr(kept, name)]


def write_tables(directory: Path, model: TwoTower) -> None:
    """Write pairs to score, users to recommend to, and later ratings."""
    rng = np.random.default_rng(0)
    n, items = len(model.users_), np.array(model.items_.ids.to_pylist())

    def write(name: str, users: np.ndarray, ratings: bool) -> None:
        columns: dict[str, Any] = {"user_id": users, "item_id": rng.choice(items, len(users))}
        if ratings:
            columns["rating"] = rng.integers(1, 6, len(users)).astype(np.float32)
        pq.write_table(pa.table(columns), directory / f"{name}.parquet")

    write("pairs", rng.integers(0, n, _PAIRS), False)
    write("one", rng.integers(0, n // 8, _LATER), True)
    write("all", rng.integers(0, n, _LATER), True)
    write("new", np.repeat(np.arange(n, n + _NEW), 5), True)
    some = np.sort(rng.choice(n, min(_LISTS, n), replace=False))
    pq.write_table(pa.table({"user_id": some}), directory / "users.parquet")


def measured(*words: str) -> tuple[float, float]:
    """Run Python with some words; give the CPU seconds and the peak in MB."""
    # By a small process: a peak is not less than that of the process which starts another.
    command = [sys.executable, "-S", "-c", _MEASURE, sys.executable, *words]
    done = subprocess.run(command, capture_output=True, text=True)
    status, seconds, peak = json.loads(done.stdout)
    if status:
        raise SystemExit(f"failed: {' '.join(words)}: {done.stderr}")
    return seconds, peak


def same_tables(one: Path, other: Path) -> bool:
    """Compare all Parquet files of two directories."""
    names = sorted(p.name for p in one.glob("*.parquet"))
    if not names or names != sorted(p.name for p in other.glob("*.parquet")):
        return False
    return all(pq.read_table(one / name).equals(pq.read_table(other / name)) for name in names)


def same_models(one: Path, other: Path) -> bool:
    """Compare every number of two models, some rows at a time."""
    left, right = (files.content(TwoTower.load(path), True) for path in (one, other))
    pairs = [(left.arrays, right.arrays), *zip(left.rows, right.rows, strict=True)]
    for mine, theirs in pairs:
        if mine.keys() != theirs.keys():
            return False
        for name, array in mine.items():
            if not np.ndim(array) and not isinstance(array, Rows):
                equal = np.array_equal(array, theirs[name])
            else:
                equal = len(array) == len(theirs[name]) and all(
                    np.array_equal(some, np.asarray(theirs[name][here]))
                    for here, some in blocks(array)
                )
            if not equal:
                return False
    for mine, theirs in zip(left.sparse, right.sparse, strict=True):
        for name in mine:
            a, b = mine[name].tocsr(), theirs[name].tocsr()
            if not all(
                np.array_equal(getattr(a, piece), getattr(b, piece))
                for piece in ("data", "indices", "indptr")
            ):
                return False
    return True


def written(model: Path) -> float:
    """Return the MB of the files of a model that are no links to another's."""
    return sum(f.stat().st_size for f in model.iterdir() if f.stat().st_nlink == 1) / 1e6


def refused(model: Path, shards: int) -> int:
    """Flip a byte in each shard of one array in turn; count those that are refused when read."""
    found = 0
    for number in range(shards):
        file = model / f"rating_users_vectors-{number:05d}-of-{shards:05d}.npy"
        with open(file, "r+b") as stream:
            stream.seek(-5, 2)
            byte = stream.read(1)
            stream.seek(-5, 2)
            stream.write(bytes([byte[0] ^ 1]))
        loaded = TwoTower.load(model)
        try:
            loaded.predict(loaded.users_.shards[number].first, loaded.items_.take([0])[0].as_py())
        except InputError as error:
            found += file.name in str(error)
        with open(file, "r+b") as stream:
            stream.seek(-5, 2)
            stream.write(byte)
    return found


def shards(directory: Path, n_users: int, n: int = 8) -> str:
    """Compare a model in `n` shards with one in one piece; return a table."""
    model = large_model(n_users)
    n_users = len(model.users_)
    item = str(model.items_.take([0])[0].as_py())
    write_tables(directory, model)
    models = directory / "one", directory / "shards"
    model.save(models[0])
    model.save(models[1], shards=n)
    del model
    size = sum(f.stat().st_size for f in models[0].iterdir()) / 1e6

    def job(name: str, *words: str) -> Callable[[Path, Path], tuple[str, ...]]:
        return lambda m, out: (
            *("-m", "simrec.cli", name, "--model", str(m), "--out", str(out), "--quiet"),
            *words,
        )

    def table(name: str) -> str:
        return str(directory / f"{name}.parquet")

    rows: list[tuple[str, Callable[[Path, Path], tuple[str, ...]], Any]] = [
        ("load, and one answer", lambda m, _: ("-c", _FIRST, str(m), str(n_users - 1), item), None),
        (f"score {_PAIRS:,} pairs", job("score", "--pairs", table("pairs")), same_tables),
        (f"recommend to {_LISTS:,}", job("recommend", "--users", table("users")), same_tables),
        ("export to Parquet", job("export", "--format", "parquet"), same_tables),
        (
            f"update, {_LATER:,} ratings of users of one shard",
            job("update", "--ratings", table("one")),
            same_models,
        ),
        (
            f"update, {_LATER:,} ratings of all users",
            job("update", "--ratings", table("all")),
            same_models,
        ),
        (
            f"fold_in, {_NEW:,} new users",
            lambda m, out: ("-c", _FOLD_IN, str(m), table("new"), str(out)),
            same_models,
        ),
    ]
    lines = [
        f"{n_users:,} users, {_ITEMS:,} items, {size:,.0f} MB of files; {n} shards. CPU seconds "
        "and peak MB of the process, pages of mapped files included.",
        "",
        f"| | CPU s, one piece | {n} shards | peak MB, one piece | {n} shards | MB written, one "
        f"piece | {n} shards | same result |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, words, compare in rows:
        outs = directory / "out-one", directory / "out-shards"
        figures = [measured(*words(m, out)) for m, out in zip(models, outs, strict=True)]
        cells = [f"{seconds:.1f}" for seconds, _ in figures]
        cells += [f"{peak:.0f}" for _, peak in figures]
        if compare is same_models:
            cells += [f"{written(out):.0f}" for out in outs]
        else:
            cells += ["", ""]
        cells.append("" if compare is None else "yes" if compare(*outs) else "**no**")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
        for out in outs:
            shutil.rmtree(out, ignore_errors=True)
    found = refused(models[1], n)
    lines += ["", f"A flipped byte in a shard was refused when it was read: {found} of {n}."]
    return "\n".join(lines)
