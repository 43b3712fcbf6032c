"""Sections that compare the model: with the baselines, and with its parent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simrec.evaluation.report.html import DASH, Html, join, number, percent, small, table, tag
from simrec.evaluation.report.measures import Measures
from simrec.evaluation.tasks import TASK_NAMES

if TYPE_CHECKING:
    import pandas as pd

Section = tuple[str, str, Html]
"""One part of the page: an anchor, a heading, its content."""
_BEYOND = {
    "coverage": ("Share of the candidates that is shown to anyone", percent),
    "gini": ("Concentration (Gini: 0 all alike, 1 one item has it all)", lambda v: number(v, 2)),
    "popularity": ("Users who rated what is shown, the mean", lambda v: percent(v, 1)),
    "popularity_rated": ("Users who rated what people choose, the mean", lambda v: percent(v, 1)),
    "novelty": ("Novelty (bits; an item half the users know has 1)", lambda v: number(v, 1)),
    "diversity": ("Diversity within a list (0 all alike, 1 nothing in common)", number),
}


def summary(measures: Measures) -> Html | str:
    """Show all comparisons in words: a task each, lists before ratings."""
    gains, names = measures.gains, {f"ndcg@{measures.k}": "Lists", "rmse": "Predicted ratings"}
    present = [metric for metric in names if metric in set(gains.get("metric", ()))]
    found = {metric: dict(rows_of(gains, metric)) for metric in present}
    rows = [
        [title(task), *(_outcome(found[metric].get(task)) for metric in present)]
        for task in TASK_NAMES
        if any(task in rows for rows in found.values())
    ]
    head = ["", *(names[metric] for metric in present)]
    return table(head, rows, "Against the best baseline") if rows else ""


def _outcome(row: dict[str, Any] | None) -> Html | str:
    if row is None:
        return DASH
    how = _kind(row)
    shown = f"{how}: {number(row['value'])} against {number(row['other_value'])}"
    if row["metric"] == "rmse":
        change = row["value"] / (row["other_value"] or float("nan")) - 1
        shown = f"{how}: error {percent(change, 1, signed=True)}"
    return tag("span", "no difference" if how == "same" else shown, class_=how)


def lists(measures: Measures) -> Section | None:
    """Show the lists beside those of popularity, and what they hold."""
    k, tasks = measures.k, measures.tasks[measures.tasks["n_ranked"] > 0]
    if not len(tasks):
        return None
    rows = [[label, *(write(v) for v in tasks[name])] for name, (label, write) in _BEYOND.items()]
    head = ["", *(title(task) for task in tasks["task"])]
    words = (
        f"Do the first {k} places hold items the user turned out to like? Beside it, the same list "
        "of the most popular items for everyone (for new items: of those whose features suggest "
        "that they will be popular). Items never rated count as not liked, so the figures compare "
        "models only. In brackets: what other users of the same kind could show, with 95% "
        "confidence. Grey: the difference cannot be told from chance, or is below 1%."
    )
    shown = _compared(measures.gains, f"ndcg@{k}", "Popular", f"NDCG@{k} (higher is better)")
    beyond = table(head, rows, "What the model's lists show")
    more = tag("details", tag("summary", "Beyond accuracy"), beyond)
    return "lists", "Lists", join([shown, small(words), more])


def errors(measures: Measures) -> Section | None:
    """Show the errors beside those of the best baseline."""
    caption = "Error (RMSE, in units of the rating; lower is better)"
    shown = _compared(measures.gains, "rmse", "Baseline", caption)
    if not shown:
        return None
    tested = measures.tested
    words = (
        "The baseline is the better of the mean rating and the biases of user and item. A copy of "
        f"the model was trained on {len(tested.split.train):,} of {len(tested.ratings):,} ratings "
        f"(split seed {tested.seed}), and saw none of the ratings measured here; new items and new "
        "users were held out whole."
    )
    return "errors", "Predicted ratings", join([shown, small(words)])


def parent(measures: Measures) -> Section | None:
    """Show what changed since the parent."""
    tested, frame = measures.tested, measures.parent
    name = tested.model.parent_
    if frame is None:
        words = f"The parent is model {name}: give its directory (--parent) to see its figures."
        return ("parent", "Since the parent", tag("p", words)) if name else None
    then, now = tested.parent.towers_, tested.ratings
    rows = [
        [what, int(before), after, percent(after / max(before, 1) - 1, 0, True)]
        for what, before, after in (
            ("Ratings", then.items.counts.sum(), len(now)),
            ("Users with ratings", (np.asarray(then.users.counts) > 0).sum(), now.n_users),
            ("Items with ratings", (then.items.counts > 0).sum(), now.n_items),
        )
    ]
    words = (
        "The parent's figures are of a copy with its settings, trained on those training ratings "
        "it can have known: of its users and items, the earliest ones where there are times."
    )
    parts = [
        _compared(frame, f"ndcg@{measures.k}", "Parent", f"Lists: NDCG@{measures.k}"),
        _compared(frame, "rmse", "Parent", "Error (RMSE)"),
        table(["", "Then", "Now", "Change"], rows, "Data"),
    ]
    return "parent", "Since the parent", join([*parts, small(words)])


def _compared(frame: pd.DataFrame, metric: str, other: str, caption: str) -> Html | str:
    """Show by task the model's figure, the other's, and the difference with its interval."""
    rows = []
    for task, row in rows_of(frame, metric):
        kind = _kind(row)
        ends = [number(row[name], signed=True) for name in ("difference", "low", "high")]
        spread = tag("span", "{} ({} to {})".format(*ends), class_=kind)
        own = tag("span", number(row["value"]), class_=kind if kind == "better" else None)
        rows.append([title(task), own, row["other_value"], spread])
    return table(["", "Model", other, "Difference"], rows, caption) if rows else ""


def rows_of(frame: pd.DataFrame, metric: str) -> list[tuple[str, dict[str, Any]]]:
    """Give the comparisons by a metric, by task."""
    rows = frame[frame["metric"] == metric].to_dict("records") if len(frame) else []
    return [(row["task"], row) for row in rows]


def _kind(row: dict[str, Any]) -> str:
    if not isinstance(row["better"], str):
        return "same"
    return "better" if row["better"] == "model" else "worse"


def title(task: str) -> str:
    """Name a task at the start of a line."""
    return TASK_NAMES[task][0].upper() + TASK_NAMES[task][1:]
