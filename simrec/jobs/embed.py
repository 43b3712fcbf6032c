"""Embed entities: a feature table in, ids and vectors out."""

from typing import Any, Literal

import pyarrow as pa

from simrec.data.sides import ID_COLUMNS, Side, Sides
from simrec.errors import InputError
from simrec.jobs.engine.batch import BatchOptions, EntityTask, run_batch
from simrec.jobs.io.entities import entity_source
from simrec.jobs.io.inputs import ModelReference, NameOptions, RankBy
from simrec.jobs.io.outputs import Scratch, check_apart
from simrec.jobs.options import Path


def embed(
    model: Path,
    out: Path,
    *,
    items: Path | None = None,
    users: Path | None = None,
    side: Literal["item", "user"] | None = None,
    rank_by: RankBy = "both",
    names: NameOptions = NameOptions(),  # noqa: B008 (frozen)
    batch: BatchOptions = BatchOptions(),  # noqa: B008 (frozen)
) -> dict[str, Any]:
    """Write the vectors of items or users, for an index or a vector database.

    Parameters
    ----------
    items : path, optional
        Items to embed: item_id, with features for those the model does not know.
    users : path, optional
        Users to embed: user_id, with features for those the model does not know.
    side : str, optional
        Embed all items or all users the model knows, instead of those of a table.
    """
    given = Sides(items, users)
    sides: list[Side] = [name for name, table in given.named() if table is not None]
    if side is not None:
        sides.append("items" if side == "item" else "users")
    if len(sides) != 1:
        raise InputError("embed: give either items or users, or side=item for all known items")
    batch.check_unpartitioned("embed")
    which = sides[0]
    check_apart(out, model=model, items=items, users=users)
    reference = ModelReference.of(model)
    own = names.over(reference.columns)
    source = entity_source(reference.load().towers_[which], given[which], own, batch.skip_bad)

    def prepare(scratch: Scratch) -> EntityTask:
        width = reference.load().ranking(rank_by)[0][which].width
        ids = source.schema.field(ID_COLUMNS[which]).with_name(own.of(which))
        schema = pa.schema([ids, ("vector", pa.list_(pa.float32(), width))])
        columns = tuple(source.schema.names)
        asked = (f"embed_{which}", {"rank_by": rank_by})
        return EntityTask(reference, which, *asked, columns=columns, schema=schema)

    # The encoder works on dense blocks of its own; here only features in, vectors out.
    row_bytes = 4 * (source.row_bytes + 1024)
    job = {"job": "embed", "side": which, "rank_by": rank_by}
    return run_batch(job, reference, source, out, prepare, batch, 1 << 18, row_bytes)
