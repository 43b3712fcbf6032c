"""The answers of the service, those of the library: lists, scores, neighbours, audience."""

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.features.column import family
from simrec.data.ratings import liked_from
from simrec.data.sides import ID_COLUMNS, Sides
from simrec.errors import InputError
from simrec.model.answer.rerank import Rerank
from simrec.model.answer.where import matches
from simrec.model.head import Found
from simrec.serve import requests
from simrec.serve.engine import Engine, Person
from simrec.serve.view import View

_FILTERS = 64  # whose rows are kept
# Users on whom reach and histograms are counted, items on the map, users of an audience's groups.
_COUNTED, _GROUPED = 2_000, 200


class Answers(Engine):
    """An engine that answers everything."""

    # Lists for one user at a time

    def _allowed(
        self, request: requests.Recommend, view: View, table: pa.Table | None, seen: np.ndarray
    ) -> np.ndarray:
        """Tell which items may be in a list."""
        keep = np.ones(len(view), bool)
        if request.items is not None:
            rows = self.there(request.items)
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
        seed = None if request.sample is False else int(request.sample)
        if request.sample is True:  # a seed of ours
            seed = int.from_bytes(os.urandom(7))
        options = request.at_most, table, request.diversity, seed, request.explore
        rerank, propensity = Rerank.of(*options, self.directions_of), None
        k = min(request.k, n := int(np.count_nonzero(keep)))
        if rerank is None:
            rows, scores = view.best(query, keep, k, bonus)
        else:
            rows, propensity = rerank.chosen(
                lambda size: view.best(query, keep, size, bonus), bonus, k, n
            )
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
            if seed is not None and propensity is not None:
                one["propensity"] = float(propensity[i])
            if reasons is not None:
                one["reasons"] = reasons[i]
        return {"items": answer, "seed": seed}

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

    # All else

    def score(self, request: requests.Score) -> dict[str, Any]:
        """Return predicted ratings; see `TwoTower.predict`."""
        person = self.person(request)
        ids = [self.id_of(item, "items") for item in request.asked()]
        given = [self.clean(row, "items") for row in request.item_features]
        given += [self.since.items[i] for i in ids if i in self.since.items]
        rows = {self.id_of(row.get("item_id"), "items"): row for row in given}
        self.there(ids, rows)
        table = self.table(list(rows.values()), "items") if rows else None
        found = self.model.towers_.items.find(ids, table)
        ratings, deviations = self._predicted(person, found, request.uncertainty)
        answer = [{"item_id": i, "predicted": float(r)} for i, r in zip(ids, ratings, strict=True)]
        for one, std in zip(answer, () if deviations is None else deviations, strict=False):
            one["std"] = float(std)
        return {"items": answer}

    def _described(self, item_id: Any, features: Mapping[str, Any] | None) -> Any:
        """Return an item that a request names by its id or its features, for the library."""
        if (item_id is None) == (features is None):
            raise InputError("give either item_id or features.")
        if features is None:
            item = self.id_of(item_id, "items")
            self.there([item])
            if item not in self.since.items:
                return [item]
            features = self.since.items[item]
        return self.table(
            [{"item_id": self.free_id("items"), **self.clean(features, "items")}], "items"
        )

    def similar(self, request: requests.Similar) -> dict[str, Any]:
        """Return neighbours; see `TwoTower.similar_items`."""
        if request.user_id is not None:
            if request.item_id is not None or request.features is not None:
                raise InputError("similar: give a user_id, an item_id or features.")
            user = [self.id_of(request.user_id, "users")]
            found = self.model.similar_users(user, request.k, request.rank_by, output="arrow")
            return {"users": _records(found, "user_id")}
        item = self._described(request.item_id, request.features)
        return self._titled(
            self.model.similar_items(item, request.k, request.rank_by, output="arrow")
        )

    def _titled(self, found: pa.Table) -> dict[str, Any]:
        """Return an answer of the library about known items, with their titles."""
        rows = self.model.items_.rows(found.column(0), "item_id")
        pairs = zip(self.listed(rows), _records(found, "item_id"), strict=True)
        return {"items": [{**one, **told} for told, one in pairs]}

    def explain(self, request: requests.Explain) -> dict[str, Any]:
        """Return what adds how much to a score; see `TwoTower.explain`."""
        person = self.person(request)
        item, table = self.id_of(request.item_id, "items"), None
        row = request.item_features or self.since.items.get(item)
        if row is not None:
            table = self.table([{**self.clean(row, "items"), "item_id": item}], "items")
        else:
            self.there([item])
        found = person.model.explain(
            self.free_id("users") if person.id is None else person.id,
            item,
            items=table,
            rank_by=request.rank_by,
            unknown="prior",
            output="arrow",
        )
        return {"contributions": found.to_pylist()}

    def embed(self, request: requests.Embed) -> dict[str, Any]:
        """Return vectors in the order asked for, ids first; see `TwoTower.embed_items`."""
        sides = Sides((request.item_ids, request.items), (request.user_ids, request.users))
        embed = Sides(self.model.embed_items, self.model.embed_users)
        answer: dict[str, Any] = {}
        for side, (named, given) in sides.named():
            ids, since = [self.id_of(one, side) for one in named], getattr(self.since, side)
            asked = [*(since.get(one, one) for one in ids), *given]
            found: list[Any] = [None] * len(asked)
            for by_features in (False, True):
                at = [i for i, one in enumerate(asked) if isinstance(one, Mapping) == by_features]
                some: Any = [asked[i] for i in at]
                some = self.table(some, side) if by_features else some
                if at:
                    vectors = embed[side](some, request.rank_by, output="arrow")
                    for i, one in zip(at, _records(vectors, ID_COLUMNS[side]), strict=True):
                        found[i] = one
            answer[side] = found
        return answer

    def ask(self, request: requests.Ask) -> dict[str, Any]:
        """Return what to ask a user; see `TwoTower.ask`."""
        person = self.person(request)
        items = request.items and [self.id_of(one, "items") for one in request.items]
        self.there(items or [])
        return self._titled(
            person.model.ask(
                person.id, request.k, items=items, popularity=request.popularity, output="arrow"
            )
        )

    def audience(self, request: requests.Audience) -> dict[str, Any]:
        """Return the users for whom an item adds most; see `TwoTower.audience`."""
        model = self.model
        item = self._described(request.item_id, request.features)
        k = request.k
        if request.groups:  # a fifth of all is an audience, more are everybody
            k = max(k, min(_GROUPED, len(model.users_) // 5))
        found = model.audience(
            item, k, rank_by=request.rank_by, reach_users=_COUNTED, output="arrow"
        )
        table = found.drop_columns([found.column_names[0], "reach"])
        users = _records(table.slice(0, request.k), "user_id")
        reach = float(found["reach"][0].as_py()) if len(found) else 0.0
        answer: dict[str, Any] = {"users": users, "reach": reach, "of": len(model.users_)}
        if request.groups:
            answer["groups"] = self._groups(model.users_.rows(table.column(0), "user_id"))
        if request.histogram:
            answer["histogram"] = self._histogram(item)
        return answer

    def _groups(self, rows: np.ndarray) -> list[dict[str, Any]]:
        """Return the values of users' columns that some have more often than all."""
        tower = self.model.towers_.users
        if tower.encoder is None or not len(rows):
            return []
        step = max(len(tower.ids) // 100_000, 1)
        everyone = tower.features[np.arange(0, len(tower.ids), step)]
        share = [np.asarray((X != 0).mean(0)).ravel() for X in (tower.features[rows], everyone)]
        names, kinds = tower.encoder.feature_names_, list(tower.encoder.columns_.values())
        words = [
            i
            for i, name in enumerate(names)
            if kinds[tower.encoder.groups_[i]] in ("category", "list") and "=<" not in name
        ]
        words.sort(key=lambda i: share[1][i] - share[0][i])
        return [
            {"value": names[i], "audience": float(share[0][i]), "all": float(share[1][i])}
            for i in words[:8]
        ]

    def _histogram(self, item: Any) -> dict[str, Any]:
        """Return how the predicted ratings of an item are spread over all users."""
        towers = self.model.towers_
        given = item if isinstance(item, pa.Table) else None
        found = towers.items.find(item if given is None else given["item_id"], given)
        rows = np.arange(0, len(towers.users.ids), max(len(towers.users.ids) // _COUNTED, 1))
        pairs = Sides(found.take(np.zeros(len(rows), int)), towers.users.known(rows))
        ratings, _ = self.model._predicted(pairs)
        counts, edges = np.histogram(ratings, 20, range=self.model.rating_bounds())
        return {
            "counts": counts.tolist(),
            "edges": edges.tolist(),
            "mean": float(ratings.mean()) if len(ratings) else None,
        }

    def search(self, text: str, most: int = 12) -> list[dict[str, Any]]:
        """Return items whose title has a text in it, those with most ratings first."""
        counts = np.zeros(self.n_known + len(self._new_ids), np.int64)
        counts[: self.n_known] = self.model.towers_.items.counts
        if self.title is None or self._table is None:
            rows = self.rows_of([text] if text.lstrip("-").isdecimal() else [])
            return self.listed(rows[rows >= 0])
        column = self._table[self.title].combine_chunks()
        hit = pc.match_substring(column.cast(pa.large_string()), text, ignore_case=True)
        rows = np.flatnonzero(pc.fill_null(hit, False).to_numpy(zero_copy_only=False))
        return self.listed(rows[np.argsort(-counts[rows], kind="stable")[:most]])

    def map(self, colour: str) -> dict[str, Any]:
        """Return two principal components of the item tower, for the items with most ratings."""
        model = self.model
        counts = np.asarray(model.towers_.items.counts)
        rows = np.sort(np.argsort(-counts, kind="stable")[:_COUNTED])
        unit = self.directions_of(rows)
        unit = unit - unit.mean(0)
        _, axes = np.linalg.eigh(unit.T @ unit)
        at = unit @ axes[:, :-3:-1]
        at /= np.maximum(np.abs(at).max(0, initial=1e-12), 1e-12)
        found = self.listed(rows)
        for one, (x, y), n in zip(found, at.tolist(), counts[rows].tolist(), strict=True):
            one |= {"x": x, "y": y, "ratings": n}
        if model.catalogue_ is not None and colour in model.catalogue_.column_names:
            column = model.catalogue_[colour].take(rows)
            decades = family(column.type) == "number"
            for one, value in zip(found, column.to_pylist(), strict=True):
                first = next(iter(value), None) if isinstance(value, list) else value
                shown = f"{int(first) // 10 * 10}s" if decades and first is not None else first
                one["colour"] = "" if shown is None else str(shown)
        return {"items": found, "of": len(counts)}

    def history(self, request: requests.History) -> dict[str, Any]:
        """Return what a user has rated."""
        person = self.person(requests.Who.model_validate({"user_id": request.user_id}))
        answer = self.listed(person.seen[: request.k].astype(int))
        return {"items": answer, "n": len(person.seen)}


def _liked(person: Person) -> np.ndarray:
    """Return the items that a user liked, in training and since."""
    bounds = person.model.rating_bounds()
    least = -np.inf if bounds is None else liked_from(bounds)
    came = [at for at, rating in person.liked.items() if rating is None or rating >= least]
    own = person.model.liked_rows(int(person.found.rows[0]))
    return np.union1d(np.setdiff1d(own, list(person.liked)), came).astype(int)


def _records(table: pa.Table, id_column: str) -> list[dict[str, Any]]:
    """Return the rows of an answer; ids are called as usual."""
    names = [id_column, *table.column_names[1:]]
    return table.rename_columns(names).to_pylist()
