"""One list to look at, with titles: of a user, or of a newcomer with a few ratings."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from simrec.console import Id
from simrec.data.ids import IdMap
from simrec.data.messages import describe
from simrec.errors import InputError
from simrec.jobs.io.inputs import open_table, read_id
from simrec.jobs.options import Path

if TYPE_CHECKING:
    from simrec.data.ratings import Ratings
    from simrec.model.tower import Tower
    from simrec.model.two_tower import TwoTower


def recommend_one(
    path: Path,
    user: str | None,
    new_user: Path | None,
    tables: Mapping[str, Any],
    asked: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the list of one user, or of a newcomer with a few ratings."""
    from simrec.model.two_tower import TwoTower

    model = TwoTower.load(path)
    own, items = model.columns_, tables["items"]
    who, ratings = _ratings_of(model, user, new_user)
    users = _features(model.towers_.users, tables["users"], who)
    if ratings is not None:
        model = model.guests(ratings, users=users)
    whom = [who] if users is None else users
    given = {"items": items, "exclude": tables["exclude"]}
    table = model.recommend(whom, **given, output="arrow", **asked)
    ids = table[own.item_id].to_pylist()
    columns = {"rank": table["rank"], own.item_id: table[own.item_id]}
    if titles := _titles(model, ids, items):
        columns["title"] = pa.array([titles.get(one) for one in ids])
    columns["score"] = table["score"]
    if "rating" in model.parts_ and ids:
        predicted = model.predict([who], ids, items=items, users=users, unknown="prior")
        columns["rating"] = pa.array(predicted)
    # Figures as far as float32 means them.
    shown = [
        {name: round(v, 7) if isinstance(v, float) else v for name, v in row.items()}
        for row in pa.table(columns).to_pylist()
    ]
    return {"job": "recommend", own.user_id: Id.of(who), "list": shown}


def _ratings_of(
    model: "TwoTower", user: str | None, path: Path | None
) -> "tuple[Any, Ratings | None]":
    """Return a user, by the id given, that of a file of ratings or a free one, and the ratings."""
    from simrec.data.ratings import Ratings

    if path is None:
        return read_id(str(user), model.users_, "user_id"), None
    ids, label = model.users_, describe(path, "new_user")
    source = open_table(path, "new_user", model.columns_)
    source.require_columns("item_id")
    ratings = source.read()
    free = pc.max(ids.ids).as_py() + 1 if pa.types.is_integer(ids.type) else "new user"
    who = free if user is None else read_id(user, ids, "user_id")
    if "user_id" not in ratings.column_names:
        ratings = ratings.append_column("user_id", pa.array([who] * len(ratings), ids.type))
    several = pc.unique(ratings["user_id"]).to_pylist()
    if len(several) != 1:
        raise InputError(
            f"{label}: ratings of {len(several)} users; one list is shown. For several, learn "
            "them with simrec update, then give users and out."
        )
    rating, bounds = "rating" if "rating" in model.parts_ else None, model.rating_bounds()
    return several[0], Ratings.from_table(ratings, rating=rating, bounds=bounds, name=label)


def _features(tower: "Tower", path: Path | None, who: Any) -> pa.Table | None:
    """Return the row of an entity in a table of features; None if it has none."""
    if path is None or tower.encoder is None:
        return None
    table, listed = tower.read(path)
    wanted = IdMap.from_values([who], tower.id_column)
    found = table.filter(pa.array(wanted.contains(listed, tower.id_column)))
    return found if len(found) and found.num_columns > 1 else None


def _titles(model: "TwoTower", ids: list[Any], items: Path | None) -> dict[Any, str]:
    """Return what items are called, in the table that is given or in that of training."""
    from simrec.model.catalogue import titles
    from simrec.model.tower import unique_ids

    found = model.titles(ids)
    if items is not None:
        table, listed = model.towers_.items.read(items)
        known, place = unique_ids(listed, "items", "items")
        found |= titles(table.take(pa.array(place)).drop_columns(["item_id"]), known, ids)
    return found
