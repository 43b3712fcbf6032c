"""The page: verdict, what to do, warnings, then the evidence; all in one file."""

from __future__ import annotations

import datetime

from simrec import __version__
from simrec.evaluation.report import comparisons, sections
from simrec.evaluation.report.advice import next_steps, verdict
from simrec.evaluation.report.html import (
    Html,
    details,
    document,
    join,
    paragraph,
    plural,
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
        comparisons.lists(measures),
        comparisons.errors(measures),
        comparisons.parent(measures),
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
        f"Model {tested.name}, {(today or datetime.date.today()).isoformat()}. "
        f"{len(tested.ratings):,} {what} of {plural(tested.ratings.n_items, 'item')} by "
        f"{plural(tested.ratings.n_users, 'user')}."
    )
    kind, says = verdict(measures)
    steps = [tag("li", tag("strong", deed), " ", why) for deed, why in next_steps(measures)]
    links = [tag("a", section.title, href=f"#{section.key}") for section in there]
    return document(
        f"Recommender report: {tested.name}",
        tag(
            "header",
            tag("h1", "Recommender report"),
            paragraph(about, kind="small"),
            paragraph(says, kind=f"verdict {kind}"),
            comparisons.summary(measures),
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
