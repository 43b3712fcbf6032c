"""Write the report on a model: split, fit a copy, measure, put it on a page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simrec.data.ratings import Ratings
from simrec.data.tables import TableLike
from simrec.errors import InputError
from simrec.evaluation.report.advice import verdict
from simrec.evaluation.report.measures import measure
from simrec.evaluation.report.page import page
from simrec.evaluation.report.tested_model import make_tested_model
from simrec.files import write_text
from simrec.model.prepare import read_ratings

if TYPE_CHECKING:
    from simrec.model.two_tower import TwoTower

_START = "<!doctype html>"


def report(
    model: TwoTower,
    ratings: Ratings | TableLike,
    out: str | os.PathLike[str],
    *,
    items: TableLike | None = None,
    users: TableLike | None = None,
    parent: TwoTower | None = None,
    item_name: str | None = None,
    k: int = 10,
    cold_items: float = 0.2,
    cold_users: float = 0.2,
    warm: float = 0.1,
    random_state: int = 0,
) -> dict[str, Any]:
    """Write a page that says whether to ship a model, what to do next, and why.

    The model has seen all ratings, so errors are measured on a copy of it: the ratings are split,
    and a model with the same settings is fitted to the training part.

    Parameters
    ----------
    model : TwoTower
        The fitted model.
    ratings : Ratings, table or path
        The ratings it was fitted to.
    out : path
        The HTML file to write; an earlier report there is replaced.
    items, users : table or path, optional
        The features it was fitted with.
    parent : TwoTower, optional
        The model before this one, to see its figures beside.
    item_name : str, optional
        Column of the items that names them; by default the one that looks like a title.
    k : int
        Length of the lists.
    cold_items, cold_users, warm : float
        Shares to hold out; see `cold_start_split`.
    random_state : int
        Seed of the split and of all samples.

    Returns
    -------
    dict
        ``verdict`` (a sentence), ``tasks`` (a frame with a row for each task), ``warnings``
        (sentences), and ``out``.

    Examples
    --------
    >>> from simrec import TwoTower, make_synthetic
    >>> data = make_synthetic(n_users=80, n_items=60, n_ratings=1200)
    >>> model = TwoTower(embedding_dim=4, epochs=4).fit(data.ratings, items=data.items)
    >>> made = report(model, data.ratings, "report.html", items=data.items)
    >>> made["tasks"]["task"].tolist()
    ['warm', 'new_items', 'new_users', 'new_both']
    """
    check_out(out)
    tested = make_tested_model(
        model,
        read_ratings(ratings, model.bounds),
        items=items,
        users=users,
        parent=parent,
        item_name=item_name,
        seed=random_state,
        **{"cold_items": cold_items, "cold_users": cold_users, "warm": warm},
    )
    measures = measure(tested, k)
    Path(out).resolve().parent.mkdir(parents=True, exist_ok=True)
    write_text(out, page(measures))
    return {
        "out": os.fspath(out),
        "verdict": verdict(measures)[1],
        "tasks": measures.tasks,
        "warnings": [f"{alert.about}: {alert.what}" for alert in measures.alerts],
    }


def check_out(out: str | os.PathLike[str]) -> None:
    """Refuse to overwrite what is no report, before any work is done."""
    path = Path(out)
    if path.is_dir():
        raise InputError(f"{path}: is a directory; give the name of an HTML file.")
    if path.is_file() and path.stat().st_size:
        with open(path, "rb") as file:
            start = file.read(len(_START)).decode("utf-8", "replace")
        if start.lower() != _START:
            raise InputError(f"{path}: is there already and is no HTML page. Give another name.")
