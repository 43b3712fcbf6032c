"""Sections on what the model is: features, map, examples, card."""

from typing import Any

from simrec.evaluation.report.atlas import REST
from simrec.evaluation.report.findings import Findings
from simrec.evaluation.report.html import (
    MINUS,
    Html,
    Section,
    bars,
    details,
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
from simrec.evaluation.report.results import PLURAL
from simrec.evaluation.report.svg import legend, scatter


def importance(findings: Findings) -> Section:
    """Show which features carry the cold start."""
    figures = []
    ranks = findings.subject.ranks
    unit = "wrong choices" if ranks else "RMSE"
    for side, frame in findings.importance.items():
        who = PLURAL[side]
        if not len(frame):
            reason = f"The model has no features of {who}, or no {side} was held out."
            figures.append(tag("figure", tag("h3", f"New {who}"), not_here(reason)))
            continue
        each, together = frame.iloc[:-1], frame.iloc[-1]
        rows = [
            (str(r.column), float(r.rise), f"+{max(r.rise, 0):.4f} ({percent(r.share, 1, True)})")
            for r in each.itertuples()
        ]
        first = each.iloc[0]
        useless = [r.column for r in each.itertuples() if r.rise < r.spread or r.share < 0.0005]
        says = f"{first['column']} matters most for new {who}. All features together: "
        says += f"+{together['rise']:.4f}. "
        if useless:
            says += f"No help: {', '.join(map(str, useless))}. "
        says += "Spend effort on the quality of the top features; get more of their kind."
        caption = f"New {who}: rise of the error ({unit}) when a feature is shuffled"
        figures.append(
            tag(
                "figure",
                tag("h3", f"New {who}"),
                bars(rows, caption, colour=2),
                tag("figcaption", says),
            )
        )
    body = join(
        [
            paragraph(
                "Each feature is shuffled among the held-out newcomers, so that it says nothing; "
                "the more the error rises, the more the model relies on it. Features that say the "
                "same share their importance."
            ),
            tag("div", *figures, class_="pair"),
        ]
    )
    return Section("features", "Which features carry the cold start", body)


def item_map(findings: Findings) -> Section:
    """Show the map of items."""
    found, subject = findings.atlas, findings.subject
    title = "Map of the items"
    if len(found.ids) < 3:
        return Section("map", title, not_here("Fewer than three items."))
    names = [subject.name_of(item) for item in found.ids]
    tips = [f"{name} ({count:,} ratings)" for name, count in zip(names, found.counts, strict=True)]
    coloured = f", coloured by {found.column}" if found.column else ""
    says = (
        f"{len(names):,} items{coloured}; names beside the most rated ones. Items are near one "
        "another if the same users like them, whatever their overall level; the two directions "
        f"show {percent(found.kept)} of the differences in taste. Clusters are audiences: a gap "
        "is where a new item would stand alone."
    )
    drawing = scatter(found.points, found.colours, tips, range(min(40, len(names))), names, says)
    key: Html | str = ""
    if found.column:
        others = (found.colours == REST).any()
        labels = [*found.labels, *(["other"] if others else [])]
        key = legend(labels, [*range(len(found.labels)), REST])
    return Section("map", title, tag("div", figure(drawing, says, key), class_="large"))


def examples(findings: Findings) -> Section:
    """Show recommendations with their reasons."""
    unit = "probability to like it" if findings.subject.ranks else "predicted rating"
    scale = "log odds" if findings.subject.ranks else "points of the rating"
    cards = []
    for example in findings.examples:
        items = []
        for item in example.items:
            shown = percent(item.score) if findings.subject.ranks else number(float(item.score), 1)
            why = [tag("li", _signed(reason.by), " ", reason.words) for reason in item.reasons]
            near = f"Like {' and '.join(item.near)}, which they rated high." if item.near else ""
            items.append(
                tag(
                    "li",
                    tag("p", tag("strong", item.name), tag("span", shown, class_="score")),
                    tag("p", near, class_="small") if near else "",
                    tag("ul", *why, class_="why") if why else "",
                )
            )
        liked = f"Rated highest: {', '.join(example.liked)}." if example.liked else ""
        cards.append(
            tag(
                "article",
                tag("h3", example.title),
                paragraph(example.facts, kind="small") if example.facts else "",
                paragraph(liked, kind="small") if liked else "",
                tag("ol", *items),
            )
        )
    body = join(
        [
            paragraph(
                f"From the saved model, without what the user has rated. Beside each item is the "
                f"{unit}; below it what moved the score up or down most (in {scale}), from the "
                "user's and the item's features and ratings. Show such reasons to users, and look "
                "for ones that make no sense."
            ),
            tag("div", *cards, class_="cards"),
        ]
    )
    return Section("examples", "Recommendations and their reasons", body)


def card(findings: Findings) -> Section:
    """Show the model card of the saved model."""
    subject, manifest = findings.subject, findings.subject.manifest
    learned = manifest.get("facts", {})
    counts = learned.get("counts", {})
    goal = "which items a user will like" if subject.ranks else "ratings"
    parent = learned.get("parent") or manifest.get("parent")
    about: dict[str, Any] = {
        "Model id": manifest["model_id"],
        "Parent model": parent or "none: trained from scratch",
        "Kind": f"two similarity encoders, one scalar product; predicts {goal}",
        "Trained on": f"{counts.get('ratings', 0):,} ratings of {counts.get('rated_items', 0):,} "
        f"items by {counts.get('rating_users', 0):,} users",
        "Features of items": _columns(subject.model.item_encoder_),
        "Features of users": _columns(subject.model.user_encoder_),
        "Chosen by itself": _listed(subject.model.chosen_),
        "SimRec": manifest.get("simrec", "unknown"),
    }
    settings = {k: v for k, v in manifest["config"].items() if k != "verbose"}
    versions = manifest.get("packages", {})
    uses = [
        "Predict how users take items, in batch: also items and users that nobody has rated, "
        "from their features.",
        "Rank a catalogue for a user, with rules of your own on top.",
    ]
    limits = [
        "Predictions for new items and users are only as good as the features: see above.",
        "It learns from who chose to rate what; people and items outside of that are guesses.",
        "It knows nothing of time: tastes and catalogues move, so train again and compare reports.",
        "Not for decisions about people (credit, work, health), for which it was never tested.",
    ]
    body = [
        facts(about),
        tag("h3", "Intended use"),
        tag("ul", *(tag("li", use) for use in uses)),
        tag("h3", "Limits"),
        tag("ul", *(tag("li", limit) for limit in limits)),
        details(
            "Settings and versions",
            table(["Setting", "Value"], [[k, str(v)] for k, v in settings.items()], "Settings"),
            table(["Package", "Version"], list(versions.items()), "Versions"),
        ),
    ]
    return Section("card", "Model card", join(body))


def _columns(encoder: Any) -> str:
    if encoder is None:
        return "none"
    return ", ".join(f"{name} ({kind})" for name, kind in encoder.columns_.items()) or "none"


def _listed(chosen: dict[str, Any]) -> str:
    shown = {k.replace("_", " "): v for k, v in chosen.items()}
    return ", ".join(
        f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in shown.items()
    )


def _signed(value: float) -> Html:
    kind = "up" if value > 0 else "down"
    return tag("b", f"{value:+.2f}".replace("-", MINUS), class_=kind)
