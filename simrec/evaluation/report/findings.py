"""Everything a report shows, measured once."""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simrec.evaluation.report import checks, cold, errors
from simrec.evaluation.report.atlas import Atlas, atlas
from simrec.evaluation.report.examples import Example, examples
from simrec.evaluation.report.subject import Subject

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)

TASKS = {
    "warm": "Known users, known items",
    "new_items": "New items",
    "new_users": "New users",
    "new_both": "New users, new items",
}
SIDES = ("item", "user")


@dataclass(frozen=True, eq=False)
class Findings:
    """The tables behind the sections, by side where there is one for items and one for users."""

    subject: Subject
    k: int
    tasks: "pd.DataFrame"
    revealed: "dict[str, pd.DataFrame]"
    calibration: "pd.DataFrame | None"
    popularity: "pd.DataFrame | None"
    groups: "pd.DataFrame | None"
    importance: "dict[str, pd.DataFrame]"
    atlas: Atlas
    examples: list[Example]
    warnings: list[checks.Warning]


def measure(subject: Subject, k: int = 10) -> Findings:
    """Measure all that the sections show; a ranking model has no errors of ratings."""
    logger.info("measuring the four tasks")
    tasks = errors.four_tasks(subject, k)
    rates = not subject.ranks
    logger.info("revealing ratings of new items and users")
    revealed = {side: cold.revealed(subject, side) for side in SIDES}
    calibration = cold.calibration(subject) if rates else None
    logger.info("shuffling features")
    importance = {side: cold.importance(subject, side) for side in SIDES}
    warnings = [*_worse(tasks, subject.ranks, k), *_uncalibrated(calibration)]
    for side in SIDES:
        warnings += checks.leaks(subject, side)
        warnings += checks.drifted(subject, side)
        warnings += checks.says_nothing(subject, side, importance[side])
    return Findings(
        subject=subject,
        k=k,
        tasks=tasks,
        revealed=revealed,
        calibration=calibration,
        popularity=errors.by_popularity(subject) if rates else None,
        groups=errors.by_feature(subject) if rates else None,
        importance=importance,
        atlas=atlas(subject),
        examples=examples(subject),
        warnings=[*warnings, *checks.data_problems(subject)],
    )


def gains(tasks: "pd.DataFrame", ranks: bool, k: int) -> dict[str, tuple[float, float]]:
    """Give the model's figure and that of the best baseline, by task."""
    found = {}
    for row in tasks.to_dict("records"):
        if ranks:
            found[row["task"]] = (row[f"ndcg@{k}"], row["ndcg_popular"])
        else:
            found[row["task"]] = (row["rmse"], min(row["rmse_mean"], row["rmse_bias"]))
    return found


def _worse(tasks: "pd.DataFrame", ranks: bool, k: int) -> list[checks.Warning]:
    found = []
    for task, (own, other) in gains(tasks, ranks, k).items():
        if (own < other) if ranks else (own > other):
            what = f"the model is no better than the baseline ({own:.3f} against {other:.3f})."
            remedy = "Use the baseline there, or give features that say more."
            found.append(checks.Warning("error", TASKS[task], what, remedy))
    listed = tasks[tasks[f"ndcg@{k}"] < tasks["ndcg_popular"]]["task"]
    if not ranks and len(listed):
        which = "; ".join(TASKS[task] for task in listed)
        what = f"lists by predicted rating are worse than what is most popular ({which})."
        remedy = "Train a model with objective ranking for lists; keep this one for ratings."
        found.append(checks.Warning("error", "Lists", what, remedy))
    return found


def _uncalibrated(calibration: "pd.DataFrame | None") -> list[checks.Warning]:
    found = []
    for row in [] if calibration is None else calibration.to_dict("records"):
        if row["nominal"] == 0.9 and abs(row["observed"] - 0.9) > 0.05:
            narrow = "narrow" if row["observed"] < 0.9 else "wide"
            what = f"intervals are too {narrow}: those of 90% hold {row['observed']:.0%}."
            remedy = "Do not read intervals there as they are; widen or narrow them by this share."
            found.append(checks.Warning("error", TASKS[row["task"]], what, remedy))
    return found
