"""Recommendations of the saved model with their reasons, for a few users."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from simrec.evaluation.report.subject import Subject

# What ratings say, in words.
_EVIDENCE = {
    ("user", "what was rated"): "which items the user rated",
    ("user", "how it was rated"): "how the user rated them",
    ("item", "what was rated"): "who rated the item",
    ("item", "how it was rated"): "how they rated the item",
}
# Values that cannot be shown in a few words.
_KINDS_OF_VALUE = ("vector", "text")


@dataclass(frozen=True)
class Reason:
    """What moved a score: words, and by how much."""

    words: str
    by: float


@dataclass(frozen=True)
class Recommended:
    """An item that was recommended.

    Attributes
    ----------
    name : str
        Its name.
    score : float
        Predicted rating, or probability to like it.
    reasons : list of Reason
        What moved the score most.
    near : list of str
        Items like it that the user rated high.
    """

    name: str
    score: float
    reasons: list[Reason]
    near: list[str]


@dataclass(frozen=True)
class Example:
    """A user, in words, what they rated highest, and what is recommended to them."""

    title: str
    facts: str
    liked: list[str]
    items: list[Recommended]


def examples(subject: Subject, k: int = 5) -> list[Example]:
    """Recommend to a user with many ratings, to one with few, and to a new one."""
    counts = np.asarray(subject.model.user_counts_)
    rated = np.flatnonzero(counts)
    if not len(rated):
        return []
    order = rated[np.argsort(counts[rated], kind="stable")]
    ids = subject.model.users_
    heavy, light = (int(order[int(q * (len(order) - 1))]) for q in (0.95, 0.05))
    chosen = [("A user with many ratings", heavy)]
    if light != heavy:
        chosen.append(("A user with few ratings", light))
    made = []
    for title, row in chosen:
        user = ids.take(np.array([row]))[0].as_py()
        title = f"{title}: user {user}, {counts[row]:,} ratings"
        made.append(_example(subject, title, user, None, k))
    made.append(_newcomer(subject, counts, int(order[len(order) // 2]), k))
    return made


def _newcomer(subject: Subject, counts: np.ndarray, middle: int, k: int) -> Example:
    """Recommend to a user without ratings; if all have some, to one with another's features."""
    ids, table = subject.model.users_, subject.users
    unrated = np.flatnonzero(counts == 0)
    if len(unrated):
        user = ids.take(unrated[:1])[0].as_py()
        return _example(subject, f"A new user: user {user}, no ratings", user, None, k)
    twin = ids.take(np.array([middle]))[0].as_py()
    last = ids.ids[-1].as_py()
    user = last + 1 if isinstance(last, int) else f"{last} new"
    if table is None or subject.model.user_encoder_ is None:
        return _example(subject, "A new user of whom nothing is known", user, None, k)
    row = table["user_id"].to_pylist().index(twin) if twin in table["user_id"].to_pylist() else 0
    new = table.slice(row, 1)
    place = new.column_names.index("user_id")
    new = new.set_column(place, "user_id", pa.array([user], new.schema.field("user_id").type))
    title = f"A new user with the features of user {twin}, no ratings"
    return _example(subject, title, user, new, k)


def _example(subject: Subject, title: str, user: Any, table: pa.Table | None, k: int) -> Example:
    model, ratings = subject.model, subject.ratings
    row = int(ratings.users.rows(pa.array([user], ratings.users.type))[0])
    mine = ratings.select(ratings.user_rows == row) if row >= 0 else None
    asked = table if table is not None else pa.array([user], model.users_.type)
    found = model.recommend(asked, k=k, exclude=ratings, unknown="prior")
    liked = _best(subject, mine)
    items = []
    for item, score in zip(found["item_id"].to_pylist(), found["score"].to_pylist(), strict=True):
        why = model.explain(user, item, users=table, unknown="prior")
        near = _near(subject, item, liked)
        items.append(Recommended(subject.name_of(item), score, reasons(why), near))
    names = [subject.name_of(item) for item in list(liked)[:3]]
    return Example(title, _facts(subject, user, table), names, items)


def _best(subject: Subject, mine: Any) -> dict[Any, float]:
    """Give the items a user rated above their own mean, best first."""
    if mine is None or not len(mine):
        return {}
    ids = mine.items.take(mine.item_rows).to_pylist()
    pairs = sorted(zip(ids, mine.values.tolist(), strict=True), key=lambda pair: -pair[1])
    return {item: value for item, value in pairs if value >= mine.mean}


def _near(subject: Subject, item: Any, liked: dict[Any, float], most: int = 2) -> list[str]:
    if not liked:
        return []
    alike = subject.model.similar_items(item, k=30)["item_id"].to_pylist()
    return [subject.name_of(other) for other in alike if other in liked][:most]


def _facts(subject: Subject, user: Any, table: pa.Table | None) -> str:
    source = table if table is not None else subject.users
    if source is None or subject.model.user_encoder_ is None:
        return ""
    ids = source["user_id"].to_pylist()
    if user not in ids:
        return ""
    row = source.slice(ids.index(user), 1).to_pylist()[0]
    shown = [f"{name} {value}" for name, value in row.items() if name != "user_id"]
    return ", ".join(shown[:6])


def reasons(why: pa.Table, most: int = 4) -> list[Reason]:
    """Put the largest contributions into words."""
    rows = why.to_pylist()
    rows.sort(key=lambda row: -abs(row["contribution"]))
    found = []
    for row in rows:
        side, feature, value = row["side"], row["feature"], row["value"]
        # What all share is no reason for one of them.
        if side == "model" or feature == f"average {side}" or abs(row["contribution"]) < 0.005:
            continue
        shown = f": {value}" if value and value not in _KINDS_OF_VALUE else ""
        words = _EVIDENCE.get((side, feature), f"{feature} of the {side}{shown}")
        found.append(Reason(words, row["contribution"]))
    return found[:most]
