"""The evidence: sections of the page, None where there is nothing to show."""

from __future__ import annotations

from typing import Any

import numpy as np

from simrec.data.sides import SINGULAR
from simrec.data.split import show_moment
from simrec.evaluation.report.charts import line_chart
from simrec.evaluation.report.comparisons import Section, title
from simrec.evaluation.report.html import (
    bars,
    join,
    number,
    percent,
    plural,
    rise,
    small,
    table,
    tag,
)
from simrec.evaluation.report.measures import NOMINAL, Measures
from simrec.evaluation.tasks import TASK_NAMES

# Arguments of a model that are no settings to show.
_NO_SETTINGS = ("verbose", "item_encoder", "user_encoder")
_SHOWN = {
    "coverage": ("Share of the items that is shown to anyone", percent),
    "gini": ("Concentration (Gini: 0 all alike, 1 one item has it all)", lambda v: number(v, 2)),
    "new_share": ("Places taken by items without {unit}s", percent),
    "popularity": ("Users who have what is shown, the mean", lambda v: percent(v, 1)),
    "popularity_rated": ("Users who have what people choose, the mean", lambda v: percent(v, 1)),
    "novelty": ("Novelty (bits; an item half the users have has 1)", lambda v: number(v, 1)),
    "diversity": ("Diversity within a list (0 all alike, 1 nothing in common)", number),
}


def shown(measures: Measures) -> Section | None:
    """Show what is recommended most, and how much of the catalogue."""
    listed, tested = measures.listed, measures.tested
    if not listed["top"]:
        return None
    digits = 0 if listed["top"][0]["share"] >= 0.2 else 1
    rows = []
    for item in listed["top"]:
        known = plural(item["ratings"], tested.unit)
        words = f"{percent(item['share'], digits)}; {known}"
        rows.append((_cut(item["name"]), float(item["share"]), words))
    words = (
        f"These take {percent(listed['top_share'])} of all places, in lists of {measures.k} for "
    )
    words += f"{plural(listed['n_users'], 'user')} by the saved model, without what they have. "
    words += f"{percent(listed['coverage'])} of the catalogue is shown to anyone."
    tasks = measures.tasks[measures.tasks["n_ranked"] > 0]
    head = ["", "Saved model", *(f"Test: {TASK_NAMES[task]}" for task in tasks["task"])]
    figures = [
        [label.format(unit=tested.unit), *map(write, [listed[name], *tasks[name]])]
        for name, (label, write) in _SHOWN.items()
    ]
    more = tag("summary", "Concentration, novelty, diversity"), table(head, figures, "All figures")
    chart = bars(rows, "Most recommended: share of the lists")
    body = join([chart, tag("p", words), tag("details", *more)])
    return "shown", "What the lists show", body


def badly_served(measures: Measures) -> Section | None:
    """Show groups and items that are predicted worst."""
    rates, parts = measures.tested.rates, []
    what = title(measures.tested.error_name)
    unit = title(f"{measures.tested.unit}s")
    rows = [
        [_cut(f"New {g['group']}"), g["n"], g["error"], g["error_others"]]
        + [f"{abs(g['lean']):.2f} too {'high' if g['lean'] > 0 else 'low'}"] * rates
        for g in measures.groups.head(8).to_dict("records")
    ]
    head = ["", unit, what, f"{what} of others", *["Predictions"] * rates]
    if rows:
        parts.append(table(head, rows, "Groups that are predicted clearly worse than all others"))
    elif any(len(frame) for frame in measures.importance.values()):
        words = "No group that shares a feature is predicted clearly worse than all others."
        parts.append(tag("p", words))
    rows = [
        [_cut(i["name"]) + " (new)" * i["new"], int(i["n"])]
        + ([number(i["predicted"], 2), number(i["rated"], 2)] if rates else [percent(i["lean"])])
        for i in measures.worst_items.to_dict("records")
    ]
    if rows:
        caption = "Items whose mean rating is predicted worst, the surest first"
        means = ["Mean predicted", "Mean rating"] if rates else [what]
        if not rates:
            caption = "Items that others are preferred to where they were chosen, the surest first"
        parts.append(table(["", unit, *means], rows, caption))
    return ("served", "Who and what is served badly", join(parts)) if parts else None


def features(measures: Measures) -> Section | None:
    """Show what features are worth for newcomers."""
    figures, error = [], measures.tested.error_name
    frames = {side: frame for side, frame in measures.importance.items() if len(frame)}
    most = max((float(frame["share"].max()) for frame in frames.values()), default=0.0)
    for side, frame in frames.items():
        rows = [
            (
                r["column"],
                r["share"],
                percent(r["share"], 1, True) if r["share"] < 1 else rise(r["share"]),
            )
            for r in frame.to_dict("records")
        ]
        caption = f"New {side}: rise of the {error} when a feature is shuffled"
        figures.append(tag("figure", bars(rows, caption, most)))
    words = (
        "The more it rises without a feature, the more the model relies on that feature. Features "
    )
    words += "that say the same share their importance."
    body = join([tag("div", *figures, class_="pair"), small(words)])
    return ("features", "Which features carry the cold start", body) if figures else None


def first_ratings(measures: Measures) -> Section | None:
    """Show what the first ratings of newcomers are worth."""
    unit, figures = measures.tested.unit, []
    metric = "RMSE" if measures.tested.rates else "share of wrong choices between two"
    for side, frame in measures.revealed.items():
        if not len(frame):
            continue
        one, steps, error = SINGULAR[side], list(map(str, frame["revealed"])), list(frame["error"])
        says = (
            f"New {side}: from {number(error[0])} without any {unit} to {number(error[-1])} with "
            f"{steps[-1]} ({percent(error[-1] / error[0] - 1, 1, signed=True)}), on the same "
            f"held-out {unit}s of {plural(int(frame['entities'].iloc[0]), one)}."
        )
        chart = line_chart(steps, {"model": error}, f"{unit}s of the new {one}", metric, says)
        figures.append(tag("figure", chart, tag("figcaption", says)))
    body = tag("div", *figures, class_="pair")
    return ("first", f"What the first {unit}s add", body) if figures else None


def intervals(measures: Measures) -> Section | None:
    """Show whether intervals hold what they promise."""
    frame = measures.calibration
    rows = [
        [title(task), *map(percent, frame.loc[frame["task"] == task, "observed"])]
        for task in (frame["task"].unique() if len(frame) else ())
    ]
    head = ["An interval that should hold …", *map(percent, NOMINAL)]
    words = (
        "Where it holds less, the model is too sure. Ratings come in steps, so narrow intervals "
    )
    words += "cannot fit exactly."
    made = table(head, rows, "Share of the held-out ratings in the model's intervals")
    return ("intervals", "How sure the model is", join([made, small(words)])) if rows else None


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
            score = "" if rating is None else tag("span", number(rating, 1), class_="score")
            head = tag("p", tag("strong", _cut(name)), score)
            items.append(tag("li", head, tag("ul", *why, class_="why")))
        liked = f"Rated highest: {', '.join(map(_cut, example.liked))}." if example.liked else ""
        cards.append(tag("article", tag("h3", example.title), small(liked), tag("ol", *items)))
    words = "By the saved model, without what the user has"
    words += ", with the predicted rating" if measures.tested.rates else ""
    words += (
        ". Below each item, what moved its score up or down most. Look for what makes no sense."
    )
    body = join([tag("p", words), tag("div", *cards, class_="cards")])
    return ("examples", "Recommendations and their reasons", body) if cards else None


def about(measures: Measures) -> Section:
    """Summarise the data and the model, and say what it is not for."""
    tested, ratings = measures.tested, measures.tested.ratings
    unit = title(f"{tested.unit}s")
    facts = {
        "Share of all pairs": percent(ratings.density, 2),
        f"{unit} of a user": _spread(np.bincount(ratings.user_rows)),
        f"{unit} of an item": _spread(np.bincount(ratings.item_rows)),
    }
    if ratings.timestamps is not None:
        ends = (ratings.timestamps.min(), ratings.timestamps.max())
        facts["Time"] = " to ".join(show_moment(end)[:10] for end in ends)
    values, counts = np.unique(ratings.values, return_counts=True)
    if 1 < len(values) <= 11:
        shares = zip(values, counts / len(ratings), strict=True)
        facts["How often ratings are given"] = ", ".join(f"{v:g}: {percent(n)}" for v, n in shares)
    for side, tower in tested.model.towers_.named():
        columns = {} if tower.encoder is None else tower.encoder.columns_
        used = ", ".join(f"{name} ({kind})" for name, kind in columns.items())
        facts[f"Features of {side}"] = used or "none"
    facts["Limits"] = (
        "The model learns from who chose what. Tastes and catalogue move: train again (simrec "
        "replay says how often). Not for decisions about people, for which it was never tested."
    )
    settings = {k: v for k, v in tested.model.get_params().items() if k not in _NO_SETTINGS}
    settings |= {k: v for k, v in tested.model.chosen_.items() if isinstance(v, str | int | float)}
    rows = [
        [name.replace("_", " "), f"{value:.4g}" if isinstance(value, float) else str(value)]
        for name, value in settings.items()
    ]
    made = tag(
        "details", tag("summary", "Settings"), table(["", "Value"], rows, "Given and chosen")
    )
    pairs = [join([tag("dt", name), tag("dd", value)]) for name, value in facts.items()]
    return "about", "Data and model", join([tag("dl", *pairs), made])


def _spread(n: np.ndarray) -> str:
    return f"median {np.median(n):,.0f}, from {n.min():,} to {n.max():,}"


def _cut(name: Any, most: int = 48) -> str:
    return name if len(name) <= most else name[: most - 2].rstrip() + "…"
