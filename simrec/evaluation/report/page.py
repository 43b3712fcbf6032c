"""The page: verdict, what to do, warnings, then the evidence; all in one file."""

import datetime

from simrec import __version__
from simrec.evaluation.report import comparisons, sections
from simrec.evaluation.report.advice import next_steps, verdict
from simrec.evaluation.report.alerts import KINDS
from simrec.evaluation.report.html import Html, document, join, plural, small, tag
from simrec.evaluation.report.measures import Measures

SECTIONS = (
    comparisons.lists,
    comparisons.errors,
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
    date = (today or datetime.date.today()).isoformat()
    about = (
        f"Model {tested.name}, {date}. {plural(len(tested.ratings), tested.unit)} of "
        f"{plural(tested.ratings.n_items, 'item')} by {plural(tested.ratings.n_users, 'user')}."
    )
    kind, says = verdict(measures)
    steps = [tag("li", tag("strong", deed), f" {why}") for deed, why in next_steps(measures)]
    return document(
        f"Recommender report: {tested.name}",
        tag(
            "header",
            tag("h1", "Recommender report"),
            small(about),
            tag("p", says, class_=f"verdict {kind}"),
            comparisons.summary(measures),
            tag("h2", "What to do next") if steps else "",
            tag("ol", *steps, class_="next") if steps else "",
            _alerts(measures),
        ),
        tag("nav", *(tag("a", t, href=f"#{key}") for key, t, _ in there), aria_label="Sections"),
        tag("main", *(tag("section", tag("h2", t), body, id=key) for key, t, body in there)),
        tag("footer", tag("p", f"Made by SimRec {__version__}. This file needs no network.")),
    )


def _alerts(measures: Measures) -> Html | str:
    if not measures.alerts:
        return ""
    serious: list[Html] = []
    rest: list[Html] = []
    for alert in measures.alerts:
        badge = tag("span", KINDS[alert.kind], class_=f"badge {alert.kind}")
        words = f": {alert.what} {alert.remedy}"
        line = tag("li", badge, " ", tag("strong", alert.about), words)
        (rest if alert.kind == "unused" else serious).append(line)
    head = tag("summary", f"{plural(len(rest), 'column')} without use")
    more = tag("details", head, tag("ul", *rest, class_="alerts")) if rest else ""
    first = tag("ul", *serious, class_="alerts") if serious else ""
    return join([tag("h2", f"Warnings ({len(measures.alerts)})"), first, more])
