"""Answers to look at, with titles, without writing files: one list, neighbours, one score."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from simrec.console import Id
from simrec.data.messages import describe, no_column
from simrec.data.sides import Columns
from simrec.errors import InputError
from simrec.jobs.io.inputs import RankBy, fold_in, open_model, open_table, read_id
from simrec.jobs.options import Path, nearest

if TYPE_CHECKING:
    from simrec.model.two_tower import TwoTower


def similar(
    model: Path,
    *,
    item_id: str,
    items: Path | None = None,
    k: int = 10,
    rank_by: RankBy = "both",
    name_column: str | None = None,
) -> dict[str, Any]:
    """Find the items that the same users like.

    Parameters
    ----------
    item_id : str
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
    loaded, own = open_model(model)
    tower = loaded.towers_.items
    column = tower.table_column
    entity = read_id(item_id, tower.ids, "item_id")
    query: Any = entity
    if items is not None and not tower.ids.contains([entity], "item_id")[0]:
        table, ids = tower.read(items)
        row = pc.index(ids, pa.scalar(entity, ids.type)).as_py()
        if row < 0:
            raise InputError(
                f"{items}: no item_id {entity!r}, and the model does not know it either"
            )
        query = table.slice(row, 1)
    rows = _records(loaded.similar_items(query, k, rank_by, output="arrow"))
    ids = pa.array([entity, *(row[column] for row in rows)], tower.ids.type)
    first, *named = _titles(loaded, ids, items, name_column, own) or [None] * len(ids)
    title = {} if first is None else {"title": first}
    shown = [
        {"rank": row["rank"], column: row[column], **(title and {"title": name}), **row}
        for row, name in zip(rows, named, strict=True)
    ]
    return {"job": "similar", column: Id.of(entity), **title, "neighbours": shown}


def explain(
    model: Path,
    *,
    user_id: str,
    item_id: str,
    items: Path | None = None,
    users: Path | None = None,
    feedback: Path | None = None,
    rank_by: RankBy = "both",
    unknown: Literal["error", "prior"] = "error",
    name_column: str | None = None,
) -> dict[str, Any]:
    """Tell what adds how much to the score of a user and an item.

    Parameters
    ----------
    user_id : str
        Id of the user.
    item_id : str
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
    loaded, own = open_model(model, feedback=feedback, items=items, users=users)
    user = read_id(user_id, loaded.users_, "user_id")
    item = read_id(item_id, loaded.items_, "item_id")
    tables: dict[str, Any] = {"items": items, "users": users, "unknown": unknown}
    found = loaded.explain(user, item, rank_by=rank_by, **tables, output="arrow")
    parts = _by_component(_records(found))
    pair = pa.table({"user_id": [user], "item_id": [item]})
    named = _titles(loaded, pair["item_id"], items, name_column, own)
    return {
        "job": "explain",
        own.user_id: Id.of(user),
        own.item_id: Id.of(item),
        **({"title": named[0]} if named else {}),
        "score": round(sum(part["contribution"] for part in parts), 6),
        "predicted": round(float(loaded.predict(pair, **tables)[0]), 6),
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
    model: "TwoTower",
    own: Columns,
    user: str | None,
    new_user: Path | None,
    paths: Mapping[str, Any],
    asked: Mapping[str, Any],
    name_column: str | None,
) -> dict[str, Any]:
    """Return the list of one user, or of a newcomer with a few ratings."""
    if new_user is None:
        who: Any = read_id(str(user), model.users_, "user_id")
    else:
        who = _fold_in_newcomer(model, new_user, user, paths, own)
    words = (None, "rated")
    given = {
        name: path if path in words else open_table(path, name, own).read()
        for name, path in paths.items()
    }
    users = given.pop("users")
    if users is not None:
        users = users.filter(pc.equal(users["user_id"].cast(pa.string()), str(who)))
    whom = users if users is not None and len(users) else [who]
    table = model.recommend(whom, **given, output="arrow", **asked)
    ids = table[model.columns_.item_id]
    columns = {"rank": table["rank"], own.item_id: ids}
    found = _titles(model, ids, paths["items"], name_column, own)
    columns |= {"title": pa.array(found)} if found else {}
    columns["score"] = table["score"]
    if "rating" in model.parts_ and len(ids):
        pairs = pa.table({"user_id": pa.array([who] * len(ids)), "item_id": ids})
        features = {"items": given["items"], "users": users}
        columns["rating"] = pa.array(model.predict(pairs, **features, unknown="prior"))
    return {
        "job": "recommend",
        own.user_id: Id.of(who),
        "list": _records(pa.table(columns)),
        "scores": _score_words(model, asked["rank_by"]),
    }


def _fold_in_newcomer(
    model: "TwoTower", path: Path, user: str | None, paths: Mapping[str, Any], own: Columns
) -> Any:
    """Fold in the ratings of one new user; return the id, of the file, as given, or a free one."""
    ratings, label = open_table(path, "new_user", own).read(), describe(path, "new_user")
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
    fold_in(model, ratings, label, paths["items"], paths["users"], own)
    return who


def _titles(
    model: "TwoTower", ids: Any, items: Path | None, name_column: str | None, own: Columns
) -> list[str | None]:
    """Return what items are called, in the table that is given or in that of training."""
    from simrec.model.catalogue import titles
    from simrec.model.tower import unique_ids

    tables = [] if model.catalogue_ is None else [(model.catalogue_, model.items_)]
    if items is not None:
        table = open_table(items, "items", own).read()
        known, place = unique_ids(table["item_id"], "items", "items")
        tables.append((table.take(pa.array(place)).drop_columns(["item_id"]), known))
    named = [name for table, _ in tables for name in table.column_names]
    if name_column is not None and name_column not in named:
        raise InputError(f"name_column: no column {name_column!r}; {nearest(name_column, named)}")
    found: dict[Any, str] = {}
    for table, known in tables:
        found |= titles(table, known, ids, name_column)
    return [found.get(one) for one in ids.to_pylist()] if found else []


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
