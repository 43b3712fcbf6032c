"""Recommendations of the saved model with their reasons, for a few users."""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from simrec.evaluation.report.tested_model import TestedModel, is_sensitive

# What the ratings of an entity say, by the names `TwoTower.explain` gives to it.
_HISTORY = {
    "who rated it": "who chose the item",
    "who took it up": "who chose the item",
    "how it was rated": "how much the item is liked",
    "what they rated": "which items the user chose",
    "what they took up": "which items the user chose",
    "how they rated": "what the user likes",
}
# Values that are no words: kinds of features, and what stands for a value training never saw.
_NO_VALUES = ("vector", "text", "sentences", "image", "<unknown>", "unknown", "missing", "")
# Most reasons, or values, that are shown; share of the largest reason that is none.
_SHOWN, _SMALL = 3, 0.05


class Reason(NamedTuple):
    """What moved a score: words, by how much, and whether the words are about people."""

    words: str
    by: float
    sensitive: bool


class Example(NamedTuple):
    """A user in words, what they rated highest; recommendations: name, rating if any, reasons."""

    title: str
    liked: list[str]
    items: list[tuple[str, float | None, list[Reason]]]


def examples(tested: TestedModel, k: int = 5) -> list[Example]:
    """Recommend to a user with many ratings, to one with fewer, and to a new one."""
    ids, counts = tested.model.users_, np.asarray(tested.model.towers_.users.counts)
    rated = np.flatnonzero(counts)
    if not len(rated):
        return []
    order = rated[np.argsort(counts[rated], kind="stable")]
    heavy, middle, light = (int(order[int(q * (len(order) - 1))]) for q in (0.95, 0.5, 0.05))
    made = []
    for row in [heavy] if counts[heavy] == counts[light] else [heavy, light]:
        user, n = ids.take([row])[0].as_py(), int(counts[row])
        title = f"User {user}: {n:,} {tested.unit}{'s' * (n != 1)}"
        made.append(_example(tested, title, user, k))
    # A user the model has never met, with the features of one it knows if there are any.
    last, twin = ids.take([len(ids) - 1, middle]).to_pylist()
    user = last + 1 if isinstance(last, int) else f"{last} new"
    table = tested.tables.users
    if table is None or tested.model.towers_.users.encoder is None:
        return [*made, _example(tested, "A new user of whom nothing is known", user, k)]
    known = table["user_id"].to_pylist()
    new = table.slice(known.index(twin) if twin in known else 0, 1)
    place = new.column_names.index("user_id")
    new = new.set_column(place, "user_id", pa.array([user], new.schema.field("user_id").type))
    title = f"A new user without {tested.unit}s, with the features of user {twin}"
    return [*made, _example(tested, title, user, k, new)]


def _example(
    tested: TestedModel, title: str, user: Any, k: int, table: pa.Table | None = None
) -> Example:
    model, ratings = tested.model, tested.ratings
    who = table if table is not None else pa.array([user], model.users_.type)
    found = model.recommend(who, k=k, exclude=ratings, unknown="prior", output="arrow")
    how: dict[str, Any] = {"users": table, "unknown": "prior"}
    items = []
    for item in found[model.columns_.item_id].to_pylist():
        rating = float(model.predict(user, item, **how)[0]) if tested.rates else None
        why = []
        if model.keep_evidence:  # without it a model only scores
            why = reasons(model.explain(user, item, rank_by="both", output="arrow", **how))
        items.append((tested.name_of(item), rating, why))
    liked, row = list[str](), ratings.users.rows(pa.array([user], ratings.users.type))[0]
    if row >= 0 and tested.rates:
        mine = ratings.select(ratings.user_rows == row)
        best = mine.item_rows[np.argsort(-mine.values, kind="stable")[:_SHOWN]]
        liked = [tested.name_of(item) for item in mine.items.take(best).to_pylist()]
    return Example(title, liked, items)


def reasons(why: pa.Table, most: int = _SHOWN) -> list[Reason]:
    """Put the largest contributions of a table of `TwoTower.explain` into words.

    What a feature adds to the rating and to uptake is one reason; what is small beside the largest
    is none.
    """
    moved: dict[tuple[str, bool], float] = {}
    for row in why.to_pylist():
        side, feature = row["side"], row["feature"].split(": ", 1)[-1]
        # What all share is no reason for one of them.
        if side == "model" or feature == f"average {side}":
            continue
        value, history = row["value"], _HISTORY.get(feature)
        if history:  # of "20 ratings; liked A, B" what was liked
            value = value.partition("; ")[2].removeprefix("liked ").removeprefix("took up ")
        shown = _shorten(value)
        words = (history or f"the {side}'s {feature}") + (f": {shown}" if shown else "")
        key = (words, side == "user" and is_sensitive(feature))
        moved[key] = moved.get(key, 0.0) + row["contribution"]
    least = max(0.005, _SMALL * max(map(abs, moved.values()), default=0))
    found = [Reason(words, by, about) for (words, about), by in moved.items() if abs(by) >= least]
    return sorted(found, key=lambda reason: -abs(reason.by))[:most]


def _shorten(value: str) -> str:
    """Show the first of several values, and how many more there are."""
    parts = [part for part in str(value).split(", ") if part not in _NO_VALUES]
    more = f" and {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else ""
    return ", ".join(p if len(p) <= 30 else f"{p[:28].rstrip()}…" for p in parts[:_SHOWN]) + more
