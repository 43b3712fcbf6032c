"""Recommendations of the saved model with their reasons, for a few users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from simrec.evaluation.report.alerts import is_sensitive
from simrec.evaluation.report.html import plural
from simrec.evaluation.report.tested_model import TestedModel

# What the ratings of an entity say, by the names `TwoTower.explain` gives to it.
_HISTORY = {
    "who rated it": "who rated the item",
    "how it was rated": "how much the item is liked",
    "what they rated": "which items the user chose",
    "how they rated": "what the user likes",
}
# Values that are no words: kinds of features, and what stands for a value training never saw.
_NO_VALUES = ("vector", "text", "<unknown>", "unknown", "missing", "")
_SHOWN = 3


@dataclass(frozen=True)
class Reason:
    """What moved a score: words, by how much, and whether the words are about people."""

    words: str
    by: float
    sensitive: bool


@dataclass(frozen=True)
class Recommended:
    """An item that was recommended: its name, its score and the reasons for it."""

    name: str
    score: float
    reasons: list[Reason]


@dataclass(frozen=True)
class Example:
    """A user, in words, what they rated highest, and what is recommended to them."""

    title: str
    liked: list[str]
    items: list[Recommended]


def examples(tested: TestedModel, k: int = 5) -> list[Example]:
    """Recommend to a user with many ratings, to one with fewer, and to a new one."""
    model = tested.model
    counts = np.asarray(model.towers_.users.counts)
    rated = np.flatnonzero(counts)
    if not len(rated):
        return []
    order = rated[np.argsort(counts[rated], kind="stable")]
    heavy, light = (int(order[int(q * (len(order) - 1))]) for q in (0.95, 0.05))
    made = []
    for row in [heavy] if counts[heavy] == counts[light] else [heavy, light]:
        user = model.users_.ids[row].as_py()
        made.append(_example(tested, f"User {user}: {plural(int(counts[row]), 'rating')}", user, k))
    made.append(_newcomer(tested, int(order[len(order) // 2]), k))
    return made


def _newcomer(tested: TestedModel, middle: int, k: int) -> Example:
    """Recommend to a user the model has never met, with the features of one it knows if any."""
    ids, table = tested.model.users_, tested.users
    last = ids.ids[-1].as_py()
    user = last + 1 if isinstance(last, int) else f"{last} new"
    if table is None or tested.model.towers_.users.encoder is None:
        return _example(tested, "A new user of whom nothing is known", user, k)
    known = table["user_id"].to_pylist()
    twin = ids.ids[middle].as_py()
    new = table.slice(known.index(twin) if twin in known else 0, 1)
    place = new.column_names.index("user_id")
    new = new.set_column(place, "user_id", pa.array([user], new.schema.field("user_id").type))
    title = f"A new user without ratings, with the features of user {twin}"
    return _example(tested, title, user, k, new)


def _example(
    tested: TestedModel, title: str, user: Any, k: int, table: pa.Table | None = None
) -> Example:
    model, ratings = tested.model, tested.ratings
    asked = table if table is not None else pa.array([user], model.users_.type)
    found = model.recommend(asked, k=k, exclude=ratings, unknown="prior", output="arrow")
    items = []
    for item, score in zip(found["item_id"].to_pylist(), found["score"].to_pylist(), strict=True):
        why = []
        if model.keep_evidence:  # without it a model only scores
            told = model.explain(user, item, users=table, unknown="prior", output="arrow")
            why = reasons(told)
        items.append(Recommended(tested.name_of(item), score, why))
    return Example(title, _liked(tested, user), items)


def _liked(tested: TestedModel, user: Any, most: int = 3) -> list[str]:
    """Name the items a user rated highest; none where there are no ratings."""
    ratings = tested.ratings
    row = int(ratings.users.rows(pa.array([user], ratings.users.type))[0])
    if row < 0 or not tested.rates:
        return []
    mine = ratings.select(ratings.user_rows == row)
    best = np.argsort(-mine.values, kind="stable")[:most]
    return [tested.name_of(item) for item in mine.items.take(mine.item_rows[best]).to_pylist()]


def reasons(why: pa.Table, most: int = 4) -> list[Reason]:
    """Put the largest contributions of a table of `TwoTower.explain` into words."""
    rows = sorted(why.to_pylist(), key=lambda row: -abs(row["contribution"]))
    found = []
    for row in rows:
        side, feature, value = row["side"], row["feature"], row["value"]
        # What all share is no reason for one of them.
        if side == "model" or feature == f"average {side}" or abs(row["contribution"]) < 0.005:
            continue
        words = _HISTORY.get(feature)
        if words is None:
            shown = _shorten(value)
            words = f"the {side}'s {feature}" + (f": {shown}" if shown else "")
        about_people = side == "user" and is_sensitive(feature)
        found.append(Reason(words, row["contribution"], about_people))
    return found[:most]


def _shorten(value: str) -> str:
    """Show the first of several values, and how many more there are."""
    parts = [part for part in str(value).split(", ") if part not in _NO_VALUES]
    more = f" and {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else ""
    text = ", ".join(
        part if len(part) <= 30 else part[:28].rstrip() + "…" for part in parts[:_SHOWN]
    )
    return text + more
