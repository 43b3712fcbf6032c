"""A model whose users are divided between workers: saved in shards, or put together on each."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from scipy import sparse

from simrec import artifacts
from simrec.errors import InputError
from simrec.model import files
from simrec.model.run.shared import written_together
from simrec.model.run.workers import Workers
from simrec.model.sample import gathered_matrix
from simrec.model.shard_files import Shard

if TYPE_CHECKING:
    from simrec.model.two_tower import TwoTower

_SPARSE = ("data", "indices", "indptr")


def save_divided(
    model: TwoTower, path: str | os.PathLike[str], workers: Workers, shards: int | None = None
) -> None:
    """Write the model of all workers, each its own users as a shard.

    The directory must be on storage that all workers see. It takes its place in one step, once all
    shards are written. One worker alone divides it into as many shards as it is told.
    """
    if workers.size == 1:
        model.save(path, shards)
        return
    if shards not in (None, workers.size):
        raise InputError(f"shards: {workers.size} workers write one each, not {shards} in all.")
    with written_together(path, workers) as aside:
        mine = files.write_shard(model, aside, workers.rank, workers.size)
        written = [Shard(**one) for one in workers.documents(asdict(mine))]
        found = files.commit(model, aside, written) if workers.rank == 0 else ""
    model.model_id_ = workers.agreed(found)


def put_together(model: TwoTower, workers: Workers) -> None:
    """Give the model of each worker the users of all of them."""
    if workers.size == 1:
        return
    saved = files.content(model, in_shards=True)
    arrays: dict[str, Any] = {**saved.arrays, **saved.whole("items")}
    for name, rows in sorted(saved.rows.users.items()):
        arrays[name] = np.concatenate(workers.gather(np.asarray(rows)))
    for name, matrix in sorted(saved.sparse.users.items()):
        whole = gathered_matrix(sparse.csr_matrix(matrix), workers)
        arrays |= {f"{name}_{piece}": getattr(whole, piece) for piece in _SPARSE}
    users = pa.concat_tables(workers.gather_tables(files.table_of(model.towers_.users)))
    tables = {"items": files.table_of(model.towers_.items), "users": users.combine_chunks()}
    found = artifacts.Artifact(Path("model"), {}, arrays, tables, saved.documents, saved.networks)
    files.restore(model, found)
