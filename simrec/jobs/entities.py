"""Vectors of known and new entities, looked up by id."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.ids import IdMap
from simrec.errors import InputError
from simrec.jobs.io.scratch import Scratch
from simrec.jobs.io.sources import Source

if TYPE_CHECKING:
    from simrec.model.two_tower import TwoTower

Side = Literal["user", "item"]
Unknown = Literal["error", "prior", "skip"]
# Rows encoded at once.
_BLOCK = 1 << 16


def encode(model: "TwoTower", side: Side, table: pa.Table) -> tuple[pa.Array, np.ndarray]:
    """Return ids and vectors of a feature table."""
    embedded = model.embed_items(table) if side == "item" else model.embed_users(table)
    vectors = embedded["vector"].combine_chunks()
    flat = vectors.flatten().to_numpy(zero_copy_only=False)
    ids = embedded[f"{side}_id"].combine_chunks()
    return ids, flat.reshape(len(ids), -1).astype(np.float32, copy=False)


@dataclass(frozen=True)
class Entities:
    """Users or items with their vectors: those the model knows, then new ones from a table.

    Attributes
    ----------
    side : str
        ``"user"`` or ``"item"``.
    known, new : IdMap or None
        Ids; row i of `new` is row ``len(known) + i`` of `vectors`.
    unrated : ndarray of bool
        Which of the known have no ratings: fresh features in `new` count more than those learned
        with.
    vectors : ndarray
        One row per known id, per new id, and a last one for the prior if `unknown` asks for it.
    unknown : str
        What to do with an id that is neither.
    """

    side: Side
    known: IdMap
    new: IdMap | None
    unrated: np.ndarray
    vectors: np.ndarray
    unknown: Unknown

    def __len__(self) -> int:
        return len(self.known) + (len(self.new) if self.new is not None else 0)

    @property
    def ids(self) -> pa.Array:
        """The id of each vector; an unrated one with fresh features has two."""
        if self.new is None or len(self.new) == 0:
            return self.known.ids
        return pa.concat_arrays([self.known.ids, self.new.ids.cast(self.known.ids.type)])

    def find(self, values: pa.ChunkedArray) -> np.ndarray:
        """Return the row of each id, -1 where there is none."""
        if values.null_count:
            first = pc.index(pc.is_null(values), True).as_py()
            raise InputError(
                f"column {self.side}_id: {values.null_count} missing ids, the first in row {first} "
                "of the batch. Remove those rows."
            )
        rows = self.known.rows(values)
        if self.new is not None:
            places = np.flatnonzero((rows < 0) | self.unrated[rows])
            if len(places):
                found = self.new.rows(values.take(pa.array(places)))
                rows = rows.copy()
                rows[places] = np.where(found >= 0, found + len(self.known), rows[places])
        return rows

    def resolve(self, values: pa.ChunkedArray) -> tuple[np.ndarray, int]:
        """Return rows (-1 for unknown ids to skip), and how many ids are unknown."""
        rows = self.find(values)
        unknown = rows < 0
        n_unknown = int(unknown.sum())
        if n_unknown:
            if self.unknown == "error":
                example = values[int(np.argmax(unknown))].as_py()
                raise InputError(
                    f"column {self.side}_id: {n_unknown} rows with ids the model does not know, "
                    f"for example {example!r}. Give their features with --{self.side}s, or say "
                    "--unknown prior (an average entity) or --unknown skip."
                )
            if self.unknown == "prior":
                rows = np.where(unknown, len(self.vectors) - 1, rows)
        return rows, n_unknown


def collect(
    model: "TwoTower",
    side: Side,
    source: Source | None,
    unknown: Unknown,
    scratch: Scratch,
) -> Entities:
    """Gather the vectors of all entities a job may meet; new ones go through the encoder once."""
    known: IdMap = model.items_ if side == "item" else model.users_
    vectors: np.ndarray = model.item_vectors_ if side == "item" else model.user_vectors_
    unrated = np.asarray(model.item_counts_ if side == "item" else model.user_counts_) == 0
    extra: list[np.ndarray] = []
    new: IdMap | None = None
    if source is not None:
        ids, fresh = _encode_new(model, side, source, known, unrated)
        if len(ids):
            new = IdMap.from_values(ids)
            if len(new) < len(ids):
                raise InputError(
                    f"{source.name}: {len(ids) - len(new)} rows repeat a {side}_id, for example "
                    f"{_first_repeated(ids)!r}. Keep one row per {side}."
                )
            order = new.rows(ids)
            sorted_vectors = np.empty_like(fresh)
            sorted_vectors[order] = fresh
            extra.append(sorted_vectors)
    if unknown == "prior":
        prior = model.item_prior_ if side == "item" else model.user_prior_
        extra.append(np.asarray(prior, dtype=np.float32)[None, :])
    if extra:
        vectors = scratch.stack(f"{side}_vectors", [vectors, *extra])
    return Entities(side, known, new, unrated, vectors, unknown)


def _encode_new(
    model: "TwoTower", side: Side, source: Source, known: IdMap, unrated: np.ndarray
) -> tuple[pa.Array, np.ndarray]:
    column = f"{side}_id"
    source.require(column)
    ids: list[pa.Array] = []
    vectors: list[np.ndarray] = []
    for table in read_blocks(source):
        rows = known.rows(table[column])
        fresh = table.filter(pa.array((rows < 0) | unrated[rows]))
        if fresh.num_rows:
            some_ids, some_vectors = encode(model, side, fresh)
            ids.append(some_ids)
            vectors.append(some_vectors)
    if not ids:
        return pa.array([], known.ids.type), np.empty((0, 0), np.float32)
    return pa.concat_arrays(ids), np.concatenate(vectors)


def read_blocks(source: Source) -> Iterator[pa.Table]:
    """Read a table block by block."""
    for unit in source.units(1 << 62):
        yield from source.batches(unit, None, _BLOCK)


def _first_repeated(ids: pa.Array) -> Any:
    counts = pc.value_counts(ids)
    repeated = pc.greater(counts.field("counts"), 1)
    return counts.field("values").filter(repeated)[0].as_py()
