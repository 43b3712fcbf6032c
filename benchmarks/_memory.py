"""Peak memory of a fit with and without a limit; run by `distributed.py --memory`."""

import hashlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from simrec import TwoTower, make_synthetic

# Every so many ratings are held out.
_HELD_OUT = 50


def memory_table(n_ratings: int, n_users: int, n_items: int, epochs: int | None) -> str:
    """Fit synthetic ratings without a limit, in half and in a quarter of the memory that takes."""
    with tempfile.TemporaryDirectory() as directory:
        data = make_synthetic(n_users=n_users, n_items=n_items, n_ratings=n_ratings)
        data.write(directory)
        held = pa.array(np.arange(n_ratings) % _HELD_OUT == 0)
        pq.write_table(data.ratings.filter(held), f"{directory}/test.parquet")
        pq.write_table(data.ratings.filter(pc.invert(held)), f"{directory}/ratings.parquet")
        del data, held
        whole = _run(directory, epochs, None)
        rows = [("none", None, whole)]
        for name, share in (("half", 2), ("a quarter", 4)):
            limit = int(whole["peak"]) // share
            rows.append((name, limit, _run(directory, epochs, limit)))
            print(rows[-1], flush=True)
    lines = [
        f"{n_ratings:,} ratings, {n_users:,} users, {n_items:,} items, "
        f"{epochs or 16} sweeps. Peak: resident memory above that after all imports.",
        "",
        "| memory | limit MB | peak MB | peak / peak without | CPU s | RMSE | predictions |",
        "|" + " --- |" * 7,
    ]
    for name, limit, found in rows:
        same = "the same bits" if found["digest"] == whole["digest"] else "differ"
        cells = [
            name,
            "" if limit is None else f"{limit / 1e6:.0f}",
            f"{found['peak'] / 1e6:.0f}",
            f"{found['peak'] / whole['peak']:.2f}",
            f"{found['cpu']:.0f}",
            f"{found['rmse']:.6f}",
            same,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _run(directory: str, epochs: int | None, limit: int | None) -> dict[str, Any]:
    settings = json.dumps({"directory": directory, "epochs": epochs, "limit": limit})
    output = subprocess.run(
        [sys.executable, __file__, settings], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    return json.loads(output.strip().splitlines()[-1])


def _fit(directory: str, epochs: int | None, limit: int | None) -> dict[str, Any]:
    # Everything that a fit imports, on ratings of no size.
    small = make_synthetic(n_users=40, n_items=30, n_ratings=200)
    TwoTower(embedding_dim=2, epochs=1).fit(small.ratings, items=small.items, users=small.users)
    before = _status("VmRSS")
    tables = {name: Path(directory, f"{name}.parquet") for name in ("items", "users")}
    busy = time.process_time()
    model = TwoTower(bounds=(0.5, 5.0), epochs=epochs)
    model.fit(Path(directory, "ratings.parquet"), **tables, memory=limit)
    busy = time.process_time() - busy
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    test = pq.read_table(f"{directory}/test.parquet")
    found = model.predict(test.select(["user_id", "item_id"]), unknown="prior")
    error = float(((found - test["rating"].to_numpy()) ** 2).mean() ** 0.5)
    digest = hashlib.sha256(found.tobytes()).hexdigest()
    return {"peak": peak, "cpu": busy, "rmse": error, "digest": digest}


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {name} in /proc/self/status")


if __name__ == "__main__":
    print(json.dumps(_fit(**json.loads(sys.argv[1]))))
