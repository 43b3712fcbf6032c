"""Guests: what a model says of a few users after some more ratings, while it stays as it is.

A guest model has all items of the model and only the users asked for, so that folding in costs by
their ratings, whatever the number of users. Only the guests learn; items stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import pyarrow as pa

from simrec.data.ids import IdMap
from simrec.data.ratings import Ratings
from simrec.data.sides import Sides
from simrec.data.tables import TableLike
from simrec.errors import InputError
from simrec.model.part import Part
from simrec.model.posterior.evidence import SideEvidence
from simrec.model.rating.part import RatingPart
from simrec.model.update.update import State, grown, learn
from simrec.storage.rows import Array


@dataclass(frozen=True, eq=False)
class _GuestEvidence(SideEvidence):
    """Evidence of some users that knows how the features of all are spread."""

    of_all: np.ndarray | None = None

    def spread(self, counts: Array) -> np.ndarray:
        """Return the covariance of what features say, over all users of the model."""
        assert self.of_all is not None
        return self.of_all


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
        self,
        ids: Sequence[pa.ChunkedArray],
        ratings: Ratings | None,
        users: TableLike | None,
    ) -> State:
        """Return the state of a guest model."""
        tower = self.state.towers.users
        if ratings is not None:
            new = ~self._items.ids.contains(ratings.items.ids, "item_id")
            if new.any():
                raise InputError(
                    f"item_id: {int(new.sum())} of the rated items are not in the model, for "
                    f"example {ratings.items.ids[int(np.argmax(new))].as_py()!r}; fold_in or "
                    "update adds items."
                )
        rows = np.concatenate([tower.ids.rows(some, tower.id_column) for some in ids])
        rows = np.unique(rows[rows >= 0])
        if not len(rows) and users is None and ratings is not None and len(ratings.users) == 1:
            base = self._with_newcomer(ratings.users)
        else:
            base = self._of(rows)
        # Only users learn, and all of them.
        state, _ = learn(base, ratings, Sides(None, users), Sides(True, False))
        return replace(state, towers=Sides(self.state.towers.items, state.towers.users))

    def _of(self, rows: np.ndarray) -> State:
        """Return the state with these users alone."""
        state = self.state.only_users(rows)
        parts = {name: self._of_guests(part) for name, part in state.parts.items()}
        return replace(state, towers=Sides(self._items, state.towers.users), parts=parts)

    def _with_newcomer(self, user: IdMap) -> State:
        """Return a state with one new user alone; kept, since guests often go by one id."""
        state = self._newcomer  # read once: other threads ask for other users
        if state is None or not state.towers.users.ids.contains(user.ids)[0]:
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
        before = part.evidence.sides.users
        users = _GuestEvidence(
            **{one.name: getattr(before, one.name) for one in fields(SideEvidence)},
            of_all=self._spread,
        )
        sides = Sides(part.evidence.sides.items, users)
        return replace(part, evidence=replace(part.evidence, sides=sides))
