"""Compare two models: which is better at what, or that it cannot be told."""

import time
from dataclasses import replace
from typing import Any

from simrec.jobs.evaluate import HoldOut, records
from simrec.jobs.options import Path
from simrec.jobs.train import DataOptions


def compare(
    a: Path,
    b: Path,
    data: DataOptions,
    pairs: Path | None = None,
    seeds: tuple[int, ...] = (0, 1, 2),
    k: int = 10,
    hold_out: HoldOut = HoldOut(),  # noqa: B008 (frozen)
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
        ``figures``: a record for each task and metric with the difference and its interval;
        ``value`` and ``other_value``: whose figures these are; ``verdict``: sentences.
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
    own = first.columns_
    ratings = data.load_ratings(first.bounds, own)
    if pairs is not None:
        later = replace(data, ratings=pairs)
        parts = split_by_known(ratings, later.load_ratings(first.bounds, own))
    else:
        tables = Sides(data.load_items(own), data.load_users(own))
        for model in models.values():
            check_tables(model, tables)
        parts = hold_out.of(ratings)(seeds[0])
        for name, model in models.items():
            fresh = [unfitted_copy(model, seed) for seed in seeds]
            models[name] = [fitted_copy(copy, model, parts.train, tables) for copy in fresh]
    found = paired(models, parts, k=k, random_state=seeds[0])
    return {
        "job": "compare",
        "figures": records(found.table),
        "value": found.table["model"].iloc[0],
        "other_value": found.table["other"].iloc[0],
        "verdict": found.sentences,
        "seconds": round(time.perf_counter() - started, 3),
    }
