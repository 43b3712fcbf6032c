"""The life of an entity on MovieLens: folding in, updating, uncertainty, explanations, exports.

    python benchmarks/life.py [--data ../shared/data/ml-1m] [--seeds 0 1 2] [--out DIR]
    python benchmarks/life.py --data DIR --rows lists        # first ratings in lists only

Writes life.md and life.json: a claim, the figure that was measured, and what it should reach; with
--rows lists, life-lists-NAME.md. Errors are root mean squared errors; each figure is the mean over
the splits of the seeds.
"""

import argparse
import copy
import json
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from _report import machine
from _runs import Data, tables_in
from life_rows.export import export_rows
from life_rows.first_ratings import GIVEN, first_rating_rows

from simrec import Ratings, TwoTower
from simrec.data.split import ColdStartSplit

Row = tuple[str, float, str]
REVEALED = (0, 1, 2, 5, 10, 20)


def rmse(model: TwoTower, ratings: Ratings) -> float:
    """Give the error of a model."""
    return float(np.sqrt(np.mean((model.predict(ratings) - ratings.values) ** 2)))


def order_within(rows: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Give the ratings of each entity numbers in random order, and how many it has."""
    order = np.random.default_rng(seed).permutation(len(rows))
    order = order[np.argsort(rows[order], kind="stable")]
    counts = np.bincount(rows)
    rank = np.empty(len(rows), np.int64)
    rank[order] = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return rank, counts[rows]


def fold_in_rows(model: TwoTower, refit, split: ColdStartSplit, seed: int) -> Iterator[Row]:
    """Reveal ratings of new users and new items, a few, then all."""
    for side in ("users", "items"):
        ratings = getattr(split, f"new_{side}")
        rank, count = order_within(getattr(ratings, f"{side[:-1]}_rows"), seed)
        rest = ratings.select((count >= 30) & (rank >= 20))
        for n in REVEALED:
            folded = copy.copy(model)
            if n:
                folded.fold_in(ratings.select((count >= 30) & (rank < n)))
            yield f"new {side}, {n} ratings folded in: error", rmse(folded, rest), "falls"
        seen, held = ratings.select(rank % 5 != 0), ratings.select(rank % 5 == 0)
        started = time.perf_counter()
        folded = copy.copy(model).fold_in(seen)
        seconds = time.perf_counter() - started
        yield f"new {side}, all ratings folded in: error", rmse(folded, held), "-"
        again = refit(pa.concat_tables([split.train.to_arrow(), seen.to_arrow()]))
        ratio = rmse(folded, held) / rmse(again, held)
        yield f"new {side}, all ratings folded in: error against a refit", ratio, "<= 1.01"
        per_second = seen.n_users if side == "users" else seen.n_items
        yield f"new {side}, all ratings folded in: {side} a second", per_second / seconds, "-"


def update_rows(refit, split: ColdStartSplit, full: TwoTower, fit_seconds: float, seed: int):
    """Learn the last 5% of the ratings: taken at random, and with whole users and items new."""
    rng = np.random.default_rng(seed)
    train = split.train
    at_random = rng.random(len(train)) < 0.05
    new_users = rng.random(train.n_users) < 0.025
    new_items = rng.random(train.n_items) < 0.025
    whole = new_users[train.user_rows] | new_items[train.item_rows]
    for name, late in (("at random", at_random), ("of new users and items", whole)):
        model = refit(train.select(~late))
        before = rmse(model, split.warm)
        started = time.perf_counter()
        model.update(train.select(late))
        seconds = time.perf_counter() - started
        share = late.mean()
        what = f"update with 5% of the ratings, {name}"
        yield f"{what}: share", share, "-"
        yield f"{what}: error before", before, "-"
        yield f"{what}: error", rmse(model, split.warm), "-"
        yield (
            f"{what}: error against a refit",
            rmse(model, split.warm) / rmse(full, split.warm),
            ("<= 1.005"),
        )
        yield f"{what}: times faster than a refit", fit_seconds / seconds, ">= 5"


def uncertainty_rows(model: TwoTower, split: ColdStartSplit) -> Iterator[Row]:
    """Count what 90% intervals contain."""
    for task, ratings in split.tasks().items():
        mean, std = model.predict(ratings, return_std=True)
        inside = float(np.mean(np.abs(ratings.values - mean) <= 1.645 * std))
        yield f"90% intervals, {task}: share inside", inside, "0.87 to 0.93"
        yield f"90% intervals, {task}: mean standard deviation", float(std.mean()), "-"


def explore_rows(model: TwoTower) -> Iterator[Row]:
    """See how many of the ten best items are new."""
    users = model.users_.ids.slice(0, 1000)
    counts = np.asarray(model.towers_.items.counts)
    for explore in (0.0, 0.5, 1.0, 2.0):
        items = model.recommend(users, k=10, explore=explore, output="arrow")["item_id"]
        share = float(np.mean(counts[model.items_.rows(items)] == 0))
        yield f"new items among the ten best, explore={explore:g}", share, "rises"


def explain_rows(model: TwoTower, split: ColdStartSplit) -> Iterator[Row]:
    """Compare sums of contributions with scores."""
    worst, seconds, n = 0.0, 0.0, 0
    for ratings in split.tasks().values():
        pairs = ratings.to_arrow().slice(0, 25)
        scores = model.predict(pairs)
        for pair, score in zip(pairs.to_pylist(), scores, strict=True):
            started = time.perf_counter()
            table = model.explain(pair["user_id"], pair["item_id"], output="arrow")
            seconds += time.perf_counter() - started
            output = model.predictor().output
            total = np.array(table["contribution"].to_numpy().sum() - output.shift)
            worst, n = max(worst, abs(float(output(total)) - float(score))), n + 1
    yield "explain: largest difference of the sum from the score", worst, "<= 1e-5"
    yield "explain: milliseconds", 1000 * seconds / n, "-"


def seed_rows(directory: Path, seed: int, which: str) -> Iterator[Row]:
    """Measure all claims on the split of one seed, or those of lists."""
    data = Data(directory.name, **tables_in(directory))
    items, users = data.features()
    split = data.split(seed)
    low, high = float(split.train.values.min()), float(split.train.values.max())

    def refit(train) -> TwoTower:
        bounds = (low, high) if low < high else None
        return TwoTower(bounds=bounds).fit(train, items=items, users=users)

    started = time.perf_counter()
    model = refit(split.train)
    seconds = time.perf_counter() - started
    yield from first_rating_rows(model, refit, split, data.liked if data.rated else 1.0, seed)
    if which == "lists":
        return
    yield from fold_in_rows(model, refit, split, seed)
    yield from update_rows(refit, split, model, seconds, seed)
    yield from uncertainty_rows(model, split)
    yield from explore_rows(model)
    yield from explain_rows(model, split)
    if seed == 0:
        yield from export_rows(model, users)


def table(figures: dict[str, list[float]], reaches: dict[str, str]) -> str:
    """Write claims below each other, those of first ratings in lists by number of ratings."""
    counts = ["all" if n is None else str(n) for n in GIVEN]
    lists: dict[str, dict[str, str]] = defaultdict(dict)
    lines = []
    for claim, values in figures.items():
        found = re.fullmatch(r"((?:share|NDCG).*), (\w+) ratings: (.*)", claim)
        if found:
            what, n, which = found.groups()
            lists[f"{what}: {which}"][n] = f"{np.mean(values):.4g}"
            lists[f"{what}: {which}"]["reach"] = reaches[claim]
        else:
            lines.append(f"| {claim} | {np.mean(values):.4g} | {reaches[claim]} |")
    head = ["first ratings in lists", *counts, "reach (ratio: from five on)"]
    rows = [head, ["---"] * len(head)]
    for claim, cells in lists.items():
        rows.append([claim, *(cells.get(n, "") for n in counts), cells["reach"]])
    text = "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"
    if lines:
        text += (
            "\n" + "\n".join(["| claim | figure | reach |", "| --- | --- | --- |", *lines]) + "\n"
        )
    return text


def main() -> None:
    """Run, print and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    here = Path(__file__).resolve().parent
    data = here.parent.parent / "shared" / "data" / "ml-1m"
    parser.add_argument("--data", type=Path, default=data)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rows", choices=["all", "lists"], default="all")
    parser.add_argument("--out", type=Path, default=here / "results")
    arguments = parser.parse_args()
    figures: dict[str, list[float]] = defaultdict(list)
    reaches: dict[str, str] = {}
    for seed in arguments.seeds:
        for claim, figure, reach in seed_rows(arguments.data, seed, arguments.rows):
            figures[claim].append(float(figure))
            reaches[claim] = reach
            print(f"seed {seed}: {claim}: {figure:.5g} ({reach})", flush=True)
    name = arguments.data.name
    seeds = ", ".join(map(str, arguments.seeds))
    head = f"# The life of an entity, {name}\n\nMean of seeds {seeds}; exports: seed 0."
    text = f"{head} {machine()}.\n\n{table(figures, reaches)}"
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = "life" if arguments.rows == "all" else f"life-lists-{name}"
    (arguments.out / f"{file}.md").write_text(text, encoding="utf-8")
    if arguments.rows == "all":
        plain = json.dumps(figures, indent=1) + "\n"
        (arguments.out / "life.json").write_text(plain, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
