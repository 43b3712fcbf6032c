"""An index of Faiss over the items, tried against exact search."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from simrec.errors import InputError

Index = Literal["auto", "flat", "hnsw", "ivf"]
INDEXES: tuple[Index, ...] = ("auto", "flat", "hnsw", "ivf")

_FEW = 20_000  # items up to which a scan is as fast as an index
_NEIGHBOURS = 32  # links of an item in HNSW
_ENOUGH = 0.99  # recall at which more effort is not worth its time
_TRAINING_ROWS = 64  # for each list of IVF


def faiss_package() -> Any:
    """Import Faiss, or say how to get it."""
    try:
        import faiss
    except ImportError as error:
        raise InputError(
            "format 'faiss' needs Faiss, which is not installed: pip install 'simrec[faiss]' "
            "(or faiss-cpu)."
        ) from error
    return faiss


def choose(index: Index, n_items: int) -> Index:
    """Choose by size: a scan for few items, inverted lists for more.

    The graph of HNSW is there for those who want it. Its links lead from item to item, and for
    inner products with users, who are elsewhere, it takes longer to get to the same recall.
    """
    if index != "auto":
        return index
    return "flat" if n_items <= _FEW else "ivf"


def build(kind: Index, vectors: Iterator[np.ndarray], n_items: int, sample: np.ndarray) -> Any:
    """Make an index of inner products."""
    faiss = faiss_package()
    d = sample.shape[1]
    if kind == "flat":
        index = faiss.IndexFlatIP(d)
    elif kind == "hnsw":
        index = faiss.IndexHNSWFlat(d, _NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = 200
    else:
        index = faiss.index_factory(d, f"IVF{lists(n_items)},Flat", faiss.METRIC_INNER_PRODUCT)
        index.train(sample)
    for block in vectors:
        index.add(np.ascontiguousarray(block))
    return index


def lists(n_items: int) -> int:
    """Give the number of inverted lists for so many items."""
    return max(1, int(np.sqrt(n_items)))


def training_rows(kind: Index, n_items: int) -> int:
    """Give the number of rows to learn from."""
    return min(n_items, _TRAINING_ROWS * lists(n_items)) if kind == "ivf" else 1


def tune(index: Any, kind: Index, queries: np.ndarray, exact: np.ndarray) -> dict[str, float]:
    """Raise the effort of searches until recall is good; measure it on other queries.

    `exact` are the scores of the k best items of each query, best first. The effort stays set in
    the index, and is saved with it.
    """
    tried, held_out = np.arange(0, len(queries), 2), np.arange(1, len(queries), 2)
    held_out = held_out if len(held_out) else tried
    effort = {}
    if kind != "flat":
        name, least, most = (
            ("ef_search", 16, 1024) if kind == "hnsw" else ("nprobe", 1, index.nlist)
        )
        level = least
        _set_effort(index, kind, level)
        while level < most and recall(index, queries[tried], exact[tried]) < _ENOUGH:
            level = min(2 * level, most)
            _set_effort(index, kind, level)
        effort = {name: level}
    found = recall(index, queries[held_out], exact[held_out])
    return {"recall_at_10": found, "queries": len(held_out), **effort}


def recall(index: Any, queries: np.ndarray, exact: np.ndarray) -> float:
    """Give the share of the k best items that the index finds.

    By score: of items that are equally good, new ones with equal features above all, it does not
    matter which is found.
    """
    found, _ = index.search(np.ascontiguousarray(queries), exact.shape[1])
    least = exact[:, -1:]
    return float((found >= least - 1e-5 * np.maximum(1, np.abs(least))).mean())


def write(index: Any, path: str | os.PathLike[str]) -> None:
    """Write an index for `faiss.read_index`."""
    faiss_package().write_index(index, os.fspath(path))


def _set_effort(index: Any, kind: Index, effort: int) -> None:
    if kind == "hnsw":
        index.hnsw.efSearch = effort
    else:
        index.nprobe = effort
