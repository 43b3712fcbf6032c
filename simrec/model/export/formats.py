"""A fitted model out into other systems: TensorFlow, or tables of vectors.

Exported vectors have one coordinate more: a user is [v, 1] and an item [v, shift], where the shift
is what is added to all scores (the mean of the ratings). Biases are coordinates already. The inner
product of the two is the score that `recommend` gives.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from simrec import __version__
from simrec.data.messages import describe
from simrec.data.sides import Side, Sides
from simrec.data.tables import TableLike
from simrec.errors import InputError
from simrec.model.head import Head
from simrec.model.params import RankBy
from simrec.model.tower import Tower, Unknown, unique_ids
from simrec.storage import files

if TYPE_CHECKING:
    from simrec.model.fitted import FittedModel

Format = Literal["savedmodel", "tower", "parquet"]
OneSide = Literal["item", "user"]

MARK = "export.json"
BLOCK = 1 << 16  # rows in memory at a time


def check_replaceable(path: str | os.PathLike[str]) -> None:
    """Raise InputError if an export to `path` would destroy anything but an earlier export."""
    files.check_replaceable(path, "an export", _listing)


def _listing(root: Path) -> set[str] | None:
    """Return the files of an earlier export; None if there is none."""
    try:
        facts = json.loads((root / MARK).read_text(encoding="utf-8"))
        return {MARK, *facts["files"]} if facts["simrec"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def export(
    model: FittedModel,
    path: str | os.PathLike[str],
    format: Format,
    side: OneSide | None,
    tables: Sides[TableLike | None],
    rank_by: RankBy,
    unknown: Unknown,
) -> dict[str, Any]:
    """Write a model for another system; see `TwoTower.export`."""
    if format not in _WRITERS:
        raise InputError(f"format must be one of {', '.join(_WRITERS)}, got {format!r}.")
    if side not in (None, "item", "user"):
        raise InputError(f"side must be 'item' or 'user', got {side!r}.")
    if unknown not in ("error", "prior"):
        raise InputError(f"unknown must be 'error' or 'prior', got {unknown!r}.")
    write, used = _WRITERS[format]
    given: dict[str, Any] = {"side": side, "items": tables.items, "users": tables.users}
    given["unknown"] = None if unknown == "error" else unknown
    for name, value in given.items():
        if value is not None and name not in used:
            raise InputError(f"{name}: format {format!r} has no use for it. Leave it out.")
    check_replaceable(path)
    started = time.perf_counter()
    heads, shift = model.ranking(rank_by)
    towers, model_id, prediction = model.towers_, model.model_id_, None
    if rank_by != "both":  # what makes a prediction of a score, which has the shift already
        output = model.parts_[rank_by].output
        kind = output.kind if output.bounded else "identity"
        prediction = {"kind": kind, "lower": output.lower, "upper": output.upper}
    chosen = towers.map(_chosen, tables)
    job = _Export(towers, heads, shift, side, chosen, unknown, model_id or "")
    with files.directory_aside(path, check_replaceable) as aside:
        facts = {
            "format": format,
            "model_id": model_id or None,
            "simrec": __version__,
            "prediction": prediction,
            **write(job, aside),
        }
        written = [f.relative_to(aside).as_posix() for f in aside.rglob("*") if f.is_file()]
        mark = files.to_json({**facts, "files": sorted(written)})
        (aside / MARK).write_text(mark, encoding="utf-8")
    seconds = round(time.perf_counter() - started, 3)
    return {"job": "export", "out": os.fspath(path), **facts, "seconds": seconds}


def _chosen(tower: Tower, source: TableLike | None) -> pa.Table | None:
    """Read the table that names the entities to export, each once; None for all known ones."""
    if source is None:
        return None
    table, ids = tower.read(source)
    unique_ids(ids, tower.side, describe(source, tower.side))
    return table


def last_coordinate(side: Side, shift: float) -> float:
    """Return what is appended to all vectors of a side."""
    return shift if side == "items" else 1.0


def _folded(vectors: np.ndarray, last: float) -> np.ndarray:
    """Append a coordinate."""
    return np.hstack([vectors, np.full((len(vectors), 1), last, np.float32)], dtype=np.float32)


def _blocks(
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


@dataclass(frozen=True, eq=False)
class _Export:
    """What is to be exported; a method for each format writes it and returns facts about it."""

    towers: Sides[Tower]
    heads: Sides[Head]
    shift: float
    side: OneSide | None
    chosen: Sides[pa.Table | None]
    unknown: Unknown
    model_id: str

    def savedmodel(self, path: Path) -> dict[str, Any]:
        """Write the user tower and the item index as one SavedModel."""
        from simrec.model.export import savedmodel as graphs

        made = list(_blocks(self.towers.items, self.heads.items, self.chosen.items))
        if not made:
            raise InputError("items: the table has no row, so there is nothing to recommend.")
        ids = pa.chunked_array([ids for ids, _ in made])
        item_vectors = np.concatenate([vectors for _, vectors in made])
        users, head = self.towers.users, self.heads.users
        module = graphs.Recommender(users, head, ids, item_vectors, self.shift, self.unknown)
        return {"items": len(ids), "users": len(users.ids), **graphs.save(module, path)}

    def tower(self, path: Path) -> dict[str, Any]:
        """Write the encoder of one side as a SavedModel."""
        from simrec.model.export import savedmodel as graphs

        if self.side is None:
            raise InputError("side: say which tower to export, 'item' or 'user'.")
        tower, head = self._towers()[0]
        if not graphs.has_features(tower):
            raise InputError(
                f"the model was fitted without features of {tower.side}: there is no "
                f"{tower.singular} tower to export. Format 'parquet' has the vectors of those it "
                "knows."
            )
        facts = graphs.save(graphs.FoldedTower(tower, head, self.shift), path)
        return {"side": self.side, "dimensions": head.width + 1, **facts}

    def parquet(self, path: Path) -> dict[str, Any]:
        """Write the vectors of items and users."""
        facts: dict[str, Any] = {"dimensions": self.heads.items.width + 1}
        about = {"simrec.version": __version__}
        about |= {"simrec.model_id": self.model_id} if self.model_id else {}
        for tower, head in self._towers():
            table, facts[tower.side] = self.chosen[tower.side], 0
            vector = pa.list_(pa.float32(), head.width + 1)
            id_type = tower.ids.type if table is None else table.schema.field(tower.id_column).type
            columns = [(tower.table_column, id_type), ("vector", vector)]
            schema = pa.schema(columns, about)
            last = last_coordinate(tower.side, self.shift)
            file = path / f"{tower.side}.parquet"
            # Neither ids nor coordinates repeat: dictionaries would only cost.
            with pq.ParquetWriter(file, schema, compression="zstd", use_dictionary=False) as writer:
                for ids, vectors in _blocks(tower, head, table):
                    flat = pa.array(_folded(vectors, last).reshape(-1))
                    lists = pa.FixedSizeListArray.from_arrays(flat, vector.list_size)
                    writer.write_table(pa.table([ids.cast(id_type), lists], schema=schema))
                    facts[tower.side] += len(ids)
        return facts

    def _towers(self) -> list[tuple[Tower, Head]]:
        both = zip(self.towers, self.heads, strict=True)
        return [(tower, head) for tower, head in both if self.side in (None, tower.singular)]


# How each format is written, and the options that it has a use for.
_WRITERS: dict[str, tuple[Callable[[_Export, Path], dict[str, Any]], set[str]]] = {
    "savedmodel": (_Export.savedmodel, {"items", "unknown"}),
    "tower": (_Export.tower, {"side"}),
    "parquet": (_Export.parquet, {"side", "items", "users"}),
}
