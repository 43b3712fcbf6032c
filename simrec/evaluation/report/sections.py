"""The evidence: sections of the page, None where there is nothing to show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simrec.data.split import show_moment
from simrec.evaluation.report.advice import WHO
from simrec.evaluation.report.charts import line_chart
from simrec.evaluation.report.comparisons import Section, plus, title
from simrec.evaluation.report.html import (
    Html,
    bars,
    details,
    facts,
    join,
    number,
    paragraph,
    percent,
    plural,
    table,
    tag,
)
from simrec.evaluation.report.measures import NOMINAL, Measures

if TYPE_CHECKING:
    pass

# Arguments of a model that are no settings to show.
_NO_SETTINGS = ("verbose", "item_encoder", "user_encoder")


def shown(measures: Measures) -> Section | None:
    """Show what is recommended most, and how much of the catalogue."""
    listed = measures.listed
    if not listed or not listed["top"]:
        return None
    rows = [
        (
            _cut(item["name"]),
            float(item["share"]),
            f"in {percent(item['share'])} of the lists; {plural(item['ratings'], 'rating')}",
        )
        for item in listed["top"]
    ]
    says = (
        f"Lists of {measures.k} for {plural(listed['n_users'], 'user')}, of all items, without "
        f"what they rated. The ten items above take {percent(listed['top_share'])} of all places; "
        f"{percent(listed['coverage'])} of the catalogue is shown to anyone; "
        f"{percent(listed['new_share'])} of what is shown has no rating yet. What is shown was "
        f"rated by {percent(listed['popularity'], 1)} of the users, what people rate by "
        f"{percent(listed['popularity_rated'], 1)}, on average."
    )
    body = join([bars(rows, "Most recommended"), paragraph(says)])
    return Section("shown", "What the lists show", body)


def badly_served(measures: Measures) -> Section | None:
    """Show groups and items whose ratings are predicted worst."""
    parts: list[Any] = []
    groups, items = measures.groups, measures.worst_items
    if groups is not None and len(groups):
        rows = [
            [
                _cut(f"{g['side']}s, {g['column']}: {g['level']}"),
                *(g[name] for name in ("n", "rmse", "rmse_others")),
                f"{abs(g['lean']):.2f} too {'high' if g['lean'] > 0 else 'low'}",
            ]
            for g in groups.head(8).to_dict("records")
        ]
        head = ["New …", "Ratings", "Error", "Others' error", "Predictions"]
        parts.append(table(head, rows, "Groups with clearly larger errors than all others"))
    elif groups is not None:
        parts.append(paragraph("No group of features is served clearly worse than the others."))
    if items is not None and len(items):
        rows = [
            [
                _cut(i["name"]) + (" (new)" if i["new"] else ""),
                i["n"],
                *(number(i[name], 2) for name in ("predicted", "rated")),
            ]
            for i in items.to_dict("records")
        ]
        head = ["Item", "Tested", "Predicted", "Rated"]
        parts.append(table(head, rows, "Items whose mean rating is predicted worst"))
    return Section("served", "Who and what is served badly", join(parts)) if parts else None


def features(measures: Measures) -> Section | None:
    """Show what features are worth for newcomers."""
    figures = []
    for side, frame in measures.importance.items():
        if len(frame):
            rows = [
                (r["column"], max(r["share"], 0.0), percent(r["share"], 1, signed=True))
                for r in frame.to_dict("records")
            ]
            caption = f"New {side}s: rise of the error when a feature is shuffled"
            figures.append(tag("figure", bars(rows, caption)))
    if not figures:
        return None
    words = "The more the error rises without a feature, the more the model relies on it. Features "
    words += "that say the same share their importance."
    body = join([tag("div", *figures, class_="pair"), paragraph(words, kind="small")])
    return Section("features", "Which features carry the cold start", body)


def first_ratings(measures: Measures) -> Section | None:
    """Show what the first ratings of newcomers are worth."""
    unit = "RMSE" if measures.tested.rates else "share of wrong choices between two"
    figures = []
    for side, frame in measures.revealed.items():
        if not len(frame):
            continue
        steps = [str(n) for n in frame["revealed"]]
        first, last = float(frame["error"].iloc[0]), float(frame["error"].iloc[-1])
        says = (
            f"New {side}s: from {number(first)} without any rating to {number(last)} with "
            f"{steps[-1]} ({percent(last / first - 1, 1, signed=True)}), on the same held-out "
            f"ratings of {plural(int(frame['entities'].iloc[0]), side)}."
        )
        chart = line_chart(
            steps, {"model": list(frame["error"])}, f"ratings of the new {side}", unit, says
        )
        figures.append(tag("figure", chart, tag("figcaption", says)))
    if not figures:
        return None
    return Section("first", "What the first ratings add", tag("div", *figures, class_="pair"))


def intervals(measures: Measures) -> Section | None:
    """Show whether intervals hold what they promise."""
    frame = measures.calibration
    if frame is None or not len(frame):
        return None
    lines = {
        title(task): list(frame.loc[frame["task"] == task, "observed"])
        for task in WHO
        if (frame["task"] == task).any()
    }
    worst = frame.iloc[int((frame["observed"] - frame["nominal"]).abs().to_numpy().argmax())]
    says = (
        f"Farthest off: intervals that should hold {percent(worst['nominal'])} hold "
        f"{percent(worst['observed'])} ({WHO[worst['task']]}). On the dashed line promise and "
        "outcome agree; below it the model is too sure. Ratings come in steps, so narrow "
        "intervals cannot fit exactly."
    )
    labels, x = [percent(n) for n in NOMINAL], [(n - 0.5) / 0.45 for n in NOMINAL]
    titles = ("share of ratings the interval should hold", "share it does hold")
    chart = line_chart(labels, lines, *titles, says, x=x, ideal=NOMINAL)
    return Section(
        "intervals", "How sure the model is", tag("figure", chart, tag("figcaption", says))
    )


def examples(measures: Measures) -> Section | None:
    """Show lists of a few users with their reasons."""
    if not measures.examples:
        return None
    cards = []
    for example in measures.examples:
        items = []
        for item in example.items:
            why = [
                tag(
                    "li",
                    tag("b", plus(r.by, 2)),
                    " ",
                    r.words,
                    " (sensitive)" if r.sensitive else "",
                )
                for r in item.reasons
            ]
            score = tag("span", number(float(item.score), 2), class_="score")
            name = tag("p", tag("strong", _cut(item.name)), score)
            items.append(tag("li", name, tag("ul", *why, class_="why") if why else ""))
        liked = f"Rated highest: {', '.join(map(_cut, example.liked))}." if example.liked else ""
        parts = [tag("h3", example.title), paragraph(liked, kind="small") if liked else ""]
        cards.append(tag("article", *parts, tag("ol", *items)))
    words = "From the saved model, without what the user has rated: the score, and what moved it "
    words += "most. Look for items and reasons that make no sense."
    body = [paragraph(words), tag("div", *cards, class_="cards")]
    return Section("examples", "Recommendations and their reasons", join(body))


def data(measures: Measures) -> Section:
    """Summarise the ratings."""
    ratings = measures.tested.ratings
    about = {
        "Pairs that are rated": percent(ratings.density, 2),
        "Ratings of a user": _spread(np.bincount(ratings.user_rows)),
        "Ratings of an item": _spread(np.bincount(ratings.item_rows)),
    }
    if ratings.timestamps is not None:
        ends = (ratings.timestamps.min(), ratings.timestamps.max())
        about["Time of the ratings"] = " to ".join(show_moment(end)[:10] for end in ends)
    values, counts = np.unique(ratings.values, return_counts=True)
    chart: Html | str = ""
    if 1 < len(values) <= 11:
        shares = counts / len(ratings)
        rows = [(f"{v:g}", float(n), percent(n)) for v, n in zip(values, shares, strict=True)]
        chart = bars(rows, "How often each rating is given")
    return Section("data", "The data", join([facts(about), chart]))


def card(measures: Measures) -> Section:
    """Show what the model learned from, and its limits."""
    model = measures.tested.model
    about = {
        "Learned from": plural(int(model.towers_.items.counts.sum()), "rating"),
        "Features of items": _columns(model.towers_.items.encoder),
        "Features of users": _columns(model.towers_.users.encoder),
        "Limits": "It learns from who chose to rate what. It knows nothing of time: train again "
        "as tastes and catalogue move (simrec replay says how often). Not for decisions about "
        "people, for which it was never tested.",
    }
    settings = {k: v for k, v in model.get_params().items() if k not in _NO_SETTINGS}
    settings |= {k: v for k, v in model.chosen_.items() if isinstance(v, str | int | float)}
    rows = [
        [k.replace("_", " "), f"{v:.4g}" if isinstance(v, float) else str(v)]
        for k, v in settings.items()
    ]
    more = details("Settings", table(["", "Value"], rows, "Given and chosen"))
    return Section("card", "Model card", join([facts(about), more]))


def _spread(n: np.ndarray) -> str:
    return f"{np.median(n):,.0f} in the middle, {n.min():,} to {n.max():,}"


def _cut(name: str, most: int = 48) -> str:
    return name if len(name) <= most else name[: most - 2].rstrip() + "…"


def _columns(encoder: Any) -> str:
    if encoder is None:
        return "none"
    return ", ".join(f"{name} ({kind})" for name, kind in encoder.columns_.items()) or "none"
