"""Audience: items in, the users for whom each adds most out."""

from typing import Any

import pyarrow as pa

from simrec.errors import InputError
from simrec.jobs.engine.batch import BatchOptions, EntityTask, run_batch
from simrec.jobs.io.entities import entity_source
from simrec.jobs.io.inputs import ModelReference, NameOptions, RankBy, open_table
from simrec.jobs.io.outputs import check_apart
from simrec.jobs.options import Path


def audience(
    model: Path,
    out: Path,
    *,
    items: Path | None = None,
    users: Path | None = None,
    k: int = 10,
    rank_by: RankBy = "both",
    reach: int = 10,
    names: NameOptions = NameOptions(),  # noqa: B008 (frozen)
    batch: BatchOptions = BatchOptions(),  # noqa: B008 (frozen)
) -> dict[str, Any]:
    """Find the users for whom each item adds most: whom to tell of new items.

    Parameters
    ----------
    items : path, optional
        The items: item_id, with features for new ones; all known items by default.
    users : path, optional
        Users to choose from: user_id, with features for new ones; all known users by default.
    k : int
        Users per item.
    reach : int
        Count the users who would have an item among so many best.
    """
    for name, value in {"k": k, "reach": reach}.items():
        if value < 1:
            raise InputError(f"{name}: expected at least 1, got {value}")
    batch.check_unpartitioned("audience")
    check_apart(out, model=model, items=items, users=users)
    reference = ModelReference.of(model)
    own = names.over(reference.columns)
    loaded = reference.load()
    candidates, identity, user_type = None, None, loaded.users_.type
    if users is not None:
        opened = open_table(users, "users", own)
        opened.require_columns("user_id")
        identity, user_type = opened.identity(), opened.schema.field("user_id").type
        candidates = opened.read()
    source = entity_source(loaded.towers_.items, items, own, batch.skip_bad)
    schema = pa.schema(
        [
            (own.item_id, source.schema.field("item_id").type),
            (own.user_id, user_type),
            ("lift", pa.float32()),
            ("score", pa.float32()),
            ("rank", pa.int32()),
            ("reach", pa.float64()),
        ]
    )
    settings = {"k": k, "rank_by": rank_by, "reach": reach}
    job = {"job": "audience", **settings, "users": identity}
    given = {**settings, "users": candidates}
    columns = tuple(source.schema.names)
    task = EntityTask(reference, "items", "audience", given, columns=columns, schema=schema)
    row_bytes = 4 * (source.row_bytes + 48 * min(k, len(loaded.users_))) + 4096
    return run_batch(job, reference, source, out, lambda _: task, batch, 1 << 16, row_bytes)
