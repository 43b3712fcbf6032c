"""Answers to look at, with titles, without writing files: one list, neighbours, one score."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

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


def similar(
    model: Path,
    *,
    item: str,
    items: Path | None = None,
    k: int = 10,
    rank_by: RankBy = "both",
) -> dict[str, Any]:
    """Find the items that the same users like.

    Parameters
    ----------
    item : str
        Id of the item whose neighbours to find.
    k : int
        How many.
    rank_by : str
        Which scores to compare: both (those of score), rating or uptake.

    Returns
    -------
    dict
        ``neighbours``, one record each: id, title, similarity from -1 to 1, and rank.
    """
    from simrec.model.two_tower import TwoTower

    loaded = TwoTower.load(model)
    tower = loaded.towers_.items
    column, entity = tower.table_column, read_id(item, tower.ids, "item_id")
    known = tower.ids.contains([entity], "item_id")[0]
    query: Any = None if known else _features(tower, items, [entity])
    query = entity if query is None else query
    rows = _records(loaded.similar_items(query, k, rank_by, output="arrow"))
    titles = _titles(loaded, [entity, *(row[column] for row in rows)], items)
    shown = [
        {"rank": row["rank"], column: row[column], **_title(titles, row[column]), **row}
        for row in rows
    ]
    named = _title(titles, entity)
    return {"job": "similar", column: Id.of(entity), **named, "neighbours": shown}


def explain(
    model: Path,
    *,
    user: str,
    item: str,
    items: Path | None = None,
    users: Path | None = None,
    rank_by: RankBy = "both",
    unknown: Literal["error", "prior"] = "error",
) -> dict[str, Any]:
    """Tell what adds how much to the score of a user and an item.

    Parameters
    ----------
    user : str
        Id of the user.
    item : str
        Id of the item.
    rank_by : str
        Which score to explain, as in recommend: both, rating or uptake.
    unknown : str
        What to do with an id that has neither ratings nor features: error or prior (answer for an
        average entity).

    Returns
    -------
    dict
        ``score``, as in the list; ``predicted``, as `score` predicts it; and ``contributions``, one
        record each, which sum to the score.
    """
    from simrec.model.two_tower import TwoTower

    loaded = TwoTower.load(model)
    own = loaded.columns_
    user_id = read_id(user, loaded.users_, "user_id")
    item_id = read_id(item, loaded.items_, "item_id")
    tables: dict[str, Any] = {"items": items, "users": users, "unknown": unknown}
    found = loaded.explain(user_id, item_id, rank_by=rank_by, **tables, output="arrow")
    parts = _by_component(_records(found))
    return {
        "job": "explain",
        own.user_id: Id.of(user_id),
        own.item_id: Id.of(item_id),
        **_title(_titles(loaded, [item_id], items), item_id),
        "score": round(sum(part["contribution"] for part in parts), 6),
        "predicted": round(float(loaded.predict(user_id, item_id, **tables)[0]), 6),
        "contributions": parts,
        "scores": _score_words(loaded, rank_by),
    }


def _by_component(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Make one row of a component that has one of each side: together they say one thing."""
    found: dict[str, list[dict[str, Any]]] = {}
    for part in parts:
        found.setdefault(part["feature"].partition(": ")[0], []).append(part)
    rows = []
    for name, mine in found.items():
        if [part["side"] for part in mine] == ["item", "user"]:
            value = ", ".join(f"{part['side']}: {part['value'] or 'new'}" for part in mine)
            sums = {key: sum(p[key] for p in mine) for key in ("bias", "taste", "contribution")}
            mine = [{"side": "both", "feature": name, "value": value, **sums}]
        rows += mine
    return rows


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
    titles = _titles(model, ids, items)
    shown = [
        {"rank": row["rank"], own.item_id: row[own.item_id], **_title(titles, row[own.item_id])}
        | {"score": row["score"]}
        for row in _records(table)
    ]
    if "rating" in model.parts_ and ids:
        ratings = model.predict([who], ids, items=items, users=users, unknown="prior")
        shown = [{**row, "rating": float(r)} for row, r in zip(shown, ratings, strict=True)]
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


def _title(titles: Mapping[Any, str], item: Any) -> dict[str, str | None]:
    """Return the title of an item as a field of a record, where there are titles."""
    return {"title": titles.get(item)} if titles else {}


def _score_words(model: "TwoTower", rank_by: RankBy) -> str:
    """Say what the scores of a list mean."""
    if rank_by == "uptake":
        return "logits of uptake"
    if rank_by == "rating":
        logits = model.parts_["rating"].output.kind == "sigmoid"
        what = "logits" if logits else "not confined to the bounds"
        return f"predicted ratings, {what}"
    return "weighted sums of all components: no unit, comparable within one list only"


def _records(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a table; figures as far as float32 means them."""
    return [
        {name: round(v, 7) if isinstance(v, float) else v for name, v in row.items()}
        for row in table.to_pylist()
    ]
