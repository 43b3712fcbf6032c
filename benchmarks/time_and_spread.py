"""Time split, replay, seeds and comparison on real data.

    python benchmarks/time_and_spread.py [ml-100k amazon] [--data DIR]

Writes benchmarks/results/time-NAME.md and time-NAME.png for each data set.
"""

import argparse
import os
from pathlib import Path
from typing import Any

from simrec import Ratings, TwoTower, cold_start_split, compare, evaluate, replay, time_split
from simrec.evaluation.baselines import BiasBaseline

HERE = Path(__file__).resolve().parent
DATA = Path(os.environ.get("SIMREC_DATA", HERE.parents[1] / "shared" / "data"))
# How long a period is, after what time a refit is due, and how many seeds are affordable.
SETTINGS: dict[str, dict[str, Any]] = {
    "ml-100k": {"every": "7d", "refit": "28d", "seeds": 5, "splits": 6},
    "amazon": {"every": "180d", "refit": "720d", "seeds": 3, "splits": 2},
}
SHOWN = ["n", "rmse", "rmse_bias", "n_ranked", "ndcg@10", "ndcg@10_popular", "coverage", "gini"]


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
        "By `benchmarks/time_and_spread.py`.",
        "",
    ]

    def write(*lines: str) -> None:
        parts.extend([*lines, ""])
        text = "\n".join(parts)
        (HERE / "results" / f"time-{name}.md").write_text(text, encoding="utf-8")
        print("\n".join(lines), flush=True)

    split = time_split(ratings, test=0.2)
    model = TwoTower(random_state=0).fit(split.train, **tables)
    found = evaluate(model, split, items=tables.get("items")).set_index("task")
    write("## The last fifth of the ratings", "", markdown(found[["age_days", *SHOWN]].T, 4))

    walk = replay(TwoTower(random_state=0), ratings, **tables, **pick(settings, "every", "refit"))
    picture(walk, HERE / "results" / f"time-{name}.png", name, settings)
    title = f"## Replay: periods of {settings['every']}, refits after {settings['refit']}"
    table = markdown(walk.policies.set_index("policy"), 4)
    write(title, "", table, "", walk.sentence, "", f"![by period](time-{name}.png)")

    spread = evaluate(TwoTower(), ratings, seeds=settings["seeds"], **tables).set_index("task")
    columns = [c for name in SHOWN for c in (name, f"{name}_std")]
    title = f"## Seeds 0 to {settings['seeds'] - 1}: mean and standard deviation"
    write(title, "", markdown(spread[columns].T, 4))

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
            told = int(found.table["better"].notna().sum())
            against = " and ".join(pair)
            lines.append(f"| {number} | {against} | {told} of {len(found.table)} |")
    head = ["| split | models | figures told apart |", "| --- | --- | --- |"]
    write("## Compare: several fits of each model, and single ones", "", *head, *lines)


def pick(settings: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: settings[name] for name in names}


def markdown(frame: Any, digits: int) -> str:
    """Write a frame as a Markdown table."""

    def cell(value: Any) -> str:
        if isinstance(value, str):
            return value
        return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.{digits}f}"

    head = [frame.index.name or "", *map(str, frame.columns)]
    rows = [head, ["---"] * len(head)]
    rows += [[str(i), *map(cell, row)] for i, row in zip(frame.index, frame.values, strict=True)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def picture(walk: Any, path: Path, name: str, settings: dict[str, Any]) -> None:
    """Draw error and NDCG by period, a line for each policy, with its cost."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    cost = walk.policies.set_index("policy")["seconds"]
    for axis, metric in zip(axes, (f"ndcg@{walk.k}", "rmse"), strict=True):
        for policy, part in walk.periods.groupby("policy", sort=False):
            label = f"{policy} ({cost[policy]:.0f} s)"
            axis.plot(part["period"], part[metric], marker="o", markersize=3, label=label)
        axis.set_title(metric.upper())
        axis.set_xticks(axis.get_xticks()[:: max(1, len(axis.get_xticks()) // 6)])
        axis.tick_params(axis="x", rotation=30)
        axis.grid(alpha=0.25)
    axes[1].legend(frameon=False, fontsize=8, title="policy (seconds of learning)")
    title = f"{name}: periods of {settings['every']}, refits after {settings['refit']}"
    figure.suptitle(title)
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
