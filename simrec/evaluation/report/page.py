"""The page: all sections in one file that needs nothing else."""

from simrec import __version__
from simrec.evaluation.report import breakdown, material, portrait, results
from simrec.evaluation.report.findings import Findings
from simrec.evaluation.report.html import Html, join, paragraph, tag
from simrec.evaluation.report.style import STYLE


def page(findings: Findings) -> str:
    """Write the findings as HTML."""
    sections = [
        results.tasks(findings),
        results.revealed(findings),
        results.calibration(findings),
        breakdown.popularity(findings),
        breakdown.groups(findings),
        portrait.importance(findings),
        portrait.item_map(findings),
        portrait.examples(findings),
        material.warnings(findings),
        material.data(findings),
        portrait.card(findings),
    ]
    subject = findings.subject
    title = "Recommender report"
    about = (
        f"Model {subject.manifest['model_id']}, {len(subject.ratings):,} ratings of "
        f"{subject.ratings.n_items:,} items by {subject.ratings.n_users:,} users. Errors are of a "
        "copy of the model that was trained without the ratings it is tested on; the map, the "
        "examples and the model card are of the saved model."
    )
    links = [tag("a", section.title, href=f"#{section.key}") for section in sections]
    body = join(
        [
            tag("header", tag("h1", title), paragraph(about), results.headline(findings)),
            tag("nav", *links, aria_label="Sections"),
            tag(
                "main",
                *(
                    tag("section", tag("h2", part.title), part.body, id=part.key)
                    for part in sections
                ),
            ),
            tag("footer", paragraph(f"Made by SimRec {__version__}. This file needs no network.")),
        ]
    )
    head = join(
        [
            tag("meta", charset="utf-8"),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            # Nothing is loaded and nothing is run, whatever names the data hold.
            tag(
                "meta",
                http_equiv="Content-Security-Policy",
                content="default-src 'none'; style-src 'unsafe-inline'; img-src data:",
            ),
            tag("meta", name="color-scheme", content="light dark"),
            tag("title", f"{title}: {subject.manifest['model_id']}"),
            tag("style", Html(STYLE)),
        ]
    )
    html = tag("html", tag("head", head), tag("body", body), lang="en")
    return f"<!doctype html>\n{html}\n"
