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
_WORDS = {"better": "better", "worse": "worse", "same": "no difference"}


def summary(measures: Measures) -> Html | str:
    """Show all comparisons in words: a task each, lists before ratings."""
    names = {f"ndcg@{measures.k}": "Lists", "rmse": "Predicted ratings"}
    found = {metric: dict(_by_task(measures.gains, metric)) for metric in names}
    present = [metric for metric in names if found[metric]]
    rows = [
        [title(task), *(_outcome(found[metric].get(task)) for metric in present)]
        for task in TASK_NAMES
        if any(task in found[metric] for metric in present)
    ]
    head = ["", *(f"{names[metric]} ({metric.upper()})" for metric in present)]
    return table(head, rows, "Model against the best baseline") if rows else ""


def _outcome(row: dict[str, Any] | None) -> Html | str:
    if row is None:
        return DASH
    figures = f"{number(row['value'])} against {number(row['other_value'])}"
    return tag("span", f"{_WORDS[_kind(row)]}: {figures}", class_=_kind(row))


def lists(measures: Measures) -> Section | None:
    """Show the lists beside those of popularity."""
    metric = f"ndcg@{measures.k}"
    shown = _compared(measures.gains, metric, "Popularity", f"{metric.upper()} (higher is better)")
    words = (
        f"Do the first {measures.k} places hold items the user turned out to like? Popularity: the "
        "most popular items for everyone; of new items, those whose features suggest popularity. "
        "Items never rated count as not liked, so the figures compare models only. In brackets: "
        "what other users of the same kind could show, with 95% confidence. Grey: all figures "
        "taken together, the difference cannot be told from chance, or it is below 1%."
    )
    return ("lists", "Lists", join([shown, small(words)])) if shown else None


def errors(measures: Measures) -> Section | None:
    """Show the errors beside those of the best baseline."""
    caption = "Error (RMSE, in units of the rating; lower is better)"
    shown = _compared(measures.gains, "rmse", "Averages", caption)
    words = (
        "Averages: the better of the mean rating, and what user and item differ from it on average "
        "(biases)."
    )
    return ("errors", "Predicted ratings", join([shown, small(words)])) if shown else None


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
            (title(f"{tested.unit}s"), then.items.counts.sum(), len(now)),
            (f"Users with {tested.unit}s", (np.asarray(then.users.counts) > 0).sum(), now.n_users),
            (f"Items with {tested.unit}s", (then.items.counts > 0).sum(), now.n_items),
        )
    ]
    words = (
        "The parent's figures are of a copy with its settings, trained on those training "
        f"{tested.unit}s it can have known: of its users and items, the earliest ones where there "
        "are times."
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
    for task, row in _by_task(frame, metric):
        kind = _kind(row)
        ends = [number(row[name], signed=True) for name in ("difference", "low", "high")]
        spread = tag("span", "{} ({} to {})".format(*ends), class_=kind)
        own = tag("span", number(row["value"]), class_=kind if kind == "better" else None)
        rows.append([title(task), own, row["other_value"], spread])
    return table(["", "Model", other, "Difference"], rows, caption) if rows else ""


def _by_task(frame: pd.DataFrame, metric: str) -> list[tuple[str, dict[str, Any]]]:
    rows = frame[frame["metric"] == metric].to_dict("records") if len(frame) else []
    return [(row["task"], row) for row in rows]


def _kind(row: dict[str, Any]) -> str:
    if not isinstance(row["better"], str):
        return "same"
    return "better" if row["better"] == "model" else "worse"


def title(name: str) -> str:
    """Name a task, or anything else, at the start of a line."""
    name = TASK_NAMES.get(name, name)
    return name[0].upper() + name[1:]
