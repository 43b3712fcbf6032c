"""Replay history, to see how often a model must be trained again."""

import os
import time
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

from simrec.jobs.evaluate import records
from simrec.jobs.options import Path
from simrec.jobs.train import DataOptions

if TYPE_CHECKING:
    from simrec.model.two_tower import TwoTower


def replay(
    data: DataOptions,
    out: Path | None = None,
    model: "TwoTower | None" = None,
    every: str = "7d",
    refit: str = "28d",
    at: str | None = None,
    train: float = 0.5,
    k: int = 10,
) -> dict[str, Any]:
    """Walk through history period by period, keeping a model up to date in several ways.

    Parameters
    ----------
    out : path, optional
        An HTML page to write, with pictures and the table of periods.
    every : str
        Length of a period, after which models learn: 7d, 12h, 2w.
    refit : str
        Time after which models that are fitted again are.
    at : str, optional
        When the first period begins, such as 2014-06-01.
    train : float
        Without it: share of the ratings, the earliest, that the first fit learns from.
    """
    from simrec.evaluation.replay import replay as walk
    from simrec.evaluation.report.write import check_out, replay_page
    from simrec.model.two_tower import TwoTower
    from simrec.storage.files import write_text

    if out is not None:
        check_out(out)
    started = time.perf_counter()
    model = model if model is not None else TwoTower()
    ratings = data.load_ratings(model.bounds)
    tables: dict[str, Any] = {"items": data.load_items(), "users": data.load_users()}
    when: dict[str, Any] = {"every": every, "refit": refit, "at": at, "train": train}
    found = walk(model, ratings, k=k, **when, **tables)
    if out is not None:
        FilePath(out).resolve().parent.mkdir(parents=True, exist_ok=True)
        write_text(out, replay_page(found, every, refit))
    return {
        "job": "replay",
        **({} if out is None else {"out": os.fspath(out)}),
        "policies": records(found.policies),
        "verdict": [found.sentence],
        "periods": records(found.periods),
        "seconds": round(time.perf_counter() - started, 3),
    }
