"""The evidence: sections of the page, None where there is nothing to show."""

from __future__ import annotations

from typing import Any

import numpy as np

from simrec.data.sides import SINGULAR
from simrec.data.split import show_moment
from simrec.evaluation.report.charts import line_chart
from simrec.evaluation.report.comparisons import Section, title
from simrec.evaluation.report.html import bars, join, number, percent, plural, small, table, tag
from simrec.evaluation.report.measures import NOMINAL, Measures
from simrec.evaluation.tasks import TASK_NAMES

# Arguments of a model that are no settings to show.
_NO_SETTINGS = ("verbose", "item_encoder", "user_encoder")


def shown(measures: Measures) -> Section | None:
    """Show what is recommended most, and how much of the catalogue."""
    listed = measures.listed
    if not listed or not listed["top"]:
        return None
    rows = []
    for item in listed["top"]:
        ratings = plural(item["ratings"], measures.tested.unit)
        words = f"in {percent(item['share'])} of the lists; {ratings}"
        rows.append((_cut(item["name"]), float(item["share"]), words))
    says = (
        f"Lists of {measures.k} for {plural(listed['n_users'], 'user')}, of all items, without "
        f"what they rated. These ten items take {percent(listed['top_share'])} of all places; "
        f"{percent(listed['coverage'])} of the catalogue is shown to anyone (Gini coefficient "
        f"{number(listed['gini'], 2)}: 0 all alike, 1 one item has it all); "
        f"{percent(listed['new_share'])} of what is shown has no rating yet. What is shown was "
        f"rated by {percent(listed['popularity'], 1)} of the users, what people rate by "
        f"{percent(listed['popularity_rated'], 1)}, on average."
    )
    body = join([bars(rows, "Most recommended"), tag("p", says)])
    return "shown", "What the lists show", body


def badly_served(measures: Measures) -> Section | None:
    """Show groups and items whose ratings are predicted worst."""
    groups, items, parts = measures.groups, measures.worst_items, []
    if groups is not None and len(groups):
        rows = [
            [
                _cut(f"New {g['group']}"),
                *(g["n"], g["rmse"], g["rmse_others"]),
                f"{abs(g['lean']):.2f} too {'high' if g['lean'] > 0 else 'low'}",
            ]
            for g in groups.head(8).to_dict("records")
        ]
        head = ["", "Ratings", "Error", "Others' error", "Predictions"]
        parts.append(table(head, rows, "Groups with clearly larger errors than all others"))
    elif groups is not None:
        parts.append(tag("p", "No group of features is served clearly worse than the others."))
    if items is not None and len(items):
        rows = [
            [
                _cut(i["name"]) + " (new)" * i["new"],
                *(i["n"], number(i["predicted"], 2), number(i["rated"], 2)),
            ]
            for i in items.to_dict("records")
        ]
        head = ["Item", "Tested", "Predicted", "Rated"]
        parts.append(table(head, rows, "Items whose mean rating is predicted worst"))
    return ("served", "Who and what is served badly", join(parts)) if parts else None


def features(measures: Measures) -> Section | None:
    """Show what features are worth for newcomers."""
    figures = []
    for side, frame in measures.importance.items():
        rows = [
            (row["column"], max(row["share"], 0.0), percent(row["share"], 1, signed=True))
            for row in frame.to_dict("records")
        ]
        caption = f"New {side}: rise of the error when a feature is shuffled"
        figures += [tag("figure", bars(rows, caption))] if rows else []
    words = "The more the error rises without a feature, the more the model relies on it. Features "
    words += "that say the same share their importance."
    body = join([tag("div", *figures, class_="pair"), small(words)])
    return ("features", "Which features carry the cold start", body) if figures else None


def first_ratings(measures: Measures) -> Section | None:
    """Show what the first ratings of newcomers are worth."""
    metric = "RMSE" if measures.tested.rates else "share of wrong choices between two"
    figures = []
    for side, frame in measures.revealed.items():
        if not len(frame):
            continue
        one, steps, error = SINGULAR[side], list(map(str, frame["revealed"])), list(frame["error"])
        unit = measures.tested.unit
        says = (
            f"New {side}: from {number(error[0])} without any {unit} to {number(error[-1])} with "
            f"{steps[-1]} ({percent(error[-1] / error[0] - 1, 1, signed=True)}), on the same "
            f"held-out {unit}s of {plural(int(frame['entities'].iloc[0]), one)}."
        )
        chart = line_chart(steps, {"model": error}, f"{unit}s of the new {one}", metric, says)
        figures.append(tag("figure", chart, tag("figcaption", says)))
    body = tag("div", *figures, class_="pair")
    return ("first", f"What the first {measures.tested.unit}s add", body) if figures else None


def intervals(measures: Measures) -> Section | None:
    """Show whether intervals hold what they promise."""
    frame = measures.calibration
    if frame is None or not len(frame):
        return None
    held = frame.pivot(index="task", columns="nominal", values="observed")
    rows = [
        [title(task), *(percent(held.loc[task, nominal]) for nominal in NOMINAL)]
        for task in TASK_NAMES
        if task in held.index
    ]
    head = ["An interval that should hold …", *map(percent, NOMINAL)]
    words = (
        "Where it holds less, the model is too sure. Ratings come in steps, so narrow intervals "
    )
    words += "cannot fit exactly."
    made = table(head, rows, "Share of the held-out ratings in the model's intervals")
    return "intervals", "How sure the model is", join([made, small(words)])


def examples(measures: Measures) -> Section | None:
    """Show lists of a few users with their reasons."""
    cards = []
    for example in measures.examples:
        items = []
        for name, rating, reasons in example.items:
            why = []
            for reason in reasons:
                by = tag("b", number(reason.by, 2, signed=True))
                why.append(tag("li", by, f" {reason.words}", " (sensitive)" * reason.sensitive))
            shown = "" if rating is None else tag("span", number(rating, 1), class_="score")
            head = tag("p", tag("strong", _cut(name)), shown)
            items.append(tag("li", head, tag("ul", *why, class_="why")))
        liked = f"Rated highest: {', '.join(map(_cut, example.liked))}." if example.liked else ""
        cards.append(tag("article", tag("h3", example.title), small(liked), tag("ol", *items)))
    words = "From the saved model, without what the user has rated"
    words += ", with the predicted rating" if measures.tested.rates else ""
    words += ", and what moved an item up or down the list most. Look for what makes no sense."
    body = join([tag("p", words), tag("div", *cards, class_="cards")])
    return ("examples", "Recommendations and their reasons", body) if cards else None


def about(measures: Measures) -> Section:
    """Summarise the data and the model, and say what it is not for."""
    tested, ratings = measures.tested, measures.tested.ratings
    facts = {
        "Pairs that are rated": percent(ratings.density, 2),
        "Ratings of a user": _spread(np.bincount(ratings.user_rows)),
        "Ratings of an item": _spread(np.bincount(ratings.item_rows)),
    }
    if ratings.timestamps is not None:
        ends = (ratings.timestamps.min(), ratings.timestamps.max())
        facts["Time of the ratings"] = " to ".join(show_moment(end)[:10] for end in ends)
    values, counts = np.unique(ratings.values, return_counts=True)
    if 1 < len(values) <= 11:
        shares = zip(values, counts / len(ratings), strict=True)
        facts["How often ratings are given"] = ", ".join(f"{v:g}: {percent(n)}" for v, n in shares)
    for side, tower in tested.model.towers_.named():
        columns = {} if tower.encoder is None else tower.encoder.columns_
        used = ", ".join(f"{name} ({kind})" for name, kind in columns.items())
        facts[f"Features of {side}"] = used or "none"
    facts["Limits"] = (
        "The model learns from who chose to rate what. It knows nothing of time: train again as "
        "tastes and catalogue move (simrec replay says how often). Not for decisions about people, "
        "for which it was never tested."
    )
    settings = {k: v for k, v in tested.model.get_params().items() if k not in _NO_SETTINGS}
    settings |= {k: v for k, v in tested.model.chosen_.items() if isinstance(v, str | int | float)}
    rows = [
        [name.replace("_", " "), f"{value:.4g}" if isinstance(value, float) else str(value)]
        for name, value in settings.items()
    ]
    shown = table(["", "Value"], rows, "Given and chosen")
    pairs = [join([tag("dt", name), tag("dd", value)]) for name, value in facts.items()]
    body = join([tag("dl", *pairs), tag("details", tag("summary", "Settings"), shown)])
    return "about", "Data and model", body


def _spread(n: np.ndarray) -> str:
    return f"{np.median(n):,.0f} in the middle, {n.min():,} to {n.max():,}"


def _cut(name: Any, most: int = 48) -> str:
    return name if len(name) <= most else name[: most - 2].rstrip() + "…"
