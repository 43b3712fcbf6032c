"""Policies of a replay: how a model learns, what that costs, and which one is enough."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from simrec.data.ratings import Ratings
from simrec.errors import InputError
from simrec.evaluation.baselines import BiasBaseline, PopularityBaseline
from simrec.evaluation.copies import unfitted_copy
from simrec.evaluation.tasks import Task, has_ratings, predicts_ratings
from simrec.scoring.metrics import rmse

POLICIES = {
    "stand still": "fitted once, never changed",
    "fold in": "newcomers are folded in after each period",
    "update": "all ratings of a period are learned after it",
    "refit": "fitted again on all ratings now and then",
    "refit + update": "fitted again now and then, updated in between",
    "baseline": "biases and popularity, counted again after each period",
}


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
        self.model = unfitted_copy(self.settings)
        self.model.fit(ratings, **self.tables)
        self.fitted, self.fits = now, self.fits + 1
        self.seconds += time.perf_counter() - started

    def measure(self, task: Task, past: Ratings, threshold: float, k: int) -> dict[str, float]:
        """Give the error and the NDCG in a period."""
        rated, lists = has_ratings(past), self.model
        error = float("nan")
        if self.name == "baseline":
            started = time.perf_counter()
            biases = BiasBaseline.fit(past)
            lists = PopularityBaseline.fit(past, self.tables["items"], threshold)
            self.seconds += time.perf_counter() - started
            if rated:
                error = rmse(task.ratings.values, biases.predict(task.ratings))
        elif rated and predicts_ratings(self.model):
            error = rmse(task.ratings.values, task.predictions(self.model))
        ndcg = task.ndcg(task.lists(lists, k))
        return {"rmse": error, f"ndcg@{k}": float(ndcg.mean()) if len(ndcg) else float("nan")}

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


def start_policies(first: Policy, train: Ratings, names: Sequence[str]) -> list[Policy]:
    """Fit once; all policies start from that model."""
    first.fit(train, 0.0)
    for part, method in (("update", "update"), ("fold in", "fold_in")):
        wanted = [name for name in names if part in name]
        if wanted and not hasattr(first.model, method):
            raise InputError(f"policies: {wanted[0]!r} needs a model with {method}().")
    return [
        replace(first, name=name, model=copy.copy(first.model))
        if name != "baseline"
        else replace(first, name=name, model=None, seconds=0.0, fits=0)
        for name in names
    ]


def sentence(frame: pd.DataFrame, summary: pd.DataFrame, k: int) -> str:
    """Say what the cheapest policy is that cannot be told from the best one, and if it pays."""
    table = summary.set_index("policy")
    own = [name for name in table.index if name != "baseline"]
    parts = []
    for metric, weight, sign in ((f"ndcg@{k}", "n_ranked", -1), ("rmse", "n", 1)):
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
            text += f"{table.loc[best, 'seconds']:.1f} s, which cannot be told from it"
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
