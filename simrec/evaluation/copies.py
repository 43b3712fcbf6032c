"""Copies of a model that learn from other ratings than it did, so that it can be tested."""

import copy
import logging
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

import pyarrow as pa

from simrec.data.ratings import Ratings
from simrec.data.sides import Sides
from simrec.errors import InputError, is_whole
from simrec.scoring.threads import processors

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


def unfitted_copy(
    model: Any,
    random_state: int | None = None,
    ratings: Ratings | None = None,
    quiet: bool = False,
) -> Any:
    """Make a model of the same settings that is yet to be fitted, with another seed if given.

    A model without bounds takes those of `ratings`, if given: all of them, where it is fitted to
    some. A `quiet` one shows no progress of its own.
    """
    if not hasattr(model, "get_params"):
        return copy.deepcopy(model)
    settings = dict(model.get_params())
    if random_state is not None and "random_state" in settings:
        settings["random_state"] = random_state
    if "keep_evidence" in settings:  # a copy is asked for intervals and learns later ratings
        settings["keep_evidence"] = True
    if quiet and "verbose" in settings:
        settings["verbose"] = 0
    if ratings is not None and ratings.has_ratings and settings.get("bounds", ()) is None:
        low, high = float(ratings.values.min()), float(ratings.values.max())
        settings["bounds"] = (low, high) if low < high else None
    return type(model)(**settings)


def check_tables(model: Any, tables: Sides[pa.Table | None]) -> None:
    """Refuse to train a copy of a model without the features that the model was trained with."""
    for side, tower in model.towers_.named():
        if tower.encoder is not None and tables[side] is None:
            raise InputError(
                f"the model was trained with features of {side}, and a copy of it has to be "
                f"trained to test it: give the table with --{side}."
            )


def fitted_copy(fresh: Any, model: Any, train: Ratings, tables: Sides[pa.Table | None]) -> Any:
    """Fit an unfitted copy of a model; a table that the model was not trained with is left out."""
    used = model.towers_.map(lambda tower, table: tower.encoder and table, tables)
    return fresh.fit(train, items=used.items, users=used.users)


def side_by_side(
    work: Callable[..., Result],
    names: Sequence[Any],
    arguments: Callable[[Any], tuple[Any, ...]],
    n_jobs: int,
) -> list[Result]:
    """Call ``work(*arguments(name))`` for each name; return the results in that order.

    With several jobs (-1: as many as there are processors) each call has a process of its own, and
    `work`, a function of a module, its arguments and its result are pickled.
    """
    if n_jobs == 0 or not is_whole(n_jobs, -1):
        raise InputError(f"n_jobs must be a whole number from 1 on, or -1; got {n_jobs!r}.")
    n, n_jobs = len(names), min(processors() if n_jobs == -1 else n_jobs, len(names))
    # A fork of a process with threads can hang, so processes start afresh.
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(n_jobs, spawn) if n_jobs > 1 else None
    results: list[Any] = []
    try:
        for place, name in enumerate(names, start=1):
            logger.info("%s (%d of %d)", name, place, n)
            call = pool.submit if pool else lambda work, *given: work(*given)
            results.append(call(work, *arguments(name)))
        for place, name in enumerate(names if pool else ()):
            results[place] = results[place].result()
            logger.info("%s done, %d left", name, n - place - 1)
    except BrokenProcessPool:
        raise InputError(
            f"n_jobs={n_jobs}: a process ended before its work. If memory was short, give n_jobs=1;"
            " in a script, call this below `if __name__ == '__main__':`."
        ) from None
    finally:
        if pool:
            pool.shutdown(cancel_futures=True)
    return results
