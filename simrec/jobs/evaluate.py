"""Split, train, evaluate: the four-task table from tables on disk."""

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from simrec.errors import InputError
from simrec.jobs.train import DataOptions

if TYPE_CHECKING:
    from simrec.data.ratings import Ratings
    from simrec.data.split import ColdStartSplit
    from simrec.model.two_tower import TwoTower

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class HoldOut:
    """What is held out to test a model.

    Parameters
    ----------
    split : str
        How to hold out: cold (items, users and ratings by chance) or time (what came last).
    cold_items : float
        Share of the items to hold out whole.
    cold_users : float
        Share of the users to hold out whole.
    warm : float
        Share of the remaining ratings to hold out.
    at : str, optional
        Moment of a split by time, such as 2014-06-01: what came before it is trained on.
    test : float
        Without it: share of the ratings, the latest, that a split by time holds out.
    """

    split: Literal["cold", "time"] = "cold"
    cold_items: float = 0.2
    cold_users: float = 0.2
    warm: float = 0.1
    at: str | None = None
    test: float = 0.2

    def of(self, ratings: "Ratings") -> "Callable[[int], ColdStartSplit]":
        """Return the function from a seed to a split."""
        from simrec.data.split import cold_start_split, time_split

        if self.split == "time":
            parts = time_split(ratings, at=self.at, test=self.test)
            return lambda seed: parts
        if self.at is not None:
            raise InputError("at: a moment is for a split by time; add --split time.")
        shares = (self.cold_items, self.cold_users, self.warm)
        return lambda seed: cold_start_split(ratings, *shares, seed)


def evaluate(
    data: DataOptions,
    model: "TwoTower | None" = None,
    seeds: tuple[int, ...] = (0,),
    k: int = 10,
    n_jobs: int = 1,
    hold_out: HoldOut = HoldOut(),
) -> dict[str, Any]:
    """Hold out items, users and ratings, train on the rest, and evaluate the four tasks.

    Parameters
    ----------
    seeds : sequence of int
        Seeds of the split and of the model; with several, figures are means, with the standard
        deviation beside each.
    n_jobs : int
        Fits for several seeds side by side, at most, within memory; -1 for one per processor.

    Returns
    -------
    dict
        ``tasks``: one record per task, as `simrec.evaluate` gives them; ``verdict``: where the
        model is no better than a baseline; and the time.
    """
    from simrec.evaluation.evaluate import evaluate as four_tasks
    from simrec.evaluation.figures import BEST, verdicts
    from simrec.model.two_tower import TwoTower

    model = model if model is not None else TwoTower()
    ratings = data.load_ratings(model.bounds)
    make = hold_out.of(ratings)
    started = time.perf_counter()
    tables: dict[str, Any] = {"items": data.load_items(), "users": data.load_users()}
    table = four_tasks(model, make, k, seeds=seeds, n_jobs=n_jobs, **tables)
    return {
        "job": "evaluate",
        "seeds": list(seeds),
        "split": hold_out.split,
        "tasks": records(table),
        "verdict": verdicts(table, k) or [BEST],
        "seconds": round(time.perf_counter() - started, 3),
    }


def records(table: Any) -> list[dict[str, Any]]:
    """Return a table of results as JSON records, in six decimals, missing numbers as null."""
    named = table.reset_index() if table.index.name else table
    return json.loads(named.to_json(orient="records", double_precision=6))
