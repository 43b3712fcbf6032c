"""Held-out pairs in the shape of the tasks: a model fitted without them, and what it is to find.

A tenth of the pairs is held out, and for the tasks of new items and users some of them whole. All
components are fitted to the rest, so nothing is scored by what it has seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from simrec.data.sides import Side, Sides
from simrec.model.lists.user_encoder import GIVEN
from simrec.model.part import LaterRatings, Part
from simrec.model.prepare import Prepared, PreparedSide
from simrec.model.sample import Sample
from simrec.model.tower import Tower

# Share of the pairs of known items and users that is held out.
_SHARE = 0.1
# Users times candidates of a task that lists are made for, at most.
_CELLS = 6_000_000
# Users for whom new items are made comparable with others.
_COMPARED = 300


@dataclass(frozen=True, eq=False)
class Task:
    """Users, candidates, what is to be found, and what is no candidate; rows are of the towers."""

    users: np.ndarray
    items: np.ndarray
    hits: np.ndarray
    exclude: np.ndarray

    @classmethod
    def of(
        cls,
        users: np.ndarray,
        items: np.ndarray,
        hits: sparse.csr_matrix,
        exclude: sparse.csr_matrix,
        rng: np.random.Generator,
        most: int | None = None,
    ) -> Task:
        """Take users with a hit among the items, at most as many as needed, or `most`."""
        found = np.flatnonzero(np.diff(hits[users][:, items].indptr))
        bound = _CELLS // max(len(items), 1)
        some = users[np.sort(rng.permutation(found)[: min(bound, most or bound)])]
        taken = (np.asarray(one[some][:, items].toarray()) > 0 for one in (hits, exclude))
        return cls(some, items, *taken)

    def first(self, n: int) -> Task:
        """Return the task with no more than `n` of its users."""
        return Task(self.users[:n], self.items, self.hits[:n], self.exclude[:n])


@dataclass(frozen=True, eq=False)
class HeldOut:
    """One draw of held-out pairs.

    Attributes
    ----------
    data : Prepared
        What to fit to.
    given : LaterRatings
        A few pairs of each new user.
    tasks : dict of str to Task
        known_users, new_items, new_users, few_pairs, new_both (new users, new items); and lists
        from all items, new ones among them: all_known, all_few, all_nothing, by what is known of
        the users.
    """

    data: Prepared
    given: LaterRatings
    tasks: dict[str, Task]

    @classmethod
    def of(
        cls, sample: Sample, liked: float, rng: np.random.Generator, cold: float
    ) -> HeldOut | None:
        """Draw; None where there is too little to hold anything out.

        Parameters
        ----------
        sample : Sample
            All ratings, or those of some users.
        liked : float
            Rating from which on a held-out pair is a hit.
        rng : numpy.random.Generator
            What is held out.
        cold : float
            Share of the items and of the users that are held out whole, for the tasks of new ones.
        """
        ratings = sample.ratings
        u, i = ratings.user_rows, ratings.item_rows
        new_user = rng.permutation(ratings.n_users) < cold * ratings.n_users
        new_item = rng.permutation(ratings.n_items) < cold * ratings.n_items
        warm = rng.random(len(u)) < _SHARE
        train = ~(new_user[u] | new_item[i] | warm)
        if not train.any():
            return None
        data = _prepared(sample, np.flatnonzero(train))
        rated = data.sides.map(lambda side: np.asarray(side.tower.counts) > 0)
        counts = np.bincount(u[rated.items[i]], minlength=ratings.n_users)
        first = _first(u, rated.items[i] & new_user[u] & (counts[u] > GIVEN), rng)
        hit = ratings.values >= liked

        def matrix(which: np.ndarray) -> sparse.csr_matrix:
            ones = np.ones(int(which.sum()), np.float32)
            shape = (ratings.n_users, ratings.n_items)
            return sparse.csr_matrix((ones, (u[which], i[which])), shape=shape)

        known_users, known_items = np.flatnonzero(rated.users), np.flatnonzero(rated.items)
        new_users = np.unique(u[first])
        new_items = np.flatnonzero(new_item)
        seen, later = matrix(train), matrix(hit & ~train & ~first)
        none = matrix(np.zeros(len(u), bool))
        tasks = {
            "known_users": (known_users, known_items, later, seen),
            "new_items": (known_users, new_items, later, none),
            "new_users": (new_users, known_items, later, matrix(first)),
            "few_pairs": (new_users, known_items, later, matrix(first)),
        }
        given = LaterRatings(Sides(i[first], u[first]), ratings.values[first])
        made = {name: Task.of(*one, rng) for name, one in tasks.items()}
        both = (np.flatnonzero(new_user), new_items, later, none)
        made["new_both"] = Task.of(*both, rng.spawn(1)[0])
        if len(new_items):
            every = np.sort(np.r_[known_items, new_items])
            # Of new items all pairs are held out, of others a tenth: as many of both are hits.
            some = (known_users, every, matrix(hit & ~train & warm), seen)
            made["all_known"] = Task.of(*some, rng, _COMPARED)
            for name in ("all_few", "all_nothing"):
                made[name] = Task.of(new_users, every, later, matrix(first), rng, _COMPARED)
        return cls(data, given, made)

    @property
    def cold(self) -> bool:
        """Whether whole items and users are held out."""
        return bool(len(self.tasks["new_items"].items))

    def with_given(self, parts: Mapping[str, Part]) -> dict[str, Part]:
        """Let components learn the given pairs of the new users."""
        towers = self.data.sides.map(lambda side: side.tower)
        rows = self.given.rows
        ones = np.ones(len(rows.users), np.float32)
        given = sparse.csr_matrix((ones, (rows.users, rows.items)), shape=self.data.rated().shape)
        rated = sparse.csr_matrix(self.data.rated() + given)
        counts = towers.map(lambda tower: tower.counts)
        later = replace(self.given, features=towers.map(lambda tower: tower.features))
        return {
            name: part.with_ratings(counts, later, rated, Sides(True, True))[0]
            for name, part in parts.items()
        }


def _first(u: np.ndarray, which: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw a few pairs of each user among some pairs; return which."""
    at = np.flatnonzero(which)
    order = at[np.lexsort((rng.random(len(at)), u[at]))]
    starts = np.r_[0, np.flatnonzero(np.diff(u[order])) + 1]
    rank = np.arange(len(order)) - np.repeat(starts, np.diff(np.r_[starts, len(order)]))
    first = np.zeros(len(u), bool)
    first[order[rank < GIVEN]] = True
    return first


def _prepared(sample: Sample, which: np.ndarray) -> Prepared:
    """Return some of the ratings as data to fit to; all other entities have features alone."""
    ratings = sample.ratings.select(which)
    ids: Sides = Sides(ratings.items, ratings.users)
    everyone: Sides = Sides(sample.ratings.items, sample.ratings.users)
    own: Sides[np.ndarray] = Sides(ratings.item_rows, ratings.user_rows)

    def side(name: Side) -> PreparedSide:
        known, X = everyone[name], sample.X[name]
        rows = known.rows(ids[name].ids)
        counts = np.zeros(len(known), np.int64)
        counts[rows] = np.bincount(own[name], minlength=len(rows))
        tower = Tower(name, known, counts, None, X[:, :-1])
        return PreparedSide(tower, rows, X[rows], sample.groups[name], sample.words[name])

    return Prepared(ratings, sample.bounds, Sides.of(side))
