"""Time split, replay, seeds and comparison on real data.

    python benchmarks/time_and_spread.py [ml-100k amazon] [--data DIR]

Writes benchmarks/results/time-NAME.md and time-NAME.png for each data set.
"""

import argparse
import os
from pathlib import Path
from typing import Any

import pandas as pd

from simrec import Ratings, TwoTower, cold_start_split, compare, evaluate, replay, time_split
from simrec.evaluation.baselines import BiasBaseline

HERE = Path(__file__).resolve().parent
DATA = Path(os.environ.get("SIMREC_DATA", HERE.parents[1] / "shared" / "data"))
# How long a period is, after what time a refit is due, and how many seeds are affordable.
SETTINGS: dict[str, dict[str, Any]] = {
    "ml-100k": {"every": "7d", "refit": "28d", "seeds": 5, "splits": 6},
    "amazon": {"every": "180d", "refit": "720d", "seeds": 3, "splits": 2},
}
SHOWN = ["n", "rmse", "rmse_bias", "n_ranked", "ndcg@10", "ndcg@10_popular", "coverage"]


def measure(name: str, directory: Path) -> None:
    """Measure one data set, writing what is known after each step."""
    ratings = Ratings.from_parquet(str(directory / "ratings.parquet"))
    tables = {
        side: str(directory / f"{side}.parquet")
        for side in ("items", "users")
        if (directory / f"{side}.parquet").exists()
    }
    settings = SETTINGS[name]
    parts = [
        f"# Time, spread and comparison on {name}",
        "",
        "By `benchmarks/time_and_spread.py`: `TwoTower()` with its defaults.",
        "",
    ]

    def write(*lines: str) -> None:
        parts.extend([*lines, ""])
        text = "\n".join(parts)
        (HERE / "results" / f"time-{name}.md").write_text(text, encoding="utf-8")
        print("\n".join(lines), flush=True)

    split, seeds = time_split(ratings, test=0.2), settings["seeds"]
    spread = f"seeds 0 to {seeds - 1}, mean ± standard deviation"
    found = evaluate(TwoTower(), split, seeds=seeds, **tables)
    write(f"## The last fifth of the ratings: {spread}", "", with_spread(found, "age_days", *SHOWN))

    walk = replay(TwoTower(random_state=0), ratings, **tables, **pick(settings, "every", "refit"))
    picture(walk, HERE / "results" / f"time-{name}.png", name, settings)
    title = f"## Replay: periods of {settings['every']}, refits after {settings['refit']}"
    table = markdown(walk.policies.set_index("policy"))
    write(title, "", table, "", walk.sentence, "", f"![by period](time-{name}.png)")

    found = evaluate(TwoTower(), ratings, seeds=seeds, **tables)
    title = f"## A fifth of items and of users held out: {spread}, a split each"
    write(title, "", with_spread(found, *SHOWN))

    lines = []
    for number in range(settings["splits"]):
        cold = cold_start_split(ratings, random_state=number)
        fits = [TwoTower(random_state=s).fit(cold.train, **tables) for s in range(6)]
        names = ("SimRec, seeds 0-2", "SimRec, seeds 3-5", "SimRec, seed 0", "SimRec, seed 3")
        for pair in (
            {names[0]: fits[:3], "biases": BiasBaseline.fit(cold.train)},
            {names[0]: fits[:3], names[1]: fits[3:]},
            {names[2]: fits[0], names[3]: fits[3]},
        ):
            found = compare(pair, cold)
            told = int(found["better"].notna().sum())
            against = " and ".join(pair)
            lines.append(f"| {number} | {against} | {told} of {len(found)} |")
    head = ["| split | models | figures told apart |", "| --- | --- | --- |"]
    write("## Compare: several fits of each model, and single ones", "", *head, *lines)


def pick(settings: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: settings[name] for name in names}


def show(value: Any) -> str:
    """Write a cell: figures of quality with four digits, counts and seconds with few."""
    if isinstance(value, str):
        return value
    digits = 0 if float(value).is_integer() or value >= 10 else 4
    return f"{value:,.{digits}f}"


def with_spread(found: pd.DataFrame, *names: str) -> str:
    """Write figures of several seeds, a column for each task."""

    def cell(mean: float, std: float) -> str:
        digits = 0 if mean >= 10 else 4
        return f"{mean:,.{digits}f} ± {std:,.{digits}f}" if std > 1e-9 else show(mean)

    rows = {n: list(map(cell, found[n], found[f"{n}_std"])) for n in names}
    return markdown(pd.DataFrame(rows, index=found["task"].tolist()).T)


def markdown(frame: pd.DataFrame) -> str:
    """Write a frame as a Markdown table."""
    head = [frame.index.name or "", *map(str, frame.columns)]
    rows = [head, ["---"] * len(head)]
    rows += [[str(i), *map(show, row)] for i, row in zip(frame.index, frame.values, strict=True)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def picture(walk: Any, path: Path, name: str, settings: dict[str, Any]) -> None:
    """Draw error and NDCG by period, a line for each policy, with its cost."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import dates, pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.8), layout="constrained")
    cost = walk.policies.set_index("policy")["seconds"]
    titles = {f"ndcg@{walk.k}": f"NDCG@{walk.k}: higher is better", "rmse": "RMSE: lower is better"}
    for axis, (metric, title) in zip(axes, titles.items(), strict=True):
        for policy, part in walk.periods.groupby("policy", sort=False):
            style = {"color": "0.45", "linestyle": "--"} if policy == "baseline" else {}
            days = pd.to_datetime(part["period"])
            label = f"{policy} ({cost[policy]:.0f} s)"
            axis.plot(days, part[metric], marker="o", markersize=3, label=label, **style)
        locator = dates.AutoDateLocator(minticks=4, maxticks=8)
        axis.xaxis.set_major_locator(locator)
        axis.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))
        axis.set_title(title)
        axis.grid(alpha=0.25)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    every, refit = settings["every"], settings["refit"]
    figure.suptitle(
        f"{name}: periods of {every}, refits after {refit} (in brackets: seconds of learning)"
    )
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(SETTINGS))
    parser.add_argument("--data", type=Path, default=DATA)
    options = parser.parse_args()
    for name in options.names:
        measure(name, options.data / name)


if __name__ == "__main__":
    main()
