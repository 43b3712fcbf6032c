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
from simrec.data.sides import Sides
from simrec.data.tables import TableLike
from simrec.errors import InputError
from simrec.model.export import vectors
from simrec.model.head import Head
from simrec.model.tower import Tower, Unknown
from simrec.scoring.output import Output
from simrec.scoring.topk import top_k

if TYPE_CHECKING:
    from simrec.model.export.faiss_index import Index

logger = logging.getLogger(__name__)

Format = Literal["savedmodel", "tower", "parquet", "faiss"]
OneSide = Literal["item", "user"]

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
    towers: Sides[Tower],
    heads: Sides[Head],
    shift: float,
    path: str | os.PathLike[str],
    format: Format,
    side: OneSide | None,
    tables: Sides[TableLike | None],
    index: Index = "auto",
    unknown: Unknown = "error",
    model_id: str = "",
    output: Output | None = None,
) -> dict[str, Any]:
    """Write a model for another system; see `TwoTower.export`.

    Parameters
    ----------
    towers, heads : Sides of Tower, Sides of Head
        The model: its towers, and the vectors of the score to export.
    shift : float
        What is added to all scores.
    path, format, side, index, unknown
        As in `TwoTower.export`.
    tables : Sides of table-like or None
        Whom to export instead of all known ones.
    model_id : str
        The id of the model directory, to be noted in the export.
    output : Output, optional
        What makes a prediction of a score, to be noted in the export; None for scores of lists.
    """
    if format not in _WRITERS:
        raise InputError(f"format must be one of {', '.join(_WRITERS)}, got {format!r}.")
    if side not in (None, "item", "user"):
        raise InputError(f"side must be 'item' or 'user', got {side!r}.")
    if index not in _INDEXES:
        raise InputError(f"index must be one of {', '.join(_INDEXES)}, got {index!r}.")
    if unknown not in ("error", "prior"):
        raise InputError(f"unknown must be 'error' or 'prior', got {unknown!r}.")
    given = {"side": side, "items": tables.items, "users": tables.users}
    defaults = {"index": index != "auto" or None, "unknown": unknown != "error" or None}
    _check_used(format, {**given, **defaults})
    check_replaceable(path)
    started = time.perf_counter()
    job = _Export(towers, heads, shift, side, tables, index, unknown, model_id)
    with files.directory_aside(path, check_replaceable) as aside:
        facts = {
            "format": format,
            "model_id": model_id or None,
            "simrec": __version__,
            "prediction": None if output is None else _prediction(output),
            **_WRITERS[format](job, aside),
        }
        written = [f.relative_to(aside).as_posix() for f in aside.rglob("*") if f.is_file()]
        mark = files.to_json({**facts, "files": sorted(written)})
        (aside / MARK).write_text(mark, encoding="utf-8")
    seconds = round(time.perf_counter() - started, 3)
    return {"job": "export", "out": os.fspath(path), **facts, "seconds": seconds}


def _prediction(output: Output) -> dict[str, Any]:
    """Say what makes a prediction of a score; the shift is in the score already."""
    kind = output.kind if output.bounded else "identity"
    return {"kind": kind, "lower": output.lower, "upper": output.upper}


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
        towers: Sides[Tower],
        heads: Sides[Head],
        shift: float,
        side: OneSide | None,
        tables: Sides[TableLike | None],
        index: Index,
        unknown: Unknown,
        model_id: str,
    ) -> None:
        self.towers, self.heads, self.shift = towers, heads, shift
        self.side = side
        self.chosen = towers.map(vectors.chosen, tables)
        self.index = index
        self.unknown = unknown
        self.about = {"simrec.model_id": model_id} if model_id else {}

    def savedmodel(self, path: Path) -> dict[str, Any]:
        """Write the user tower and the item index as one SavedModel."""
        from simrec.model.export import savedmodel as graphs

        ids, item_vectors = self._all_items()
        module = graphs.Recommender(
            self.towers.users, self.heads.users, ids, item_vectors, self.shift, self.unknown
        )
        facts = graphs.save(module, path)
        return {"items": len(ids), "users": len(self.towers.users.ids), **facts}

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
            table, file = self.chosen[tower.side], path / f"{tower.side}.parquet"
            facts[tower.side] = vectors.write_parquet(
                file, tower, head, self.shift, table, self.about
            )
        return facts

    def faiss(self, path: Path) -> dict[str, Any]:
        """Write an index over the items, and their ids in its order."""
        from simrec.model.export import faiss_index as ann

        ann.faiss_package()
        ids, item_vectors = self._all_items()
        n_items, rng = len(ids), np.random.default_rng(0)
        last = vectors.last_coordinate("items", self.shift)
        kind = ann.choose(self.index, n_items)
        rows = rng.choice(n_items, ann.training_rows(kind, n_items), replace=False)
        parts = (
            vectors.fold(item_vectors[start : start + vectors.BLOCK], last)
            for start in range(0, n_items, vectors.BLOCK)
        )
        made = ann.build(kind, parts, n_items, vectors.fold(item_vectors[np.sort(rows)], last))
        known = self.heads.users.vectors
        sample = np.sort(rng.permutation(len(known))[:_QUERIES])
        # The last coordinate adds the same to all items: exact search does without it.
        exact = top_k(known[sample], item_vectors, min(_K, n_items))[1] + np.float32(last)
        found = ann.tune(made, kind, vectors.fold(known[sample], 1.0), exact)
        ann.write(made, path / "items.faiss")
        table = pa.table({"item_id": ids}).replace_schema_metadata(vectors.metadata(self.about))
        pq.write_table(table, path / "items.parquet", compression="zstd")
        return {"index": kind, "items": n_items, "dimensions": made.d, **found}

    def _towers(self) -> list[tuple[Tower, Head]]:
        both = zip(self.towers, self.heads, strict=True)
        return [(tower, head) for tower, head in both if self.side in (None, tower.singular)]

    def _all_items(self) -> tuple[pa.ChunkedArray, np.ndarray]:
        tower, head, table = self.towers.items, self.heads.items, self.chosen.items
        if table is None:
            return pa.chunked_array([tower.ids.ids]), head.vectors
        made = list(vectors.blocks(tower, head, table))
        if not made:
            raise InputError("items: the table has no row, so there is nothing to recommend.")
        return pa.chunked_array([ids for ids, _ in made]), np.concatenate([v for _, v in made])


_WRITERS: dict[str, Callable[[_Export, Path], dict[str, Any]]] = {
    "savedmodel": _Export.savedmodel,
    "tower": _Export.tower,
    "parquet": _Export.parquet,
    "faiss": _Export.faiss,
}
