"""Score pairs: a table of (user, item) rows in, the same rows with a score out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from simrec.data.arrays import as_arrow
from simrec.data.sides import Side, Sides
from simrec.errors import InputError
from simrec.jobs.engine.batch import BatchOptions, run_batch
from simrec.jobs.io.claim import check_apart
from simrec.jobs.io.discover import open_source
from simrec.jobs.io.outputs import is_single
from simrec.jobs.io.scratch import Scratch
from simrec.jobs.io.sources import Source
from simrec.jobs.options import Path, nearest
from simrec.jobs.shared.entities import Entities, Unknown
from simrec.jobs.shared.model import model_with_feedback
from simrec.scoring.output import Output
from simrec.scoring.pairs import score_pairs


@dataclass(frozen=True)
class ScoreTask:
    """Add a score to each row."""

    items: Entities
    users: Entities
    output: Output
    columns: Sequence[str]
    schema: pa.Schema

    def process(self, table: pa.Table) -> tuple[pa.Table, Mapping[str, int]]:
        """Return the rows with their scores; rows with unknown ids as the policy says."""
        user_rows, unknown_users = self.users.rows(table["user_id"])
        item_rows, unknown_items = self.items.rows(table["item_id"])
        keep = (user_rows >= 0) & (item_rows >= 0)
        if not keep.all():
            table = table.filter(pa.array(keep))
            user_rows, item_rows = user_rows[keep], item_rows[keep]
        scores = score_pairs(
            self.users.vectors, self.items.vectors, user_rows, item_rows, self.output
        )
        columns = [
            pa.chunked_array([as_arrow(scores)]) if name == "score" else table[name]
            for name in self.schema.names
        ]
        counts = {
            "unknown_users": unknown_users,
            "unknown_items": unknown_items,
            "rows_dropped": int((~keep).sum()),
        }
        return pa.table(columns, schema=self.schema), counts


def score(
    model: Path,
    pairs: Path,
    out: Path,
    *,
    items: Path | None = None,
    users: Path | None = None,
    feedback: Path | None = None,
    unknown: Unknown = "error",
    select: tuple[str, ...] | None = None,
    batch: BatchOptions = BatchOptions(),  # noqa: B008 (frozen)
) -> dict[str, Any]:
    """Predict the rating of each (user, item) row; without ratings, the probability of uptake.

    Parameters
    ----------
    model : path
        The model directory.
    pairs : path
        Table with user_id and item_id: a Parquet file, a directory, a glob or a URI.
    out : path
        Output directory of Parquet parts, or a single file if the name ends in .parquet.
    items : path, optional
        Features of items the model does not know.
    users : path, optional
        Features of users the model does not know.
    feedback : path, optional
        A few ratings of users or items without any: folded in before scoring.
    unknown : str
        What to do with an id that has neither ratings nor features: error, prior (score it as an
        average entity) or skip (leave the row out).
    select : sequence of str, optional
        Input columns to carry to the output; all by default.
    batch : BatchOptions
        How to run the job.

    Returns
    -------
    dict
        The summary: rows in and out, unknown ids, parts, time.
    """
    check_apart(out, model=model, pairs=pairs, items=items, users=users, feedback=feedback)
    source = open_source(pairs, "pairs", skip_bad=batch.on_bad_fragment == "skip")
    source.require("user_id", "item_id")
    tables = Sides(
        open_source(items, "items") if items is not None else None,
        open_source(users, "users") if users is not None else None,
    )
    carried = _carried(source, select, batch.partition_by, is_single(out))
    schema = pa.schema([*(source.schema.field(name) for name in carried), ("score", pa.float32())])
    job: dict[str, Any] = {
        "job": "score",
        "unknown": unknown,
        "columns": schema.names,
        **{name: table and table.identity() for name, table in tables.named()},
    }
    # Input and output columns, ids and rows of vectors, each about three times on the way.
    row_bytes = 3 * (source.row_bytes + 64)
    with model_with_feedback(model, out, feedback=feedback, items=items, users=users) as reference:

        def prepare(scratch: Scratch) -> ScoreTask:
            loaded = reference.load()
            part = loaded.predictor()

            def entities(side: Side) -> Entities:
                head, table = part.heads[side], tables[side]
                return Entities.collect(loaded.towers_[side], head, table, unknown, scratch)

            return ScoreTask(
                entities("items"),
                entities("users"),
                part.output,
                tuple(dict.fromkeys([*carried, "user_id", "item_id"])),
                schema,
            )

        return run_batch(job, reference, source, out, prepare, batch, 1 << 20, row_bytes)


def _carried(
    source: Source, select: Sequence[str] | None, partition_by: Sequence[str] | None, single: bool
) -> list[str]:
    """Return the columns of the output files beside the score."""
    if "score" in (source.schema.names if select is None else select):
        raise InputError(
            f"{source.name}: has a column 'score' already; rename it, or leave it out with --select"
        )
    names = list(source.schema.names if select is None else select)
    source.require(*names)
    for column in partition_by or ():
        if column not in names:
            raise InputError(
                f"partition_by: {column!r} is no output column; {nearest(column, names)}"
            )
    if partition_by or single:
        return names
    # Kept partitions live in the names of directories, not in the files.
    return [name for name in names if name not in source.partition_columns]
