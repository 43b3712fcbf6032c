"""Audience: items in, the users for whom each adds most out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from simrec.data.source import open_source
from simrec.errors import InputError
from simrec.jobs.engine.batch import BatchOptions, run_batch
from simrec.jobs.io.claim import check_apart
from simrec.jobs.io.entities import KnownIds, check_columns
from simrec.jobs.io.model import ModelReference, RankBy
from simrec.jobs.io.scratch import Scratch
from simrec.jobs.io.tables import NameOptions
from simrec.jobs.options import Path


@dataclass(frozen=True)
class AudienceTask:
    """Find the best users for each item of a batch; the fields are those of `audience`."""

    model: ModelReference
    users: pa.Table | None
    k: int
    rank_by: RankBy
    reach: int
    columns: Sequence[str]
    schema: pa.Schema

    def process(self, table: pa.Table) -> tuple[pa.Table, Mapping[str, int]]:
        """Return item_id, user_id, lift, score, rank and reach for each item of a batch."""
        model = self.model.load()
        column = model.towers_.items.table_column
        names = [column if name == "item_id" else name for name in table.column_names]
        found = model.audience(
            table.rename_columns(names),
            self.k,
            users=self.users,
            rank_by=self.rank_by,
            reach=self.reach,
            output="arrow",
        )
        found = found.cast(pa.schema(zip(found.column_names, self.schema.types, strict=True)))
        return found.rename_columns(self.schema.names), {}


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
    model : path
        The model directory.
    out : path
        Output directory of Parquet parts, or a single file if the name ends in .parquet, .csv or
        .tsv.
    items : path, optional
        The items: item_id, with features for new ones; all known items by default.
    users : path, optional
        Users to choose from: user_id, with features for new ones; all known users by default.
    k : int
        Users per item.
    rank_by : str
        Go by the blend of all components (both), by the predicted rating, or by uptake alone.
    reach : int
        Count the users who would have an item among so many best.
    names : NameOptions
        What columns are called, if not as in training.
    batch : BatchOptions
        How to run the job.

    Returns
    -------
    dict
        The summary.
    """
    for name, value in {"k": k, "reach": reach}.items():
        if value < 1:
            raise InputError(f"{name}: expected at least 1, got {value}")
    if batch.partition_by:
        raise InputError("partition_by: audience writes no column to partition by")
    check_apart(out, model=model, items=items, users=users)
    reference = ModelReference.of(model)
    own = names.over(reference.columns)
    loaded = reference.load()
    candidates = None
    if users is not None:
        opened = open_source(users, "users").renamed(own.renaming())
        check_columns(opened, "user_id")
        column = loaded.towers_.users.table_column
        candidates = opened.read()
        names_of = [column if name == "user_id" else name for name in candidates.column_names]
        candidates = candidates.rename_columns(names_of)
    source: Any = KnownIds("item_id", loaded.items_.column)
    if items is not None:
        source = open_source(items, "items", skip_bad=batch.on_bad_fragment == "skip")
        source = source.renamed(own.renaming())
        check_columns(source, "item_id")
    user_type = loaded.users_.type
    if candidates is not None:
        user_type = candidates.schema.field(loaded.towers_.users.table_column).type
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
    job = {
        "job": "audience",
        "k": k,
        "rank_by": rank_by,
        "reach": reach,
        "users": None if users is None else open_source(users, "users").identity(),
    }

    def prepare(scratch: Scratch) -> AudienceTask:
        columns = tuple(source.schema.names)
        return AudienceTask(reference, candidates, k, rank_by, reach, columns, schema)

    row_bytes = 4 * (source.row_bytes + 48 * min(k, len(loaded.users_))) + 4096
    return run_batch(job, reference, source, out, prepare, batch, 1 << 16, row_bytes)
