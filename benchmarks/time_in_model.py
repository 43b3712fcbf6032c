"""Does time help the model? Ways to use it, under a split by time.

    python benchmarks/time_in_model.py [ml-100k amazon] [--data DIR] [--seeds 0 1 2]

Each way is tried on the last fifth of the ratings: half_life="auto" (the way that is built in) and
the model as it is with all seeds, the others with the first. Writes benchmarks/results/
time-in-model.md, a row as soon as it is known. A half-life below is a quarter of the time that the
training ratings span.
"""

import argparse
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from simrec import Ratings, TwoTower, evaluate, time_split
from simrec.evaluation.baselines import BiasBaseline, PopularityBaseline
from simrec.evaluation.tasks import liked_threshold, tasks_of

HERE = Path(__file__).resolve().parent
DATA = Path(os.environ.get("SIMREC_DATA", HERE.parents[1] / "shared" / "data"))
OUT = HERE / "results" / "time-in-model.md"
Tables = dict[str, pa.Table]
# Half-lives within the time of training, for popularity alone.
HALF_LIVES = (0, 1, 2, 4, 8, 16, 32, 64)


class Corrected:
    """A fitted model whose predictions are moved by something known of each item."""

    def __init__(self, model: TwoTower, train: Ratings, by_item: np.ndarray) -> None:
        self.model, self.train, self.by_item, self.parts_ = model, train, by_item, model.parts_
        self.recommend = model.recommend

    def predict(self, pairs: pa.Table, unknown: str = "prior") -> np.ndarray:
        rows = self.train.items.rows(pairs["item_id"])
        moved = np.where(rows >= 0, self.by_item[rows], 0.0)
        low, high = self.train.values.min(), self.train.values.max()
        return np.clip(self.model.predict(pairs, unknown=unknown) + moved, low, high)


def fit(train: Ratings, tables: Tables, seed: int, **settings: Any) -> TwoTower:
    return TwoTower(random_state=seed, **settings).fit(train, **tables)


def fading_popularity(train: Ratings, tables: Tables, seed: int) -> Any:
    """Popularity with a half-life of an eighth of the time."""
    return fit(train, tables, seed, half_life="auto")


def recent_pairs(train: Ratings, tables: Tables, seed: int) -> Any:
    """Pairs with weights by age: all that is learned of uptake fades."""
    weights = _weights(train).astype(np.float32)
    return fit(dataclasses.replace(train, weights=weights), tables, seed)


def recent_ratings(train: Ratings, tables: Tables, seed: int) -> Any:
    """Only the later half of the training ratings."""
    return fit(train.select(_age(train) <= np.median(_age(train))), tables, seed)


def drifting_mean(train: Ratings, tables: Tables, seed: int) -> Any:
    """Ratings as if all were given at the end: less the mean of their time, plus the last one."""
    age, width = _age(train), np.ptp(_age(train)) / 8
    grid = np.linspace(0, age.max(), 200)
    place = np.searchsorted(grid, age).clip(0, len(grid) - 1)
    kernel = np.exp(-0.5 * ((grid[:, None] - grid) / width) ** 2)
    sums = np.bincount(place, train.values, minlength=len(grid))
    means = kernel @ sums / (kernel @ np.bincount(place, minlength=len(grid)))
    values = (train.values - means[place] + means[0]).astype(np.float32)
    model = fit(dataclasses.replace(train, values=values), tables, seed)
    return Corrected(model, train, np.zeros(train.n_items))


def drifting_items(train: Ratings, tables: Tables, seed: int) -> Any:
    """Predictions plus what an item's recent ratings differ from its biases, shrunk."""
    left = train.values - BiasBaseline.fit(train).predict(train)
    weights = _weights(train)
    total = np.bincount(train.item_rows, weights * left, minlength=train.n_items)
    recent = np.bincount(train.item_rows, weights, minlength=train.n_items)
    return Corrected(fit(train, tables, seed), train, total / (recent + 10))


def age_of_items(train: Ratings, tables: Tables, seed: int) -> Any:
    """Give items a feature: their age, the log of the days since the first rating."""
    first = np.zeros(train.n_items)
    np.maximum.at(first, train.item_rows, _age(train))
    rows = train.items.rows(tables["items"]["item_id"])
    age = np.log1p(np.where(rows >= 0, first[rows], 0.0))
    items = tables["items"].append_column("days_since_first_rating", pa.array(age))
    return fit(train, {**tables, "items": items}, seed)


WAYS: dict[str, Callable[[Ratings, Tables, int], Any]] = {
    "as it is": fit,
    'half_life="auto": popularity fades': fading_popularity,
    "all pairs fade (weights by age)": recent_pairs,
    "the later half of the ratings alone": recent_ratings,
    "the mean drifts": drifting_mean,
    "items' biases drift": drifting_items,
    "age of an item as a feature": age_of_items,
}


def _age(train: Ratings) -> np.ndarray:
    """Days before the latest rating."""
    times = train.timestamps
    assert times is not None
    return (times.max() - times) / 86400


def _weights(train: Ratings) -> np.ndarray:
    age = _age(train)
    return 0.5 ** (4 * age / age.max())


def popularity(ratings: Ratings) -> list[str]:
    """Rank by popularity alone for those who came next, with several half-lives: table rows.

    No model is fitted. Trained on the first 60, 70 and 80% of the ratings; asked for the new users
    of the next tenth, of the last fifth in the end.
    """
    times = ratings.timestamps
    assert times is not None
    rows = []
    for share in (0.6, 0.7, 0.8):
        at, end = np.quantile(times, [share, share + 0.1 if share < 0.8 else 1.0])
        split = time_split(ratings.select(times <= end), at=float(at))
        train = split.train
        tasks = tasks_of(split, liked_threshold(train), 10_000, 0)
        task = next(task for task in tasks if task.name == "new_users")
        cells = []
        for n in HALF_LIVES:
            age = _age(train)
            counts = np.bincount(train.item_rows, 0.5 ** (n * age / age.max()))
            popular = PopularityBaseline(train.items, counts, 0.0)
            cells.append(f"{task.ndcg(task.lists(popular, 10)).mean():.4f}")
        rows.append(f"| {share:.0%} | {len(task.users)} | " + " | ".join(cells) + " |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=["ml-100k", "amazon"])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    lines = ["# Does time help the model?", "", "By `benchmarks/time_in_model.py`: the last fifth."]
    head = ["RMSE known", "RMSE new users", "NDCG@10 known", "NDCG@10 new users", "half-life, days"]
    for name in options.names:
        ratings = Ratings.from_parquet(str(options.data / name / "ratings.parquet"))
        paths = {side: options.data / name / f"{side}.parquet" for side in ("items", "users")}
        tables = {side: pq.read_table(path) for side, path in paths.items() if path.exists()}
        lines += [
            "",
            f"## {name}",
            "",
            "NDCG@10 of popularity alone, by half-lives in the time of training:",
        ]
        lines += ["", "| trained on | new users | " + " | ".join(map(str, HALF_LIVES)) + " |"]
        lines += ["| " + " | ".join(["---"] * (len(HALF_LIVES) + 2)) + " |", *popularity(ratings)]
        split = time_split(ratings, test=0.2)
        lines += ["", "| | seed | " + " | ".join(head) + " |"]
        lines += ["| " + " | ".join(["---"] * (len(head) + 2)) + " |"]
        for number, (way, make) in enumerate(WAYS.items()):
            for seed in options.seeds if number < 2 else options.seeds[:1]:
                model = make(split.train, tables, seed)
                found = evaluate(model, split, items=tables["items"]).set_index("task")
                figures = [
                    f"{found.loc[task, metric]:.4f}"
                    for metric in ("rmse", "ndcg@10")
                    for task in ("warm", "new_users")
                ]
                chosen = getattr(model, "chosen_", {}).get("half_life")
                figures.append(f"{chosen:.0f}" if chosen else "")
                lines.append(f"| {way} | {seed} | " + " | ".join(figures) + " |")
                print(lines[-1], flush=True)
                OUT.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
