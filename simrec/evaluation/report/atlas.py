"""The map of items: near one another where users' tastes for them agree."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from simrec.data.ids import IdMap
from simrec.evaluation.report.levels import MISSING, as_words, lists
from simrec.evaluation.report.subject import Subject

_POINTS, _COLOURS = 1200, 6
# The colour of whatever has none of its own.
REST = 6


@dataclass(frozen=True, eq=False)
class Atlas:
    """Items in two dimensions.

    Attributes
    ----------
    ids : list
        The items drawn.
    points : numpy.ndarray
        Where each is; distances are differences in users' predicted scores.
    kept : float
        Share of the differences in taste that two dimensions show.
    column : str or None
        The feature that tells most about where an item is.
    labels : list of str
        Its values that have a colour, the most frequent first.
    colours : numpy.ndarray
        Place in `labels` of each item, `REST` for all other values.
    counts : numpy.ndarray
        Ratings of each item.
    """

    ids: list[Any]
    points: np.ndarray
    kept: float
    column: str | None
    labels: list[str]
    colours: np.ndarray
    counts: np.ndarray


def atlas(subject: Subject, most: int = _POINTS) -> Atlas:
    """Lay the items of the saved model out: the most rated and a draw of the others."""
    model = subject.model
    counts = np.asarray(model.item_counts_)
    chosen = _choose(counts, most, subject.seed)
    taste = _tastes(np.asarray(model.item_vectors_), np.asarray(model.user_vectors_))
    centred = taste - taste.mean(axis=0)
    _, values, axes = np.linalg.svd(centred, full_matrices=False)
    points = centred @ axes[:2].T
    if points.shape[1] < 2:
        points = np.pad(points, ((0, 0), (0, 2 - points.shape[1])))
    total = float((values**2).sum())
    kept = float((values[:2] ** 2).sum()) / total if total else 1.0
    ids = model.items_.take(chosen).to_pylist()
    column, labels, colours = _colour(subject, model.items_, chosen, points[chosen])
    return Atlas(ids, points[chosen], kept, column, labels, colours, counts[chosen])


def _choose(counts: np.ndarray, most: int, seed: int) -> np.ndarray:
    order = np.argsort(-counts, kind="stable")
    if len(order) <= most:
        return order
    rest = np.random.default_rng(seed).choice(order[most // 2 :], most - most // 2, replace=False)
    return np.concatenate([order[: most // 2], rest[np.argsort(-counts[rest], kind="stable")]])


def _tastes(items: np.ndarray, users: np.ndarray) -> np.ndarray:
    """Give items coordinates whose distances are those of their scores over all users.

    What all users agree on (the item's overall level) is left out: it is no matter of taste.
    """
    spread = users - users.mean(axis=0)
    values, vectors = np.linalg.eigh(spread.T.astype(np.float64) @ spread / len(users))
    return items @ vectors * np.sqrt(np.clip(values, 0, None))


def _colour(
    subject: Subject, ids: IdMap, chosen: np.ndarray, points: np.ndarray
) -> tuple[str | None, list[str], np.ndarray]:
    """Find the feature whose values lie most apart on the map."""
    best: tuple[float, str | None, list[str], np.ndarray] = (
        0.0,
        None,
        [],
        np.zeros(len(chosen), np.int64),
    )
    table, encoder = subject.items, subject.model.item_encoder_
    if table is None or encoder is None:
        return best[1:]
    known = IdMap.from_values(table["item_id"])
    order = np.argsort(known.rows(table["item_id"]))
    found = known.rows(ids.take(chosen))
    rows = np.where(found >= 0, order[found], -1)
    for column, kind in encoder.columns_.items():
        if kind not in ("category", "list"):
            continue
        words = as_words(table[column]) if kind == "category" else _first(table[column])
        mine = np.where(rows >= 0, words[rows], MISSING)
        names, counts = np.unique(mine[mine != MISSING].astype(str), return_counts=True)
        labels = [str(n) for n in names[np.argsort(-counts, kind="stable")][:_COLOURS]]
        place = {label: number for number, label in enumerate(labels)}
        colours = np.array([place.get(word, REST) for word in mine])
        told = _told(points, colours, len(labels))
        if told > best[0]:
            best = (told, column, labels, colours)
    return best[1:]


def _first(values: Any) -> np.ndarray:
    """Give the first element of each list."""
    rows, words = lists(values)
    found = np.full(len(values), MISSING, dtype=object)
    found[rows[::-1]] = words[::-1]
    return found


def _told(points: np.ndarray, colours: np.ndarray, n: int) -> float:
    """Give the share of the spread that groups explain, less what chance would."""
    inside = colours != REST
    if n < 2 or inside.sum() <= n + 1:
        return 0.0
    some, groups = points[inside], colours[inside]
    total = ((some - some.mean(axis=0)) ** 2).sum()
    means = np.array([some[groups == g].mean(axis=0) for g in range(n)])
    within = ((some - means[groups]) ** 2).sum()
    left = (within / (len(some) - n)) / (total / (len(some) - 1)) if total else 1.0
    # Of features that tell equally much, the one that colours more of the map.
    return float((1 - left) * inside.mean())
