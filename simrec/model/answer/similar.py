"""Neighbours by correlation of predicted scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from simrec.data.id_columns import one_or_several
from simrec.data.sides import Side, Sides, other
from simrec.data.tables import is_table, read_table
from simrec.errors import InputError
from simrec.model.head import Found
from simrec.model.part import Part
from simrec.model.tower import Tower
from simrec.scoring.topk import top_k_of_blocks
from simrec.storage.arrays import Array, blocks


def similar(side: Side, towers: Sides[Tower], part: Part, entity: Any, k: int) -> pa.Table:
    """Return the k nearest of a side to its entities: ids, or the features of one.

    Similarity is the correlation of the scores that two entities have with all of the other side.
    """
    tower, head, unit = towers[side], part.heads[side], unit_vectors(part, side, towers)
    k = min(k, len(tower.ids))  # before memory is taken for it
    ids, found = _find(tower, entity)
    query = unit(head.of(found))
    units = (unit(rows) for _, rows in blocks(head.vectors))
    places, similarity = top_k_of_blocks(query, units, k + 1)
    keep = (places >= 0) & (places != found.known_rows[:, None])
    keep &= np.cumsum(keep, axis=1) <= k
    who, at = np.nonzero(keep)
    table = {
        tower.id_column: tower.ids.take(places[who, at]),
        "similarity": np.clip(similarity[who, at], -1, 1),
        "rank": (np.cumsum(keep, axis=1)[who, at]).astype(np.int32),
    }
    if ids is not None and len(ids) > 1:
        table = {f"for_{tower.id_column}": ids.take(pa.array(who)), **table}
    return pa.table(table)


def _find(tower: Tower, entity: Any) -> tuple[pa.ChunkedArray | None, Found]:
    """Find ids, or encode the features of one entity."""
    if is_table(entity) or isinstance(entity, Mapping):
        if tower.encoder is None:
            raise InputError(
                f"{tower.singular}: the model was fitted without features; give an id."
            )
        one = isinstance(entity, Mapping)
        table = pa.Table.from_pylist([dict(entity)]) if one else read_table(entity)
        if len(table) != 1:
            raise InputError(
                f"{tower.singular}: expected the features of one {tower.singular}, got "
                f"{len(table)} rows."
            )
        x, n = (
            tower.encoder.transform(tower.with_all_features(table, tower.singular)),
            len(tower.ids),
        )
        return None, Found(np.array([n]), n, x, np.zeros(1, bool))
    ids = one_or_several(entity, tower.id_column)
    return ids, tower.find(ids)


def unit_vectors(
    part: Part, side: Side, towers: Sides[Tower]
) -> Callable[[np.ndarray], np.ndarray]:
    """Return what makes unit vectors of a side's vectors: their products are correlations."""
    metric = _metric(part, side, towers.other(side).counts)

    def unit(vectors: np.ndarray) -> np.ndarray:
        scores = part.comparable(side, vectors) @ metric
        length = np.linalg.norm(scores, axis=1, keepdims=True)
        return (scores / np.maximum(length, 1e-12)).astype(np.float32)

    return unit


def _metric(part: Part, side: Side, partner_counts: Array) -> np.ndarray:
    """Return the root of the partners' covariance: it turns embeddings into centred scores."""
    vectors = part.heads.other(side).vectors
    total = max(sum(int(some.sum()) for _, some in blocks(partner_counts)), 1)
    moments: Any = 0.0
    mean: Any = 0.0
    for here, counts in blocks(partner_counts):
        embeddings = part.comparable(other(side), np.asarray(vectors[here])).astype(np.float64)
        weight = np.maximum(counts, 0) / total
        moments = moments + (embeddings * weight[:, None]).T @ embeddings
        mean = mean + weight @ embeddings
    # Without the mean partner: what all feel alike about, popularity, makes nobody alike.
    values, axes = np.linalg.eigh(moments - np.outer(mean, mean))
    return axes * np.sqrt(np.maximum(values, 0))
