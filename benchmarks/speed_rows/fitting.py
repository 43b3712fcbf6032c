"""Rows of the speed benchmark: fitting, its memory, and how both grow."""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from _runs import peak_memory, python_environment
from peers import peer_class

from simrec import Ratings, TwoTower, cold_start_split, make_synthetic
from speed_rows.timing import Ratio, Sizes, compare, in_turns, last_json

# The sizes of MovieLens 1M, from which both kinds of entities grow with the root of the ratings.
_RATINGS, _USERS, _ITEMS = 1_000_000, 6_000, 3_700


def fit_surprise(sizes: Sizes) -> list[Ratio]:
    """`TwoTower.fit` with its defaults against Surprise's SVD, 64 factors and 30 epochs."""
    return [_fit_against(sizes, "surprise", "Surprise SVD, 64 factors, 30 epochs", 1.0, False)]


def fit_tfrs(sizes: Sizes) -> list[Ratio]:
    """`TwoTower.fit` with its defaults against TFRS, trained to its best validation error."""
    return [_fit_against(sizes, "tfrs", "TFRS two towers, best validation error", 20.0, True)]


def fit_growth(sizes: Sizes) -> list[Ratio]:
    """Time per rating of a large data set against that of a small one, and peak memory."""
    small = sizes.choose(_RATINGS, 100_000)
    large = 25 * small
    # The small one as often as asked, around the large one: the machine changes meanwhile.
    first = [fit_apart(sizes, small) for _ in range((sizes.repeats + 1) // 2)]
    big = fit_apart(sizes, large)
    first += [fit_apart(sizes, small) for _ in range(sizes.repeats // 2)]
    return [
        compare(
            f"`TwoTower.fit`, seconds per million ratings, {large:,} synthetic ratings",
            f"itself, {small:,} ratings",
            [big["seconds"] / large * 1e6],
            [line["seconds"] / small * 1e6 for line in first],
            bar=1.3,
        ),
        Ratio(
            f"`TwoTower.fit`, peak memory, {large:,} synthetic ratings",
            "4 GB",
            big["peak_mb"],
            4096.0,
            bar=1.0,
            unit="MB",
        ),
    ]


def fit_apart(sizes: Sizes, n_ratings: int) -> dict[str, float]:
    """Fit to synthetic ratings in a process of its own; give seconds and peak memory."""
    growth = (n_ratings / _RATINGS) ** 0.5
    with tempfile.TemporaryDirectory(dir=sizes.work) as directory:
        # Made in a process of its own too: making them takes more memory than fitting.
        arguments = [directory, str(n_ratings), str(growth)]
        for step in ("make", "fit"):
            done = subprocess.run(
                [sys.executable, "-m", "speed_rows.fitting", step, *arguments],
                env=python_environment(),
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise RuntimeError(f"{step} failed with {done.returncode}:\n{done.stderr}")
    return last_json(done.stdout)


def _fit_against(sizes: Sizes, peer: str, against: str, bar: float, faster: bool) -> Ratio:
    train, items, users, name = _training(sizes)
    bounds = (float(train.values.min()), float(train.values.max()))
    kind = peer_class(peer)
    kind.load()
    TwoTower(epochs=2).fit(train, items, users)  # loads what is loaded at the first fit
    ours = {"ours": lambda: TwoTower(bounds=bounds).fit(train, items, users)}
    theirs = {"theirs": lambda: kind(bounds).fit(train, items, users)}
    # A fit of many minutes is timed once, between ours.
    repeats = 1 if faster else sizes.repeats
    seconds = in_turns(ours | theirs, repeats, warm_up=False)
    seconds["ours"] += in_turns(ours, 1, warm_up=False)["ours"]
    path = f"`TwoTower.fit`, {name}"
    return compare(path, against, *seconds.values(), bar=bar, faster=faster)


def _training(sizes: Sizes) -> tuple[Ratings, Any, Any, str]:
    if sizes.data is None:
        n = sizes.choose(_RATINGS, 50_000)
        growth = (n / _RATINGS) ** 0.5
        data = make_synthetic(int(_USERS * growth), int(_ITEMS * growth), n)
        ratings, items, users, name = data.ratings, data.items, data.users, "synthetic"
    else:
        path = Path(sizes.data)
        ratings, items, users = (
            pq.read_table(path / f"{table}.parquet") for table in ("ratings", "items", "users")
        )
        name = path.name
    train = cold_start_split(ratings).train
    return train, items, users, f"{name}, {len(train):,} ratings"


def _make(directory: Path, n_ratings: int, growth: float) -> None:
    data = make_synthetic(int(_USERS * growth), int(_ITEMS * growth), n_ratings)
    data.write(directory)


def _fit(directory: Path) -> None:
    ratings = Ratings.from_parquet(directory / "ratings.parquet")
    items, users = (pq.read_table(directory / f"{name}.parquet") for name in ("items", "users"))
    import simrec.simec.keras  # noqa: F401 (not part of fitting)

    start = time.perf_counter()
    TwoTower().fit(ratings, items, users)
    print(json.dumps({"seconds": time.perf_counter() - start, "peak_mb": peak_memory()}))


if __name__ == "__main__":
    if sys.argv[1] == "make":
        _make(Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
    else:
        _fit(Path(sys.argv[2]))
