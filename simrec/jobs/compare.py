"""Compare two models: which is better at what, or that it cannot be told."""

import time
from typing import Any, Literal

from simrec.jobs.evaluate import records, splitter
from simrec.jobs.options import Path
from simrec.jobs.train import DataOptions


def compare(
    a: Path,
    b: Path,
    data: DataOptions,
    pairs: Path | None = None,
    seeds: tuple[int, ...] = (0, 1, 2),
    split: Literal["cold", "time"] = "cold",
    cold_items: float = 0.2,
    cold_users: float = 0.2,
    warm: float = 0.1,
    at: str | None = None,
    test: float = 0.2,
    k: int = 10,
) -> dict[str, Any]:
    """Compare two models on ratings that neither has seen.

    With `pairs` the saved models themselves are compared. Without, the ratings are split, and
    copies of both, with the same settings and several seeds, are trained on the training part.

    Parameters
    ----------
    a, b : path
        The model directories.
    data : DataOptions
        The tables the models were trained on.
    pairs : path, optional
        Ratings that came later: a table of user_id, item_id, rating.
    seeds : sequence of int
        Seeds to train copies with, so that a lucky fit is not taken for a better model; the first
        is the seed of the split too.
    split : str
        How to hold out: cold (items, users and ratings by chance) or time (what came last).
    cold_items : float
        Share of the items to hold out whole.
    cold_users : float
        Share of the users to hold out whole.
    warm : float
        Share of the remaining ratings to hold out.
    at : str, optional
        Moment of a split by time, such as 2014-06-01.
    test : float
        Without it: share of the ratings, the latest, that a split by time holds out.
    k : int
        Length of the lists.

    Returns
    -------
    dict
        ``figures``: a record for each task and metric with the difference and its interval;
        ``verdict``: sentences.
    """
    from simrec.data.sides import Sides
    from simrec.data.split import split_by_known
    from simrec.evaluation.compare import compare as paired
    from simrec.evaluation.copies import check_tables, fitted_copy, unfitted_copy
    from simrec.model.two_tower import TwoTower

    started = time.perf_counter()
    models: dict[str, Any] = {str(path): TwoTower.load(path) for path in (a, b)}
    if len(models) < 2:
        models = {f"{path} ({name})": TwoTower.load(path) for name, path in (("a", a), ("b", b))}
    first = next(iter(models.values()))
    ratings = data.load_ratings(first.bounds)
    if pairs is not None:
        later = DataOptions(
            ratings=pairs,
            user_id=data.user_id,
            item_id=data.item_id,
            rating=data.rating,
            timestamp=data.timestamp,
            duplicates=data.duplicates,
        )
        parts = split_by_known(ratings, later.load_ratings(first.bounds))
    else:
        tables = Sides(data.load_items(), data.load_users())
        for model in models.values():
            check_tables(model, tables)
        parts = splitter(ratings, split, cold_items, cold_users, warm, at, test)(seeds[0])
        for name, model in models.items():
            fresh = [unfitted_copy(model, seed) for seed in seeds]
            models[name] = [fitted_copy(copy, model, parts.train, tables) for copy in fresh]
    found = paired(models, parts, k=k, random_state=seeds[0])
    return {
        "job": "compare",
        "figures": records(found.table),
        "verdict": found.sentences,
        "seconds": round(time.perf_counter() - started, 3),
    }
