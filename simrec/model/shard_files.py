"""The users of a model in the shards of its directory: ranges of ascending ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from simrec import artifacts
from simrec.data.arrays import as_numpy
from simrec.data.ids import IdMap
from simrec.data.sharded_ids import IdShard, ShardedIds, check_ranges
from simrec.data.sides import ID_COLUMNS
from simrec.errors import InputError
from simrec.manifest import REMEDY
from simrec.model.head import Saved
from simrec.rows import Array, Rows, plain, shards_of
from simrec.stored import StoredMatrix, StoredTable

if TYPE_CHECKING:
    from simrec.model.two_tower import TwoTower

_ID = ID_COLUMNS["users"]


@dataclass(frozen=True)
class Shard:
    """What is known of a shard once it is written; plain data, which travels between workers.

    Attributes
    ----------
    rows, rated : int
        Its users, and how many of them have ratings.
    first, last : int, str or None
        Their lowest and highest id; None where there are no users.
    type : str
        The Arrow type of the ids.
    files : dict
        Checksum and size of each file.
    """

    rows: int
    rated: int
    first: int | str | None
    last: int | str | None
    type: str
    files: dict[str, dict[str, Any]]


def write_rows(
    model: TwoTower, saved: Saved, directory: Path, number: int, sizes: Sequence[int]
) -> Shard:
    """Write one shard; what is stored elsewhere, unchanged, is linked.

    Parameters
    ----------
    model : TwoTower
        The model.
    saved : Saved
        Its content.
    directory : Path
        Where to write.
    number : int
        Which shard.
    sizes : sequence of int
        Users of each shard.
    """
    tower = model.towers_.users
    arrays: dict[str, Any] = {
        name: _cut(rows, sizes, number) for name, rows in saved.rows.users.items()
    }
    for name, matrix in saved.sparse.users.items():
        shard = _cut(matrix, sizes, number)
        arrays |= {f"{name}_{piece}": array for piece, array in pieces(shard).items()}
    ids, counts = _id_shard(tower.ids, sizes, number), _cut(tower.counts, sizes, number)
    table = ids.source
    if table is None or not (isinstance(counts, StoredCounts) and counts.table is table):
        table = pa.table({_ID: ids.read().ids, "n_ratings": np.asarray(counts)})
    files = artifacts.write_shard(directory, number, len(sizes), arrays, {"users": table})
    rated = counts.rated if isinstance(counts, StoredCounts) else int((counts > 0).sum())
    return Shard(ids.rows, rated, ids.first, ids.last, str(tower.ids.type), files)


def _cut(rows: Any, sizes: Sequence[int], number: int) -> Any:
    """Return one of the shards; where it is a shard already, that object itself."""
    if [shard.shape[0] for shard in shards_of(rows)] == list(sizes):
        return shards_of(rows)[number]
    start = sum(sizes[:number])
    return rows[start : start + sizes[number]]


def _id_shard(ids: IdMap, sizes: Sequence[int], number: int) -> IdShard:
    if isinstance(ids, ShardedIds) and list(ids.sizes) == list(sizes):
        return ids.shards[number]
    start = sum(sizes[:number])
    return IdShard.of(IdMap(ids.take(np.arange(start, start + sizes[number]))))


def pieces(shard: Any) -> dict[str, Any]:
    """Return the three arrays of a sparse matrix, in types that do not depend on its content."""
    if isinstance(shard, StoredMatrix):
        return dict(shard.arrays)
    matrix = plain(shard)
    narrow = np.int32 if matrix.shape[1] <= np.iinfo(np.int32).max else np.int64
    return {
        "data": matrix.data,
        "indices": matrix.indices.astype(narrow, copy=False),
        "indptr": matrix.indptr.astype(np.int64, copy=False),
    }


def document(shards: Sequence[Shard]) -> dict[str, Any]:
    """Return what is known of the ranges of ids without reading them."""
    types = {shard.type for shard in shards if shard.rows} or {shards[0].type}
    if len(types) > 1:
        raise InputError(f"user_id: shards of different types: {', '.join(sorted(types))}.")
    found = {
        "type": types.pop(),
        "rows": [shard.rows for shard in shards],
        "rated": [shard.rated for shard in shards],
        "first": [shard.first for shard in shards],
        "last": [shard.last for shard in shards],
    }
    _ranges(found)
    return found


@dataclass(frozen=True)
class Range:
    """What shards.json says of a shard; see `Shard`."""

    rows: int
    rated: int
    first: Any
    last: Any
    type: pa.DataType

    def ids_of(self, path: Path, table: pa.Table) -> IdMap:
        """Return the ids of a table, which must be those that it should have."""
        if not self.rows and not len(table):
            return IdMap(pa.array([], self.type))
        try:
            ids = IdMap(table[_ID])
        except (InputError, KeyError) as error:
            raise InputError(f"{path}: {error}. {REMEDY}") from error
        ends = ids.take([0, len(ids) - 1]).to_pylist() if len(ids) else [None, None]
        if (len(ids), *ends, ids.type) != (self.rows, self.first, self.last, self.type):
            raise InputError(f"{path}: its ids are not those that shards.json says. {REMEDY}")
        return ids

    def counts_of(self, path: Path, table: pa.Table) -> np.ndarray:
        """Return the numbers of ratings of a table, likewise."""
        counts = rating_counts(table, str(path))
        if len(counts) != self.rows or (counts > 0).sum() != self.rated:
            raise InputError(f"{path}: its n_ratings are not as shards.json says. {REMEDY}")
        return counts


class StoredIds:
    """The ids in the table of a shard, read when they are first called for."""

    def __init__(self, table: StoredTable, range_: Range) -> None:
        self.table, self.range = table, range_

    @cached_property
    def _ids(self) -> IdMap:
        return self.range.ids_of(self.table.file.path, self.table.table)

    def __call__(self) -> IdMap:
        """Return them."""
        return self._ids


class StoredCounts:
    """The numbers of ratings in the table of a shard; a shard of `Rows`."""

    dtype = np.dtype(np.int64)

    def __init__(self, table: StoredTable, range_: Range) -> None:
        self.table, self.range, self.shape = table, range_, (range_.rows,)

    @property
    def rated(self) -> int:
        """How many have ratings."""
        return self.range.rated

    @cached_property
    def _counts(self) -> np.ndarray:
        return self.range.counts_of(self.table.file.path, self.table.table)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        counts = self._counts if dtype is None else self._counts.astype(dtype, copy=False)
        return counts.copy() if copy else counts

    def __reduce__(self) -> tuple[Any, ...]:
        return np.array, (np.asarray(self),)


def rating_counts(table: pa.Table, label: str) -> np.ndarray:
    """Return the numbers of ratings in a table of ids."""
    counts = table["n_ratings"].combine_chunks()
    if not pa.types.is_integer(counts.type) or counts.null_count:
        raise InputError(f"{label}: n_ratings are {counts.type}, expected whole numbers")
    return as_numpy(counts)


def ids_and_counts(
    artifact: artifacts.Artifact, table: Any, shard: int | None
) -> tuple[IdMap, Array]:
    """Return the ids of the users of a directory in shards, and their numbers of ratings.

    Parameters
    ----------
    artifact : Artifact
        The directory.
    table : tuple of StoredTable, or pyarrow.Table
        The table of the users: that of each shard, or of the one that was asked for.
    shard : int or None
        Which was asked for.
    """
    ranges = _ranges(artifact.documents["shards"])
    if shard is not None:
        path, one = artifact.path, ranges[shard]
        return one.ids_of(path, table), one.counts_of(path, table)
    both = list(zip(table, ranges, strict=True))
    ids = [IdShard(r.rows, r.first, r.last, StoredIds(stored, r), stored) for stored, r in both]
    return ShardedIds(ids, ranges[0].type), Rows([StoredCounts(*one) for one in both])


def _ranges(document: Any) -> list[Range]:
    """Read what is known of the shards; the ranges must be distinct and ascending."""
    columns = [document[name] for name in ("rows", "rated", "first", "last")]
    if not all(isinstance(column, list) for column in columns):
        raise InputError("shards.json: rows, rated, first and last must be lists")
    type_ = pa.type_for_alias(document["type"])
    ranges = []
    for rows, rated, first, last in zip(*columns, strict=True):
        if type(rows) is not int or type(rated) is not int or not 0 <= rated <= rows:
            raise InputError(f"shards.json: {rated!r} of {rows!r} rows are rated")
        ranges.append(Range(rows, rated, first, last, type_))
    check_ranges([(one.rows, one.first, one.last) for one in ranges], type_)
    return ranges
