"""Vectors for other systems: one coordinate more, so that the inner product is the score.

A user is [v, 1] and an item [v, shift], where the shift is what is added to all scores (the mean of
the ratings). Biases are coordinates already. The inner product of the two is the score that
`recommend` gives.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from simrec import __version__
from simrec.data.ids import check_ids
from simrec.data.sides import Side
from simrec.data.tables import TableLike, describe
from simrec.model.head import Head
from simrec.model.tower import Tower

BLOCK = 1 << 16  # rows in memory at a time


def last_coordinate(side: Side, shift: float) -> float:
    """Return what is appended to all vectors of a side."""
    return shift if side == "items" else 1.0


def fold(vectors: np.ndarray, last: float) -> np.ndarray:
    """Append a coordinate."""
    folded = np.empty((len(vectors), vectors.shape[1] + 1), np.float32)
    folded[:, :-1] = vectors
    folded[:, -1] = last
    return folded


def chosen(tower: Tower, source: TableLike | None) -> pa.Table | None:
    """Read the table that names the entities to export, each once; None for all known ones."""
    if source is None:
        return None
    table, ids = tower.read(source)
    check_ids(ids, tower.id_column, describe(source, tower.side), table=table, unique=True)
    return table


def blocks(
    tower: Tower, head: Head, table: pa.Table | None
) -> Iterator[tuple[pa.Array, np.ndarray]]:
    """Yield ids and vectors, some rows at a time."""
    n_rows = len(tower.ids) if table is None else table.num_rows
    for start in range(0, n_rows, BLOCK):
        if table is None:
            rows = np.arange(start, min(start + BLOCK, n_rows))
            yield tower.ids.take(rows), head.of(tower.known(rows))
        else:
            part = table.slice(start, BLOCK)
            ids = part[tower.id_column]
            yield pa.concat_arrays(ids.chunks), head.of(tower.find(ids, part))


def write_parquet(
    path: str | os.PathLike[str],
    tower: Tower,
    head: Head,
    shift: float,
    table: pa.Table | None = None,
    about: Mapping[str, str] | None = None,
) -> int:
    """Write ids and vectors of a tower; return the number of rows.

    Parameters
    ----------
    path : path
        The file.
    tower : Tower
        Items or users.
    head : Head
        Their vectors.
    shift : float
        What is added to all scores.
    table : pyarrow.Table, optional
        The entities, with features of those the model does not know; all known ones by default.
    about : mapping of str to str, optional
        Metadata of the file.
    """
    vector = pa.list_(pa.float32(), head.width + 1)
    id_type = tower.ids.type if table is None else table.schema.field(tower.id_column).type
    schema = pa.schema([(tower.id_column, id_type), ("vector", vector)], metadata(about))
    last = last_coordinate(tower.side, shift)
    rows = 0
    # Neither ids nor coordinates repeat: dictionaries would only cost.
    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=False) as writer:
        for ids, vectors in blocks(tower, head, table):
            flat = pa.array(fold(vectors, last).reshape(-1))
            lists = pa.FixedSizeListArray.from_arrays(flat, vector.list_size)
            writer.write_table(pa.table([ids.cast(id_type), lists], schema=schema))
            rows += len(ids)
    return rows


def metadata(about: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what a file says about itself."""
    return {"simrec.version": __version__, **(about or {})}
