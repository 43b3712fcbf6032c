"""Who is like whom: entities that the other side feels alike about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from simrec.data.tables import read_table
from simrec.errors import InputError
from simrec.model.tower import Tower
from simrec.scoring.topk import top_k


def similar(tower: Tower, partners: Tower, entity: Any, k: int, blocks: int) -> pa.Table:
    """Give the k nearest of a tower to one entity; see `TwoTower.similar_items`."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise InputError(f"k must be a whole number from 1 on, got {k!r}.")
    own = None
    if isinstance(entity, Mapping) or hasattr(entity, "column_names") or hasattr(entity, "columns"):
        vector = _encoded(tower, entity)
    else:
        vectors, rows, _ = tower.find(pa.array([entity]))
        own, vector = int(rows[0]), vectors[rows[:1]]
    metric = _metric(partners, blocks)
    everyone = _directions(tower, tower.vectors, metric, blocks)
    query = _directions(tower, vector, metric, blocks)
    found, similarity = top_k(query, everyone, k + 1)
    keep = (found[0] >= 0) & (found[0] != (-1 if own is None else own))
    found, similarity = found[0][keep][:k], similarity[0][keep][:k]
    return pa.table(
        {
            tower.id_column: tower.ids.take(found),
            "similarity": np.clip(similarity, -1, 1),
            "rank": np.arange(1, len(found) + 1, dtype=np.int32),
        }
    )


def _encoded(tower: Tower, features: Any) -> np.ndarray:
    if tower.encoder is None:
        raise InputError(f"{tower.name}: the model was fitted without features; give an id.")
    given = (
        pa.table({n: [v] for n, v in features.items()})
        if isinstance(features, Mapping)
        else features
    )
    table = read_table(given, name=tower.name)
    if len(table) != 1:
        raise InputError(
            f"{tower.name}: expected the features of one {tower.name}, got {len(table)} rows."
        )
    return tower.encode(table)


def _embeddings(tower: Tower, vectors: np.ndarray, blocks: int) -> np.ndarray:
    """Give embeddings without biases in one space for known and for new entities."""
    d = vectors.shape[1] // blocks - 2
    if blocks == 1:
        return vectors[:, :d]
    # A new item is encoded in the second block, a new user in the third: in terms of the first.
    at = (1 if tower.name == "item" else 2) * (d + 2)
    return vectors[:, :d] + vectors[:, at : at + d]


def _metric(partners: Tower, blocks: int) -> np.ndarray:
    """Give the root of the partners' second moments: it turns products into what they feel."""
    embeddings = _embeddings(partners, partners.vectors, blocks).astype(np.float64)
    weight = np.maximum(partners.counts, 0) / max(partners.counts.sum(), 1)
    values, vectors = np.linalg.eigh((embeddings * weight[:, None]).T @ embeddings)
    return vectors * np.sqrt(np.maximum(values, 0))


def _directions(tower: Tower, vectors: np.ndarray, metric: np.ndarray, blocks: int) -> np.ndarray:
    felt = _embeddings(tower, np.asarray(vectors), blocks) @ metric
    length = np.linalg.norm(felt, axis=1, keepdims=True)
    return (felt / np.maximum(length, 1e-12)).astype(np.float32)
