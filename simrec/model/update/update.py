"""A model after fitting: later ratings, new entities, entities to forget, and guests.

A guest model has all items of the model and only the users asked for, so that folding in costs by
their ratings, whatever the number of users. Only the guests learn; items stay as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from scipy import sparse

from simrec.data.id_columns import one_or_several
from simrec.data.ids import IdMap
from simrec.data.ratings import Ratings, liked_from
from simrec.data.sides import Side, Sides
from simrec.data.tables import TableLike
from simrec.errors import InputError
from simrec.model.lists.fading import day_of
from simrec.model.lists.uptake import UptakePart
from simrec.model.part import Arrived, LaterRatings, NewRows, Part, learners
from simrec.model.rating.part import RatingPart
from simrec.model.tower import Tower
from simrec.model.update.add_entities import add_entities, unknown_values
from simrec.storage.arrays import Array, Sparse, is_finite

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class State:
    """What later ratings and entities change of a model."""

    towers: Sides[Tower]
    parts: Mapping[str, Part]
    rated: Sparse  # users x items: what each pair counts in a history
    liked: Sparse | None = None  # users x items: pairs that were rated as liked

    def only_users(self, rows: np.ndarray) -> State:
        """Keep some users, by their rows."""
        tower = self.towers.users
        ids = IdMap(tower.ids.take(rows)) if len(rows) else tower.ids.none()
        users = replace(tower, ids=ids, counts=tower.counts[rows], features=tower.features[rows])
        parts = {name: part.only_users(rows) for name, part in self.parts.items()}
        liked = None if self.liked is None else self.liked[rows]
        return State(Sides(self.towers.items, users), parts, self.rated[rows], liked)


def grown(
    state: State, named: Sides[IdMap], tables: Sides[TableLike | None]
) -> tuple[State, Sides[NewRows]]:
    """Make room for new entities: ids that are named, and rows of tables of features."""
    both = state.towers.map(add_entities, named, tables)
    new = both.map(lambda pair: pair[1])
    if not any(len(one.has_features) for one in new):
        return state, new
    parts = {name: part.with_new(new) for name, part in state.parts.items()}
    towers = both.map(lambda pair: pair[0])
    liked = None if state.liked is None else _grown_rated(state.liked, new)
    return State(towers, parts, _grown_rated(state.rated, new), liked), new


def learn(
    state: State, ratings: Ratings | None, tables: Sides[TableLike | None], only_new: Sides[bool]
) -> tuple[State, dict[str, Any]]:
    """Learn from later ratings; return the new state, and what was learned."""
    before = state.towers
    named = (
        before.map(lambda tower: tower.ids.none())
        if ratings is None
        else Sides(ratings.items, ratings.users)
    )
    state, new = grown(state, named, tables)
    learned = Sides(np.empty(0, np.int64), np.empty(0, np.int64))
    n_used = 0
    if ratings is not None and len(ratings):
        later = _later(ratings, state.towers, only_new)
        state, learned = _with_later(state, later, only_new)
        n_used = len(later.values)
    towers = state.towers
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
    return state, report


def _with_later(
    state: State, later: LaterRatings, only_new: Sides[bool]
) -> tuple[State, Sides[np.ndarray]]:
    """Learn from ratings of entities that have their rows; return also who has learned."""
    rated, liked, parts, every = state.rated, state.liked, dict(state.parts), []
    counts = state.towers.map(lambda tower: tower.counts)
    uptake = parts.get("uptake")
    counted = np.ones(len(later.values), np.float32)
    if isinstance(uptake, UptakePart):
        counted = uptake.weight(later.values)
    rated, again = _with_pairs(rated, later.rows, counted)
    later = replace(later, again=again)
    if isinstance(uptake, UptakePart):
        rows = learners(counts, later, only_new).items
        rows = rows[~np.asarray(uptake.fitted)[rows]]
        pairs = counts.items + np.bincount(later.rows.items[~again], minlength=len(counts.items))
        later = replace(later, arrived=Arrived(rows, uptake.known(pairs)[rows]))
    rating = parts.get("rating")
    if liked is not None and isinstance(rating, RatingPart):
        good = later.values >= liked_from(rating.bounds)
        # A pair that is rated again, and not liked then, is liked no more.
        liked, _ = _with_pairs(liked, later.rows, good)
        liked.eliminate_zeros()
    for name, part in parts.items():
        parts[name], moved = _learned(part, counts, later, rated, only_new)
        every.append(moved)
    learned = Sides.of(lambda side: np.unique(np.concatenate([one[side] for one in every])))
    return State(_counted(state.towers, later, learned), parts, rated, liked), learned


def _learned(
    part: Part, counts: Sides[Array], later: LaterRatings, rated: Sparse, only_new: Sides[bool]
) -> tuple[Part, Sides[np.ndarray]]:
    """Let a part learn from ratings; refuse vectors that are no finite numbers."""
    try:
        made, moved = part.with_ratings(counts, later, rated, only_new)
        changed = made.heads.map(lambda head, rows: np.asarray(head.vectors[rows]), moved)
        if all(is_finite(vectors) for vectors in changed):
            return made, moved
    except np.linalg.LinAlgError:
        saved, most = part.saved(), np.sqrt(np.finfo(np.float32).max)
        arrays = {**saved.arrays, **saved.whole("items"), **saved.whole("users")}.values()
        # Numbers whose squares are infinite, as no fit gives them; else the method has failed.
        if not any(a.dtype.kind == "f" and a.size and np.abs(a).max() > most for a in arrays):
            raise
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
    gone = np.unique(rows)
    if len(gone) == len(tower.ids):
        raise InputError("user_id: a model cannot forget all of its users.")
    return state.only_users(np.delete(np.arange(len(tower.ids)), gone))


def _later(ratings: Ratings, towers: Sides[Tower], only_new: Sides[bool]) -> LaterRatings:
    """Find the rows of later ratings; with `only_new`, keep those that someone learns from."""
    rows = Sides(
        towers.items.ids.rows(ratings.items.ids)[ratings.item_rows],
        towers.users.ids.rows(ratings.users.ids)[ratings.user_rows],
    )
    features = towers.map(lambda tower: tower.features)
    later = LaterRatings(rows, ratings.values, features, day_of(ratings))
    if not all(only_new):
        return later
    new = (towers.items.counts[rows.items] == 0) | (towers.users.counts[rows.users] == 0)
    if not new.all():
        logger.warning(
            "fold_in: %d of %d ratings are of users and items that both have ratings already, and "
            "change nothing; update learns from them",
            int((~new).sum()),
            len(new),
        )
    at = None if later.at is None else later.at[new]
    return LaterRatings(rows.map(lambda one: one[new]), later.values[new], features, at)


def _with_pairs(
    rated: Sparse, rows: Sides[np.ndarray], values: np.ndarray
) -> tuple[sparse.csr_matrix, np.ndarray]:
    """Set the values of later pairs, the last one of each; return also which were there before."""
    n, n_items = rated.shape
    own = np.repeat(np.arange(n, dtype=np.int64), np.diff(rated.indptr))
    places, data = own * n_items + rated.indices, np.array(rated.data)
    keys = rows.users.astype(np.int64) * n_items + rows.items
    later, last, own_place = np.unique(keys[::-1], return_index=True, return_inverse=True)
    values = values[::-1][last].astype(data.dtype)
    at = np.searchsorted(places, later)
    again = at < len(places)
    again[again] = places[at[again]] == later[again]
    data[at[again]] = values[again]
    new = at[~again]
    users, items = np.divmod(later[~again], n_items)
    made = (
        np.insert(data, new, values[~again]),
        np.insert(rated.indices, new, items),
        rated.indptr + np.searchsorted(users, np.arange(n + 1)),
    )
    return sparse.csr_matrix(made, shape=rated.shape), again[own_place][::-1]


def _grown_rated(rated: Sparse, new: Sides[NewRows]) -> Sparse:
    """Put the rows of users and columns of items where they stand in the grown towers."""
    none = sparse.csr_matrix((len(new.users.has_features), rated.shape[1]), dtype=np.int8)
    rated = new.users.insert(rated, none, replace=False)
    order, places = new.items.insert.order, new.items.insert.places
    if order is None or places is None:
        return rated
    pieces = (rated.data, places[rated.indices].astype(rated.indices.dtype), rated.indptr)
    return sparse.csr_matrix(pieces, shape=(rated.shape[0], len(order)))


def _counted(towers: Sides[Tower], later: LaterRatings, learned: Sides[np.ndarray]) -> Sides[Tower]:
    """Add the ratings that each entity has learned from to its count, each pair once."""
    new = slice(None) if later.again is None else ~later.again

    def counted(side: Side) -> Tower:
        tower, rows = towers[side], later.rows[side][new]
        if not len(learned[side]):
            return tower
        rows, times = np.unique(rows[np.isin(rows, learned[side])], return_counts=True)
        counts = np.array(tower.counts, np.int64)
        counts[rows] += times
        return replace(tower, counts=counts)

    return Sides.of(counted)


class Guests:
    """Makes guest models of one state of a model."""

    def __init__(self, state: State) -> None:
        self.state = state
        items = state.towers.items
        # Items that count as rated do not learn.
        self._items = replace(items, counts=np.maximum(items.counts, 1), table=None)
        self._spread: np.ndarray | None = None
        self._newcomer: State | None = None

    def __call__(
        self, ids: Sequence[pa.ChunkedArray], ratings: Ratings | None, users: TableLike | None
    ) -> State:
        """Return the state of a guest model."""
        tower, learners = self.state.towers.users, Sides(True, False)  # all users, and no item
        items = np.empty(0, np.int64)
        if ratings is not None:
            items = self._items.ids.rows(ratings.items.ids, "item_id")
            if (items < 0).any():
                raise InputError(
                    f"item_id: {int((items < 0).sum())} of the rated items are not in the model, "
                    f"for example {ratings.items.ids[int(np.argmin(items))].as_py()!r}; fold_in or "
                    "update adds items."
                )
        rows = np.concatenate([tower.ids.rows(some, tower.id_column) for some in ids])
        rows = np.unique(rows[rows >= 0])
        if not len(rows) and users is None and ratings is not None and len(ratings.users) == 1:
            base = self._with_newcomer(ratings.users)
            features = base.towers.map(lambda one: one.features)
            places = Sides(items[ratings.item_rows], ratings.user_rows)
            later = LaterRatings(places, ratings.values, features, day_of(ratings))
            state, _ = _with_later(base, later, learners)
        else:
            state, _ = learn(self._of(rows), ratings, Sides(None, users), learners)
        return replace(state, towers=Sides(self.state.towers.items, state.towers.users))

    def _of(self, rows: np.ndarray) -> State:
        """Return the state with these users alone."""
        state = self.state.only_users(rows)
        parts = {name: self._of_guests(part) for name, part in state.parts.items()}
        return replace(state, towers=Sides(self._items, state.towers.users), parts=parts)

    def _with_newcomer(self, user: IdMap) -> State:
        """Return a state with one new user alone; kept, since guests often go by one id."""
        state = self._newcomer  # read once: other threads ask for other users
        if state is None or state.towers.users.ids != user:
            base = self._of(np.empty(0, np.int64))
            named = Sides(base.towers.items.ids.none(), user)
            state = self._newcomer = grown(base, named, Sides(None, None))[0]
        return state

    def _of_guests(self, part: Part) -> Part:
        """Let evidence of some users know how the features of all are spread."""
        if not isinstance(part, RatingPart) or part.evidence is None:
            return part
        if self._spread is None:
            whole = self.state.parts[part.name].evidence.sides.users  # type: ignore[attr-defined]
            self._spread = whole.spread(self.state.towers.users.counts)
        items, users = part.evidence.sides
        sides = Sides(items, replace(users, spread_of_all=self._spread))
        return replace(part, evidence=replace(part.evidence, sides=sides))
