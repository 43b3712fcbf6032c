"""Explain one score: what adds how much to it."""

from typing import Any, Literal

import pyarrow as pa

from simrec.errors import InputError
from simrec.jobs.io.discover import is_remote_or_glob, open_source
from simrec.jobs.options import Path


def explain(
    model: Path,
    user: str,
    item: str,
    users: Path | None = None,
    items: Path | None = None,
    unknown: Literal["error", "prior"] = "error",
) -> dict[str, Any]:
    """Tell what adds how much to the score of a user and an item.

    Parameters
    ----------
    model : path
        The model directory.
    user : str
        Id of the user.
    item : str
        Id of the item.
    users : path, optional
        Features of a user the model does not know.
    items : path, optional
        Features of an item the model does not know.
    unknown : str
        What to do with an id that has neither ratings nor features: error or prior (answer for an
        average entity).

    Returns
    -------
    dict
        ``score``, what it is before bounding, and ``contributions``, one record each.
    """
    from simrec.model.two_tower import TwoTower

    loaded = TwoTower.load(model)
    tables: dict[str, Any] = {
        name: open_source(path, name).read() if path and is_remote_or_glob(path) else path
        for name, path in {"users": users, "items": items}.items()
    }
    user_id = _id(user, loaded.users_.type, "user")
    item_id = _id(item, loaded.items_.type, "item")
    parts = loaded.explain(user_id, item_id, **tables, unknown=unknown)
    pair = pa.table({"user_id": [user_id], "item_id": [item_id]})
    score = loaded.predict(pair, **tables, unknown=unknown)
    return {
        "job": "explain",
        "user_id": user_id,
        "item_id": item_id,
        "score": float(score[0]),
        "before_bounding": float(sum(parts["contribution"].to_pylist())),
        "contributions": parts.to_pylist(),
    }


def _id(text: str, kind: pa.DataType, name: str) -> Any:
    if not pa.types.is_integer(kind):
        return text
    try:
        return int(text)
    except ValueError:
        raise InputError(
            f"{name}: the model's {name} ids are whole numbers, got {text!r}"
        ) from None
