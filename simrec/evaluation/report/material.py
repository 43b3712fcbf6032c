"""Sections on the data: what they are, and what to look at."""

from simrec.evaluation.report import summary
from simrec.evaluation.report.findings import SIDES, Findings
from simrec.evaluation.report.html import (
    Section,
    facts,
    figure,
    join,
    not_here,
    number,
    paragraph,
    percent,
    table,
    tag,
)
from simrec.evaluation.report.svg import histogram

_KINDS = {
    "error": "Quality",
    "leak": "Leakage suspect",
    "drift": "Drift",
    "nothing": "Says nothing",
    "data": "Data",
}


def warnings(findings: Findings) -> Section:
    """List what to look at, the most serious first."""
    title = "Warnings"
    if not findings.warnings:
        text = "Nothing found: no feature that says nothing, no leakage suspect, no drift."
        return Section("warnings", title, paragraph(text))
    rows = sorted(findings.warnings, key=lambda w: list(_KINDS).index(w.kind))
    items = [
        tag(
            "li",
            tag("span", _KINDS[w.kind], class_=f"badge {w.kind}"),
            " ",
            tag("strong", w.about),
            f": {w.what} ",
            tag("em", w.remedy),
        )
        for w in rows
    ]
    return Section("warnings", f"{title} ({len(rows)})", tag("ul", *items, class_="warnings"))


def data(findings: Findings) -> Section:
    """Summarise the data."""
    subject = findings.subject
    labels, counts = summary.rating_histogram(subject)
    most = labels[counts.index(max(counts))]
    says = (
        f"Most ratings are {most} ({percent(max(counts) / sum(counts))}). A scale of which only "
        "the top is used tells the model little: ask for finer or more honest ratings then."
    )
    parts = [
        facts({name: number(value) for name, value in summary.counts(subject).items()}),
        tag("h3", "The ratings"),
        figure(histogram(labels, counts, "rating", says), says, beside=True),
    ]
    for side in SIDES:
        frame = summary.columns(subject, side)
        parts.append(tag("h3", f"The table of {side}s"))
        if not len(frame):
            parts.append(not_here(f"The report was made without a table of {side}s."))
            continue
        rows = [
            [r["column"], r["use"], int(r["distinct"]), percent(r["missing"], 1), r["type"]]
            for r in frame.to_dict("records")
        ]
        head = ["Column", "Used as", "Distinct", "Missing", "Type"]
        parts.append(table(head, rows, f"Columns of the {side}s"))
    parts.append(
        paragraph(
            "Missing values are allowed, but a feature that is mostly missing carries little.",
            kind="small",
        )
    )
    return Section("data", "The data", join(parts))
