"""Embed entities: a feature table in, ids and vectors out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from simrec.errors import InputError
from simrec.jobs.batch import BatchOptions, run_batch
from simrec.jobs.entities import Side, encode
from simrec.jobs.io.claim import check_apart
from simrec.jobs.io.discover import open_source
from simrec.jobs.io.scratch import Scratch
from simrec.jobs.models import ModelReference
from simrec.jobs.options import Path


@dataclass(frozen=True)
class EmbedTask:
    """Replaces features by vectors."""

    model: ModelReference
    side: Side
    columns: Sequence[str]
    schema: pa.Schema

    def process(self, table: pa.Table) -> tuple[pa.Table, Mapping[str, int]]:
        """Return id and vector of each row."""
        loaded = self.model.load()
        known = loaded.items_ if self.side == "item" else loaded.users_
        ids, vectors = encode(loaded, self.side, table)
        flat = pa.array(np.ascontiguousarray(vectors).reshape(-1))
        vector = pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
        n_new = int((~known.contains(ids)).sum())
        return pa.table([ids.cast(self.schema.types[0]), vector], schema=self.schema), {
            "new": n_new
        }


def embed(
    model: Path,
    out: Path,
    items: Path | None = None,
    users: Path | None = None,
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
    batch : BatchOptions
        How to run the job.

    Returns
    -------
    dict
        The summary.
    """
    if (items is None) == (users is None):
        raise InputError("embed: give either items or users")
    side: Side = "item" if users is None else "user"
    table = items if users is None else users
    assert table is not None
    check_apart(out, model=model, items=items, users=users)
    source = open_source(table, f"{side}s", skip_bad=batch.on_bad_fragment == "skip")
    column = f"{side}_id"
    source.require(column)
    if batch.partition_by:
        raise InputError("partition_by: the output of embed has no column to partition by")
    reference = ModelReference.of(model)

    def prepare(scratch: Scratch) -> EmbedTask:
        loaded = reference.load()
        vectors = loaded.item_vectors_ if side == "item" else loaded.user_vectors_
        id_field = source.schema.field(column)
        vector = pa.list_(pa.float32(), vectors.shape[1])
        schema = pa.schema([id_field, pa.field("vector", vector)])
        return EmbedTask(reference, side, tuple(source.schema.names), schema)

    # The encoder works on dense blocks of its own; here only features in, vectors out.
    row_bytes = 4 * (source.row_bytes + 1024)
    job = {"job": "embed", "side": side}
    return run_batch(job, reference, source, out, prepare, batch, 1 << 18, row_bytes)
