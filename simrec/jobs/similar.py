"""Find the items or users that are most like one of them."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from simrec.errors import InputError
from simrec.jobs.options import Path
from simrec.jobs.shared.data import read_id, records, table_at
from simrec.jobs.shared.model import RankBy


def similar(
    model: Path,
    *,
    item_id: str | None = None,
    user_id: str | None = None,
    items: Path | None = None,
    users: Path | None = None,
    k: int = 10,
    rank_by: RankBy = "both",
) -> dict[str, Any]:
    """Find the items that the same users like, or the users who like the same items.

    Parameters
    ----------
    model : path
        The model directory.
    item_id : str, optional
        Id of the item whose neighbours to find.
    user_id : str, optional
        Id of the user whose neighbours to find.
    items : path, optional
        Features of an item the model does not know.
    users : path, optional
        Features of a user the model does not know.
    k : int
        How many.
    rank_by : str
        Which scores to compare: both, rating or uptake.

    Returns
    -------
    dict
        ``neighbours``, one record each: id, similarity from -1 to 1, and rank.
    """
    from simrec.model.two_tower import TwoTower

    if (item_id is None) == (user_id is None):
        raise InputError("similar: give either item_id or user_id")
    loaded = TwoTower.load(model)
    tower = loaded.towers_.items if user_id is None else loaded.towers_.users
    column, table = tower.id_column, items if user_id is None else users
    query: Any = read_id(str(item_id if user_id is None else user_id), tower.ids, column)
    result = {"job": "similar", column: query}
    if tower.ids.rows([query], column)[0] < 0 and table is not None:
        query = _row(table, tower.side, column, query)
    find = loaded.similar_items if user_id is None else loaded.similar_users
    return {**result, "neighbours": records(find(query, k, rank_by, output="arrow"))}


def _row(path: Path, name: str, column: str, entity: int | str) -> pa.Table:
    """Return the row of one entity in a table of features."""
    from simrec.data.tables import read_table

    table = read_table(table_at(path, name), name=name)
    if column not in table.column_names:
        raise InputError(f"{path}: no column {column!r}")
    row = pc.index(table[column], pa.scalar(entity, table[column].type)).as_py()
    if row < 0:
        raise InputError(f"{path}: no {column} {entity!r}, and the model does not know it either")
    return table.slice(row, 1)
