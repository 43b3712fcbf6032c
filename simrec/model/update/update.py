"""Ratings and features that come after fitting, and a model that has learned from them."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from simrec.data.ids import IdMap
from simrec.data.ratings import Ratings
from simrec.data.tables import TableLike
from simrec.errors import InputError
from simrec.model.fit.known_entities import ITEMS, USERS
from simrec.model.fit.prepare import read_ratings
from simrec.model.layout import item_priors, item_vectors, user_priors, user_vectors
from simrec.model.tower import Tower
from simrec.model.update.add_entities import Arrivals, arrive
from simrec.model.update.add_likes import PENALTIES, newton
from simrec.model.update.add_ratings import Later, absorb
from simrec.model.update.evidence import Evidence, SideEvidence

if TYPE_CHECKING:
    from simrec.model.life import Life

logger = logging.getLogger(__name__)


def fold_in(
    model: Life,
    ratings: Ratings | TableLike | None,
    items: TableLike | None,
    users: TableLike | None,
) -> dict[str, Any]:
    """Give entities without ratings some; see `TwoTower.fold_in`."""
    return _learn(model, ratings, items, users, only_new=True)


def update(
    model: Life,
    ratings: Ratings | TableLike,
    items: TableLike | None,
    users: TableLike | None,
) -> dict[str, Any]:
    """Let everyone learn from later ratings; see `TwoTower.update`."""
    if model.evidence_ is None:
        raise InputError(
            "update: a model for ranking keeps no evidence to add to. Fit it again with all "
            "ratings, or fold in those who are new."
        )
    return _learn(model, ratings, items, users, only_new=False)


def _learn(
    model: Life,
    ratings: Ratings | TableLike | None,
    items: TableLike | None,
    users: TableLike | None,
    only_new: bool,
) -> dict[str, Any]:
    """Let a model learn from later ratings; all of it or, after an error, nothing."""
    taken = None
    if ratings is not None:
        taken = read_ratings(ratings, model.objective, rating_bounds(model))
    rated = [IdMap(ids.ids[:0]) for ids in (model.items_, model.users_)]
    if taken is not None:
        rated = [taken.items, taken.users]
    arrivals = [
        arrive(model.item_tower_, rated[ITEMS], items),
        arrive(model.user_tower_, rated[USERS], users),
    ]
    towers = [arrival.tower for arrival in arrivals]
    evidence = model.evidence_
    if evidence is not None:
        evidence = _grown(evidence, (model.item_tower_, model.user_tower_), arrivals)
    moved = [np.empty(0, np.int64), np.empty(0, np.int64)]
    n_used = 0
    if taken is not None and len(taken):
        later = Later(
            towers[ITEMS].ids.rows(taken.items.ids)[taken.item_rows],
            towers[USERS].ids.rows(taken.users.ids)[taken.user_rows],
            taken.values,
        )
        if evidence is None:
            towers, moved = _liked(model, towers, later)
        else:
            towers, evidence, moved = _rated(towers, evidence, later, only_new)
        n_used = _used(towers, later, moved, evidence is None)
    n_items = len(towers[ITEMS].ids) - len(model.items_)
    n_users = len(towers[USERS].ids) - len(model.users_)
    model.item_tower_, model.user_tower_ = towers
    model.evidence_ = evidence
    return {
        "ratings": n_used,
        "items": len(moved[ITEMS]),
        "users": len(moved[USERS]),
        "new_items": n_items,
        "new_users": n_users,
        "unknown_values": {
            name: arrival.unknown
            for name, arrival in zip(("items", "users"), arrivals, strict=True)
            if arrival.unknown
        },
    }


def _rated(
    towers: list[Tower], evidence: Evidence, later: Later, only_new: bool
) -> tuple[list[Tower], Evidence, list[np.ndarray]]:
    """Learn from ratings."""
    values = ((later.values - evidence.mean) / evidence.scale).astype(np.float32)
    counts = (towers[ITEMS].counts, towers[USERS].counts)
    evidence, moved = absorb(evidence, counts, replace(later, values=values), only_new)
    grown = []
    for tower, rows, side, assemble in (
        (towers[ITEMS], moved[ITEMS], evidence.items, item_vectors),
        (towers[USERS], moved[USERS], evidence.users, user_vectors),
    ):
        own, beside, warmth = side.own.mean[rows], side.beside.mean[rows], side.warmth[rows]
        grown.append(_moved(tower, rows, assemble(own, beside, warmth, evidence.scale)))
    return grown, evidence, moved


def _liked(model: Life, towers: list[Tower], later: Later) -> tuple[list[Tower], list[np.ndarray]]:
    """Learn from likes."""
    good = later.values >= model.chosen_["threshold"]
    # Of all ratings it was fitted to, as far as they were ratings and not likes alone.
    rate = model.chosen_["liked"] / model.chosen_["ratings"]
    grown, moved = list(towers), []
    for k, one in ((ITEMS, -1), (USERS, -2)):
        tower, partners = towers[k], towers[1 - k]
        mine = later.rows(k)
        # Partners of whom there was anything to learn; the new ones are learning themselves.
        known = np.flatnonzero(partners.counts > 0)
        place = np.full(len(partners.ids), -1, np.int64)
        place[known] = np.arange(len(known))
        column = place[later.rows(1 - k)]
        here = (tower.counts[mine] == 0) & (column >= 0)
        rows = np.unique(mine[here])
        row = np.searchsorted(rows, mine)
        liked, disliked = (
            sparse.csr_matrix(
                (np.ones(int(those.sum()), np.float32), (row[those], column[those])),
                shape=(len(rows), len(known)),
            )
            for those in (here & good, here & ~good)
        )
        vectors = newton(
            tower.vectors[rows],
            partners.vectors[known],
            liked,
            disliked,
            rate,
            PENALTIES[tower.name],
            tower.vectors.shape[1] + one,
        )
        grown[k] = _moved(tower, rows, vectors)
        moved.append(rows)
    return grown, moved


def _used(towers: list[Tower], later: Later, moved: list[np.ndarray], ranking: bool) -> int:
    """Count the ratings that someone has learned from, for both the log and the towers."""
    mine = [np.isin(later.rows(k), moved[k]) for k in (ITEMS, USERS)]
    for k in (ITEMS, USERS):
        more = np.bincount(later.rows(k)[mine[k]], minlength=len(towers[k].ids))
        towers[k] = replace(towers[k], counts=towers[k].counts + more)
    used, n = int((mine[ITEMS] | mine[USERS]).sum()), len(later.values)
    if used < n:
        logger.warning(
            "fold_in: %d of %d ratings are of users and items that both have ratings already%s",
            n - used,
            n,
            " or are both new, and change nothing"
            if ranking
            else ", and change nothing; update learns from them",
        )
    return used


def rating_bounds(model: Life) -> tuple[float, float] | None:
    """Give the bounds of later ratings; None where the model has none to hold them to."""
    low, high = model.output_.lower, model.output_.upper
    if model.objective == "ranking" or low is None or high is None or low == high:
        return None
    return low, high


def _grown(evidence: Evidence, before: tuple[Tower, Tower], arrivals: list[Arrivals]) -> Evidence:
    """Make room in what is believed for those who have arrived."""
    sides: list[SideEvidence] = []
    for side, tower, arrival, priors in (
        (evidence.items, before[ITEMS], arrivals[ITEMS], item_priors),
        (evidence.users, before[USERS], arrivals[USERS], user_priors),
    ):
        if len(arrival.vectors):
            own, beside = priors(arrival.vectors, evidence.scale)
            side = side.joined(own, beside, tower.counts, arrival.has_features)
            side = side.take(arrival.order)
        sides.append(side)
    return replace(evidence, items=sides[ITEMS], users=sides[USERS])


def _moved(tower: Tower, rows: np.ndarray, moved: np.ndarray) -> Tower:
    """Give those who have learned their new vectors."""
    if not len(rows):
        return tower
    vectors = np.array(tower.vectors)
    vectors[rows] = moved
    return replace(tower, vectors=vectors)
