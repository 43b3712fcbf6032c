"""Write the report on a model, and the page of a replay: each one HTML file that loads nothing."""

from __future__ import annotations

import datetime
import math
import os
from collections.abc import Mapping, Sequence
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
from simrec.evaluation.replay import POLICIES, Replay
from simrec.evaluation.report.advice import next_steps, number, percent, plural, rise, verdict
from simrec.evaluation.report.measures import Measures, measure
from simrec.evaluation.report.tested_model import KINDS, make_tested_model
from simrec.evaluation.tasks import TASK_NAMES
from simrec.model.prepare import read_ratings
from simrec.model.two_tower import TwoTower
from simrec.storage.files import write_text

_START = "<!doctype html>"
# Charts are in pixels of a phone's screen. Lines differ in colour and dashes; the page's style has
# colours for light and dark screens.
WIDTH, HEIGHT = 360, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 24, 40
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 2", "1 2")


def report(
    model: TwoTower,
    ratings: Ratings | TableLike,
    out: str | os.PathLike[str],
    *,
    items: TableLike | None = None,
    users: TableLike | None = None,
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
        read_ratings(ratings, model.bounds, model.columns_),
        items=items,
        users=users,
        item_name=item_name,
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
    made.globals.update(line_chart=line_chart, show_moment=show_moment, np=np)
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


def replay_page(replay: Replay, every: str, refit: str) -> str:
    """Write a replay as HTML, one file that needs nothing else."""
    frame, k = replay.periods, replay.k
    periods = list(dict.fromkeys(frame["period"]))
    # Months where there are years to show, else days.
    years = int(periods[-1][:4]) - int(periods[0][:4]) > 1
    labels, charts = [p[:7] if years else p[5:] for p in periods], []
    for metric, better in ((f"ndcg@{k}", "higher"), ("rmse", "lower")):
        name = f"{metric.upper()} ({better} is better)"
        by_policy = frame.pivot(index="policy", columns="period", values=metric)[periods]
        lines = {policy: list(by_policy.loc[policy]) for policy in replay.policies["policy"]}
        if any(math.isfinite(value) for line in lines.values() for value in line):
            ends = [f"{n} {number(line[0])} to {number(line[-1])}" for n, line in lines.items()]
            label = f"{name} from {periods[0]} to {periods[-1]}: {'; '.join(ends)}."
            charts.append(line_chart(labels, lines, "first day of the period", name, label))
    rows = [
        [p["policy"], POLICIES[p["policy"]], p["rmse"], p[f"ndcg@{k}"], f"{p['seconds']:.1f} s"]
        for p in replay.policies.to_dict("records")
    ]
    shown = {"sentence": replay.sentence, "periods": periods, "every": every, "refit": refit}
    template = environment().get_template("replay.html")
    return template.render(title="Replay", charts=charts, rows=rows, k=k, **shown)


def title(name: str) -> str:
    """Name a task, or anything else, at the start of a line."""
    name = TASK_NAMES.get(name, name)
    return name[0].upper() + name[1:]


def cut(name: str, most: int = 48) -> str:
    """Shorten a name where it is long."""
    return name if len(name) <= most else name[: most - 2].rstrip() + "…"


def line_chart(
    x_labels: Sequence[str],
    lines: Mapping[str, Sequence[float]],
    x_title: str,
    y_title: str,
    alt: str,
) -> dict[str, Any]:
    """Place lines, by name, over places that are evenly spaced, for the macro `chart`.

    Labels of places that would run into each other are left out.
    """
    values = [v for line in lines.values() for v in line if math.isfinite(v)]
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = (high - low) * 0.12 or abs(high) * 0.05 or 0.5
    low, high = low - room, high + room
    places = np.linspace(_LEFT + 8, WIDTH - _RIGHT - 8, max(len(x_labels), 2))

    def up(value: float) -> float:
        return HEIGHT - _BOTTOM - (value - low) / (high - low) * (HEIGHT - _TOP - _BOTTOM)

    ticks, digits = _ticks(low, high)
    words = [(_LEFT - 5.0, up(v) + 4, f"{v:.{digits}f}", "end") for v in ticks]
    words += [(2, 12, y_title, "start"), ((_LEFT + WIDTH) / 2, HEIGHT - 5, x_title, "middle")]
    end = -1e9
    for x, label in zip(places, x_labels, strict=False):
        half = 3.6 * len(label)
        x = min(x, WIDTH - half)  # the last one stays inside
        if x - half > end + 6:
            words.append((x, HEIGHT - _BOTTOM + 16, label, "middle"))
            end = x + half
    drawn = []
    for index, (name, line) in enumerate(lines.items()):
        marks = [
            (x, up(v), f"{name}, {label}: {number(float(v), digits + 1)}")
            for x, v, label in zip(places, line, x_labels, strict=False)
            if math.isfinite(v)
        ]
        way = "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y, _ in marks) if len(marks) > 1 else ""
        drawn.append((name, _DASHES[index % 6], way, marks))
    grid = {"left": _LEFT, "right": WIDTH - _RIGHT, "heights": [up(v) for v in ticks]}
    return {"size": (WIDTH, HEIGHT), "alt": alt, "grid": grid, "words": words, "lines": drawn}


def _ticks(low: float, high: float) -> tuple[list[float], int]:
    """Give some round numbers between two, and the digits that tell them apart."""
    rough = (high - low) / 5
    size = 10 ** math.floor(math.log10(rough))
    step = next(m * size for m in (1, 2, 2.5, 5, 10) if m * size >= rough)
    first = math.ceil(low / step - 1e-9)
    found = [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]
    return found, max(0, -math.floor(math.log10(step) + 1e-9) + (step == 2.5 * size))
