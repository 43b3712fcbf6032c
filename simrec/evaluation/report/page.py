"""The page: verdict, what to do, warnings, then the evidence; all in one file."""

import datetime
from collections.abc import Iterator

from simrec import __version__
from simrec.evaluation.report import comparisons, sections
from simrec.evaluation.report.advice import next_steps, verdict
from simrec.evaluation.report.alerts import KINDS
from simrec.evaluation.report.html import Html, document, plural, small, tag
from simrec.evaluation.report.measures import Measures

SECTIONS = (
    comparisons.parent,
    sections.shown,
    sections.badly_served,
    sections.features,
    sections.first_ratings,
    sections.intervals,
    sections.examples,
    sections.about,
)


def page(measures: Measures, today: datetime.date | None = None) -> str:
    """Write the measures as HTML, dated today unless told otherwise."""
    tested, made = measures.tested, [make(measures) for make in SECTIONS]
    there = [section for section in made if section is not None]
    name, date = tested.model.model_id_ or "not saved", today or datetime.date.today()
    about = (
        f"Model {name}, {date.isoformat()}. {plural(len(tested.ratings), tested.unit)} of "
        f"{plural(tested.ratings.n_items, 'item')} by {plural(tested.ratings.n_users, 'user')}."
    )
    kind, says = verdict(measures)
    steps = [tag("li", tag("strong", deed), f" {why}") for deed, why in next_steps(measures)]
    return document(
        f"Recommender report: {name}",
        tag(
            "header",
            tag("h1", "Recommender report"),
            small(about),
            tag("p", says, class_=f"verdict {kind}"),
            *comparisons.baselines(measures),
            tag("h2", "What to do next") if steps else "",
            tag("ol", *steps, class_="next") if steps else "",
            *_alerts(measures),
        ),
        tag("nav", *(tag("a", t, href=f"#{key}") for key, t, _ in there), aria_label="Sections"),
        tag("main", *(tag("section", tag("h2", t), body, id=key) for key, t, body in there)),
        tag("footer", tag("p", f"Made by SimRec {__version__}. This file needs no network.")),
    )


def _alerts(measures: Measures) -> Iterator[Html]:
    """Show what is serious, and fold in what is not."""
    lines: dict[bool, list[Html]] = {True: [], False: []}
    for alert in measures.alerts:
        badge = tag("span", KINDS[alert.kind], class_=f"badge {alert.kind}")
        words = f": {alert.what} {alert.remedy}"
        line = tag("li", badge, " ", tag("strong", alert.about), words)
        lines[alert.kind != "unused"].append(line)
    if measures.alerts:
        yield tag("h2", f"Warnings ({len(measures.alerts)})")
    if lines[True]:
        yield tag("ul", *lines[True], class_="alerts")
    if lines[False]:
        head = tag("summary", f"{plural(len(lines[False]), 'column')} without use")
        yield tag("details", head, tag("ul", *lines[False], class_="alerts"))
