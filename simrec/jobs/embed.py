"""Embed entities: a feature table in, ids and vectors out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from simrec.errors import InputError
from simrec.jobs.engine.batch import BatchOptions, run_batch
from simrec.jobs.io.discover import open_source
from simrec.jobs.io.scratch import Scratch
from simrec.jobs.io.sources import Source
from simrec.jobs.options import Path
from simrec.jobs.shared.entities import KnownIds, Side, check_columns
from simrec.jobs.shared.model import ModelReference


@dataclass(frozen=True)
class EmbedTask:
    """Replace features by vectors."""

    model: ModelReference
    side: Side
    columns: Sequence[str]
    schema: pa.Schema

    def process(self, table: pa.Table) -> tuple[pa.Table, Mapping[str, int]]:
        """Return id and vector of each row."""
        loaded = self.model.load()
        tower = loaded.item_tower_ if self.side == "item" else loaded.user_tower_
        ids, vectors = tower.embed(table)
        flat = pa.array(np.ascontiguousarray(vectors).reshape(-1))
        lists = pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
        n_new = int((~tower.ids.contains(ids)).sum())
        columns = [ids.cast(self.schema.types[0]), lists]
        return pa.table(columns, schema=self.schema), {"new": n_new}


def embed(
    model: Path,
    out: Path,
    *,
    items: Path | None = None,
    users: Path | None = None,
    side: Side | None = None,
    batch: BatchOptions = BatchOptions(),  # noqa: B008 (frozen)
) -> dict[str, Any]:
    """Write the vectors of items or users, for an index or a vector database.

    Parameters
    ----------
    model : path
        The model directory.
    out : path
        Output directory of Parquet parts, or a single file if the name ends in .parquet.
    items : path, optional
        Items to embed: item_id, with features for those the model does not know.
    users : path, optional
        Users to embed: user_id, with features for those the model does not know.
    side : str, optional
        Embed all items or all users the model knows, instead of those of a table.
    batch : BatchOptions
        How to run the job.

    Returns
    -------
    dict
        The summary.
    """
    given: dict[Side, Path | None] = {"item": items, "user": users}
    sides: list[Side] = [name for name, table in given.items() if table is not None]
    if len(sides) + (side is not None) != 1:
        raise InputError("embed: give either items or users, or a side to embed all known ones")
    if batch.partition_by:
        raise InputError("partition_by: the output of embed has no column to partition by")
    which = side or sides[0]
    column, table = f"{which}_id", given[which]
    reference = ModelReference.of(model)
    source: Source | KnownIds
    if table is None:
        loaded = reference.load()
        known = loaded.item_tower_ if which == "item" else loaded.user_tower_
        source = KnownIds(column, known.ids.ids)
    else:
        source = open_source(table, f"{which}s", skip_bad=batch.on_bad_fragment == "skip")
        check_columns(source, column)

    def prepare(scratch: Scratch) -> EmbedTask:
        width = reference.load().item_tower_.vectors.shape[1]
        vector = pa.field("vector", pa.list_(pa.float32(), width))
        schema = pa.schema([source.schema.field(column), vector])
        return EmbedTask(reference, which, tuple(source.schema.names), schema)

    # The encoder works on dense blocks of its own; here only features in, vectors out.
    row_bytes = 4 * (source.row_bytes + 1024)
    job = {"job": "embed", "side": which}
    return run_batch(job, reference, source, out, prepare, batch, 1 << 18, row_bytes)
