"""The evidence: sections of the page, None where there is nothing to show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from simrec.data.split import show_moment
from simrec.evaluation.report.advice import WHO
from simrec.evaluation.report.charts import line_chart
from simrec.evaluation.report.html import (
    DASH,
    MINUS,
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
    import pandas as pd

_BEYOND = {
    "coverage": ("Share of the candidates that is shown to anyone", percent),
    "gini": ("Concentration (Gini: 0 all alike, 1 one item has it all)", lambda v: number(v, 2)),
    "popularity": ("Users who rated what is shown, the mean", lambda v: percent(v, 1)),
    "popularity_rated": ("Users who rated what people choose, the mean", lambda v: percent(v, 1)),
    "novelty": ("Novelty (bits; an item half the users know has 1)", lambda v: number(v, 1)),
    "diversity": ("Diversity within a list (0 all alike, 1 nothing in common)", number),
}


@dataclass(frozen=True)
class Section:
    """One part of the page: an anchor, a heading, its content."""

    key: str
    title: str
    body: Html


def lists(measures: Measures) -> Section | None:
    """Show the lists beside those of popularity, and what they hold."""
    k, tasks = measures.k, measures.tasks[measures.tasks["n_ranked"] > 0]
    if not len(tasks):
        return None
    shown = _compared(measures.gains, f"ndcg@{k}", "Popular")
    rows = [[label, *(write(v) for v in tasks[name])] for name, (label, write) in _BEYOND.items()]
    head = ["", *(title(task) for task in tasks["task"])]
    words = (
        f"Do the first {k} places hold items the user turned out to like? Beside it, the same list "
        "of the most popular items for everyone (for new items: of those whose features suggest "
        "that they will be popular). Items never rated count as not liked, so the figures compare "
        "models only. In brackets: what other users of the same kind could show, with 95% "
        "confidence. Grey: the difference cannot be told from chance, or is below 1%."
    )
    body = [
        table(["", "Model", "Popular", "Difference"], shown, f"NDCG@{k} (higher is better)"),
        paragraph(words, kind="small"),
        details("Beyond accuracy", table(head, rows, "What the model's lists show")),
    ]
    return Section("lists", "Lists", join(body))


def errors(measures: Measures) -> Section | None:
    """Show the errors beside those of the best baseline."""
    shown = _compared(measures.gains, "rmse", "Baseline")
    if not shown:
        return None
    split, tested = measures.tested.split, measures.tested
    words = (
        "The baseline is the better of the mean rating and the biases of user and item. A copy of "
        f"the model was trained on {len(split.train):,} of {len(tested.ratings):,} ratings (split "
        f"seed {tested.seed}), and saw none of the ratings measured here; new items and new users "
        "were held out whole."
    )
    head = ["", "Model", "Baseline", "Difference"]
    caption = "Error (RMSE, in units of the rating; lower is better)"
    return Section(
        "errors",
        "Predicted ratings",
        join([table(head, shown, caption), paragraph(words, kind="small")]),
    )


def parent(measures: Measures) -> Section | None:
    """Show what changed since the parent."""
    tested, frame = measures.tested, measures.parent
    name = (tested.manifest.get("facts") or {}).get("parent") or tested.manifest.get("parent")
    if frame is None:
        if not name:
            return None
        words = f"The parent is model {name}: give its directory (--parent) to see its figures."
        return Section("parent", "Since the parent", paragraph(words))
    parent = tested.parent
    grown = {
        "Ratings": (int(parent.item_counts_.sum()), len(tested.ratings)),
        "Users with ratings": (int((parent.user_counts_ > 0).sum()), tested.ratings.n_users),
        "Items with ratings": (int((parent.item_counts_ > 0).sum()), tested.ratings.n_items),
    }
    rows = [
        [what, then, now, percent(now / max(then, 1) - 1, 0, True)]
        for what, (then, now) in grown.items()
    ]
    head = ["", "Model", "Parent", "Difference"]
    k = f"ndcg@{measures.k}"
    parts = [table(["", "Then", "Now", "Change"], rows, "Data")]
    for metric, caption in ((k, f"Lists: NDCG@{measures.k}"), ("rmse", "Error (RMSE)")):
        shown = _compared(frame, metric, "Parent")
        if shown:
            parts.append(table(head, shown, caption))
    words = (
        "The parent's figures are of a copy with its settings, trained on those training ratings "
        "it can have known: of its users and items, the earliest ones where there are times."
    )
    return Section("parent", "Since the parent", join([*parts, paragraph(words, kind="small")]))


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
                    tag("b", _plus(r.by, 2)),
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
        "Learned from": plural(int(model.item_counts_.sum()), "rating"),
        "Features of items": _columns(model.item_encoder_),
        "Features of users": _columns(model.user_encoder_),
        "Limits": "It learns from who chose to rate what. It knows nothing of time: train again "
        "as tastes and catalogue move (simrec replay says how often). Not for decisions about "
        "people, for which it was never tested.",
    }
    settings = {k: v for k, v in measures.tested.manifest["config"].items() if k != "verbose"}
    settings |= {k: v for k, v in model.chosen_.items() if isinstance(v, str | int | float)}
    rows = [
        [k.replace("_", " "), f"{v:.4g}" if isinstance(v, float) else str(v)]
        for k, v in settings.items()
    ]
    more = details("Settings", table(["", "Value"], rows, "Given and chosen"))
    return Section("card", "Model card", join([facts(about), more]))


def _compared(frame: pd.DataFrame, metric: str, other: str) -> list[list[Any]]:
    """Make rows: task, the model's figure, the other's, the difference with its interval."""
    rows = []
    for task in WHO:
        row = find_row(frame, task, metric)
        if row is None:
            continue
        known = row["better"] is not None and row["better"] == row["better"]
        kind = ("better" if row["better"] == "model" else "worse") if known else "same"
        spread = f"{_plus(row['difference'])} ({_plus(row['low'])} to {_plus(row['high'])})"
        own = tag("span", number(row["value"]), class_=kind if kind == "better" else None)
        rows.append([title(task), own, row["other_value"], tag("span", spread, class_=kind)])
    return rows


def find_row(frame: pd.DataFrame, task: str, metric: str) -> dict[str, Any] | None:
    """Find the comparison of a task and a metric."""
    if not len(frame):
        return None
    found = frame[(frame["task"] == task) & (frame["metric"] == metric)].to_dict("records")
    return found[0] if found else None


def title(task: str) -> str:
    """Name a task at the start of a line."""
    return WHO[task][0].upper() + WHO[task][1:]


def _plus(value: float, digits: int = 3) -> str:
    text = number(float(value), digits)
    return text if text.startswith((MINUS, DASH)) else f"+{text}"


def _spread(n: np.ndarray) -> str:
    return f"{np.median(n):,.0f} in the middle, {n.min():,} to {n.max():,}"


def _cut(name: str, most: int = 48) -> str:
    return name if len(name) <= most else name[: most - 2].rstrip() + "…"


def _columns(encoder: Any) -> str:
    if encoder is None:
        return "none"
    return ", ".join(f"{name} ({kind})" for name, kind in encoder.columns_.items()) or "none"
