"""A fitted model out into other systems: TensorFlow, Faiss, or tables of vectors."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from simrec import __version__, files
from simrec.data.tables import TableLike
from simrec.errors import InputError
from simrec.model.export import vectors as vectors
from simrec.model.tower import Tower, Unknown
from simrec.scoring.topk import top_k

if TYPE_CHECKING:
    from simrec.model.export.faiss_index import Index
    from simrec.model.two_tower import TwoTower

logger = logging.getLogger(__name__)

Format = Literal["savedmodel", "tower", "parquet", "faiss"]
Side = Literal["item", "user"]

MARK = "export.json"
_K = 10
_QUERIES = 2_000  # users on whom an index is tuned and measured


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
    model: TwoTower,
    path: str | os.PathLike[str],
    format: Format,
    side: Side | None = None,
    items: TableLike | None = None,
    users: TableLike | None = None,
    index: Index = "auto",
    unknown: Unknown = "error",
    model_id: str = "",
) -> dict[str, Any]:
    """Write a model for another system; see `TwoTower.export`.

    Parameters
    ----------
    model_id : str
        The id of the model directory, to be noted in the export.
    """
    if format not in _WRITERS:
        raise InputError(f"format must be one of {', '.join(_WRITERS)}, got {format!r}.")
    if side not in (None, "item", "user"):
        raise InputError(f"side must be 'item' or 'user', got {side!r}.")
    if index not in _INDEXES:
        raise InputError(f"index must be one of {', '.join(_INDEXES)}, got {index!r}.")
    if unknown not in ("error", "prior"):
        raise InputError(f"unknown must be 'error' or 'prior', got {unknown!r}.")
    given = {"side": side, "items": items, "users": users}
    defaults = {"index": index != "auto" or None, "unknown": unknown != "error" or None}
    _check_used(format, {**given, **defaults})
    check_replaceable(path)
    started = time.perf_counter()
    job = _Export(model, side, items, users, index, unknown, model_id)
    with files.directory_aside(path, check_replaceable) as aside:
        facts = {
            "format": format,
            "model_id": model_id or None,
            "simrec": __version__,
            **_WRITERS[format](job, aside),
        }
        written = [f.relative_to(aside).as_posix() for f in aside.rglob("*") if f.is_file()]
        mark = files.to_json({**facts, "files": sorted(written)})
        (aside / MARK).write_text(mark, encoding="utf-8")
    seconds = round(time.perf_counter() - started, 3)
    return {"job": "export", "out": os.fspath(path), **facts, "seconds": seconds}


# What each format has a use for; anything else would be ignored without a word.
_USED = {
    "savedmodel": {"items", "unknown"},
    "tower": {"side"},
    "parquet": {"side", "items", "users"},
    "faiss": {"items", "index"},
}
_INDEXES = ("auto", "flat", "hnsw", "ivf")


def _check_used(format: str, given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if value is not None and name not in _USED[format]:
            raise InputError(f"{name}: format {format!r} has no use for it. Leave it out.")


class _Export:
    """What is to be exported."""

    def __init__(
        self,
        model: TwoTower,
        side: Side | None,
        items: TableLike | None,
        users: TableLike | None,
        index: Index,
        unknown: Unknown,
        model_id: str,
    ) -> None:
        self.item_tower, self.user_tower = model.item_tower_, model.user_tower_
        self.output = model.output_
        self.side = side
        self.items = vectors.chosen(self.item_tower, items)
        self.users = vectors.chosen(self.user_tower, users)
        self.index = index
        self.unknown = unknown
        self.about = {"simrec.model_id": model_id} if model_id else {}

    def savedmodel(self, path: Path) -> dict[str, Any]:
        """Write the user tower and the item index as one SavedModel."""
        from simrec.model.export import savedmodel as graphs

        ids, item_vectors = self._all_items()
        module = graphs.Recommender(self.user_tower, ids, item_vectors, self.output, self.unknown)
        facts = graphs.save(module, path)
        return {"items": len(ids), "users": len(self.user_tower.ids), **facts}

    def tower(self, path: Path) -> dict[str, Any]:
        """Write the encoder of one side as a SavedModel."""
        from simrec.model.export import savedmodel as graphs

        if self.side is None:
            raise InputError("side: say which tower to export, 'item' or 'user'.")
        tower = self._towers()[0]
        if not graphs.has_features(tower):
            raise InputError(
                f"the model was fitted without features of {tower.name}s: there is no {tower.name} "
                "tower to export. Format 'parquet' has the vectors of those it knows."
            )
        facts = graphs.save(graphs.FoldedTower(tower, self.output), path)
        return {"side": self.side, "dimensions": tower.vectors.shape[1] + 1, **facts}

    def parquet(self, path: Path) -> dict[str, Any]:
        """Write the vectors of items and users."""
        facts: dict[str, Any] = {"dimensions": self.item_tower.vectors.shape[1] + 1}
        for tower in self._towers():
            name = f"{tower.name}s"
            table = self.items if tower.name == "item" else self.users
            file = path / f"{name}.parquet"
            facts[name] = vectors.write_parquet(file, tower, self.output, table, self.about)
        return facts

    def faiss(self, path: Path) -> dict[str, Any]:
        """Write an index over the items, and their ids in its order."""
        from simrec.model.export import faiss_index as ann

        ann.faiss_package()
        ids, item_vectors = self._all_items()
        n_items, rng = len(ids), np.random.default_rng(0)
        last = vectors.last_coordinate("item", self.output)
        kind = ann.choose(self.index, n_items)
        rows = rng.choice(n_items, ann.training_rows(kind, n_items), replace=False)
        parts = (
            vectors.fold(item_vectors[start : start + vectors.BLOCK], last)
            for start in range(0, n_items, vectors.BLOCK)
        )
        made = ann.build(kind, parts, n_items, vectors.fold(item_vectors[np.sort(rows)], last))
        known = self.user_tower.vectors
        sample = np.sort(rng.permutation(len(known))[:_QUERIES])
        # The last coordinate adds the same to all items: exact search does without it.
        exact = top_k(known[sample], item_vectors, min(_K, n_items))[1] + np.float32(last)
        found = ann.tune(made, kind, vectors.fold(known[sample], 1.0), exact)
        ann.write(made, path / "items.faiss")
        table = pa.table({"item_id": ids}).replace_schema_metadata(
            vectors.metadata(self.output, self.about)
        )
        pq.write_table(table, path / "items.parquet", compression="zstd")
        return {"index": kind, "items": n_items, "dimensions": made.d, **found}

    def _towers(self) -> list[Tower]:
        towers = [self.item_tower, self.user_tower]
        return [tower for tower in towers if self.side in (None, tower.name)]

    def _all_items(self) -> tuple[pa.ChunkedArray, np.ndarray]:
        if self.items is None:
            return pa.chunked_array([self.item_tower.ids.ids]), self.item_tower.vectors
        made = list(vectors.blocks(self.item_tower, self.items))
        if not made:
            raise InputError("items: the table has no row, so there is nothing to recommend.")
        return pa.chunked_array([ids for ids, _ in made]), np.concatenate([v for _, v in made])


_WRITERS: dict[str, Callable[[_Export, Path], dict[str, Any]]] = {
    "savedmodel": _Export.savedmodel,
    "tower": _Export.tower,
    "parquet": _Export.parquet,
    "faiss": _Export.faiss,
}
