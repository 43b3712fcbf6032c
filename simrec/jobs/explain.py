"""Explain one score: what adds how much to it."""

from typing import Any, Literal

import pyarrow as pa

from simrec.console import Id
from simrec.jobs.io.model import RankBy
from simrec.jobs.io.tables import NameOptions, read_id, records
from simrec.jobs.one_list import open_model, score_words, titles
from simrec.jobs.options import Path


def explain(
    model: Path,
    *,
    user_id: str,
    item_id: str,
    items: Path | None = None,
    users: Path | None = None,
    feedback: Path | None = None,
    rank_by: RankBy = "both",
    unknown: Literal["error", "prior"] = "error",
    name_column: str | None = None,
) -> dict[str, Any]:
    """Tell what adds how much to the score of a user and an item.

    Parameters
    ----------
    user_id : str
        Id of the user.
    item_id : str
        Id of the item.
    rank_by : str
        Which score to explain, as in recommend: both, rating or uptake.
    unknown : str
        What to do with an id that has neither ratings nor features: error or prior (answer for an
        average entity).

    Returns
    -------
    dict
        ``score``, as in the list; ``predicted``, as `score` predicts it; and ``contributions``, one
        record each, which sum to the score.
    """
    loaded, own = open_model(model, NameOptions(), feedback, items, users)
    user = read_id(user_id, loaded.users_, "user_id")
    item = read_id(item_id, loaded.items_, "item_id")
    tables: dict[str, Any] = {"items": items, "users": users, "unknown": unknown}
    parts = records(loaded.explain(user, item, rank_by=rank_by, **tables, output="arrow"))
    pair = pa.table({"user_id": [user], "item_id": [item]})
    named = titles(loaded, pair["item_id"], items, name_column, own)
    return {
        "job": "explain",
        own.user_id: Id.of(user),
        own.item_id: Id.of(item),
        **({"title": named[0]} if named else {}),
        "score": round(sum(part["contribution"] for part in parts), 6),
        "predicted": round(float(loaded.predict(pair, **tables)[0]), 6),
        "contributions": parts,
        "scores": score_words(loaded, rank_by),
    }
