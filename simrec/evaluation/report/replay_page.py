"""A page with the pictures of a replay: error and NDCG by period for each policy, and its cost."""

import math

from simrec.evaluation.replay import POLICIES, Replay
from simrec.evaluation.report.charts import line_chart
from simrec.evaluation.report.html import document, number, paragraph, table, tag


def replay_page(replay: Replay, every: str, refit: str) -> str:
    """Write a replay as HTML, one file that needs nothing else."""
    frame, k = replay.periods, replay.k
    names = list(replay.policies["policy"])
    periods = list(dict.fromkeys(frame["period"]))
    rows = [
        [p["policy"], POLICIES[p["policy"]], p["rmse"], p[f"ndcg@{k}"], f"{p['seconds']:.1f} s"]
        for p in replay.policies.to_dict("records")
    ]
    # Months where there are years to show, else days.
    years = int(periods[-1][:4]) - int(periods[0][:4]) > 1
    labels = [p[:7] if years else p[5:] for p in periods]
    figures = []
    for metric, title in (
        (f"ndcg@{k}", f"NDCG@{k} (higher is better)"),
        ("rmse", "RMSE (lower is better)"),
    ):
        lines = {
            name: list(frame[frame["policy"] == name].set_index("period")[metric].reindex(periods))
            for name in names
        }
        if any(math.isfinite(value) for line in lines.values() for value in line):
            ends = [
                f"{name} {number(line[0])} to {number(line[-1])}" for name, line in lines.items()
            ]
            says = f"{title} from {periods[0]} to {periods[-1]}: {'; '.join(ends)}."
            drawing = line_chart(labels, lines, "first day of the period", title, says)
            figures.append(tag("figure", drawing))
    about = f"{len(periods)} periods of {every} from {periods[0]}; refits after {refit}."
    return document(
        "Replay",
        tag("h1", "How often must the model be trained again?"),
        paragraph(replay.sentence, kind="verdict"),
        paragraph(about, kind="small"),
        tag("div", *figures, class_="pair"),
        table(["", "What it does", "RMSE", f"NDCG@{k}", "Learning"], rows, "Policies"),
    )
