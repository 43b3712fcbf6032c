"""A fitted model out into other systems: TensorFlow, Faiss, or tables of vectors.

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
from simrec.scoring.topk import top_k
from simrec.storage import files

if TYPE_CHECKING:
    from simrec.model.fitted import FittedModel

Format = Literal["savedmodel", "tower", "parquet", "faiss"]
OneSide = Literal["item", "user"]

MARK = "export.json"
BLOCK = 1 << 16  # rows in memory at a time
_K = 10
_QUERIES = 2_000  # users on whom an index is tuned and measured
FEW = 20_000  # items up to which a scan is as fast as an index
_ENOUGH = 0.99  # recall at which more effort is not worth its time
_TRAINING_ROWS = 64  # for each inverted list of an index


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

        ids, item_vectors = self._all_items()
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
        for tower, head in self._towers():
            table, facts[tower.side] = self.chosen[tower.side], 0
            vector = pa.list_(pa.float32(), head.width + 1)
            id_type = tower.ids.type if table is None else table.schema.field(tower.id_column).type
            columns = [(tower.table_column, id_type), ("vector", vector)]
            schema = pa.schema(columns, self._metadata())
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

    def faiss(self, path: Path) -> dict[str, Any]:
        """Write an index over the items, and their ids in its order."""
        try:
            import faiss
        except ImportError as error:
            raise InputError(
                "format 'faiss' needs Faiss, which is not installed: pip install 'simrec[faiss]' "
                "(or faiss-cpu)."
            ) from error
        ids, item_vectors = self._all_items()
        n_items, rng = len(ids), np.random.default_rng(0)
        last, n_lists = last_coordinate("items", self.shift), max(1, int(np.sqrt(len(ids))))
        kind = "flat" if n_items <= FEW else "ivf"
        name = "Flat" if kind == "flat" else f"IVF{n_lists},Flat"
        index = faiss.index_factory(item_vectors.shape[1] + 1, name, faiss.METRIC_INNER_PRODUCT)
        if not index.is_trained:
            rows = rng.choice(n_items, min(n_items, _TRAINING_ROWS * n_lists), replace=False)
            index.train(_folded(item_vectors[np.sort(rows)], last))
        for start in range(0, n_items, BLOCK):
            index.add(_folded(item_vectors[start : start + BLOCK], last))
        users = self.towers.users
        sample = np.sort(rng.permutation(len(users.ids))[:_QUERIES])
        queries = self.heads.users.of(users.known(sample))
        # The last coordinate adds the same to all items: exact search does without it.
        exact = top_k(queries, item_vectors, min(_K, n_items))[1] + np.float32(last)
        found = _tuned(index, _folded(queries, 1.0), exact)
        faiss.write_index(index, str(path / "items.faiss"))
        table = pa.table({self.towers.items.table_column: ids})
        table = table.replace_schema_metadata(self._metadata())
        pq.write_table(table, path / "items.parquet", compression="zstd")
        return {"index": kind, "items": n_items, "dimensions": index.d, **found}

    def _metadata(self) -> dict[str, str]:
        about = {"simrec.model_id": self.model_id} if self.model_id else {}
        return {"simrec.version": __version__, **about}

    def _towers(self) -> list[tuple[Tower, Head]]:
        both = zip(self.towers, self.heads, strict=True)
        return [(tower, head) for tower, head in both if self.side in (None, tower.singular)]

    def _all_items(self) -> tuple[pa.ChunkedArray, np.ndarray]:
        tower, head, table = self.towers.items, self.heads.items, self.chosen.items
        if table is None:
            return tower.ids.column, np.asarray(head.vectors)
        made = list(_blocks(tower, head, table))
        if not made:
            raise InputError("items: the table has no row, so there is nothing to recommend.")
        return pa.chunked_array([ids for ids, _ in made]), np.concatenate([v for _, v in made])


def _tuned(index: Any, queries: np.ndarray, exact: np.ndarray) -> dict[str, float]:
    """Raise the effort of searches until recall is good; measure it on other queries.

    `exact` are the scores of the k best items of each query, best first. The effort stays set in
    the index, and is saved with it.
    """

    def recall(rows: slice) -> float:
        # By score: of items that are equally good it does not matter which is found.
        found, _ = index.search(queries[rows], exact.shape[1])
        least = exact[rows, -1:]
        return float((found >= least - 1e-5 * np.maximum(1, np.abs(least))).mean())

    tried, held_out, effort = slice(0, None, 2), slice(len(queries) > 1, None, 2), {}
    if hasattr(index, "nprobe"):
        index.nprobe = 1
        while index.nprobe < index.nlist and recall(tried) < _ENOUGH:
            index.nprobe = min(2 * index.nprobe, index.nlist)
        effort = {"nprobe": index.nprobe}
    return {"recall_at_10": recall(held_out), "queries": len(queries[held_out]), **effort}


# How each format is written, and the options that it has a use for.
_WRITERS: dict[str, tuple[Callable[[_Export, Path], dict[str, Any]], set[str]]] = {
    "savedmodel": (_Export.savedmodel, {"items", "unknown"}),
    "tower": (_Export.tower, {"side"}),
    "parquet": (_Export.parquet, {"side", "items", "users"}),
    "faiss": (_Export.faiss, {"items"}),
}
