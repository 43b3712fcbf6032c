"""Later ratings, new entities, and entities to forget: a model after fitting."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from simrec.data.ids import IdMap, one_or_several
from simrec.data.ratings import Ratings
from simrec.data.sides import Side, Sides
from simrec.data.tables import TableLike
from simrec.errors import InputError
from simrec.model.part import LaterRatings, NewRows, Part
from simrec.model.tower import Tower
from simrec.model.update.add_entities import add_entities, unknown_values
from simrec.untrusted import is_finite

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class State:
    """What later ratings and entities change of a model.

    Attributes
    ----------
    towers : Sides of Tower
        Items and users.
    parts : mapping of str to Part
        What was learned.
    rated : csr_matrix
        Users x items: confidence in each pair that was rated, stored where there is one.
    """

    towers: Sides[Tower]
    parts: Mapping[str, Part]
    rated: sparse.csr_matrix


def rows_of_ratings(ratings: Ratings, towers: Sides[Tower]) -> Sides[np.ndarray]:
    """Return the rows of the towers that each rating belongs to."""
    return Sides(
        towers.items.ids.rows(ratings.items.ids)[ratings.item_rows],
        towers.users.ids.rows(ratings.users.ids)[ratings.user_rows],
    )


def rated_matrix(
    rows: Sides[np.ndarray], sizes: Sides[int], weights: np.ndarray | None = None
) -> sparse.csr_matrix:
    """Return users x items with the confidence in each pair of rows, 1 without weights."""
    values = np.ones(len(rows.users)) if weights is None else weights
    entries = (values.astype(np.float32), (rows.users, rows.items))
    return sparse.csr_matrix(entries, shape=(sizes.users, sizes.items))


def learn(
    state: State, ratings: Ratings | None, tables: Sides[TableLike | None], only_new: bool
) -> tuple[State, dict[str, Any]]:
    """Learn from later ratings; return the new state, and what was learned.

    Parameters
    ----------
    state : State
        The model so far; it stays as it is.
    ratings : Ratings or None
        The ratings.
    tables : Sides of table-like or None
        Features of entities without ratings so far.
    only_new : bool
        Whether only entities without ratings so far learn from them.
    """
    before = state.towers
    none = before.map(lambda tower: IdMap(tower.ids.ids[:0]))
    named = none if ratings is None else Sides(ratings.items, ratings.users)
    grown = before.map(add_entities, named, tables)
    towers, new = grown.map(lambda pair: pair[0]), grown.map(lambda pair: pair[1])
    parts = {name: part.with_new(new) for name, part in state.parts.items()}
    sizes = towers.map(lambda tower: len(tower.ids))
    rated = _grown_rated(state.rated, new, sizes)
    learned = Sides(np.empty(0, np.int64), np.empty(0, np.int64))
    n_used = 0
    if ratings is not None and len(ratings):
        counts = towers.map(lambda tower: tower.counts)
        later = _later(ratings, towers, counts, only_new)
        rated = _with_pairs(rated, rated_matrix(later.rows, sizes, later.weights))
        for name, part in parts.items():
            parts[name], moved = _learned(part, counts, later, rated, only_new)
            learned = learned.map(np.union1d, moved)
        towers = _counted(towers, later, learned)
        n_used = len(later.values)
    report = {
        "ratings": n_used,
        "items": len(learned.items),
        "users": len(learned.users),
        "new_items": len(towers.items.ids) - len(before.items.ids),
        "new_users": len(towers.users.ids) - len(before.users.ids),
        "unknown_values": {
            side: found
            for side, tower in before.named()
            if (found := unknown_values(tower, new[side]))
        },
    }
    return State(towers, parts, rated), report


def _learned(
    part: Part,
    counts: Sides[np.ndarray],
    later: LaterRatings,
    rated: sparse.csr_matrix,
    only_new: bool,
) -> tuple[Part, Sides[np.ndarray]]:
    """Let a part learn from ratings; refuse vectors that are no finite numbers."""
    try:
        made, moved = part.with_ratings(counts, later, rated, only_new)
        if all(is_finite(np.asarray(head.vectors)) for head in made.heads):
            return made, moved
    except np.linalg.LinAlgError:
        pass  # of matrices that are not finite, or not those of any fit
    raise InputError(
        f"ratings: learning them gives {part.name} vectors that are no finite numbers. The model "
        "is damaged, and stays as it was: train it again."
    )


def forget(state: State, user_ids: Any) -> State:
    """Remove users: ids, features, vectors and all that was learned of them."""
    tower = state.towers.users
    values = one_or_several(user_ids, "user_id")
    if not len(values):
        return state
    rows = tower.ids.rows(values, "user_id")
    if (rows < 0).any():
        missing = np.flatnonzero(rows < 0)
        raise InputError(
            f"user_id: {len(missing)} users to forget are not in the model, for example "
            f"{values[int(missing[0])].as_py()!r}."
        )
    keep = np.setdiff1d(np.arange(len(tower.ids)), rows)
    if not len(keep):
        raise InputError("user_id: a model cannot forget all of its users.")
    users = replace(
        tower,
        ids=IdMap(tower.ids.take(keep)),
        counts=tower.counts[keep],
        features=tower.features[keep],
    )
    parts = {name: part.without("users", keep) for name, part in state.parts.items()}
    return State(Sides(state.towers.items, users), parts, state.rated[keep])


def _later(
    ratings: Ratings, towers: Sides[Tower], counts: Sides[np.ndarray], only_new: bool
) -> LaterRatings:
    """Find the rows of later ratings; with `only_new`, keep those that someone learns from."""
    rows = rows_of_ratings(ratings, towers)
    features = towers.map(lambda tower: tower.features)
    later = LaterRatings(rows, ratings.values, ratings.weights, features)
    if not only_new:
        return later
    new = (counts.items[rows.items] == 0) | (counts.users[rows.users] == 0)
    if not new.all():
        logger.warning(
            "fold_in: %d of %d ratings are of users and items that both have ratings already, and "
            "change nothing; update learns from them",
            int((~new).sum()),
            len(new),
        )
    weights = None if ratings.weights is None else ratings.weights[new]
    return LaterRatings(rows.map(lambda one: one[new]), ratings.values[new], weights, features)


def _with_pairs(rated: sparse.csr_matrix, more: sparse.csr_matrix) -> sparse.csr_matrix:
    """Add confidences. SciPy's own sum would drop pairs of confidence 0, which were rated too."""
    a, b = rated.tocoo(), more.tocoo()
    places = (np.concatenate([a.row, b.row]), np.concatenate([a.col, b.col]))
    return sparse.csr_matrix((np.concatenate([a.data, b.data]), places), shape=rated.shape)


def _grown_rated(
    rated: sparse.csr_matrix, new: Sides[NewRows], sizes: Sides[int]
) -> sparse.csr_matrix:
    """Put the rows of users and columns of items where they stand in the grown towers."""
    pairs = rated.tocoo()
    before = Sides(rated.shape[1], rated.shape[0])

    def place(rows: NewRows, n_before: int) -> np.ndarray:
        # Entities without ratings may have been replaced by themselves with other features.
        places = np.full(n_before + len(rows.has_features), -1, np.int64)
        places[rows.order] = np.arange(len(rows.order))
        return places

    places = new.map(place, before)
    rows = Sides(places.items[pairs.col], places.users[pairs.row])
    return rated_matrix(rows, sizes, pairs.data)


def _counted(towers: Sides[Tower], later: LaterRatings, learned: Sides[np.ndarray]) -> Sides[Tower]:
    """Add the ratings that each entity has learned from to its count."""

    def counted(side: Side) -> Tower:
        tower, rows = towers[side], later.rows[side]
        rows = rows[np.isin(rows, learned[side])]
        return replace(tower, counts=tower.counts + np.bincount(rows, minlength=len(tower.ids)))

    return Sides.of(counted)
