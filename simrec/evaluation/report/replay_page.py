"""A page with the pictures of a replay: error and NDCG by period for each policy, and its cost."""

import math

from simrec.evaluation.replay import POLICIES, Replay
from simrec.evaluation.report.charts import line_chart
from simrec.evaluation.report.html import document, number, small, table, tag


def replay_page(replay: Replay, every: str, refit: str) -> str:
    """Write a replay as HTML, one file that needs nothing else."""
    frame, k = replay.periods, replay.k
    periods = list(dict.fromkeys(frame["period"]))
    # Months where there are years to show, else days.
    years = int(periods[-1][:4]) - int(periods[0][:4]) > 1
    labels = [p[:7] if years else p[5:] for p in periods]
    figures = []
    for metric, title in (
        (f"ndcg@{k}", f"NDCG@{k} (higher is better)"),
        ("rmse", "RMSE (lower is better)"),
    ):
        by_policy = frame.pivot(index="policy", columns="period", values=metric)[periods]
        lines = {name: list(by_policy.loc[name]) for name in replay.policies["policy"]}
        if any(math.isfinite(value) for line in lines.values() for value in line):
            ends = [f"{n} {number(line[0])} to {number(line[-1])}" for n, line in lines.items()]
            says = f"{title} from {periods[0]} to {periods[-1]}: {'; '.join(ends)}."
            drawing = line_chart(labels, lines, "first day of the period", title, says)
            figures.append(tag("figure", drawing))
    rows = [
        [p["policy"], POLICIES[p["policy"]], p["rmse"], p[f"ndcg@{k}"], f"{p['seconds']:.1f} s"]
        for p in replay.policies.to_dict("records")
    ]
    return document(
        "Replay",
        tag("h1", "How often must the model be trained again?"),
        tag("p", replay.sentence, class_="verdict"),
        small(f"{len(periods)} periods of {every} from {periods[0]}; refits after {refit}."),
        tag("div", *figures, class_="pair"),
        table(["", "What it does", "RMSE", f"NDCG@{k}", "Learning"], rows, "Policies"),
    )
