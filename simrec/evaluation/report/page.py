"""The page: verdict, what to do, warnings, then the evidence; all in one file."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from simrec import __version__
from simrec.evaluation.report.advice import WHO, next_steps, verdict
from simrec.evaluation.report.charts import line_chart
from simrec.evaluation.report.html import (
    DASH,
    MINUS,
    Html,
    bars,
    details,
    document,
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

_KINDS = {
    "leak": "Leakage suspect",
    "drift": "Drift",
    "sensitive": "Sensitive",
    "data": "Data",
    "unused": "No use",
}
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


def page(measures: Measures, today: datetime.date | None = None) -> str:
    """Write the measures as HTML, dated today unless told otherwise."""
    tested = measures.tested
    made = [
        _lists(measures),
        _errors(measures),
        _parent(measures),
        _shown(measures),
        _badly_served(measures),
        _features(measures),
        _first_ratings(measures),
        _intervals(measures),
        _examples(measures),
        _data(measures),
        _card(measures),
    ]
    sections = [section for section in made if section is not None]
    what = "ratings" if tested.rates else "interactions"
    about = (
        f"Model {tested.manifest['model_id']}, {(today or datetime.date.today()).isoformat()}. "
        f"{len(tested.ratings):,} {what} of {plural(tested.ratings.n_items, 'item')} by "
        f"{plural(tested.ratings.n_users, 'user')}."
    )
    kind, says = verdict(measures)
    steps = [tag("li", tag("strong", deed), " ", why) for deed, why in next_steps(measures)]
    links = [tag("a", section.title, href=f"#{section.key}") for section in sections]
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
            *(tag("section", tag("h2", s.title), s.body, id=s.key) for s in sections),
        ),
        tag("footer", paragraph(f"Made by SimRec {__version__}. This file needs no network.")),
    )


def _summary(measures: Measures) -> Html | str:
    """Show all comparisons in words: a task each, lists before ratings."""
    rows: dict[str, list[Any]] = {}
    names = {f"ndcg@{measures.k}": "Lists", "rmse": "Predicted ratings"}
    present = [metric for metric in names if metric in set(measures.gains.get("metric", ()))]
    for task, who in WHO.items():
        cells = [_outcome(_row(measures.gains, task, metric)) for metric in present]
        if any(cells):
            rows[task] = [who[0].upper() + who[1:], *(cell or DASH for cell in cells)]
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


def _lists(measures: Measures) -> Section | None:
    k, tasks = measures.k, measures.tasks[measures.tasks["n_ranked"] > 0]
    if not len(tasks):
        return None
    shown = _compared(measures.gains, f"ndcg@{k}", "Popular")
    rows = [[label, *(write(v) for v in tasks[name])] for name, (label, write) in _BEYOND.items()]
    head = ["", *(_title(task) for task in tasks["task"])]
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


def _errors(measures: Measures) -> Section | None:
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


def _parent(measures: Measures) -> Section | None:
    tested, frame = measures.tested, measures.parent
    name = (tested.manifest.get("facts") or {}).get("parent") or tested.manifest.get("parent")
    if frame is None:
        if not name:
            return None
        words = f"The parent is model {name}. Give its directory (--parent) to see its figures."
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


def _shown(measures: Measures) -> Section | None:
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


def _badly_served(measures: Measures) -> Section | None:
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


def _features(measures: Measures) -> Section | None:
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


def _first_ratings(measures: Measures) -> Section | None:
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


def _intervals(measures: Measures) -> Section | None:
    frame = measures.calibration
    if frame is None or not len(frame):
        return None
    lines = {
        _title(task): list(frame.loc[frame["task"] == task, "observed"])
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


def _examples(measures: Measures) -> Section | None:
    if not measures.examples:
        return None
    cards = []
    for example in measures.examples:
        items = []
        for item in example.items:
            why = [
                tag("li", _signed(r.by), " ", r.words, " (sensitive)" if r.sensitive else "")
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


def _data(measures: Measures) -> Section:
    ratings = measures.tested.ratings
    counts = {
        f"ratings of {article}": np.bincount(rows)
        for article, rows in (("a user", ratings.user_rows), ("an item", ratings.item_rows))
    }
    about = {
        "Pairs that are rated": percent(ratings.density, 2),
        **{f"{name[0].upper()}{name[1:]}": _spread(n) for name, n in counts.items()},
    }
    times = ratings.timestamps
    if times is not None:
        from simrec.data.split import show_moment

        first, last = (show_moment(t)[:10] for t in (times.min(), times.max()))
        about["Time of the ratings"] = f"{first} to {last}"
    parts = [facts(about)]
    values, n = np.unique(ratings.values, return_counts=True)
    if 1 < len(values) <= 11:
        rows = [
            (f"{v:g}", float(c), f"{percent(c / len(ratings))}")
            for v, c in zip(values, n, strict=True)
        ]
        parts.append(bars(rows, "How often each rating is given"))
    return Section("data", "The data", join(parts))


def _card(measures: Measures) -> Section:
    tested, manifest = measures.tested, measures.tested.manifest
    chosen = {
        k.replace("_", " "): f"{v:.4g}" if isinstance(v, float) else str(v)
        for k, v in tested.model.chosen_.items()
        if isinstance(v, str | int | float)
    }
    about = {
        "Learned from": plural(int(tested.model.item_counts_.sum()), "rating"),
        "Features of items": _columns(tested.model.item_encoder_),
        "Features of users": _columns(tested.model.user_encoder_),
        "Limits": "It learns from who chose to rate what. It knows nothing of time: train again "
        "as tastes and catalogue move (simrec replay says how often). Not for decisions about "
        "people, for which it was never tested.",
    }
    settings = {k: v for k, v in manifest["config"].items() if k != "verbose"}
    more = [
        table(["", "Value"], [[k, str(v)] for k, v in {**settings, **chosen}.items()], "Settings"),
        table(["", "Version"], list(manifest.get("packages", {}).items()), "Versions"),
    ]
    return Section(
        "card", "Model card", join([facts(about), details("Settings and versions", *more)])
    )


def _compared(frame: pd.DataFrame, metric: str, other: str) -> list[list[Any]]:
    """Make rows: task, the model's figure, the other's, the difference with its interval."""
    rows = []
    for task in WHO:
        row = _row(frame, task, metric)
        if row is None:
            continue
        known = row["better"] is not None and row["better"] == row["better"]
        kind = ("better" if row["better"] == "model" else "worse") if known else "same"
        spread = f"{_plus(row['difference'])} ({_plus(row['low'])} to {_plus(row['high'])})"
        own = tag("span", number(row["value"]), class_=kind if kind == "better" else None)
        rows.append([_title(task), own, row["other_value"], tag("span", spread, class_=kind)])
    return rows


def _row(frame: pd.DataFrame, task: str, metric: str) -> dict[str, Any] | None:
    if not len(frame):
        return None
    found = frame[(frame["task"] == task) & (frame["metric"] == metric)].to_dict("records")
    return found[0] if found else None


def _title(task: str) -> str:
    return WHO[task][0].upper() + WHO[task][1:]


def _plus(value: float) -> str:
    text = number(float(value))
    return text if text.startswith((MINUS, DASH)) else f"+{text}"


def _spread(n: np.ndarray) -> str:
    return f"{np.median(n):,.0f} in the middle, {n.min():,} to {n.max():,}"


def _cut(name: str, most: int = 48) -> str:
    return name if len(name) <= most else name[: most - 2].rstrip() + "…"


def _columns(encoder: Any) -> str:
    if encoder is None:
        return "none"
    return ", ".join(f"{name} ({kind})" for name, kind in encoder.columns_.items()) or "none"


def _signed(value: float) -> Html:
    return tag("b", f"{value:+.2f}".replace("-", MINUS))
