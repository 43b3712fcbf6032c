"""Split, train, evaluate: the four-task table from tables on disk."""

import json
import logging
import time
from typing import TYPE_CHECKING, Any

from simrec.jobs.train import DataOptions

if TYPE_CHECKING:
    from simrec.model.two_tower import TwoTower

logger = logging.getLogger(__name__)


def evaluate(
    data: DataOptions,
    model: "TwoTower | None" = None,
    seed: int = 0,
    cold_items: float = 0.2,
    cold_users: float = 0.2,
    warm: float = 0.1,
    k: int = 10,
) -> dict[str, Any]:
    """Hold out items, users and ratings, train on the rest, and evaluate the four tasks.

    Parameters
    ----------
    data : DataOptions
        The tables.
    model : TwoTower, optional
        The model to fit, with its settings.
    seed : int
        Seed of the split.
    cold_items : float
        Share of the items to hold out whole.
    cold_users : float
        Share of the users to hold out whole.
    warm : float
        Share of the remaining ratings to hold out.
    k : int
        Length of the lists that ranking metrics look at.

    Returns
    -------
    dict
        ``tasks``: one record per task, as `simrec.evaluate` gives them; and times.
    """
    from simrec.data.split import cold_start_split
    from simrec.evaluation.evaluate import evaluate as four_tasks
    from simrec.model.two_tower import TwoTower

    model = model if model is not None else TwoTower()
    ratings = data.load_ratings(model.bounds)
    split = cold_start_split(
        ratings, cold_items=cold_items, cold_users=cold_users, warm=warm, random_state=seed
    )
    logger.info("training on %d of %d ratings", len(split.train), len(ratings))
    started = time.perf_counter()
    model.fit(split.train, items=data.load_items(), users=data.load_users())
    fitted = time.perf_counter()
    table = four_tasks(model, split, k=k, threshold=model.threshold)
    return {
        "job": "evaluate",
        "seed": seed,
        "tasks": records(table),
        "train_seconds": round(fitted - started, 3),
        "evaluate_seconds": round(time.perf_counter() - fitted, 3),
    }


def records(table: Any) -> list[dict[str, Any]]:
    """Return a table of results as plain JSON records, missing numbers as null."""
    named = table.reset_index() if table.index.name else table
    return json.loads(named.to_json(orient="records", double_precision=10))
