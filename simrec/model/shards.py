"""The users of a model in the shards of its directory: ranges of ascending ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from simrec.data.id_shard import IdShard
from simrec.data.ids import IdMap, in_shards
from simrec.errors import InputError
from simrec.storage import artifacts
from simrec.storage.arrays import REMEDY, csr_arrays, id_arrays
from simrec.storage.artifacts import Artifact
from simrec.storage.rows import Array, Rows, StoredArray, shards_of

if TYPE_CHECKING:
    from simrec.model.head import Saved

IDS, COUNTS = "users_ids", "users_n_ratings"
# What is known of a shard without reading it: users, those with ratings, lowest and highest id.
_KNOWN = ("rows", "rated", "first", "last")


def write_shard(
    ids: IdMap, saved: Saved, directory: Path, number: int, sizes: Sequence[int]
) -> dict[str, Any]:
    """Write one of the shards that have `sizes` users; what is stored unchanged is linked.

    Returns what is known of it as plain data, with the type of ids and the entries of its files.
    """
    start = sum(sizes[:number])

    def cut(rows: Any) -> Any:
        if [shard.shape[0] for shard in shards_of(rows)] == list(sizes):
            return shards_of(rows)[number]  # the object itself
        return rows[start : start + sizes[number]]

    arrays = {name: cut(rows) for name, rows in saved.rows.users.items()}
    for name, matrix in saved.sparse.users.items():
        arrays |= csr_arrays(name, cut(matrix))
    if list(ids.sizes) == list(sizes):
        mine = ids.shards[number]
    else:
        mine = IdShard.of(ids.take(np.arange(start, start + sizes[number])))
    arrays |= mine.stored or id_arrays(IDS, mine.ids)
    counts = arrays[COUNTS]
    rated = counts.n_positive if isinstance(counts, StoredArray) else None
    rated = int((np.asarray(counts) > 0).sum()) if rated is None else rated
    known = dict(zip(_KNOWN, (mine.rows, rated, mine.first, mine.last), strict=True))
    written = artifacts.write_shard(directory, number, len(sizes), arrays)
    return {**known, "type": str(ids.type), "files": written}


def document(shards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what is known of the shards without reading them."""
    types = sorted({shard["type"] for shard in shards})
    if len(types) > 1:
        raise InputError(f"user_id: shards of different types: {', '.join(types)}.")
    # Refuses ranges that overlap.
    ranges = [IdShard(one["rows"], one["first"], one["last"]) for one in shards]
    in_shards(ranges, pa.type_for_alias(types[0]))
    return {name: [shard[name] for shard in shards] for name in _KNOWN}


def users_of(artifact: Artifact, shard: int | None) -> tuple[IdMap, Array]:
    """Return the ids of the users in shards, and their numbers of ratings; of one shard or all."""
    columns = [artifact.documents["shards"][name] for name in _KNOWN]
    if not all(isinstance(column, list) for column in columns):
        raise InputError(f"shards.json: {', '.join(_KNOWN)} must be lists")
    known = list(zip(*columns, strict=True))
    for rows, rated, *_ in known:
        if not (type(rows) is int and type(rated) is int and 0 <= rated <= rows):
            raise InputError(f"shards.json: {rated!r} of {rows!r} rows are rated")
    known = known if shard is None else [known[shard]]
    counts = artifact.rows(COUNTS, [rows for rows, *_ in known], (), "iu")
    if shard is not None:
        rows, rated, *ends = known[0]
        if (counts > 0).sum() != rated:
            raise InputError(f"{COUNTS}: not {rated} are positive")
        return IdMap(_ids(artifact, (rows, *ends), None)), counts
    names = [name for name in (IDS, f"{IDS}_offsets", f"{IDS}_text") if name in artifact.arrays]
    arrays = {name: artifact.arrays[name] for name in names}
    if not all(isinstance(one, Rows) for one in (counts, *arrays.values())):
        raise InputError("shards.json: the users are in one piece")
    found = []
    for i, (rows, rated, *ends) in enumerate(known):
        counts.shards[i].n_positive = rated
        stored = {name: array.shards[i] for name, array in arrays.items()}
        read = partial(_ids, artifact, (rows, *ends), i)
        found.append(IdShard(rows, ends[0], ends[1], read, stored))
    return in_shards(found, artifact.id_type(IDS)), counts


def _ids(artifact: Artifact, known: tuple[Any, ...], number: int | None) -> pa.Array:
    """Read the ids of a shard, whose number and ends must be those that shards.json says."""
    where = f"{artifact.path}: {IDS}, shard {number}"
    try:
        ids = IdMap(artifact.ids(IDS, number)).ids
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    found = IdShard.of(ids)
    if (found.rows, found.first, found.last) != known:
        raise InputError(f"{where}: not as shards.json says. {REMEDY}")
    return ids
