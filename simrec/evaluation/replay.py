"""Walk through history as a shop lives it, to see how often a model must be trained again."""

import copy
import logging
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from simrec.data.ratings import Ratings
from simrec.data.split import Moment, days, show_moment, time_split
from simrec.data.tables import TableLike, with_usual_ids
from simrec.errors import InputError
from simrec.evaluation import tasks
from simrec.evaluation.baselines import BiasBaseline, PopularityBaseline
from simrec.scoring.metrics import rmse

logger = logging.getLogger(__name__)

POLICIES = {
    "stand still": "fitted once, never changed",
    "fold in": "newcomers are folded in after each period",
    "update": "all ratings of a period are learned after it",
    "refit": "fitted again on all ratings now and then",
    "refit + update": "fitted again now and then, updated in between",
    "baseline": "biases and popularity, counted again after each period",
}
_UNITS = {"h": 1 / 24, "d": 1.0, "w": 7.0}
# Length of the lists, their figure, and users of a period for whom they are made, at most.
_K, _NDCG, _USERS = 10, "ndcg@10", 1000


@dataclass(frozen=True, eq=False)
class Replay:
    """What each policy reached and cost. Made by `replay`; prints as its table of policies.

    Attributes
    ----------
    periods : pandas.DataFrame
        A row for each policy and period: policy, period (its first day), age_days (since the last
        fit), n (ratings), new_share (ratings of a user or an item nobody had met), rmse, n_ranked
        (users with a list), ndcg@10, seconds (spent on learning before the period).
    policies : pandas.DataFrame
        A row for each policy: policy, what it does, rmse (over all ratings), ndcg@10 (over all
        lists), fits, updates, seconds.
    sentence : str
        How often the model has to be fitted again, with the figures behind it.
    """

    periods: pd.DataFrame
    policies: pd.DataFrame
    sentence: str

    def __str__(self) -> str:
        return f"{self.policies.to_string(index=False)}\n{self.sentence}"


def replay(
    model: Any,
    ratings: Ratings | TableLike,
    *,
    items: TableLike | None = None,
    users: TableLike | None = None,
    every: str = "7d",
    refit: str = "28d",
    at: Moment | None = None,
    policies: Sequence[str] = tuple(POLICIES),
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
    every : str
        Length of a period: "7d", "12h" or "2w".
    refit : str
        Time after which policies that refit do so.
    at : str, date, datetime or number, optional
        When the first period begins; see `time_split`. By default after half of the ratings.
    policies : sequence of str
        Which of `POLICIES` to follow.

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
    model = tasks.unfitted_copy(model, ratings=ratings)
    split = time_split(ratings, at=at, test=0.5)
    threshold = tasks.liked_threshold(split.train)
    assert ratings.timestamps is not None
    clock = days(ratings.timestamps - split.at)  # days since the first period began
    # Baselines know the usual names only.
    tables = {"items": with_usual_ids(items, ratings.columns, "items"), "users": users}
    first = Policy("", model, tables, again)
    first.fit(split.train, 0.0)  # all policies start from that model
    for part, method in (("update", "update"), ("fold in", "fold_in")):
        wanted = [name for name in policies if part in name]
        if wanted and not hasattr(first.model, method):
            raise InputError(f"policies: {wanted[0]!r} needs a model with {method}().")
    living = [
        replace(first, name=name, model=copy.copy(first.model))
        if name != "baseline"
        else replace(first, name=name, model=None, seconds=0.0, fits=0)
        for name in policies
    ]
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
        task = tasks.Task.of("period", test, candidates, past, threshold, _USERS, random_state=0)
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
            figures = policy.measure(task, past, threshold)
            spent, policy.seconds = policy.seconds, 0.0
            age = {"age_days": 0.0 if policy.name == "baseline" else start - policy.fitted}
            rows.append({"policy": policy.name, **shared, **age, **figures, "seconds": spent})
            if end <= clock.max():
                policy.learn(known, test, newcomers, end)
    frame = pd.DataFrame(rows)
    summary = pd.DataFrame([_summary(frame, policy) for policy in living])
    return Replay(frame, summary, _sentence(frame, summary))


def _summary(part: pd.DataFrame, policy: "Policy") -> dict[str, Any]:
    """Average the periods of a policy, by their ratings and by their lists."""
    part = part[part["policy"] == policy.name]
    listed = part[part["n_ranked"] > 0]
    error = np.sqrt(np.average(part["rmse"] ** 2, weights=part["n"]))
    ndcg = np.average(listed[_NDCG], weights=listed["n_ranked"]) if len(listed) else np.nan
    seconds = float(part["seconds"].sum() + policy.seconds)
    counts = {"fits": policy.fits, "updates": policy.updates, "seconds": seconds}
    return {"policy": policy.name, "rmse": float(error), _NDCG: float(ndcg), **counts}


def _days(duration: str, name: str) -> float:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([hdw]?)\s*", str(duration).lower())
    found = float(match[1]) * _UNITS[match[2] or "d"] if match else 0.0
    if not found > 0:
        raise InputError(
            f"{name} must be a length of time such as '7d', '12h' or '2w'; got {duration!r}."
        )
    return found


def _date(at: Any, later: float) -> str:
    if isinstance(at, np.datetime64):
        return show_moment(at + np.timedelta64(round(later * 86400), "s"))[:10]
    return show_moment(float(at) + later * 86400)[:10]


@dataclass
class Policy:
    """A model under a policy: its settings (unfitted), tables of features by side, when to refit.

    `fitted` is the day of the last fit, `seconds` what learning took since that was last asked.
    """

    name: str
    settings: Any
    tables: dict[str, Any]
    refit_days: float
    model: Any = None
    fitted: float = 0.0
    seconds: float = 0.0
    fits: int = 0
    updates: int = 0

    def fit(self, ratings: Ratings, now: float) -> None:
        """Fit a fresh copy of the settings on all that is known."""
        started = time.perf_counter()
        self.model = tasks.unfitted_copy(self.settings)
        self.model.fit(ratings, **self.tables)
        self.fitted, self.fits = now, self.fits + 1
        self.seconds += time.perf_counter() - started

    def measure(self, task: tasks.Task, past: Ratings, threshold: float) -> dict[str, float]:
        """Give the error and the NDCG in a period."""
        rated, lists = tasks.has_ratings(past), self.model
        error = float("nan")
        if self.name == "baseline":
            started = time.perf_counter()
            biases = BiasBaseline.fit(past)
            lists = PopularityBaseline.fit(past, self.tables["items"], threshold)
            self.seconds += time.perf_counter() - started
            if rated:
                error = rmse(task.ratings.values, task.predictions(biases))
        elif rated and tasks.predicts_ratings(self.model):
            error = rmse(task.ratings.values, task.predictions(self.model))
        ndcg = task.ndcg(task.lists(lists, _K))
        return {"rmse": error, _NDCG: float(ndcg.mean()) if len(ndcg) else float("nan")}

    def learn(self, known: Ratings, period: Ratings, newcomers: Ratings, now: float) -> None:
        """Learn what a period has shown; `newcomers` are its ratings of a new user or item."""
        if self.name.startswith("refit") and now - self.fitted >= self.refit_days - 1e-9:
            self.fit(known, now)
            return
        started = time.perf_counter()
        if self.name in ("update", "refit + update"):
            self.model.update(period, **self.tables)
            self.updates += 1
        elif self.name == "fold in":
            if len(newcomers):
                self.model.fold_in(newcomers, **self.tables)
            self.updates += 1
        self.seconds += time.perf_counter() - started


def _sentence(frame: pd.DataFrame, summary: pd.DataFrame) -> str:
    """Name the cheapest policy that is not clearly worse than the best, and say if it pays."""
    table = summary.set_index("policy")
    own = [name for name in table.index if name != "baseline"]
    parts = []
    for metric, weight, sign in ((_NDCG, "n_ranked", -1), ("rmse", "n", 1)):
        known = [name for name in own if np.isfinite(table.loc[name, metric])]
        if not known:
            continue
        best = min(known, key=lambda name: sign * table.loc[name, metric])
        near = [name for name in known if not _worse(frame, name, best, metric, weight, sign)]
        cheap = min(near, key=lambda name: table.loc[name, "seconds"])
        figure = f"{metric.upper()} {table.loc[cheap, metric]:.4f}"
        is_ = "best" if cheap == best else "enough"
        text = f"“{cheap}” is {is_} ({figure}, {table.loc[cheap, 'seconds']:.1f} s of learning)"
        if cheap == best and table.loc[known, "seconds"].min() < table.loc[cheap, "seconds"]:
            text += ", and nothing cheaper comes near it"
        elif cheap != best:
            text += f": “{best}” has {table.loc[best, metric]:.4f} for "
            text += f"{table.loc[best, 'seconds']:.1f} s, which is no clear difference"
        if "baseline" in table.index:
            theirs: Any = table.loc["baseline", metric]
            if sign * theirs < sign * table.loc[best, metric]:
                text += f", but the baseline is better than all ({theirs:.4f})"
        parts.append(f"for {'lists' if sign < 0 else 'ratings'} {text}")
    text = "; ".join(parts) + "."
    return text[0].upper() + text[1:]


def _worse(frame: pd.DataFrame, name: str, best: str, metric: str, weight: str, sign: int) -> bool:
    """Tell whether a policy is clearly worse than the best: by more than two standard errors.

    The differences by period are what varies; below half a percent none matters.
    """
    both = [frame[frame["policy"] == policy].set_index("period") for policy in (name, best)]
    weights = both[1][weight].to_numpy(np.float64)
    gap = sign * (both[0][metric] - both[1][metric]).to_numpy()
    use = np.isfinite(gap) & (weights > 0)
    gap, weights = gap[use], weights[use] / weights[use].sum()
    mean = float(weights @ gap)
    error = float(np.sqrt((weights**2) @ (gap - mean) ** 2))
    return mean > 2 * error and mean > 0.005 * abs(float(both[1][metric].mean()))
