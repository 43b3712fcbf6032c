"""The report on a model: one page from the model directory and the tables it learned from."""

import time
from typing import Any

from simrec.jobs.evaluate import records
from simrec.jobs.io.claim import check_apart
from simrec.jobs.options import Path
from simrec.jobs.train import DataOptions


def report(
    model: Path,
    data: DataOptions,
    out: Path,
    parent: Path | None = None,
    item_name: str | None = None,
    random_state: int = 0,
    cold_items: float = 0.2,
    cold_users: float = 0.2,
    warm: float = 0.1,
    k: int = 10,
) -> dict[str, Any]:
    """Write a page that says whether to ship a model, what to do next, and why.

    The saved model has seen all ratings, so errors are measured on a copy of it: the ratings are
    split, and a model with the same settings is trained on the training part.

    Parameters
    ----------
    out : path
        The HTML file to write; an earlier report there is replaced.
    parent : path, optional
        Directory of the model before this one, to see its figures beside.
    item_name : str, optional
        Column of the items that names them; by default the one that looks like a title.
    random_state : int
        Seed of the split and of all samples.
    cold_items : float
        Share of the items to hold out whole.
    cold_users : float
        Share of the users to hold out whole.
    warm : float
        Share of the remaining ratings to hold out.
    """
    from simrec.evaluation.report.write import check_out
    from simrec.evaluation.report.write import report as write
    from simrec.model.two_tower import TwoTower

    check_out(out)
    check_apart(out, model=model, ratings=data.ratings, items=data.items, users=data.users)
    started = time.perf_counter()
    loaded = TwoTower.load(model)
    made = write(
        loaded,
        data.load_ratings(loaded.bounds, loaded.columns_),
        out,
        items=data.load_items(loaded.columns_),
        users=data.load_users(loaded.columns_),
        parent=None if parent is None else TwoTower.load(parent),
        item_name=item_name,
        k=k,
        cold_items=cold_items,
        cold_users=cold_users,
        warm=warm,
        random_state=random_state,
    )
    return {
        "job": "report",
        "out": made["out"],
        "model_id": loaded.model_id_,
        "verdict": [made["verdict"]],
        "tasks": records(made["tasks"]),
        "warnings": made["warnings"],
        "seconds": round(time.perf_counter() - started, 3),
    }
