"""Explain one score: what adds how much to it."""

from typing import Any, Literal

import pyarrow as pa

from simrec.jobs.options import Path
from simrec.jobs.shared.data import read_id, records, table_at


def explain(
    model: Path,
    *,
    user_id: str,
    item_id: str,
    items: Path | None = None,
    users: Path | None = None,
    unknown: Literal["error", "prior"] = "error",
) -> dict[str, Any]:
    """Tell what adds how much to the score of a user and an item.

    Parameters
    ----------
    model : path
        The model directory.
    user_id : str
        Id of the user.
    item_id : str
        Id of the item.
    items : path, optional
        Features of an item the model does not know.
    users : path, optional
        Features of a user the model does not know.
    unknown : str
        What to do with an id that has neither ratings nor features: error or prior (answer for an
        average entity).

    Returns
    -------
    dict
        ``score``, what it is before bounding (with a sigmoid output, its logit), and
        ``contributions``, one record each.
    """
    from simrec.model.two_tower import TwoTower

    loaded = TwoTower.load(model)
    user = read_id(user_id, loaded.users_, "user_id")
    item = read_id(item_id, loaded.items_, "item_id")
    tables: dict[str, Any] = {
        "items": table_at(items, "items"),
        "users": table_at(users, "users"),
    }
    parts = records(loaded.explain(user, item, **tables, unknown=unknown, output="arrow"))
    pair = pa.table({"user_id": [user], "item_id": [item]})
    score = loaded.predict(pair, **tables, unknown=unknown)
    return {
        "job": "explain",
        "user_id": user,
        "item_id": item,
        "score": round(float(score[0]), 6),
        "before_bounding": round(sum(part["contribution"] for part in parts), 6),
        "contributions": parts,
    }
