"""Sections that compare the model: with the baselines, and with its parent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from simrec.evaluation.report.advice import WHO
from simrec.evaluation.report.html import (
    DASH,
    MINUS,
    Html,
    details,
    join,
    number,
    paragraph,
    percent,
    table,
    tag,
)
from simrec.evaluation.report.measures import Measures

if TYPE_CHECKING:
    import pandas as pd

_BEYOND = {
    "coverage": ("Share of the candidates that is shown to anyone", percent),
    "gini": ("Concentration (Gini: 0 all alike, 1 one item has it all)", lambda v: number(v, 2)),
    "popularity": ("Users who rated what is shown, the mean", lambda v: percent(v, 1)),
    "popularity_rated": ("Users who rated what people choose, the mean", lambda v: percent(v, 1)),
    "novelty": ("Novelty (bits; an item half the users know has 1)", lambda v: number(v, 1)),
    "diversity": ("Diversity within a list (0 all alike, 1 nothing in common)", number),
}


@dataclass(frozen=True)
class Section:
    """One part of the page: an anchor, a heading, its content."""

    key: str
    title: str
    body: Html


def summary(measures: Measures) -> Html | str:
    """Show all comparisons in words: a task each, lists before ratings."""
    rows: dict[str, list[Any]] = {}
    names = {f"ndcg@{measures.k}": "Lists", "rmse": "Predicted ratings"}
    present = [metric for metric in names if metric in set(measures.gains.get("metric", ()))]
    for task in WHO:
        cells = [_outcome(find_row(measures.gains, task, metric)) for metric in present]
        if any(cells):
            rows[task] = [title(task), *(cell or DASH for cell in cells)]
    head = ["", *(names[metric] for metric in present)]
    return table(head, rows.values(), "Against the best baseline") if rows else ""


def _outcome(row: dict[str, Any] | None) -> Html | None:
    if row is None:
        return None
    if row["better"] is None or row["better"] != row["better"]:
        return tag("span", "no difference", class_="same")
    change = row["value"] / row["other_value"] - 1 if row["other_value"] else float("nan")
    # A share of next to nothing says nothing: then the figures have to do.
    small = abs(change) > 2 or change != change
    shown = f"{number(row['value'])} against {number(row['other_value'])}" if small else ""
    how = "better" if row["better"] == "model" else "worse"
    what = "error " if row["metric"] == "rmse" else ""
    return tag("span", f"{how}: {what}{shown or percent(change, 1, signed=True)}", class_=how)


def lists(measures: Measures) -> Section | None:
    """Show the lists beside those of popularity, and what they hold."""
    k, tasks = measures.k, measures.tasks[measures.tasks["n_ranked"] > 0]
    if not len(tasks):
        return None
    shown = _compared(measures.gains, f"ndcg@{k}", "Popular")
    rows = [[label, *(write(v) for v in tasks[name])] for name, (label, write) in _BEYOND.items()]
    head = ["", *(title(task) for task in tasks["task"])]
    words = (
        f"Do the first {k} places hold items the user turned out to like? Beside it, the same list "
        "of the most popular items for everyone (for new items: of those whose features suggest "
        "that they will be popular). Items never rated count as not liked, so the figures compare "
        "models only. In brackets: what other users of the same kind could show, with 95% "
        "confidence. Grey: the difference cannot be told from chance, or is below 1%."
    )
    body = [
        table(["", "Model", "Popular", "Difference"], shown, f"NDCG@{k} (higher is better)"),
        paragraph(words, kind="small"),
        details("Beyond accuracy", table(head, rows, "What the model's lists show")),
    ]
    return Section("lists", "Lists", join(body))


def errors(measures: Measures) -> Section | None:
    """Show the errors beside those of the best baseline."""
    shown = _compared(measures.gains, "rmse", "Baseline")
    if not shown:
        return None
    split, tested = measures.tested.split, measures.tested
    words = (
        "The baseline is the better of the mean rating and the biases of user and item. A copy of "
        f"the model was trained on {len(split.train):,} of {len(tested.ratings):,} ratings (split "
        f"seed {tested.seed}), and saw none of the ratings measured here; new items and new users "
        "were held out whole."
    )
    head = ["", "Model", "Baseline", "Difference"]
    caption = "Error (RMSE, in units of the rating; lower is better)"
    return Section(
        "errors",
        "Predicted ratings",
        join([table(head, shown, caption), paragraph(words, kind="small")]),
    )


def parent(measures: Measures) -> Section | None:
    """Show what changed since the parent."""
    tested, frame = measures.tested, measures.parent
    name = tested.model.parent_
    if frame is None:
        if not name:
            return None
        words = f"The parent is model {name}: give its directory (--parent) to see its figures."
        return Section("parent", "Since the parent", paragraph(words))
    parent = tested.parent
    grown = {
        "Ratings": (int(parent.towers_.items.counts.sum()), len(tested.ratings)),
        "Users with ratings": (
            int((np.asarray(parent.towers_.users.counts) > 0).sum()),
            tested.ratings.n_users,
        ),
        "Items with ratings": (
            int((parent.towers_.items.counts > 0).sum()),
            tested.ratings.n_items,
        ),
    }
    rows = [
        [what, then, now, percent(now / max(then, 1) - 1, 0, True)]
        for what, (then, now) in grown.items()
    ]
    head = ["", "Model", "Parent", "Difference"]
    k = f"ndcg@{measures.k}"
    parts = [table(["", "Then", "Now", "Change"], rows, "Data")]
    for metric, caption in ((k, f"Lists: NDCG@{measures.k}"), ("rmse", "Error (RMSE)")):
        shown = _compared(frame, metric, "Parent")
        if shown:
            parts.append(table(head, shown, caption))
    words = (
        "The parent's figures are of a copy with its settings, trained on those training ratings "
        "it can have known: of its users and items, the earliest ones where there are times."
    )
    return Section("parent", "Since the parent", join([*parts, paragraph(words, kind="small")]))


def _compared(frame: pd.DataFrame, metric: str, other: str) -> list[list[Any]]:
    """Make rows: task, the model's figure, the other's, the difference with its interval."""
    rows = []
    for task in WHO:
        row = find_row(frame, task, metric)
        if row is None:
            continue
        known = row["better"] is not None and row["better"] == row["better"]
        kind = ("better" if row["better"] == "model" else "worse") if known else "same"
        spread = f"{plus(row['difference'])} ({plus(row['low'])} to {plus(row['high'])})"
        own = tag("span", number(row["value"]), class_=kind if kind == "better" else None)
        rows.append([title(task), own, row["other_value"], tag("span", spread, class_=kind)])
    return rows


def find_row(frame: pd.DataFrame, task: str, metric: str) -> dict[str, Any] | None:
    """Find the comparison of a task and a metric."""
    if not len(frame):
        return None
    found = frame[(frame["task"] == task) & (frame["metric"] == metric)].to_dict("records")
    return found[0] if found else None


def title(task: str) -> str:
    """Name a task at the start of a line."""
    return WHO[task][0].upper() + WHO[task][1:]


def plus(value: float, digits: int = 3) -> str:
    """Write a difference with its sign."""
    text = number(float(value), digits)
    return text if text.startswith((MINUS, DASH)) else f"+{text}"
