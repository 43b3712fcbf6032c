"""Lists for one user at a time, as `TwoTower.recommend` makes them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from simrec.data.ratings import liked_from
from simrec.data.sides import Sides
from simrec.errors import InputError
from simrec.model.answer.rerank import Rerank, caps
from simrec.model.answer.where import matches
from simrec.model.head import Found
from simrec.serve import requests
from simrec.serve.engine import Engine, Person
from simrec.serve.view import View

_FILTERS = 64  # whose rows are kept


class Lists(Engine):
    """An engine that recommends."""

    def _allowed(
        self, request: requests.Recommend, view: View, table: pa.Table | None, seen: np.ndarray
    ) -> np.ndarray:
        """Tell which items may be in a list."""
        keep = np.ones(len(view), bool)
        if request.items is not None:
            rows = self.rows_of(request.items)
            if (rows < 0).any():
                raise InputError(f"items: no item {request.items[int(np.argmin(rows))]!r}.")
            keep[:] = False
            keep[rows] = True
        if request.where is not None:
            keep &= self._matching(request.where, table)
        out = self.rows_of(request.exclude)
        keep[out[out >= 0]] = False
        if request.exclude_rated:
            keep[seen] = False
        return keep

    def _matching(self, where: Mapping[str, Any], table: pa.Table | None) -> np.ndarray:
        if table is None:
            raise InputError("where: the model was saved without its items table.")
        key = json.dumps(where, sort_keys=True, default=str)
        with self._lock:
            if key in self._masks and table is self._table:
                self._masks.move_to_end(key)
                return self._masks[key]
        found = matches(where, table)
        with self._lock:
            if table is self._table:
                self._masks[key] = found
                while len(self._masks) > _FILTERS:
                    self._masks.popitem(last=False)
        return found

    def recommend(self, request: requests.Recommend) -> dict[str, Any]:
        """Return a list; see `TwoTower.recommend`, whose answers these are."""
        person = self.person(request)
        with self._lock:  # items may come in meanwhile
            view, table = self.view(request.rank_by), self._table
        heads = view.heads
        if person.model is not self.model:
            heads = person.model.ranking(request.rank_by)[0]
        query = heads.users.of(person.found)[0]
        keep = self._allowed(request, view, table, person.seen)
        bonus = None
        if request.explore:
            if request.rank_by == "uptake":
                raise InputError("explore: ratings are explored, not uptake.")
            bonus = self.model.exploration(self._found(np.arange(len(view))), request.explore)
        rerank, seed = self._rerank(request, table)
        k = min(request.k, int(keep.sum()))
        pool = k if rerank is None else min(rerank.pool(k), int(keep.sum()))
        rows, scores = view.best(query, keep, pool, bonus)
        propensity = None
        if rerank is not None and k:
            chosen = rerank.choose(rows, scores, bonus, k, 0)
            while len(chosen.items) < k and pool < keep.sum() and rerank.capped:
                pool = min(int(keep.sum()), 4 * pool)
                rows, scores = view.best(query, keep, pool, bonus)
                chosen = rerank.choose(rows, scores, bonus, k, 0)
            rows = chosen.items
            propensity = chosen.propensity if seed is not None else None
        z = scores if rerank is None and bonus is None else view.scores(query, rows)
        answer = self.listed(rows)
        uncertainty = request.uncertainty and "rating" in self.model.parts_
        ratings, std = self._predicted(person, self._found(rows), uncertainty)
        reasons = self._reasons(person, rows) if request.reasons else None
        for i, one in enumerate(answer):
            one |= {"score": float(z[i] + np.float32(view.shift)), "rank": i + 1}
            one["predicted"] = float(ratings[i])
            if std is not None:
                one["std"] = float(std[i])
            if propensity is not None:
                one["propensity"] = float(propensity[i])
            if reasons is not None:
                one["reasons"] = reasons[i]
        return {"items": answer, "seed": seed}

    def _rerank(
        self, request: requests.Recommend, table: pa.Table | None
    ) -> tuple[Rerank | None, int | None]:
        drawn = request.sample is not False
        if drawn and (request.at_most or request.diversity):
            raise InputError("sample: lists with at_most or diversity have no propensities.")
        if drawn:
            if not request.explore:
                raise InputError("sample: without explore above 0 there is nothing to draw from.")
            own = not isinstance(request.sample, bool)
            seed = int(request.sample) if own else int.from_bytes(os.urandom(7))
            return Rerank([], 0.0, None, seed), seed
        if not (request.at_most or request.diversity):
            return None, None
        capped = caps(request.at_most, table)
        return Rerank(capped, request.diversity, self.directions_of, None), None

    def _predicted(
        self, person: Person, items: Found, uncertainty: bool
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return predicted ratings of a user, and their standard deviations on request."""
        user = person.found.take(np.zeros(len(items.rows), int))
        return person.model._predicted(Sides(items, user), "uncertainty" if uncertainty else "")

    def _reasons(self, person: Person, rows: np.ndarray) -> list[list[dict[str, Any]]]:
        """Return for each item what the user has liked that is most like it."""
        liked = _liked(person)[-500:]
        if not len(liked) or not len(rows):
            return [[] for _ in rows]
        alike = self.directions_of(rows) @ self.directions_of(liked).T
        found = []
        for one in alike:
            near = [j for j in np.argsort(-one, kind="stable")[:2] if one[j] > 0]
            items = self.listed(liked[near])
            found.append(
                [{**item, "similarity": float(one[j])} for item, j in zip(items, near, strict=True)]
            )
        return found


def _liked(person: Person) -> np.ndarray:
    """Return the items that a user liked, in training and since."""
    bounds = person.model.rating_bounds()
    least = -np.inf if bounds is None else liked_from(bounds)
    came = [at for at, rating in person.liked.items() if rating is None or rating >= least]
    own = person.model.liked_rows(int(person.found.rows[0]))
    return np.union1d(np.setdiff1d(own, list(person.liked)), came).astype(int)
