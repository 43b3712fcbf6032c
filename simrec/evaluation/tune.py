"""Random search over the few settings that matter, beside the defaults."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from simrec.data.ratings import Ratings
from simrec.data.split import ColdStartSplit, cold_start_split
from simrec.data.tables import TableLike
from simrec.errors import InputError
from simrec.evaluation.copies import unfitted_copy
from simrec.evaluation.evaluate import ListSettings, four_tasks
from simrec.simec.params import plain

if TYPE_CHECKING:
    import pandas as pd

    from simrec.model.two_tower import TwoTower

logger = logging.getLogger(__name__)

SPACE: dict[str, Sequence[Any]] = {
    "embedding_dim": (8, 16, 24, 32, 48),
    "epochs": (8, 16, 32),
    "knots": (0, 5, 10, 20),
    "min_count": (1, 2, 5, 10),
    "rating_output": ("auto", "identity", "sigmoid"),
    "refine": (True, True, True, False),
    "half_life": (None, "auto", 30.0, 180.0),
}
"""Values from which each setting is drawn; those that the data have no use for are left out."""


@dataclass(frozen=True, eq=False)
class Tuning:
    """Trials beside the defaults. Made by `tune`; prints as its table and sentence."""

    table: pd.DataFrame
    best: dict[str, Any]
    sentence: str

    def __str__(self) -> str:
        return f"{self.table.to_string(index=False, float_format='%.4f')}\n{self.sentence}"


def tune(
    ratings: Ratings | TableLike,
    *,
    items: TableLike | None = None,
    users: TableLike | None = None,
    model: TwoTower | None = None,
    split: Callable[[int], ColdStartSplit] | None = None,
    metric: Literal["rmse", "ndcg"] | None = None,
    n_trials: int = 20,
    seeds: Sequence[int] = (0, 1),
    k: int = 10,
    trials: str | os.PathLike[str] | None = None,
    random_state: int = 0,
) -> Tuning:
    """Try settings drawn at random, on splits that hold out whole items and users.

    Parameters
    ----------
    ratings : Ratings, table or path
        All ratings.
    items, users : table or path, optional
        Features.
    model : TwoTower, optional
        The defaults that trials differ from.
    split : callable, optional
        From a seed to a split, such as ``lambda seed: time_split(ratings, test=0.2)``; by default
        `cold_start_split`.
    metric : {"rmse", "ndcg"}, optional
        What to improve, its mean over the tasks: the error of ratings, where there are any, or
        NDCG@k of lists.
    n_trials : int
        How many settings to try, beside the defaults.
    seeds : sequence of int
        Seeds of split and model; two or more, which show how much figures move by chance.
    k : int
        Length of the lists.
    trials : path, optional
        A file of JSON lines, one for each fit. What it holds already is not done again.
    random_state : int
        Seed of the draws.

    Returns
    -------
    Tuning
        ``table``, a row for each trial, the best first: settings (defaults, or what differs), the
        figure (mean over tasks and seeds), its gain over the defaults and the standard deviation
        of the gain over seeds, both in percent, and seconds; ``best``, settings to give to
        `TwoTower`, none where nothing gains; ``sentence``, what to do.

    Examples
    --------
    >>> from simrec import TwoTower, make_synthetic
    >>> data = make_synthetic(n_users=100, n_items=60, n_ratings=1500)
    >>> found = tune(data.ratings, items=data.items, n_trials=1, model=TwoTower(epochs=2))
    >>> found.table.columns.tolist()
    ['settings', 'rmse', 'gain', 'spread', 'seconds']
    """
    from simrec.model.two_tower import TwoTower

    if len(seeds) < 2 or len(set(seeds)) < len(seeds):
        raise InputError(f"seeds: give two or more, each once, to see the spread; got {seeds}.")
    if n_trials < 1:
        raise InputError(f"n_trials: expected at least 1, got {n_trials}.")
    base = TwoTower() if model is None else model
    taken = Ratings.from_table(ratings, bounds=base.bounds)
    metric = metric or ("rmse" if taken.has_ratings else "ndcg")
    if metric == "rmse" and not taken.has_ratings:
        raise InputError("metric: there are no ratings; tune lists, by 'ndcg'.")
    column = "rmse" if metric == "rmse" else f"ndcg@{k}"
    make = split or (lambda seed: cold_start_split(taken, random_state=seed))
    splits = {seed: make(seed) for seed in seeds}
    wanted = [{}, *_draw(base.get_params(), taken, n_trials, random_state)]
    known = {} if trials is None else _known(Path(trials), _key(taken, splits, base, column))
    figures, seconds = np.empty((len(wanted), len(seeds))), np.zeros(len(wanted))
    for i, changes in enumerate(wanted):
        for j, seed in enumerate(seeds):
            name = _name(changes, seed)
            if name not in known:
                started = time.perf_counter()
                fresh = unfitted_copy(base, seed, quiet=True).set_params(**changes)
                fresh.fit(splits[seed].train, items=items, users=users)
                found = four_tasks(fresh, splits[seed], ListSettings(k), items, lists={})
                known[name] = float(np.nanmean(found[column])), time.perf_counter() - started
                if trials is not None:
                    line = dict(zip(("value", "seconds"), known[name], strict=True))
                    line |= {"settings": plain(changes), "seed": seed}
                    with open(trials, "a", encoding="utf-8") as file:
                        file.write(json.dumps(line) + "\n")
            figures[i, j] = known[name][0]
            seconds[i] += known[name][1]
        mean, text = figures[i].mean(), settings_text(changes)
        logger.info("trial %d of %d: %s: %s %.4f", i, n_trials, text, column, mean)
    return _result(wanted, figures, seconds, column)


def settings_text(changes: Mapping[str, Any]) -> str:
    """Write settings as they are given in Python."""
    return ", ".join(f"{name}={value!r}" for name, value in changes.items()) or "defaults"


def _draw(
    defaults: Mapping[str, Any], ratings: Ratings, n: int, random_state: int
) -> list[dict[str, Any]]:
    """Draw settings that differ from the defaults and from each other."""
    unused = [] if ratings.has_ratings else ["rating_output", "refine"]
    unused += ["half_life"] if ratings.timestamps is None else []
    rng = np.random.default_rng(random_state)
    found: dict[str, dict[str, Any]] = {"defaults": {}}
    for _ in range(50 * n):
        drawn = {name: values[int(rng.integers(len(values)))] for name, values in SPACE.items()}
        # Half of the settings stay as they are, so that it can be seen which ones gain.
        stay = dict(zip(SPACE, rng.random(len(SPACE)) < 0.5, strict=True))
        changes = {
            name: value
            for name, value in drawn.items()
            if not stay[name] and name not in unused and value != defaults[name]
        }
        found.setdefault(settings_text(changes), changes)
        if len(found) > n:
            break
    return list(found.values())[1:]


def _result(
    wanted: Sequence[Mapping[str, Any]], figures: np.ndarray, seconds: np.ndarray, column: str
) -> Tuning:
    import pandas as pd

    sign = -1.0 if column == "rmse" else 1.0
    gains = 100 * sign * (figures - figures[0]) / figures[0]
    gain, spread = gains.mean(1), gains.std(1, ddof=1)
    table = pd.DataFrame(
        {
            "settings": list(map(settings_text, wanted)),
            column: figures.mean(1),
            "gain": gain,
            "spread": spread,
            "seconds": seconds.round(1),
        }
    )
    order = np.argsort(-gain, kind="stable")
    clear = [i for i in order if gain[i] > spread[i] and gain[i] > 0]
    i = int(clear[0] if clear else next((i for i in order if wanted[i]), 0))
    text, by = settings_text(wanted[i]), f"{gain[i]:+.1f}% with a spread of {spread[i]:.1f}%"
    sentence = (
        f"{text}: {by} over {figures.shape[1]} seeds. The best of many trials is flattered: check "
        "it on other seeds with evaluate before you rely on it."
        if clear
        else "Nothing gains over the defaults by more than its spread: keep them "
        f"(next: {text}, {by})."
    )
    return Tuning(table.iloc[order], dict(wanted[i]) if clear else {}, sentence)


def _key(
    ratings: Ratings, splits: Mapping[int, ColdStartSplit], base: Any, column: str
) -> dict[str, str]:
    """Return what the trials of one search have in common, as the first line of their file."""
    params = {name: v for name, v in base.get_params().items() if not name.endswith("_encoder")}
    params = {**plain(params), "random_state": 0, "verbose": 0}
    sizes = [len(ratings), ratings.n_users, ratings.n_items, float(ratings.values.sum())]
    words = [sizes, [len(one.train) for one in splits.values()], params, column]
    return {"search": hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]}


def _name(changes: Mapping[str, Any], seed: int) -> str:
    return json.dumps([plain(dict(changes)), seed], sort_keys=True)


def _known(path: Path, key: Mapping[str, str]) -> dict[str, tuple[float, float]]:
    """Read the fits that are done; a line that was cut off by a kill is done again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    if lines and lines[0] != json.dumps(key):
        raise InputError(f"{path}: no trials of these ratings, settings and figures. Give another.")
    found = {}
    for text in lines[1:]:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            line = json.loads(text)
            found[_name(line["settings"], line["seed"])] = line["value"], line["seconds"]
    with open(path, "a", encoding="utf-8") as file:
        file.write("\n" if lines else json.dumps(key) + "\n")  # after what may have been cut off
    return found
