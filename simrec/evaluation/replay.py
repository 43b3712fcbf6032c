"""Walk through history as a shop lives it, to see how often a model must be trained again."""

from __future__ import annotations

import datetime
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from simrec.data.ratings import Ratings
from simrec.data.split import Moment, days, show_moment, time_split
from simrec.data.tables import TableLike, with_usual_ids
from simrec.errors import InputError
from simrec.evaluation.copies import unfitted_copy
from simrec.evaluation.replay_policies import POLICIES, Policy, sentence, start_policies
from simrec.evaluation.tasks import Task, liked_threshold

logger = logging.getLogger(__name__)

_UNITS = {"h": 1 / 24, "d": 1.0, "w": 7.0}
Duration = str | int | float | datetime.timedelta


@dataclass(frozen=True, eq=False)
class Replay:
    """What each policy reached and cost. Made by `replay`; prints as its table of policies.

    Attributes
    ----------
    periods : pandas.DataFrame
        A row for each policy and period: policy, period (its first day), age_days (since the last
        fit), n (ratings), new_share (ratings of a user or an item nobody had met), rmse, n_ranked
        (users with a list), ndcg@k, seconds (spent on learning before the period).
    policies : pandas.DataFrame
        A row for each policy: policy, what it does, rmse (over all ratings), ndcg@k (over all
        lists), fits, updates, seconds.
    sentence : str
        How often the model has to be fitted again, with the figures behind it.
    k : int
        Length of the lists.
    """

    periods: pd.DataFrame
    policies: pd.DataFrame
    sentence: str
    k: int

    def __str__(self) -> str:
        return f"{self.policies.to_string(index=False)}\n{self.sentence}"


def replay(
    model: Any,
    ratings: Ratings | TableLike,
    *,
    items: TableLike | None = None,
    users: TableLike | None = None,
    every: Duration = "7d",
    refit: Duration = "28d",
    at: Moment | None = None,
    train: float = 0.5,
    policies: Sequence[str] = tuple(POLICIES),
    k: int = 10,
    threshold: float | None = None,
    max_users: int = 1000,
    random_state: int = 0,
) -> Replay:
    """Fit a model on early ratings, then answer period by period, learning by several policies.

    Each period's ratings are answered before they are learned. Lists choose among all items rated
    so far, in the period included, without those the user had rated before it.

    Parameters
    ----------
    model : TwoTower
        Its settings are used; it stays as it is. Anything with ``fit(ratings, items=, users=)``,
        ``predict`` and ``recommend`` will do for the policies that only fit; ``update`` and
        ``fold_in`` are asked for where they are needed.
    ratings : Ratings, table or path
        All ratings, with timestamps.
    items, users : table or path, optional
        Features.
    every : str, number or timedelta
        Length of a period: "7d", "12h", "2w", or days.
    refit : str, number or timedelta
        Time after which policies that refit do so.
    at : str, date, datetime or number, optional
        When the first period begins; see `time_split`.
    train : float
        Without `at`: share of the ratings, the earliest, that the first fit learns from.
    policies : sequence of str
        Which of `POLICIES` to follow.
    k : int
        Length of the lists.
    threshold : float, optional
        Ratings from here on make an item relevant; see `evaluate`.
    max_users : int
        Most users to make lists for in each period.
    random_state : int
        Seed of the draw of these users.

    Returns
    -------
    Replay
        Two tables and a sentence.

    Examples
    --------
    >>> import numpy as np
    >>> from simrec import TwoTower, make_synthetic
    >>> ratings = make_synthetic(n_users=60, n_items=40, n_ratings=500).ratings.to_pandas()
    >>> ratings["timestamp"] = 86400.0 * np.random.default_rng(0).integers(0, 20, len(ratings))
    >>> walked = replay(TwoTower(epochs=2), ratings, policies=("stand still", "update"))
    >>> walked.policies["policy"].tolist()
    ['stand still', 'update']
    """
    step, again = _days(every, "every"), _days(refit, "refit")
    unknown = [name for name in policies if name not in POLICIES]
    if unknown or not policies:
        raise InputError(f"policies: unknown {unknown}; choose of {', '.join(POLICIES)}.")
    ratings = Ratings.from_table(ratings)
    model = unfitted_copy(model, ratings=ratings)
    split = time_split(ratings, at=at, test=1 - train)
    threshold = liked_threshold(split.train, threshold)
    assert ratings.timestamps is not None
    clock = days(ratings.timestamps - split.at)  # days since the first period began
    # Baselines know the usual names only.
    tables = {"items": with_usual_ids(items, ratings.columns, "items"), "users": users}
    living = start_policies(Policy("", model, tables, again), split.train, policies)
    rows: list[dict[str, Any]] = []
    n_periods = int(np.floor(clock.max() / step)) + 1
    for number in range(n_periods):
        start, end = number * step, (number + 1) * step
        now = (clock >= start) & (clock < end)
        if not now.any():
            continue
        logger.info("period %d of %d: %d ratings", number + 1, n_periods, now.sum())
        past, test = ratings.select(clock < start), ratings.select(now)
        candidates = past.items.union(test.items)
        draw = (threshold, max_users, random_state)
        task = Task.of("period", test, candidates, past, *draw)
        met = past.users.contains(test.users.ids)[test.user_rows]
        met &= past.items.contains(test.items.ids)[test.item_rows]
        shared = {
            "period": _date(split.at, start),
            "n": len(test),
            "new_share": float(1 - met.mean()),
            "n_ranked": len(task.users),
        }
        known, newcomers = ratings.select(clock < end), test.select(~met)
        for policy in living:
            figures = policy.measure(task, past, threshold, k)
            spent, policy.seconds = policy.seconds, 0.0
            age = {"age_days": 0.0 if policy.name == "baseline" else start - policy.fitted}
            rows.append({"policy": policy.name, **shared, **age, **figures, "seconds": spent})
            if end <= clock.max():
                policy.learn(known, test, newcomers, end)
    frame = pd.DataFrame(rows)
    summary = pd.DataFrame([_summary(frame, policy, k) for policy in living])
    return Replay(frame, summary, sentence(frame, summary, k), k)


def _summary(part: pd.DataFrame, policy: Policy, k: int) -> dict[str, Any]:
    """Average the periods of a policy, by their ratings and by their lists."""
    part, name = part[part["policy"] == policy.name], f"ndcg@{k}"
    listed = part[part["n_ranked"] > 0]
    error = np.sqrt(np.average(part["rmse"] ** 2, weights=part["n"]))
    ndcg = np.average(listed[name], weights=listed["n_ranked"]) if len(listed) else np.nan
    seconds = float(part["seconds"].sum() + policy.seconds)
    counts = {"fits": policy.fits, "updates": policy.updates, "seconds": seconds}
    return {"policy": policy.name, "rmse": float(error), name: float(ndcg), **counts}


def _days(duration: Duration, name: str) -> float:
    if isinstance(duration, datetime.timedelta):
        found = duration / datetime.timedelta(days=1)
    elif isinstance(duration, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([hdw]?)\s*", duration.lower())
        found = float(match[1]) * _UNITS[match[2] or "d"] if match else 0.0
    else:
        found = float(duration)
    if not found > 0:
        raise InputError(
            f"{name} must be a length of time such as '7d', '12h' or '2w'; got {duration!r}."
        )
    return found


def _date(at: Any, later: float) -> str:
    if isinstance(at, np.datetime64):
        return show_moment(at + np.timedelta64(round(later * 86400), "s"))[:10]
    return show_moment(float(at) + later * 86400)[:10]
