"""Find the items or users that are most like one of them."""

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from simrec.console import Id
from simrec.errors import InputError
from simrec.jobs.io.model import RankBy
from simrec.jobs.io.tables import NameOptions, read_id, records
from simrec.jobs.one_list import open_model, titles
from simrec.jobs.options import Path

if TYPE_CHECKING:
    from simrec.model.tower import Tower


def similar(
    model: Path,
    *,
    item_id: str | None = None,
    user_id: str | None = None,
    items: Path | None = None,
    users: Path | None = None,
    k: int = 10,
    rank_by: RankBy = "both",
    name_column: str | None = None,
) -> dict[str, Any]:
    """Find the items that the same users like, or the users who like the same items.

    Parameters
    ----------
    item_id : str, optional
        Id of the item whose neighbours to find.
    user_id : str, optional
        Id of the user whose neighbours to find.
    k : int
        How many.
    rank_by : str
        Which scores to compare: both (those of score), rating or uptake.

    Returns
    -------
    dict
        ``neighbours``, one record each: id, title, similarity from -1 to 1, and rank.
    """
    if (item_id is None) == (user_id is None):
        raise InputError("similar: give either item_id or user_id")
    loaded, own = open_model(model, NameOptions(), None, None, None)
    tower = loaded.towers_.items if user_id is None else loaded.towers_.users
    column, path = tower.id_column, items if user_id is None else users
    entity = read_id(str(item_id if user_id is None else user_id), tower.ids, column)
    query: Any = entity
    if tower.ids.rows([query], column)[0] < 0 and path is not None:
        query = _row(path, tower, query)
    find = loaded.similar_items if user_id is None else loaded.similar_users
    rows = records(find(query, k, rank_by, output="arrow"))
    result: dict[str, Any] = {"job": "similar", tower.table_column: Id.of(entity)}
    if tower.side == "items":
        ids = [entity, *(row[tower.table_column] for row in rows)]
        named = titles(loaded, pa.array(ids, tower.ids.type), items, name_column, own)
        if named:
            result["title"] = named[0]
            order = ("rank", tower.table_column, "title", "similarity")
            rows = [
                {name: {**row, "title": title}[name] for name in order}
                for row, title in zip(rows, named[1:], strict=True)
            ]
    return {**result, "neighbours": rows}


def _row(path: Path, tower: "Tower", entity: int | str) -> pa.Table:
    """Return the row of one entity in a table of features."""
    table, _ = tower.read(path)
    column = tower.id_column
    row = pc.index(table[column], pa.scalar(entity, table[column].type)).as_py()
    if row < 0:
        raise InputError(f"{path}: no {column} {entity!r}, and the model does not know it either")
    return table.slice(row, 1)
