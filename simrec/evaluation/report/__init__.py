"""The report: one HTML page about a model, for the person who decides what to do with it.

It is one file that loads nothing. `tested_model` splits the ratings, fits the copy that is tested
and looks for trouble in the data; `measures` measures the copy, `advice` draws the verdict and what
to do next. Here templates are filled in.
"""

from __future__ import annotations

import datetime
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from simrec import __version__
from simrec.data.ratings import Ratings
from simrec.data.sides import SINGULAR
from simrec.data.split import show_moment
from simrec.data.tables import TableLike
from simrec.errors import InputError
from simrec.evaluation.compare import in_words
from simrec.evaluation.report.advice import next_steps, number, percent, plural, rise, verdict
from simrec.evaluation.report.measures import Measures, measure
from simrec.evaluation.report.tested_model import KINDS, make_tested_model
from simrec.evaluation.tasks import TASK_NAMES
from simrec.model.prepare import read_ratings
from simrec.model.two_tower import TwoTower
from simrec.storage.files import write_text

_START = "<!doctype html>"


def report(
    model: TwoTower,
    ratings: Ratings | TableLike,
    out: str | os.PathLike[str],
    *,
    items: TableLike | None = None,
    users: TableLike | None = None,
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
        read_ratings(ratings, model.bounds, model.columns_),
        items=items,
        users=users,
        random_state=random_state,
        **{"cold_items": cold_items, "cold_users": cold_users, "warm": warm},
    )
    measures = measure(tested, k)
    Path(out).resolve().parent.mkdir(parents=True, exist_ok=True)
    write_text(out, page(measures))
    result = {"verdict": verdict(measures)[1], "tasks": measures.tasks, "out": os.fspath(out)}
    return result | {"warnings": [f"{alert.about}: {alert.what}" for alert in measures.alerts]}


def check_out(out: str | os.PathLike[str]) -> None:
    """Refuse to overwrite what is no report, before any work is done."""
    path = Path(out)
    if path.is_dir():
        raise InputError(f"{path}: is a directory; give the name of an HTML file.")
    if path.suffix.lower() not in ("", ".html", ".htm"):
        raise InputError(
            f"{path}: a report is an HTML page, which a browser prints as PDF. Give a name that "
            "ends in .html."
        )
    if path.is_file() and path.stat().st_size:
        with open(path, "rb") as file:
            start = file.read(len(_START)).decode("utf-8", "replace")
        if start.lower() != _START:
            raise InputError(f"{path}: is there already and is no HTML page. Give another name.")


@cache
def environment() -> Environment:
    """Return the templates; whatever they are given is escaped, so data cannot become markup."""
    made = Environment(
        loader=PackageLoader("simrec.evaluation.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for write in (number, percent, plural, rise, title, cut, in_words):
        made.filters[write.__name__] = write
    made.filters["records"] = lambda frame: frame.to_dict("records")
    made.globals.update(kinds=KINDS, names=TASK_NAMES, singular=SINGULAR, version=__version__)
    made.globals.update(show_moment=show_moment, np=np)
    return made


def page(measures: Measures, today: datetime.date | None = None) -> str:
    """Write the measures as HTML, dated today by default."""
    name = measures.tested.model.model_id_ or "not saved"
    shown = {
        "title": f"Recommender report: {name}",
        "name": name,
        "date": (today or datetime.date.today()).isoformat(),
        "m": measures,
        "tested": measures.tested,
        "verdict": verdict(measures),
        "steps": next_steps(measures),
        "gains": measures.gains.to_dict("records"),
    }
    return environment().get_template("report.html").render(shown)


def title(name: str) -> str:
    """Name a task, or anything else, at the start of a line."""
    name = TASK_NAMES.get(name, name)
    return name[0].upper() + name[1:]


def cut(name: str, most: int = 48) -> str:
    """Shorten a name where it is long."""
    return name if len(name) <= most else name[: most - 2].rstrip() + "…"
