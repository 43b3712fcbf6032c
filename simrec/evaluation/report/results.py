"""Sections on how good the model is."""

import math
from typing import Any

from simrec.evaluation.report.cold import NOMINAL
from simrec.evaluation.report.findings import TASKS, Findings, gains
from simrec.evaluation.report.html import (
    DASH,
    Html,
    Section,
    figure,
    join,
    not_here,
    number,
    paragraph,
    percent,
    table,
    tag,
)
from simrec.evaluation.report.svg import Line, legend, line_chart

RANKS = "This model ranks items and predicts no ratings, so there is no error of ratings to show."
_CHOICES = (
    " The model is asked which of two items a new user liked, or which of two users liked a new "
    "item: one did, the other is drawn at random. Guessing is wrong half of the time."
)
PLURAL = {"item": "items", "user": "users"}


def headline(findings: Findings) -> Html:
    """Say in a line and four tiles what the model gains."""
    ranks, tiles, better = findings.subject.ranks, [], 0
    found = gains(findings.tasks, ranks, findings.k)
    for task, (own, other) in found.items():
        gain = (own / other - 1 if ranks else 1 - own / other) if other else float("nan")
        better += gain > 0
        if ranks:
            words = f"NDCG@{findings.k} {number(own)}, most popular {number(other)}"
            big = f"{own / other:.1f} times" if other else DASH
        else:
            words = f"typical error {number(own)}, best baseline {number(other)}"
            big = percent(-gain, 1, signed=True)
        kind = "tile good" if gain > 0 else "tile bad"
        if not math.isfinite(own):
            words, kind, big = "nothing was held out to measure on", "tile", DASH
        tiles.append(
            tag(
                "div",
                tag("h3", TASKS[task]),
                tag("p", big, class_="big"),
                tag("p", "as good as the baseline" if ranks else "error against the baseline"),
                tag("p", words, class_="small"),
                class_=kind,
            )
        )
    measured = [task for task, (own, _) in found.items() if math.isfinite(own)]
    says = f"The model beats the best baseline on {better} of {len(measured)} tasks."
    new = found.get("new_items", (math.nan, math.nan))
    if not ranks and math.isfinite(new[0]) and new[1]:
        says += (
            f" For items nobody has rated its predictions are {percent(1 - new[0] / new[1], 1)} "
            f"closer than the best guess without features."
            if new[0] < new[1]
            else " For items nobody has rated it does not help: see the warnings."
        )
    return join([paragraph(says, kind="lead"), tag("div", *tiles, class_="tiles")])


def tasks(findings: Findings) -> Section:
    """Show the four tasks with baselines."""
    frame, k, split = findings.tasks, findings.k, findings.subject.split
    parts: list[Any] = [
        paragraph(
            f"A copy of the model with the same settings was trained on {len(split.train):,} of "
            f"{len(findings.subject.ratings):,} ratings (split seed {findings.subject.seed}); it "
            "saw none of the ratings measured here. New items and new users were held out whole. "
            f"The saved model itself learned from {_learned(findings):,} ratings, which "
            f"{'include' if _learned(findings) >= len(findings.subject.ratings) else 'may include'}"
            " the ones measured here, so testing it would flatter it."
        )
    ]
    if not findings.subject.ranks:
        rows = [
            [
                TASKS[r["task"]],
                int(r["n"]),
                tag("strong", number(r["rmse"])),
                r["rmse_bias"],
                r["rmse_mean"],
                r["mae"],
            ]
            for r in frame.to_dict("records")
        ]
        head = ["Task", "Ratings", "Model", "Biases", "Mean", "MAE"]
        parts.append(table(head, rows, "Error (RMSE, in units of the rating; lower is better)"))
        parts.append(
            paragraph(
                "MAE is the model's mean absolute error. “Mean” always predicts the average "
                "rating; “biases” adds how high this user and this item are usually rated. "
                "Where the model's figure is the lowest of its row, use the model; where it is "
                "not, the baseline is as good and simpler.",
                kind="small",
            )
        )
    rows = [
        [
            TASKS[r["task"]],
            int(r["n_ranked"]),
            tag("strong", number(r[f"ndcg@{k}"])),
            r["ndcg_popular"],
            r[f"recall@{k}"],
            percent(r["coverage"]),
        ]
        for r in frame.to_dict("records")
    ]
    head = ["Task", "Users", "Model", "Popular", "Recall", "Coverage"]
    parts.append(table(head, rows, f"Lists of {k} items: NDCG@{k} (higher is better)"))
    hint = (
        ""
        if findings.subject.ranks
        else " This model was trained to predict ratings; if lists matter most, train one with "
        "objective ranking and compare."
    )
    parts.append(
        paragraph(
            "How well the first places of a list hold items the user turned out to like, beside a "
            "list of what is most popular (drawn by chance where nobody has rated the items). "
            "Recall is the share of liked items that the model's list has, coverage the share of "
            "the items that is in at least one list. Items "
            f"never rated count as not liked, so the figures compare models only.{hint}",
            kind="small",
        )
    )
    return Section("tasks", "Four tasks", join(parts))


def revealed(findings: Findings) -> Section:
    """Show error against the number of ratings revealed."""
    unit = "share of wrong choices" if findings.subject.ranks else "RMSE"
    figures = []
    for side, frame in findings.revealed.items():
        who = PLURAL[side]
        if not len(frame):
            reason = (
                f"Too few held-out {who} have enough ratings to reveal some and test on others."
            )
            figures.append(tag("figure", not_here(reason)))
            continue
        steps = [str(n) for n in frame["revealed"]]
        lines = [Line("model", list(frame["error"]))]
        if not findings.subject.ranks:
            lines.append(Line("biases", list(frame["error_bias"])))
        first, last = frame["error"].iloc[0], frame["error"].iloc[-1]
        says = (
            f"New {who}: from {number(float(first))} without any rating to {number(float(last))} "
            f"with {steps[-1]} ({percent(last / first - 1, 1, signed=True)}). "
            f"{frame['entities'].iloc[0]:,} held-out {who}; the same {frame['n'].iloc[0]:,} ratings"
            " are predicted each time. "
        )
        says += _advice(list(frame["revealed"]), list(frame["error"]), side)
        drawing = line_chart(
            steps, lines, f"ratings revealed of each new {side}", f"error ({unit})", says
        )
        head = ["Revealed", *(line.name for line in lines)]
        numbers = table(
            head,
            zip(steps, *(line.values for line in lines), strict=True),
            f"Error, new {who}",
        )
        key = legend([line.name for line in lines])
        figures.append(join([tag("h3", f"New {who}"), figure(drawing, says, key, numbers)]))
    body = join(
        [
            paragraph(
                "How fast a newcomer stops being one: no retraining, ratings are folded in.",
                _CHOICES if findings.subject.ranks else "",
            ),
            tag("div", *(tag("div", one) for one in figures), class_="pair"),
        ]
    )
    return Section("revealed", "What the first ratings add", body)


def _advice(steps: list[int], error: list[float], side: str) -> str:
    worse = [step for step, value in zip(steps, error, strict=True) if value > 1.01 * error[0]]
    if worse:
        return (
            f"With up to {worse[-1]} ratings it is worse than with none: answer from features "
            f"alone until a {side} has more."
        )
    total = error[0] - error[-1]
    if total <= 0.002 * error[0]:
        ask = "asking new users for some" if side == "user" else "waiting for the first ones"
        return f"Ratings add little to the features: {ask} is not worth it."
    for step, value in zip(steps, error, strict=True):
        if error[0] - value >= total / 2:
            few = "the first rating gives" if step == 1 else f"the first {step} ratings give"
            done = "ask new users for that many" if side == "user" else "collect that many early"
            return f"{few[0].upper()}{few[1:]} half of the gain: {done}."
    return ""


def calibration(findings: Findings) -> Section:
    """Show whether intervals hold what they promise."""
    frame = findings.calibration
    title = "How sure the model is"
    if frame is None or not len(frame):
        return Section("calibration", title, not_here(RANKS))
    measured = [task for task in TASKS if (frame["task"] == task).any()]
    lines = [
        Line(TASKS[task], list(frame.loc[frame["task"] == task, "observed"])) for task in measured
    ]
    at_90 = frame[frame["nominal"] == 0.9]
    low, high = at_90["observed"].min(), at_90["observed"].max()
    verdict = (
        "Intervals can be taken at their word."
        if low >= 0.85 and high <= 0.95
        else "Intervals promise too much: widen them before acting on them."
        if low < 0.85
        else "Intervals are wider than they need be."
    )
    says = (
        f"Intervals that should hold 90% of the ratings hold {percent(low)} to {percent(high)}, "
        f"depending on the task. {verdict} On the dashed line promise and outcome agree; below it "
        "the model is too sure. Ratings come in steps, so small intervals cannot fit exactly."
    )
    drawing = line_chart(
        [percent(n) for n in NOMINAL],
        lines,
        "share of ratings the interval should hold",
        "share it does hold",
        says,
        x=[(n - 0.5) / 0.45 for n in NOMINAL],
        y_range=(min(0.5, frame["observed"].min() - 0.02), 1.0),
        ideal=NOMINAL,
    )
    rows = [
        [TASKS[r["task"]], percent(r["nominal"]), percent(r["observed"], 1), r["width"]]
        for r in frame.to_dict("records")
    ]
    numbers = table(["Task", "Should hold", "Holds", "Width"], rows, "Intervals")
    key = legend([line.name for line in lines])
    return Section("calibration", title, figure(drawing, says, key, numbers, beside=True))


def _learned(findings: Findings) -> int:
    return int(findings.subject.model.item_counts_.sum())
