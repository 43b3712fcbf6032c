"""The verdict on a model, and what to do next, each with the figure behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simrec.evaluation.report.alerts import NO_HELP
from simrec.evaluation.report.html import number, percent, plural

if TYPE_CHECKING:
    import pandas as pd

    from simrec.evaluation.report.measures import Measures

WHO = {
    "warm": "known users and items",
    "new_items": "new items",
    "new_users": "new users",
    "new_both": "new items for new users",
}
# How far an interval may be off what it promises, the share of all places in lists that ten items
# may take, the share of missing values, and of ratings a model has not learned, to be worth a word.
_OFF, _CROWDED, _MISSING, _BEHIND = 0.05, 0.3, 0.1, 0.05


def verdict(measures: Measures) -> tuple[str, str]:
    """Say whether to ship: ("good", "bad" or "same", and one or two sentences)."""
    gains = measures.gains
    kinds = []
    for what, rival, lists in (
        ("lists", "the most popular items", True),
        ("predicted ratings", "a baseline", False),
    ):
        rows = [r for r in _rows(gains) if (r["metric"] != "rmse") == lists]
        if not rows:
            continue
        won = [r for r in rows if r["better"] == "model"]
        lost = [r for r in rows if r["better"] == "baseline"]
        of = plural(len(rows), "task")
        if lost:
            worst = max(lost, key=lambda r: abs(r["difference"] / (r["other_value"] or 1)))
            says = f"Do not ship its {what} as they are: on {len(lost)} of {of} {rival} "
            says += f"{'do' if lists else 'does'} better ({_against(worst)} for "
            says += f"{WHO[worst['task']]})" + (f"; on {len(won)} it is better." if won else ".")
        elif won:
            says = f"Ship its {what}: better than {rival} on {len(won)} of {of}, worse on none."
        else:
            says = f"Its {what} are no better than {rival}: no difference on {of}."
        kinds.append(("bad" if lost else "good" if won else "same", says))
    if not kinds:
        return "same", "Nothing was held out, so nothing can be said about this model."
    found = [kind for kind, _ in kinds]
    kind = "bad" if "bad" in found else "good" if "good" in found else "same"
    return kind, " ".join(says for _, says in kinds)


def next_steps(measures: Measures) -> list[tuple[str, str]]:
    """List what to do, the most urgent first: the deed, and the figure behind it."""
    found: list[tuple[str, str]] = []
    lost = [row for row in _rows(measures.gains) if row["better"] == "baseline"]
    for instead, lists in (("the most popular items", True), ("the biases", False)):
        rows = [row for row in lost if (row["metric"] != "rmse") == lists]
        if rows:
            who = _joined([WHO[row["task"]] for row in rows])
            figures = ", ".join(_against(row) for row in rows)
            found.append((f"Use {instead} instead for {who}.", f"{figures}."))
    for row in _rows(measures.parent):
        if row["better"] != "parent":
            continue
        what = "lists" if row["metric"] != "rmse" else "predicted ratings"
        deed = f"Keep the parent for {what} for {WHO[row['task']]}, and find out what changed."
        found.append((deed, f"{_against(row)} of the parent."))
    tested = measures.tested
    learned, now = int(tested.model.towers_.items.counts.sum()), len(tested.ratings)
    if learned < (1 - _BEHIND) * now:
        deed = "Retrain: the model has not learned all ratings."
        found.append((deed, f"{plural(learned, 'rating')} learned of {now:,} in the data."))
    for side, frame in measures.importance.items():
        table = tested.table(side)
        if table is None or not len(frame):
            if tested.encoder(side) is None and len(tested.new(side)):
                deed = f"Collect features of {side}s."
                found.append((deed, f"New {side}s all get the answer for an average {side}."))
            continue
        top = frame.iloc[:-1]
        for row in top[(top["missing"] > _MISSING) & (top["share"] > NO_HELP)].itertuples():
            why = f"Missing for {percent(row.missing)} of the {side}s; without it the error for "
            why += f"new {side}s rises by {percent(row.share, 1)}."
            found.append((f"Collect {row.column} of more {side}s.", why))
        if (top["share"] <= NO_HELP).all():
            why = f"Shuffled, none of the {len(top)} features of {side}s raises the error."
            found.append((f"Find features that say more about new {side}s.", why))
        elif len(top):
            first = top.iloc[0]
            why = f"It carries most for new {side}s: shuffled, the error rises by "
            why += f"{percent(first['share'], 1)}."
            found.append(
                (f"Look after {first['column']} of {side}s, and get more of its kind.", why)
            )
    found += [
        step for side, frame in measures.revealed.items() if (step := first_ratings(frame, side))
    ]
    if measures.calibration is not None and len(measures.calibration):
        off = measures.calibration.assign(
            off=lambda f: (f["observed"] - f["nominal"]).abs()
        ).nlargest(1, "off")
        for row in off[off["off"] > _OFF].to_dict("records"):
            why = f"Those of {percent(row['nominal'])} hold {percent(row['observed'])} of the "
            why += f"ratings ({WHO[row['task']]})."
            found.append(("Do not show the model's intervals as they are.", why))
    if measures.listed.get("top_share", 0) > _CROWDED:
        why = f"Ten items take {percent(measures.listed['top_share'])} of all places in the lists."
        found.append(("Mix other items into the lists, or cap how often one is shown.", why))
    return found


def first_ratings(frame: pd.DataFrame, side: str) -> tuple[str, str] | None:
    """Say what the first ratings of a newcomer are worth; None if nothing was measured."""
    if not len(frame):
        return None
    steps, error = list(frame["revealed"]), list(frame["error"])
    worse = [step for step, value in zip(steps, error, strict=True) if value > 1.01 * error[0]]
    if worse:
        deed = f"Answer for a new {side} from features alone up to {plural(worse[-1], 'rating')}."
        at = error[steps.index(worse[-1])]
        return deed, f"The error is {number(at)} with them, {number(error[0])} without any."
    total = error[0] - error[-1]
    if total <= 0.002 * error[0]:
        return None
    half = next(s for s, v in zip(steps, error, strict=True) if error[0] - v >= total / 2)
    few = plural(half, "rating")
    deed = f"Ask new users for {few}." if side == "user" else f"Get {few} of a new item early."
    why = f"Half of what {steps[-1]} ratings gain: the error falls from {number(error[0])} to "
    return deed, f"{why}{number(error[steps.index(half)])}, and to {number(error[-1])} with all."


def _rows(frame: pd.DataFrame | None) -> list[Any]:
    return [] if frame is None else frame.to_dict("records")


def _against(row: dict[str, Any]) -> str:
    name = row["metric"].upper()
    return f"{name} {number(row['value'])} against {number(row['other_value'])}"


def _joined(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
