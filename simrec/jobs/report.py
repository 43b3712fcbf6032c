"""The report on a model: one page from the model directory and the tables it learned from."""

import os
import time
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

from simrec.errors import InputError
from simrec.jobs.evaluate import records
from simrec.jobs.io.claim import check_apart
from simrec.jobs.options import Path
from simrec.jobs.train import DataOptions

if TYPE_CHECKING:
    from simrec.data.ratings import Ratings
    from simrec.data.tables import TableLike

_START = "<!doctype html>"


def report(
    model: Path,
    data: DataOptions,
    out: Path,
    parent: Path | None = None,
    item_name: str | None = None,
    seed: int = 0,
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
    model : path
        The model directory.
    data : DataOptions
        The tables the model was trained on.
    out : path
        The HTML file to write; an earlier report there is replaced.
    parent : path, optional
        Directory of the model before this one, to see its figures beside.
    item_name : str, optional
        Column of the items that names them; by default the one that looks like a title.
    seed : int
        Seed of the split and of all samples.
    cold_items : float
        Share of the items to hold out whole.
    cold_users : float
        Share of the users to hold out whole.
    warm : float
        Share of the remaining ratings to hold out.
    k : int
        Length of the lists.

    Returns
    -------
    dict
        ``tasks``: one record per task; the verdict; the warnings; where the page is.
    """
    from simrec.artifacts import read_manifest

    check_out(out)
    check_apart(out, model=model, ratings=data.ratings, items=data.items, users=data.users)
    bounds = read_manifest(model)["config"].get("bounds")
    tables = (data.load_ratings(bounds), data.load_items(), data.load_users())
    split = {"cold_items": cold_items, "cold_users": cold_users, "warm": warm, "seed": seed}
    return write_report(model, *tables, out, k, item_name, split, parent)


def write_report(
    model: Path,
    ratings: "Ratings",
    items: "TableLike | None",
    users: "TableLike | None",
    out: Path,
    k: int = 10,
    item_name: str | None = None,
    split: Mapping[str, Any] | None = None,
    parent: Path | None = None,
) -> dict[str, Any]:
    """Write the page from tables that are at hand; `split` as the options of the split."""
    from simrec.artifacts import read_manifest
    from simrec.evaluation.report.advice import verdict
    from simrec.evaluation.report.measures import measure
    from simrec.evaluation.report.page import page
    from simrec.evaluation.report.tested_model import make_tested_model
    from simrec.files import write_text
    from simrec.model.two_tower import TwoTower

    started = time.perf_counter()
    manifest = read_manifest(model)
    tested = make_tested_model(
        TwoTower.load(model),
        manifest,
        ratings,
        items=items,
        users=users,
        parent=None if parent is None else TwoTower.load(parent),
        item_name=item_name,
        **(split or {}),
    )
    measures = measure(tested, k)
    FilePath(out).resolve().parent.mkdir(parents=True, exist_ok=True)
    write_text(out, page(measures))
    return {
        "job": "report",
        "out": os.fspath(out),
        "model_id": manifest["model_id"],
        "verdict": [verdict(measures)[1]],
        "tasks": records(measures.tasks),
        "warnings": [f"{alert.about}: {alert.what}" for alert in measures.alerts],
        "seconds": round(time.perf_counter() - started, 3),
    }


def check_out(out: Path) -> None:
    """Refuse to overwrite what is no report, before any work is done."""
    path = FilePath(out)
    if path.is_dir():
        raise InputError(f"{path}: is a directory; give the name of an HTML file.")
    if path.is_file() and path.stat().st_size:
        with open(path, "rb") as file:
            start = file.read(len(_START)).decode("utf-8", "replace")
        if start.lower() != _START:
            raise InputError(f"{path}: is there already and is no HTML page. Give another name.")
