"""One list to look at, with titles: of a user, or of a newcomer with a few ratings."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from simrec.console import Id
from simrec.data.ids import IdMap
from simrec.data.messages import describe, no_column
from simrec.errors import InputError
from simrec.jobs.io.inputs import RankBy, open_table, read_id
from simrec.jobs.options import Path

if TYPE_CHECKING:
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
    if new_user is None:
        who: Any = read_id(str(user), model.users_, "user_id")
    else:
        who = _fold_in_newcomer(model, new_user, user, tables)
    users = _features(model.towers_.users, tables["users"], [who])
    whom = [who] if users is None else users
    given = {"items": items, "exclude": tables["exclude"]}
    table = model.recommend(whom, **given, output="arrow", **asked)
    ids = table[own.item_id].to_pylist()
    columns = {"rank": table["rank"], own.item_id: table[own.item_id]}
    if titles := _titles(model, ids, items):
        columns["title"] = pa.array([titles.get(one) for one in ids])
    columns["score"] = table["score"]
    if "rating" in model.parts_ and ids:
        ratings = model.predict([who], ids, items=items, users=users, unknown="prior")
        columns["rating"] = pa.array(ratings)
    # Figures as far as float32 means them.
    shown = [
        {name: round(v, 7) if isinstance(v, float) else v for name, v in row.items()}
        for row in pa.table(columns).to_pylist()
    ]
    return {
        "job": "recommend",
        own.user_id: Id.of(who),
        "list": shown,
        "scores": _score_words(model, asked["rank_by"]),
    }


def _fold_in_newcomer(
    model: "TwoTower", path: Path, user: str | None, tables: Mapping[str, Any]
) -> Any:
    """Fold in the ratings of one new user; return the id, of the file, as given, or a free one."""
    from simrec.data.ratings import Ratings

    own, label = model.columns_, describe(path, "new_user")
    ratings = open_table(path, "new_user", own).read()
    if "item_id" not in ratings.column_names:
        raise no_column([own.item_id], ratings.column_names, label)
    if "user_id" in ratings.column_names:
        several = pc.unique(ratings["user_id"]).to_pylist()
        if len(several) != 1:
            raise InputError(
                f"{label}: ratings of {len(several)} users; one list is shown. For several, learn "
                "them with simrec update, then give users and out."
            )
        who = several[0]
    else:
        ids = model.users_
        free = pc.max(ids.ids).as_py() + 1 if pa.types.is_integer(ids.type) else "new user"
        who = free if user is None else read_id(user, ids, "user_id")
        column = pa.array([who] * len(ratings), ids.type)
        ratings = ratings.append_column("user_id", column)
    row = model.users_.rows([who], "user_id")[0]
    if row >= 0 and model.towers_.users.counts[row]:
        raise InputError(
            f"{label}: the model has ratings of user {who!r}; fold_in is for those without. Leave "
            "out the column of users, or learn the ratings with simrec update."
        )
    rating = "rating" if "rating" in model.parts_ else None
    taken = Ratings.from_table(ratings, rating=rating, bounds=model.rating_bounds(), name=label)
    items = _features(model.towers_.items, tables["items"], ratings["item_id"])
    users = _features(model.towers_.users, tables["users"], [who])
    model.fold_in(taken, items=items, users=users)
    return who


def _features(tower: "Tower", path: Path | None, ids: Any) -> pa.Table | None:
    """Return the rows of some entities in a table of features; None if it has none of them."""
    if path is None or tower.encoder is None:
        return None
    table, listed = tower.read(path)
    wanted = IdMap.from_values(ids, tower.id_column)
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


def _score_words(model: "TwoTower", rank_by: RankBy) -> str:
    """Say what the scores of a list mean."""
    if rank_by == "uptake":
        return "logits of uptake"
    if rank_by == "rating":
        logits = model.parts_["rating"].output.kind == "sigmoid"
        what = "logits" if logits else "not confined to the bounds"
        return f"predicted ratings, {what}"
    return "weighted sums of all components: no unit, comparable within one list only"
