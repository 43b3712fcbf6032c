"""The answers of one loaded model, and of what has come in since, for one request at a time."""

import base64
import contextlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from simrec.data.features.category import ListColumn
from simrec.data.features.strings import lists
from simrec.data.id_columns import id_kind
from simrec.data.ids import IdMap
from simrec.data.ratings import Ratings
from simrec.data.sides import Side
from simrec.errors import InputError, as_json
from simrec.model.answer.rerank import directions
from simrec.model.catalogue import names_at, title_column
from simrec.model.head import Found
from simrec.model.two_tower import TwoTower
from simrec.serve import requests
from simrec.serve.log import KINDS, Kind
from simrec.serve.view import Known, View


@dataclass(frozen=True, eq=False)
class Person:
    """A user as one request has it."""

    model: TwoTower  # what answers: the model, or a guest model of this user alone
    id: Any
    found: Found  # where the user is there
    seen: np.ndarray
    liked: dict[int, float | None]  # ratings of the request or since training, by row of item


@dataclass(eq=False)
class Since:
    """What has come in since the model was trained."""

    items: dict[Any, dict[str, Any]] = field(default_factory=dict)
    users: dict[Any, dict[str, Any]] = field(default_factory=dict)
    ratings: dict[Any, dict[Any, float | None]] = field(default_factory=dict)


class Engine:
    """A model and what has come in since it was trained."""

    def __init__(self, model: TwoTower) -> None:
        self.model, self.since = model, Since()
        self.n_known = len(model.items_)
        self.title = title_column(model.catalogue_)
        self._new_ids: list[Any] = []
        self._table: pa.Table | None = model.catalogue_
        self._views: dict[str, View] = {}
        self._masks: OrderedDict[str, np.ndarray] = OrderedDict()
        self._guests: OrderedDict[str, TwoTower] = OrderedDict()
        self._lock = threading.RLock()
        self._unit: Callable[[Found], np.ndarray] | None = None
        self.view("both")

    # Ids and tables

    def id_of(self, given: Any, side: Side) -> Any:
        """Return an id as the kind that the model has: numbers may come as text."""
        tower = self.model.towers_[side]
        given = requests.whole(given)
        if isinstance(given, bool) or not isinstance(given, int | str):
            raise _refused(tower.table_column, "a whole number or a string", given)
        return tower.ids.read(given, tower.id_column)

    def free_id(self, side: Side) -> Any:
        """Return an id that nobody has."""
        ids = self.model.towers_[side].ids
        return "\x00" if id_kind(ids.type) == "string" else ids.ids[-1].as_py() + 1

    def rows_of(self, given: Sequence[Any]) -> np.ndarray:
        """Return the rows of items, new ones after the known; -1 for none."""
        items = [self.id_of(one, "items") for one in given]
        if not items:
            return np.empty(0, np.int64)
        rows = self.model.items_.rows(items, "item_id")
        if (rows < 0).any():
            new = {item: self.n_known + i for i, item in enumerate(self._new_ids)}
            rows = np.where(rows < 0, [new.get(item, -1) for item in items], rows)
        return rows

    def there(self, items: Sequence[Any], described: Collection[Any] = ()) -> np.ndarray:
        """Return the rows of items, -1 for those `described` by the request; refuse others."""
        rows = self.rows_of(items)
        for item in (items[row] for row in np.flatnonzero(rows < 0).tolist()):
            if item not in described:
                remedy = "give its features, or post it to /items first"
                raise InputError(f"item_id: no item {as_json(item)}; {remedy}.")
        return rows

    def items_at(self, rows: np.ndarray) -> list[Any]:
        """Return the ids of items by their rows."""
        known = rows < self.n_known
        ids = self.model.items_.take(np.where(known, rows, 0)).to_pylist()
        return [
            one if here else self._new_ids[row - self.n_known]
            for one, here, row in zip(ids, known, rows.tolist(), strict=True)
        ]

    def clean(self, row: Mapping[str, Any], side: Side) -> dict[str, Any]:
        """Return features of a request as a table takes them; images are base64, never paths.

        Strings that are lists become lists, as others may give them. What is clean already stays as
        it is.
        """
        tower = self.model.towers_[side]
        kinds = {} if tower.encoder is None else tower.encoder.columns_
        columns = {} if tower.encoder is None else tower.encoder.encoders_
        own = {tower.own_column: tower.id_column} if tower.own_column else {}
        found = {}
        for name, value in row.items():
            if kinds.get(name) == "image" and not isinstance(value, bytes | None):
                try:
                    value = base64.b64decode(value, validate=True)
                except (ValueError, TypeError):
                    raise InputError(f"{name}: expected an image in base64.") from None
            column = columns.get(name)
            if isinstance(value, str) and isinstance(column, ListColumn):
                if not column.separator:
                    raise _refused(name, "a list of values", value)
                value = lists(pa.chunked_array([[value]]), column.separator)[0].as_py()
            inner = value if isinstance(value, list) else [value]
            if any(isinstance(one, list | Mapping) for one in inner):
                raise _refused(name, "a value or a list of values", value)
            found[own.get(name, name)] = value
        return found

    def table(self, rows: Sequence[Mapping[str, Any]], side: Side) -> pa.Table:
        """Make a table of rows of features; every trained column is there."""
        tower, rows = self.model.towers_[side], [self.clean(row, side) for row in rows]
        names = list(dict.fromkeys(name for row in rows for name in row))
        trained = [] if tower.encoder is None else list(tower.encoder.columns_)
        if set(names) & set(trained):  # what is not given of them is missing
            names += [name for name in trained if name not in names]
        columns = {}
        for name in names:
            try:
                columns[name] = pa.array([row.get(name) for row in rows])
            except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
                expected = "values of one type, and numbers of 64 bits at most"
                raise InputError(f"{tower.side}, {name}: expected {expected}.") from error
        return pa.table(columns)

    # What has come in

    def add(self, records: Sequence[tuple[Kind, Mapping[str, Any]]]) -> None:
        """Take in records of the log; what is known already, or for another model, is left out."""
        rows = {kind: [row for one, row in records if one == kind] for kind in KINDS}
        try:
            self._add_items(rows["items"])
        except InputError:
            for row in rows["items"]:
                with contextlib.suppress(InputError):
                    self._add_items([row])
        for row in rows["users"]:
            with contextlib.suppress(InputError):
                user = self.id_of(row["user_id"], "users")
                if self.model.users_.rows([user], "user_id")[0] < 0:
                    self.since.users[user] = self.clean(row, "users")
        for row in rows["ratings"]:
            with contextlib.suppress(InputError):
                user = self.id_of(row["user_id"], "users")
                item = self.id_of(row["item_id"], "items")
                if not self._learned(user, item):
                    with self._lock:
                        self.since.ratings.setdefault(user, {})[item] = row.get("rating")

    def _learned(self, user: Any, item: Any) -> bool:
        """Tell whether the model was trained with a pair."""
        model = self.model
        who = int(model.users_.rows([user], "user_id")[0])
        what = int(model.items_.rows([item], "item_id")[0])
        return who >= 0 and what >= 0 and what in model.rated_[np.array([who])].indices

    def _add_items(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Make new items rankable; features that are given again replace those before."""
        fresh = {}
        for row in rows:
            item = self.id_of(row["item_id"], "items")
            fresh[item] = {**self.clean(row, "items"), "item_id": item}
        if fresh:
            known = self.model.items_.contains(list(fresh), "item_id")
            fresh = {
                i: row for (i, row), here in zip(fresh.items(), known, strict=True) if not here
            }
        if not fresh:
            return
        table = self.table(list(fresh.values()), "items")
        # Each row with all columns: it is encoded alike alone and among others.
        fresh = {i: {**dict.fromkeys(table.column_names), **row} for i, row in fresh.items()}
        found = self.model.towers_.items.find(list(fresh), table, "prior")
        with self._lock:
            self.since.items |= fresh
            self._new_ids = list(self.since.items)
            place = {item: i for i, item in enumerate(self._new_ids)}
            at = [place[item] for item in fresh]
            for name, view in self._views.items():
                new = np.zeros((len(place), view.new.shape[1]), np.float32)
                new[: len(view.new)] = view.new
                new[at] = vectors = view.heads.items.of(found)
                longest = float(np.linalg.norm(vectors, axis=1).max(initial=view.longest))
                self._views[name] = replace(view, new=new, longest=longest)
            self._describe()

    def _describe(self) -> None:
        """Put the columns of new items below those of the catalogue."""
        self._masks.clear()
        base = self.model.catalogue_
        if base is None:
            return
        columns = {}
        for one in base.schema:
            values = [self.since.items[i].get(one.name) for i in self._new_ids]
            try:
                more = pa.array(values, one.type)
            except (pa.ArrowException, OverflowError, ValueError, TypeError):
                more = pa.nulls(len(values), one.type)  # of another type than in training
            columns[one.name] = pa.chunked_array([*base[one.name].chunks, more], one.type)
        self._table = pa.table(columns, schema=base.schema)

    def view(self, rank_by: str) -> View:
        """Return the vectors of a ranking, made when they are first asked for."""
        with self._lock:
            if rank_by not in self._views:
                heads, shift = self.model.ranking(rank_by)  # type: ignore[arg-type]
                new = np.empty((0, heads.items.width), np.float32)
                if self._new_ids:
                    new = heads.items.of(self._found(self.n_known + np.arange(len(self._new_ids))))
                known = Known.of(heads, self.model.towers_)
                longest = float(np.linalg.norm(new, axis=1).max(initial=known.longest))
                self._views[rank_by] = View(heads, known, new, longest, shift)
            return self._views[rank_by]

    # Who is asked for

    def person(self, who: requests.Who) -> Person:
        """Find a user: known, new by features, folded in by ratings, or average."""
        model, user = self.model, None
        features, ratings = who.features, {}
        if who.user_id is not None:
            user = self.id_of(who.user_id, "users")
            with self._lock:
                features = features if features is not None else self.since.users.get(user)
                ratings = dict(self.since.ratings.get(user, {}))
        if len(who.ratings) > len({self.id_of(one.item_id, "items") for one in who.ratings}):
            raise InputError("ratings: an item is rated more than once.")
        self.check_ratings("ratings", who.ratings)
        ratings |= {self.id_of(one.item_id, "items"): one.rating for one in who.ratings}
        rows = dict(zip(ratings, self.there(list(ratings)).tolist(), strict=True))
        liked = {rows[item]: rating for item, rating in ratings.items()}
        tower = model.towers_.users
        if tower.encoder is None:
            if who.features:
                raise InputError("features: the model was trained without features of users.")
            features = None
        row = -1 if user is None else int(model.users_.rows([user], "user_id")[0])
        known = row >= 0
        # What is rated and new has no posterior to learn from: it is left out of the list, and
        # moves the user once the model has learned the item.
        learnable = {item: rating for item, rating in ratings.items() if rows[item] < self.n_known}
        if not learnable and (known or features is None):
            if user is not None and not known and who.unknown == "error" and not ratings:
                raise InputError(
                    f"user_id: nothing is known of {as_json(user)}. Give features or ratings, or "
                    '"unknown": "prior" for the answer for an average user.'
                )
            if not known:
                n, user = len(tower.ids), None
                found, seen = Found(np.array([n]), n, None, np.ones(1, bool)), np.empty(0, int)
            else:
                found = tower.known(np.array([row]))
                seen = model.rated_[found.rows].indices
            return Person(model, user, found, np.union1d(seen, list(liked)).astype(int), liked)
        guest, user = self._guest(user, features, learnable, keep=not who.ratings)
        found = guest.towers_.users.known(np.zeros(1, np.int64))
        seen = np.union1d(guest.rated_.indices, list(liked)).astype(int)
        return Person(guest, user, found, seen, liked)

    def check_ratings(self, name: str, given: Sequence[requests.Rating | requests.Event]) -> None:
        """Refuse ratings beyond the bounds of the model."""
        low, high = self.model.rating_bounds() or (-np.inf, np.inf)
        for place, one in enumerate(given):
            if one.rating is not None and not low <= one.rating <= high:
                where = f"{name}.{place}.rating"
                raise InputError(f"{where}: {one.rating:g} is not within {low:g} to {high:g}.")

    def _guest(
        self,
        user: Any,
        features: Mapping[str, Any] | None,
        ratings: Mapping[Any, float | None],
        keep: bool,
    ) -> tuple[TwoTower, Any]:
        """Return a model of one user and the id it has there; kept where it is asked again."""
        tower = self.model.towers_.users
        if user is None:
            user, keep = self.free_id("users"), False
        key = json.dumps([user, features, list(ratings.items())], default=str) if keep else ""
        with self._lock:
            if keep and key in self._guests:
                self._guests.move_to_end(key)
                return self._guests[key], user
        table = None
        if features is not None and tower.encoder is not None:
            table = self.table([{**self.clean(features, "users"), tower.id_column: user}], "users")
        given = None
        if ratings:
            has_ratings = "rating" in self.model.parts_
            if has_ratings and None in ratings.values():
                raise InputError("ratings: the model was trained with ratings; give each one.")
            items = sorted(ratings)
            values = [ratings[item] if has_ratings else 1.0 for item in items]
            given = Ratings(
                IdMap(pa.array([user])),
                IdMap(pa.array(items)),
                np.zeros(len(items), np.int32),
                np.arange(len(items), dtype=np.int32),
                np.array(values, np.float32),
                has_ratings=has_ratings,
            )
        guest = self.model.guests(given, users=table, user_ids=None if given else [user])
        if keep:
            with self._lock:
                self._guests[key] = guest
                while len(self._guests) > 1_000:
                    self._guests.popitem(last=False)
        return guest, user

    def _found(self, rows: np.ndarray) -> Found:
        """Return items by their rows as the model has them; new ones by their features."""
        tower = self.model.towers_.items
        if not len(rows) or rows.max() < self.n_known:
            return tower.known(rows)
        ids = self.items_at(rows)
        new = [self.since.items[item] for item in ids if item in self.since.items]
        return tower.find(ids, self.table(new, "items"), "prior")

    def directions_of(self, rows: np.ndarray) -> np.ndarray:
        """Return unit vectors of items, whose products are correlations of their scores."""
        if self._unit is None:
            self._unit = directions(self.model.predictor(), self.model.towers_)
        return self._unit(self._found(rows))

    def listed(self, rows: np.ndarray) -> list[dict[str, Any]]:
        """Return items by their rows, with titles where there are any."""
        pairs = zip(self.items_at(rows), names_at(self._table, rows, self.title), strict=True)
        return [{"item_id": i} if t is None else {"item_id": i, "title": t} for i, t in pairs]


def _refused(name: str, expected: str, given: Any) -> InputError:
    """Make the error for a field of a request."""
    return InputError(f"{name}: expected {expected}, got {as_json(given)}.")
