"""Vectors for other systems: one coordinate more, so that the inner product is the score.

A user is [v, 1] and an item [v, shift], where the shift is that of the model's output (the mean of
the ratings). Biases are coordinates already. The inner product of the two is what `predict` gives
before it is clipped to the bounds; for ranking, the logit of the probability.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from simrec import __version__
from simrec.data.ids import check_ids
from simrec.data.tables import TableLike, describe, read_table
from simrec.model.tower import Tower, id_values
from simrec.scoring.output import Output

BLOCK = 1 << 16  # rows in memory at a time


def last_coordinate(side: str, output: Output) -> float:
    """Give what is appended to all vectors of a side."""
    return output.shift if side == "item" else 1.0


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
    name = f"{tower.name}s"
    table = read_table(source, name=name)
    ids = id_values(table, tower.id_column, describe(source, name))
    check_ids(ids, tower.id_column, describe(source, name), table=table, unique=True)
    return table


def blocks(tower: Tower, table: pa.Table | None) -> Iterator[tuple[pa.Array, np.ndarray]]:
    """Give ids and vectors, some rows at a time."""
    n_rows = len(tower.ids) if table is None else table.num_rows
    for start in range(0, n_rows, BLOCK):
        if table is None:
            yield tower.ids.ids.slice(start, BLOCK), tower.vectors[start : start + BLOCK]
        else:
            ids, vectors = tower.embed(table.slice(start, BLOCK))
            yield pa.concat_arrays(ids.chunks), vectors


def write_parquet(
    path: str | os.PathLike[str],
    tower: Tower,
    output: Output,
    table: pa.Table | None = None,
    about: Mapping[str, str] | None = None,
) -> int:
    """Write ids and folded vectors of a tower; give the number of rows.

    Parameters
    ----------
    path : path
        The file.
    tower : Tower
        Items or users.
    output : Output
        The model's output.
    table : pyarrow.Table, optional
        The entities, with features of those the model does not know; all known ones by default.
    about : mapping of str to str, optional
        Metadata of the file.
    """
    vector = pa.list_(pa.float32(), tower.vectors.shape[1] + 1)
    id_type = tower.ids.type if table is None else table.schema.field(tower.id_column).type
    schema = pa.schema([(tower.id_column, id_type), ("vector", vector)], metadata(output, about))
    last = last_coordinate(tower.name, output)
    rows = 0
    # Neither ids nor coordinates repeat: dictionaries would only cost.
    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=False) as writer:
        for ids, vectors in blocks(tower, table):
            flat = pa.array(fold(vectors, last).reshape(-1))
            lists = pa.FixedSizeListArray.from_arrays(flat, vector.list_size)
            writer.write_table(pa.table([ids.cast(id_type), lists], schema=schema))
            rows += len(ids)
    return rows


def metadata(output: Output, about: Mapping[str, str] | None = None) -> dict[str, str]:
    """Give what a file says about itself."""
    return {
        "simrec.version": __version__,
        "simrec.output": json.dumps(asdict(output)),
        **(about or {}),
    }
