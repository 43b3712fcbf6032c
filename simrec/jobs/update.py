"""Update a model with new ratings, and save it as a new version."""

import logging
import time
from typing import Any

from simrec.jobs.io.claim import claim
from simrec.jobs.io.tables import DataOptions
from simrec.jobs.options import Path

logger = logging.getLogger(__name__)


def update(model: Path, data: DataOptions, out: Path) -> dict[str, Any]:
    """Learn new ratings, items and users into a trained model, without training again.

    Parameters
    ----------
    model : path
        The model directory to start from; it is left as it is.
    data : DataOptions
        The new ratings only, and features of new items and users.
    out : path
        The model directory to write; the new version names the old one as its parent.
    """
    from simrec.model.two_tower import TwoTower
    from simrec.storage.artifacts import check_replaceable

    check_replaceable(out)
    started = time.perf_counter()
    with claim(out, model=model, ratings=data.ratings, items=data.items, users=data.users):
        loaded = TwoTower.load(model)
        own = loaded.columns_
        ratings = data.load_ratings(loaded.rating_bounds(), own)
        loaded.update(ratings, items=data.load_items(own), users=data.load_users(own))
        loaded.save(out)
    learned = loaded.updates_[-1]
    for name, columns in learned["unknown_values"].items():
        for column, count in columns.items():
            logger.warning(
                "%s: %d have a value of %r that the model does not know", name, count, column
            )
    return {
        "job": "update",
        "out": str(out),
        "model_id": loaded.model_id_,
        **{name: value for name, value in learned.items() if name != "unknown_values"},
        "seconds": round(time.perf_counter() - started, 3),
    }
