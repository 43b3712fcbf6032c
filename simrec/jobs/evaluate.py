"""Judge models: evaluate, compare, replay history, and write the report."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from simrec.errors import InputError
from simrec.jobs.io.inputs import DataOptions
from simrec.jobs.io.outputs import check_apart
from simrec.jobs.options import Path, job

if TYPE_CHECKING:
    from simrec.data.ratings import Ratings
    from simrec.data.split import ColdStartSplit
    from simrec.model.two_tower import TwoTower


@dataclass(frozen=True)
class HoldOut:
    """What is held out to test a model, by chance or by time.

    Parameters
    ----------
    cold_items : float
        Share of the items to hold out whole.
    cold_users : float
        Share of the users to hold out whole.
    warm : float
        Share of the remaining ratings to hold out.
    split : str
        How to hold out: cold (items, users and ratings by chance) or time (what came last).
    at : str, optional
        Moment of a split by time, such as 2014-06-01: what came before it is trained on.
    test : float
        Without it: share of the ratings, the latest, that a split by time holds out.
    """

    cold_items: float = 0.2
    cold_users: float = 0.2
    warm: float = 0.1
    split: Literal["cold", "time"] = "cold"
    at: str | None = None
    test: float = 0.2

    def of(self, ratings: "Ratings") -> "Callable[[int], ColdStartSplit]":
        """Return the function from a seed to a split."""
        from simrec.data.split import cold_start_split, time_split

        if self.split == "time":
            parts = time_split(ratings, at=self.at, test=self.test)
            return lambda seed: parts
        if self.at is not None:
            raise InputError("at: a moment is for a split by time; add --split time.")
        shares = (self.cold_items, self.cold_users, self.warm)
        return lambda seed: cold_start_split(ratings, *shares, seed)


@job
def evaluate(
    data: DataOptions,
    model: "TwoTower | None" = None,
    seeds: tuple[int, ...] = (0,),
    k: int = 10,
    hold_out: HoldOut = HoldOut(),
) -> dict[str, Any]:
    """Hold out items, users and ratings, train on the rest, and evaluate the four tasks.

    Parameters
    ----------
    seeds : sequence of int
        Seeds of the split and of the model; with several, figures are means, with the standard
        deviation beside each.

    Returns
    -------
    dict
        ``tasks``: one record per task, as `simrec.evaluate` gives them; ``verdict``: where the
        model is no better than a baseline; and the time.
    """
    from simrec.evaluation.evaluate import BEST, verdicts
    from simrec.evaluation.evaluate import evaluate as four_tasks
    from simrec.model.two_tower import TwoTower

    model = model or TwoTower()
    split = hold_out.of(data.load_ratings(model.bounds))
    table = four_tasks(model, split, k, seeds=seeds, **data.features())
    return {
        "seeds": list(seeds),
        "split": hold_out.split,
        "tasks": records(table),
        "verdict": verdicts(table, k) or [BEST],
    }


@job
def compare(
    a: Path,
    b: Path,
    data: DataOptions,
    pairs: Path | None = None,
    seeds: tuple[int, ...] = (0, 1, 2),
    k: int = 10,
    hold_out: HoldOut = HoldOut(),
) -> dict[str, Any]:
    """Compare two models on ratings that neither has seen.

    With `pairs` the saved models themselves are compared. Without, the ratings are split, and
    copies of both, with the same settings and several seeds, are trained on the training part.

    Parameters
    ----------
    a, b : path
        The model directories.
    pairs : path, optional
        Ratings that came later: a table of user_id, item_id, rating.
    seeds : sequence of int
        Seeds to train copies with, so that a lucky fit is not taken for a better model; the first
        is the seed of the split too.

    Returns
    -------
    dict
        ``figures``: a record for each task and metric with the difference, its interval and the
        result in words; ``value`` and ``other_value``: whose figures these are.
    """
    from simrec.data.sides import Sides
    from simrec.data.split import split_by_known
    from simrec.evaluation.compare import compare as paired
    from simrec.evaluation.tasks import check_tables, fitted_copy, unfitted_copy
    from simrec.model.two_tower import TwoTower

    models: dict[str, Any] = {str(path): TwoTower.load(path) for path in (a, b)}
    if len(models) < 2:
        models = {f"{path} ({name})": TwoTower.load(path) for name, path in (("a", a), ("b", b))}
    first = next(iter(models.values()))
    ratings = data.load_ratings(first.bounds, first.columns_)
    if pairs is not None:
        later = replace(data, ratings=pairs).load_ratings(first.bounds, first.columns_)
        parts = split_by_known(ratings, later)
    else:
        tables = Sides(**data.features(first.columns_))
        for model in models.values():
            check_tables(model, tables)
        parts = hold_out.of(ratings)(seeds[0])
        for name, model in models.items():
            fresh = [unfitted_copy(model, seed) for seed in seeds]
            models[name] = [fitted_copy(copy, model, parts.train, tables) for copy in fresh]
    found = paired(models, parts, k=k, random_state=seeds[0])
    return {
        "figures": records(found),
        "value": found["model"].iloc[0],
        "other_value": found["other"].iloc[0],
    }


@job
def replay(
    data: DataOptions,
    model: "TwoTower | None" = None,
    every: str = "7d",
    refit: str = "28d",
    at: str | None = None,
) -> dict[str, Any]:
    """Walk through history period by period, keeping a model up to date in several ways.

    Parameters
    ----------
    every : str
        Length of a period, after which models learn: 7d, 12h, 2w.
    refit : str
        Time after which models that are fitted again are.
    at : str, optional
        When the first period begins, such as 2014-06-01; by default after half of the ratings.
    """
    from simrec.evaluation.replay import replay as walk
    from simrec.model.two_tower import TwoTower

    model = model or TwoTower()
    ratings = data.load_ratings(model.bounds)
    found = walk(model, ratings, every=every, refit=refit, at=at, **data.features())
    return {
        "policies": records(found.policies),
        "verdict": [found.sentence],
        "periods": records(found.periods),
    }


@job
def report(
    model: Path,
    data: DataOptions,
    out: Path,
    random_state: int = 0,
    k: int = 10,
) -> dict[str, Any]:
    """Write a page that says whether to ship a model, what to do next, and why.

    The saved model has seen all ratings, so errors are measured on a copy of it: the ratings are
    split, and a model with the same settings is trained on the training part.

    Parameters
    ----------
    out : path
        The HTML file to write; an earlier report there is replaced.
    random_state : int
        Seed of the split and of all samples.
    """
    from simrec.evaluation.report import check_out
    from simrec.evaluation.report import report as write
    from simrec.model.two_tower import TwoTower

    check_out(out)
    check_apart(out, model=model, **data.paths)
    loaded = TwoTower.load(model)
    ratings = data.load_ratings(loaded.bounds, loaded.columns_)
    features = data.features(loaded.columns_)
    made = write(loaded, ratings, out, **features, k=k, random_state=random_state)
    return {
        "out": made["out"],
        "model_id": loaded.model_id_,
        "verdict": [made["verdict"]],
        "tasks": records(made["tasks"]),
        "warnings": made["warnings"],
    }


def records(table: Any) -> list[dict[str, Any]]:
    """Return a table of results as JSON records, in six decimals, missing numbers as null."""
    named = table.reset_index() if table.index.name else table
    return json.loads(named.to_json(orient="records", double_precision=6))
