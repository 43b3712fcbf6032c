"""One list, to look at: of a user, an item or a newcomer, with titles, without writing files."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.console import Id
from simrec.data.columns import Columns
from simrec.data.messages import describe
from simrec.data.source import open_source
from simrec.errors import InputError
from simrec.jobs.io.model import RankBy, fold_in
from simrec.jobs.io.tables import NameOptions, read_id, records
from simrec.jobs.options import Path, nearest

if TYPE_CHECKING:
    from simrec.model.two_tower import TwoTower


def open_model(
    model: Path,
    names: NameOptions,
    feedback: Path | None,
    items: Path | None,
    users: Path | None,
) -> tuple["TwoTower", Columns]:
    """Load a model with a few ratings folded in; return it, and what columns are called."""
    from simrec.model.two_tower import TwoTower

    loaded = TwoTower.load(model)
    own = names.over(loaded.columns_)
    if feedback is not None:
        ratings = _read(feedback, "feedback", own)
        label = describe(feedback, "feedback")
        fold_in(loaded, ratings, label, items, users, own.renaming())
    return loaded, own


def recommend_one(
    model: "TwoTower",
    own: Columns,
    user: str | None,
    new_user: Path | None,
    paths: Mapping[str, Any],
    asked: Mapping[str, Any],
    min_score: float | None,
    name_column: str | None,
) -> dict[str, Any]:
    """Return the list of one user, or of a newcomer with a few ratings.

    `paths` are items, users, exclude and eligible of the command, `asked` what
    `TwoTower.recommend` is asked for by the same names.
    """
    items, users, exclude = paths["items"], paths["users"], paths["exclude"]
    if new_user is not None:
        who = _fold_in_newcomer(model, new_user, user, items, users, own)
    else:
        who = read_id(str(user), model.users_, "user_id")
    whom: Any = [who]
    if users is not None:
        table = _read(users, "users", own)
        mine = table.filter(pc.equal(table["user_id"].cast(pa.string()), str(who)))
        whom = mine if len(mine) else whom
    candidates = _candidates(model, items, paths["eligible"], who, own)
    seen = exclude if exclude in (None, "rated") else _read(exclude, "exclude", own)
    table = model.recommend(whom, items=candidates, exclude=seen, output="arrow", **asked)
    if min_score is not None:
        table = table.filter(pc.greater_equal(table["score"], min_score))
    ids = table[model.columns_.item_id]
    columns = {"rank": table["rank"], own.item_id: ids}
    found = titles(model, ids, items, name_column, own)
    columns |= {"title": pa.array(found)} if found else {}
    columns["score"] = table["score"]
    if "rating" in model.parts_ and len(ids):
        pairs = {"user_id": pa.array([who] * len(ids)), "item_id": ids}
        features = {} if items is None else {"items": _read(items, "items", own)}
        features |= {} if isinstance(whom, list) else {"users": whom}
        columns["rating"] = pa.array(model.predict(pa.table(pairs), **features, unknown="prior"))
    return {
        "job": "recommend",
        own.user_id: Id.of(who),
        "list": records(pa.table(columns)),
        "scores": score_words(model, asked["rank_by"]),
    }


def titles(
    model: "TwoTower", ids: Any, items: Path | None, name_column: str | None, own: Columns
) -> list[str | None]:
    """Return what items are called, in the table that is given or in that of training."""
    from simrec.model.catalogue import title_column
    from simrec.model.tower import unique_ids

    tables = [] if items is None else [_read(items, "items", own)]
    if model.catalogue_ is not None:
        tables.append(model.catalogue_.append_column("item_id", model.items_.column))
    found: list[str | None] = [None] * len(ids)
    named = [name for table in tables for name in table.column_names if name != "item_id"]
    if name_column is not None and name_column not in named:
        raise InputError(f"name_column: no column {name_column!r}; {nearest(name_column, named)}")
    for table in tables:
        column = name_column or title_column(table.drop_columns(["item_id"]))
        if column not in table.column_names:
            continue
        known, place = unique_ids(table["item_id"], "items", "items")
        for i, row in enumerate(known.rows(ids, "item_id")):
            if row >= 0 and found[i] is None:
                value = table[column][int(place[row])].as_py()
                found[i] = None if value is None else str(value)
    return found if any(found) else []


def score_words(model: "TwoTower", rank_by: RankBy) -> str:
    """Say what the scores of a list mean."""
    if rank_by == "uptake":
        return "logits of uptake"
    if rank_by == "rating":
        logits = model.parts_["rating"].output.kind == "sigmoid"
        what = "logits" if logits else "not confined to the bounds"
        return f"predicted ratings, {what}"
    return "weighted sums of all components: no unit, comparable within one list only"


def _fold_in_newcomer(
    model: "TwoTower",
    path: Path,
    user: str | None,
    items: Path | None,
    users: Path | None,
    own: Columns,
) -> Any:
    """Fold in the ratings of one new user; return the id, of the file, as given, or a free one."""
    ratings, label = _read(path, "new_user", own), describe(path, "new_user")
    if "user_id" in ratings.column_names:
        several = pc.unique(ratings["user_id"]).to_pylist()
        if len(several) != 1:
            raise InputError(
                f"{label}: ratings of {len(several)} users; one list is shown. For several, give "
                "feedback, users and out."
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
    fold_in(model, ratings, label, items, users, own.renaming())
    return who


def _candidates(
    model: "TwoTower", items: Path | None, eligible: Path | None, user: Any, own: Columns
) -> Any:
    """Return the items to choose from: a table with features, ids, or None for all known."""
    table = None if items is None else _read(items, "items", own)
    if eligible is None:
        return table
    allowed = _read(eligible, "eligible", own)
    if "user_id" in allowed.column_names:
        allowed = allowed.filter(pc.equal(allowed["user_id"].cast(pa.string()), str(user)))
    ids = pc.unique(allowed["item_id"])
    if table is None:
        return ids.filter(pa.array(np.asarray(model.items_.contains(ids, "item_id"))))
    return table.filter(pc.is_in(table["item_id"], value_set=ids.cast(table["item_id"].type)))


def _read(path: Path, name: str, own: Columns) -> pa.Table:
    return open_source(path, name).renamed(own.renaming()).read()
