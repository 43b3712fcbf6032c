"""Search for settings that beat the defaults."""

import time
from typing import TYPE_CHECKING, Any, Literal

from simrec.jobs.evaluate import HoldOut, records
from simrec.jobs.io.tables import DataOptions
from simrec.jobs.options import Path

if TYPE_CHECKING:
    from simrec.model.two_tower import TwoTower


def tune(
    data: DataOptions,
    out: Path | None = None,
    model: "TwoTower | None" = None,
    metric: Literal["rmse", "ndcg"] | None = None,
    trials: int = 20,
    seeds: tuple[int, ...] = (0, 1),
    k: int = 10,
    random_state: int = 0,
    hold_out: HoldOut = HoldOut(),  # noqa: B008 (frozen)
) -> dict[str, Any]:
    """Try settings drawn at random on held-out items and users, beside those that are given.

    Parameters
    ----------
    out : path, optional
        A file of JSON lines to keep trials in; started again, the search goes on from there.
    metric : str, optional
        What to improve: rmse (of ratings, where there are any) or ndcg (of lists).
    trials : int
        How many settings to try.
    seeds : sequence of int
        Seeds of split and model, two or more, which show how much figures move by chance.
    random_state : int
        Seed of the draws.

    Returns
    -------
    dict
        ``trials``, a record each; ``best``, the settings to use; ``verdict``, what to do.
    """
    from simrec.evaluation.tune import tune as search
    from simrec.model.two_tower import TwoTower

    started = time.perf_counter()
    model = TwoTower() if model is None else model
    ratings = data.load_ratings(model.bounds)
    found = search(
        ratings,
        items=data.load_items(),
        users=data.load_users(),
        model=model,
        split=hold_out.of(ratings),
        metric=metric,
        n_trials=trials,
        seeds=seeds,
        k=k,
        trials=out,
        random_state=random_state,
    )
    return {
        "job": "tune",
        "trials": records(found.table),
        "best": found.best,
        "verdict": [found.sentence],
        "seconds": round(time.perf_counter() - started, 3),
    }
