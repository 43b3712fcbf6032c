"""Tables that compare the model: with the baselines, and with its parent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simrec.evaluation.compare import joined
from simrec.evaluation.report.html import DASH, Html, join, number, percent, small, table, tag
from simrec.evaluation.report.measures import Measures
from simrec.evaluation.tasks import TASK_NAMES

if TYPE_CHECKING:
    import pandas as pd

Section = tuple[str, str, Html]
"""One part of the page: an anchor, a heading, its content."""
_WORDS = {"better": "better", "worse": "worse", "same": "no difference"}


def baselines(measures: Measures) -> list[Any]:
    """Show the model beside the baselines, and say how that was measured."""
    tested, shown = measures.tested, compared(measures.gains, "Model against the best baseline")
    if not shown:
        return []
    how = [
        f"A copy was trained on {len(tested.split.train):,} of {len(tested.ratings):,} "
        f"{tested.unit}s (split seed {tested.seed}), and saw none of what it is asked here; new "
        "items and new users were held out whole.",
        f"Lists, NDCG@{measures.k} (higher is better): do the first {measures.k} places hold items "
        "the user turned out to like? The baseline is popularity: the most popular items for "
        "everyone; of new items, those whose features suggest popularity. Items never rated count "
        "as not liked, so the figures compare models only.",
        "Predicted ratings, RMSE (in units of the rating; lower is better): the baseline is the "
        "better of two simple averages, the mean rating and the biases of user and item.",
        "Below each: the range of the difference that other users of the same kind could show, "
        "with 95% confidence. Grey: all figures taken together, the difference cannot be told from "
        "chance, or it is below 1%.",
    ]
    words = [small(text) for text in how if tested.rates or "RMSE" not in text]
    return [shown, tag("details", tag("summary", "How this was measured"), *words)]


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
    data = table(["", "Then", "Now", "Change"], rows, "Data")
    shown = compared(frame, "Model against its parent")
    return "parent", "Since the parent", join([shown, data, small(words)])


def compared(frame: pd.DataFrame, caption: str) -> Html | str:
    """Show by task the model's figures beside the other's, lists before ratings."""
    if not len(frame):
        return ""
    found = frame.set_index(["task", "metric"]).to_dict("index")
    metrics = list(frame["metric"].unique())
    rows = [
        [title(task), *(_cell(found.get((task, metric))) for metric in metrics)]
        for task in frame["task"].unique()
    ]
    head = ["Ratings" if metric == "rmse" else "Lists" for metric in metrics]
    by = [f"{m.upper()} of {name.lower()}" for m, name in zip(metrics, head, strict=True)]
    return table(["", *head], rows, f"{caption}: {joined(by)}")


def _cell(row: Any) -> Html | str:
    if row is None:
        return DASH
    kind = "same"
    if isinstance(row["better"], str):
        kind = "better" if row["better"] == "model" else "worse"
    figures = f"{_WORDS[kind]}: {number(row['value'])} against {number(row['other_value'])}"
    low, high = (number(row[end], signed=True) for end in ("low", "high"))
    spread = tag("span", f"95%: {low} to {high}", class_="spread")
    return tag("span", tag("span", figures, class_=kind), spread)


def title(name: str) -> str:
    """Name a task, or anything else, at the start of a line."""
    name = TASK_NAMES.get(name, name)
    return name[0].upper() + name[1:]
