"""The page: verdict, what to do, warnings, then the evidence; all in one file."""

from __future__ import annotations

import datetime
from typing import Any

from simrec import __version__
from simrec.evaluation.report import sections
from simrec.evaluation.report.advice import WHO, next_steps, verdict
from simrec.evaluation.report.html import (
    DASH,
    Html,
    details,
    document,
    join,
    number,
    paragraph,
    percent,
    plural,
    table,
    tag,
)
from simrec.evaluation.report.measures import Measures

_KINDS = {
    "leak": "Leakage suspect",
    "drift": "Drift",
    "sensitive": "Sensitive",
    "data": "Data",
    "unused": "No use",
}


def page(measures: Measures, today: datetime.date | None = None) -> str:
    """Write the measures as HTML, dated today unless told otherwise."""
    tested = measures.tested
    made = [
        sections.lists(measures),
        sections.errors(measures),
        sections.parent(measures),
        sections.shown(measures),
        sections.badly_served(measures),
        sections.features(measures),
        sections.first_ratings(measures),
        sections.intervals(measures),
        sections.examples(measures),
        sections.data(measures),
        sections.card(measures),
    ]
    there = [section for section in made if section is not None]
    what = "ratings" if tested.rates else "interactions"
    about = (
        f"Model {tested.manifest['model_id']}, {(today or datetime.date.today()).isoformat()}. "
        f"{len(tested.ratings):,} {what} of {plural(tested.ratings.n_items, 'item')} by "
        f"{plural(tested.ratings.n_users, 'user')}."
    )
    kind, says = verdict(measures)
    steps = [tag("li", tag("strong", deed), " ", why) for deed, why in next_steps(measures)]
    links = [tag("a", section.title, href=f"#{section.key}") for section in there]
    return document(
        f"Recommender report: {tested.manifest['model_id']}",
        tag(
            "header",
            tag("h1", "Recommender report"),
            paragraph(about, kind="small"),
            paragraph(says, kind=f"verdict {kind}"),
            _summary(measures),
            tag("h2", "What to do next") if steps else "",
            tag("ol", *steps, class_="next") if steps else "",
            _alerts(measures),
        ),
        tag("nav", *links, aria_label="Sections"),
        tag(
            "main",
            *(tag("section", tag("h2", s.title), s.body, id=s.key) for s in there),
        ),
        tag("footer", paragraph(f"Made by SimRec {__version__}. This file needs no network.")),
    )


def _summary(measures: Measures) -> Html | str:
    """Show all comparisons in words: a task each, lists before ratings."""
    rows: dict[str, list[Any]] = {}
    names = {f"ndcg@{measures.k}": "Lists", "rmse": "Predicted ratings"}
    present = [metric for metric in names if metric in set(measures.gains.get("metric", ()))]
    for task in WHO:
        cells = [_outcome(sections.find_row(measures.gains, task, metric)) for metric in present]
        if any(cells):
            rows[task] = [sections.title(task), *(cell or DASH for cell in cells)]
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
    return tag("span", f"{how}: {shown or percent(change, 1, signed=True)}", class_=how)


def _alerts(measures: Measures) -> Html | str:
    items = [
        tag(
            "li",
            tag("span", _KINDS[alert.kind], class_=f"badge {alert.kind}"),
            " ",
            tag("strong", alert.about),
            f": {alert.what} {alert.remedy}",
        )
        for alert in measures.alerts
    ]
    first = [i for i, alert in zip(items, measures.alerts, strict=True) if alert.kind != "unused"]
    rest = items[len(first) :]
    if not items:
        return ""
    more = tag("ul", *rest, class_="alerts")
    return join(
        [
            tag("h2", f"Warnings ({len(items)})"),
            tag("ul", *first, class_="alerts") if first else "",
            details(f"{plural(len(rest), 'column')} without use", more) if rest else "",
        ]
    )
