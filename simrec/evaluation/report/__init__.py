"""The report: one HTML page about a model, for the person who decides what to do with it.

It is one file that loads nothing. `tested_model` splits the ratings, fits the copy that is tested
and looks for trouble in the data; `measures` measures the copy. Here the verdict and what to do
next are drawn from the measures, each with the figure behind it, and templates are filled in.
"""

import datetime
import math
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from simrec import __version__
from simrec.data.ratings import Ratings
from simrec.data.sides import SINGULAR, Side
from simrec.data.split import show_moment
from simrec.data.tables import TableLike
from simrec.errors import InputError, plural
from simrec.evaluation.baselines import LIST_BASELINES
from simrec.evaluation.compare import in_words, joined
from simrec.evaluation.report.measures import Measures, measure
from simrec.evaluation.report.tested_model import KINDS, make_tested_model
from simrec.evaluation.tasks import TASK_NAMES
from simrec.model.prepare import read_ratings
from simrec.model.two_tower import TwoTower
from simrec.storage.files import write_text

_START = "<!doctype html>"
# The share of all places in lists that ten items may take, the share of missing values, and of
# ratings a model has not learned, to be worth a word.
_CROWDED, _MISSING, _BEHIND = 0.3, 0.1, 0.05
# A shuffled feature that raises the error by less than this share of it does not help.
_NO_HELP = 0.0005
DASH, MINUS = "\u2013", "\u2212"
Step = tuple[str, str]


def report(
    model: TwoTower,
    ratings: Ratings | TableLike,
    out: str | os.PathLike[str],
    *,
    items: TableLike | None = None,
    users: TableLike | None = None,
    k: int = 10,
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
    made.globals.update(show_moment=show_moment, np=np, baselines=LIST_BASELINES)
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


def verdict(measures: Measures) -> tuple[str, str]:
    """Say whether to ship: ("bad", "part", "good" or "same", and one or two sentences)."""
    found, gains = [], measures.gains.to_dict("records")
    for what in ("lists", "predicted ratings"):
        rows: list[Any] = [row for row in gains if (row["metric"] == "rmse") == (what != "lists")]
        if rows:
            found.append(_judged(rows, what))
    if not found:
        return "same", "Nothing was held out, so nothing can be said about this model."
    worst = min((kind for kind, _ in found), key=["bad", "part", "good", "same"].index)
    return worst, " ".join(says for _, says in found)


def _judged(rows: list[Any], what: str) -> tuple[str, str]:
    won, lost = ([r for r in rows if r["better"] == who] for who in ("model", "baseline"))
    same = [row for row in rows if row["better"] not in ("model", "baseline")]
    if not won and not lost:
        rival = joined(list(_by_rival(same)))
        return "same", f"Its {what} are no better than {rival}: no difference for {_who(same)}."
    gains, rest = "", f", no different for {_who(same)}" if same else ""
    if won:
        gains = f"better than {joined(list(_by_rival(won)))} on {len(won)} of "
        gains += plural(len(rows), "task")
    if not lost:
        return "good", f"Ship its {what}: {gains}{rest}."
    loses = []
    for rival, theirs in _by_rival(lost).items():
        worst = max(theirs, key=lambda row: abs(row["difference"] / (row["other_value"] or 1)))
        does = "do" if rival.endswith("s") else "does"
        figures = _against(worst) + (f" for {_who([worst])}" if len(theirs) > 1 else "")
        loses.append(f"for {_who(theirs)} {rival} {does} better ({figures})")
    if len(lost) < len(won) and all(row["task"] != "warm" for row in lost):
        kept = _who([row for row in rows if row not in lost])
        return "part", f"Ship its {what} for {kept} only: {gains}{rest}; {joined(loses)}."
    gains = f"; {gains}" if won else ""
    return "bad", f"Do not ship its {what} as they are: {joined(loses)}{gains}{rest}."


def next_steps(measures: Measures) -> list[Step]:
    """List what to do, the most urgent first: the deed, and the figure behind it."""
    found: list[Step] = []
    gains: list[Any] = measures.gains.to_dict("records")
    lost = [row for row in gains if row["better"] == "baseline"]
    for rival, rows in _by_rival(lost).items():
        figures = joined([_against(row) for row in rows])
        found.append((f"Use {rival} instead for {_who(rows)}.", f"{figures}."))
    tested = measures.tested
    learned, now = int(tested.model.towers_.items.counts.sum()), len(tested.ratings)
    if learned < (1 - _BEHIND) * now:
        deed = f"Retrain: the model has not learned all {tested.unit}s."
        found.append((deed, f"{plural(learned, tested.unit)} learned of {now:,} in the data."))
    for side, frame in measures.importance.items():
        found += _features(measures, side, frame)
    if measures.listed["top_share"] > _CROWDED:
        why = f"Ten items take {percent(measures.listed['top_share'])} of all places in the lists."
        found.append(("Mix other items into the lists, or cap how often one is shown.", why))
    return found


def _features(measures: Measures, side: Side, frame: pd.DataFrame) -> Iterator[Step]:
    """Say which features to collect, to find or to look after."""
    tested, error = measures.tested, measures.tested.error_name
    if not len(frame):
        if tested.encoder(side) is None and len(tested.new(side)):
            why = f"All {plural(len(tested.new(side)), tested.unit)} of new {side} were predicted "
            yield f"Collect features of {side}.", f"{why}as for an average {SINGULAR[side]}."
        return
    columns = frame.iloc[:-1]
    row: Any
    for row in columns[
        (columns["missing"] > _MISSING) & (columns["share"] > _NO_HELP)
    ].itertuples():
        why = f"Missing for {percent(row.missing)} of the {side}; without it the {error} for new "
        yield f"Collect {row.column} of more {side}.", f"{why}{side} rises {rise(row.share)}."
    best = columns.iloc[0]
    why = f"New {side} rest on it most: shuffled, the {error} rises {rise(best['share'])}."
    if best["share"] <= _NO_HELP:
        why = f"Shuffled, none of the {plural(len(columns), 'feature')} of {side} raises the "
        yield f"Find features that say more about new {side}.", f"{why}{error}."
    else:
        yield f"Keep {best['column']} of {side} complete and correct.", why


def _by_rival(rows: list[Any]) -> dict[str, list[Any]]:
    return {name: [r for r in rows if r["rival"] == name] for name in (r["rival"] for r in rows)}


def _who(rows: list[Any]) -> str:
    return joined([TASK_NAMES[row["task"]] for row in rows])


def _against(row: dict[str, Any]) -> str:
    return f"{row['metric'].upper()} {number(row['value'])} against {number(row['other_value'])}"


def number(value: Any, digits: int = 3, signed: bool = False) -> str:
    """Write a number as people read it; a dash where there is none, text as it is."""
    if isinstance(value, str):
        return value
    if value is None or not math.isfinite(value):
        return DASH
    if float(value).is_integer() and not isinstance(value, float):
        return f"{int(value):,}"
    sign = "+" if signed else ""
    return f"{round(float(value), digits) + 0.0:{sign},.{digits}f}".replace("-", MINUS)


def percent(share: float, digits: int = 0, signed: bool = False) -> str:
    """Write a share as a percentage, never as minus zero."""
    if not math.isfinite(share):
        return DASH
    rounded = round(100 * share, digits)
    return f"{number(float(rounded), digits, signed and rounded > 0)}%"


def rise(share: float) -> str:
    """Say by how much a figure rises, in words that can be read where it is many times as large."""
    return f"by {percent(share, 1)}" if share < 1 else f"to {1 + share:.1f} times as much"
