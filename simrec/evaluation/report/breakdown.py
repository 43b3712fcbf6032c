"""Sections on where the model errs: by popularity of items, by groups of features."""

from simrec.evaluation.report.findings import Findings
from simrec.evaluation.report.html import (
    DASH,
    Section,
    bars,
    details,
    figure,
    join,
    not_here,
    number,
    paragraph,
    percent,
    table,
    tag,
)
from simrec.evaluation.report.results import PLURAL, RANKS
from simrec.evaluation.report.svg import Line, legend, line_chart


def popularity(findings: Findings) -> Section:
    """Show error by popularity of items."""
    frame = findings.popularity
    title = "Error by popularity of the item"
    if frame is None:
        return Section("popularity", title, not_here(RANKS))
    if not len(frame):
        return Section("popularity", title, not_here("No rating was held out to measure on."))
    known = frame[frame["ratings_to"] > 0]
    new = frame[frame["ratings_to"] == 0]
    ordered = list(new.itertuples()) + list(known.itertuples())
    labels = ["new" if r.ratings_to == 0 else _range(r.ratings_from, r.ratings_to) for r in ordered]
    lines = [
        Line("model", [r.rmse for r in ordered]),
        Line("biases", [r.rmse_bias for r in ordered]),
    ]
    worst = max(ordered, key=lambda r: r.rmse)
    best = min(ordered, key=lambda r: r.rmse)
    says = (
        f"Items are in ten equal groups by how often they were rated, rarest first; “new” are "
        f"held-out items. The error is largest ({number(worst.rmse)}) for items with "
        f"{labels[ordered.index(worst)]} ratings and smallest ({number(best.rmse)}) for "
        f"{labels[ordered.index(best)]}. Where the two lines meet, features add nothing to what "
        "ratings tell; where the model's is lower, recommend with it."
    ).replace("with new ratings", "without any rating")
    drawing = line_chart(
        [_at_most(r.ratings_to, i, len(ordered)) for i, r in enumerate(ordered)],
        lines,
        "training ratings of the item",
        "error (RMSE)",
        says,
    )
    rows = [
        [label, int(r.n), r.rmse, r.rmse_bias] for label, r in zip(labels, ordered, strict=True)
    ]
    numbers = table(["Ratings of the item", "Tested", "Model", "Biases"], rows, "By popularity")
    body = figure(drawing, says, legend(["model", "biases"]), numbers, beside=True)
    return Section("popularity", title, body)


def groups(findings: Findings, shown: int = 3) -> Section:
    """Show error by groups of features."""
    frame = findings.groups
    title = "Error by group"
    if frame is None:
        return Section("groups", title, not_here(RANKS))
    if not len(frame):
        reason = "No feature has two groups with at least 50 held-out ratings each."
        return Section("groups", title, not_here(reason))
    charts = []
    for (side, column), part in frame.groupby(["side", "column"], sort=False):
        ordered = part.sort_values("rmse", ascending=False)
        rows = [
            (
                str(r.level),
                float(r.rmse),
                f"{number(float(r.rmse))} ({_against(r.rmse, r.rmse_bias)}; {r.n:,} ratings)",
            )
            for r in ordered.itertuples()
        ]
        worst, best = rows[0], rows[-1]
        lean = part.iloc[int(part["lean"].abs().to_numpy().argmax())]
        says = (
            f"Largest error for {worst[0]}, smallest for {best[0]}. Predictions lean most for "
            f"{lean['level']}: {abs(lean['lean']):.2f} too {'high' if lean['lean'] > 0 else 'low'} "
            "on average."
        )
        caption = f"New {PLURAL[str(side)]} by {column} (RMSE)"
        chart = bars(rows, caption, against=[float(v) for v in ordered["rmse_bias"]])
        charts.append(tag("figure", chart, tag("figcaption", says)))
    body = [
        paragraph(
            "Held-out items and users, by their features: whom the model serves worst. The tick "
            "on a bar, and the percentage, compare with the biases, which know no features; check "
            "groups where the bar reaches its tick before showing predictions to them."
        ),
        tag("div", *charts[:shown], class_="stack"),
    ]
    if len(charts) > shown:
        body.append(details(f"{len(charts) - shown} more features", *charts[shown:]))
    return Section("groups", title, join(body))


def _against(own: float, other: float) -> str:
    return percent(own / other - 1, 0, signed=True) if other else DASH


def _at_most(ratings: int, place: int, places: int) -> str:
    """Label a group on the axis, every other one where there are many."""
    if places >= 7 and place % 2:
        return ""
    return "new" if ratings == 0 else f"≤{ratings}"


def _range(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
