"""Score pairs: a table of (user, item) rows in, the same rows with a score out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from simrec.data.sides import ID_COLUMNS, Side, Sides
from simrec.data.source import open_source
from simrec.data.tables import as_arrow
from simrec.errors import InputError
from simrec.jobs.engine.batch import BatchOptions, BatchTask, run_batch
from simrec.jobs.io.entities import Entities, Unknown
from simrec.jobs.io.inputs import ModelReference, open_table
from simrec.jobs.io.outputs import Scratch, check_apart
from simrec.jobs.options import Path
from simrec.scoring.output import Output
from simrec.scoring.pairs import score_pairs


@dataclass(frozen=True)
class ScoreTask(BatchTask):
    """Add a score to each row."""

    entities: Sides[Entities]
    output: Output
    names: Sides[str]  # columns of ids

    def process(self, table: pa.Table) -> tuple[pa.Table, Mapping[str, int]]:
        """Return the rows with their scores; rows with unknown ids as the policy says."""
        users, unknown_users = self.entities.users.rows(table[self.names.users])
        items, unknown_items = self.entities.items.rows(table[self.names.items])
        keep = (users >= 0) & (items >= 0)
        if not keep.all():
            table, users, items = table.filter(pa.array(keep)), users[keep], items[keep]
        vectors = self.entities.map(lambda side: side.vectors)
        scores = score_pairs(vectors.users, vectors.items, users, items, self.output)
        columns = [
            pa.chunked_array([as_arrow(scores)]) if name == "score" else table[name]
            for name in self.schema.names
        ]
        counts = {"unknown_users": unknown_users, "unknown_items": unknown_items}
        counts["rows_dropped"] = int((~keep).sum())
        return pa.table(columns, schema=self.schema), counts


def score(
    model: Path,
    pairs: Path,
    out: Path,
    *,
    items: Path | None = None,
    users: Path | None = None,
    unknown: Unknown = "error",
    select: tuple[str, ...] | None = None,
    batch: BatchOptions = BatchOptions(),  # noqa: B008 (frozen)
) -> dict[str, Any]:
    """Predict the rating of each (user, item) row; without ratings, the probability of uptake.

    Parameters
    ----------
    pairs : path
        Table with user_id and item_id: a Parquet or CSV file, a directory or a URI.
    unknown : str
        What to do with an id that has neither ratings nor features: error, prior (score it as an
        average entity) or skip (leave the row out).
    select : sequence of str, optional
        Input columns to carry to the output; all by default.
    """
    check_apart(out, model=model, pairs=pairs, items=items, users=users)
    source = open_source(pairs, "pairs")
    reference, paths = ModelReference.of(model), Sides(items, users)
    own = reference.columns
    there = source.schema.names  # as in training, or as usual
    usual = Sides.of(lambda side: ID_COLUMNS[side] in there and own.of(side) not in there)
    ids = Sides.of(lambda side: ID_COLUMNS[side] if usual[side] else own.of(side))
    source.require(ids.users, ids.items)

    tables = Sides.of(lambda s: None if (path := paths[s]) is None else open_table(path, s, own))
    carried = list(there if select is None else select)
    if "score" in carried:
        raise InputError(
            f"{source.name}: has a column 'score' already; rename it, or leave it out with --select"
        )
    source.require(*carried)
    schema = pa.schema([*(source.schema.field(name) for name in carried), ("score", pa.float32())])
    job: dict[str, Any] = {"job": "score", "unknown": unknown, "columns": schema.names}
    job |= {name: table and table.identity() for name, table in tables.named()}
    # Input and output columns, ids and rows of vectors, each about three times on the way.
    row_bytes = 3 * (source.row_bytes + 64)

    def prepare(scratch: Scratch) -> ScoreTask:
        loaded = reference.load()
        part = loaded.predictor()

        def entities(side: Side) -> Entities:
            tower, head = loaded.towers_[side], part.heads[side]
            return Entities.collect(tower, head, tables[side], unknown, scratch)

        columns = tuple(dict.fromkeys([*carried, ids.users, ids.items]))
        found = Sides.of(entities)
        return ScoreTask(found, part.output, ids, columns=columns, schema=schema)

    return run_batch(job, reference, source, out, prepare, batch, 1 << 20, row_bytes)
