"""Embed entities: a feature table in, ids and vectors out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from simrec.data.sides import ID_COLUMNS, Side, Sides
from simrec.data.source import Source, open_source
from simrec.errors import InputError
from simrec.jobs.engine.batch import BatchOptions, run_batch
from simrec.jobs.io.claim import check_apart
from simrec.jobs.io.entities import KnownIds, check_columns, check_once
from simrec.jobs.io.model import ModelReference, RankBy
from simrec.jobs.io.scratch import Scratch
from simrec.jobs.io.tables import NameOptions
from simrec.jobs.options import Path


@dataclass(frozen=True)
class EmbedTask:
    """Replace features by vectors."""

    model: ModelReference
    side: Side
    rank_by: RankBy
    columns: Sequence[str]
    schema: pa.Schema

    def process(self, table: pa.Table) -> tuple[pa.Table, Mapping[str, int]]:
        """Return id and vector of each row."""
        loaded = self.model.load()
        tower, head = loaded.towers_[self.side], loaded.ranking(self.rank_by)[0][self.side]
        ids = table[tower.id_column]
        vectors = head.of(tower.find(ids, table))
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
        raise InputError("embed: give either items or users, or a side to embed all known ones")
    if batch.partition_by:
        raise InputError("partition_by: the output of embed has no column to partition by")
    which = sides[0]
    column, table = ID_COLUMNS[which], given[which]
    check_apart(out, model=model, items=items, users=users)
    reference = ModelReference.of(model)
    own = names.over(reference.columns)
    source: Source | KnownIds
    if table is None:
        source = KnownIds(column, reference.load().towers_[which].ids.column)
    else:
        source = open_source(table, which, skip_bad=batch.on_bad_fragment == "skip")
        source = source.renamed(own.renaming())
        check_columns(source, column)
        tower = reference.load().towers_[which]
        check_once(tower, source, batch.on_bad_fragment == "skip")

    def prepare(scratch: Scratch) -> EmbedTask:
        width = reference.load().ranking(rank_by)[0][which].width
        vector = pa.field("vector", pa.list_(pa.float32(), width))
        ids = source.schema.field(column).with_name(own.of(which))
        schema = pa.schema([ids, vector])
        return EmbedTask(reference, which, rank_by, tuple(source.schema.names), schema)

    # The encoder works on dense blocks of its own; here only features in, vectors out.
    row_bytes = 4 * (source.row_bytes + 1024)
    job = {"job": "embed", "side": which, "rank_by": rank_by}
    return run_batch(job, reference, source, out, prepare, batch, 1 << 18, row_bytes)
