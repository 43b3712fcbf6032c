"""Copies of a model that learn from other ratings than it did, so that it can be tested."""

import copy
from typing import Any

import pyarrow as pa

from simrec.data.ratings import Ratings
from simrec.data.sides import Sides
from simrec.errors import InputError


def unfitted_copy(
    model: Any,
    random_state: int | None = None,
    ratings: Ratings | None = None,
    quiet: bool = False,
) -> Any:
    """Make a model of the same settings that is yet to be fitted, with another seed if given.

    A model without bounds takes those of the ratings it is fitted to. Where it is then to learn
    from others, `ratings` are all of them, and their bounds are the copy's. A `quiet` one shows no
    progress of its own.
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
