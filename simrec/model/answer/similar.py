"""Entities that the other side feels alike about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from simrec.data.ids import one_or_several
from simrec.data.sides import Side, Sides
from simrec.errors import InputError
from simrec.model.head import Found, Head
from simrec.model.part import Part
from simrec.model.tower import Tower
from simrec.rows import BLOCK, Array, blocks
from simrec.scoring.topk import top_k


def similar(
    side: Side, towers: Sides[Tower], parts: Sequence[tuple[Part, float]], entity: Any, k: int
) -> pa.Table:
    """Return the k nearest of a side to one or several of its entities.

    Similarity is the cosine between the scores that two entities have with all of the other side,
    biases aside; with several parts, between the scores of all parts side by side.

    Parameters
    ----------
    side : {"items", "users"}
        The side.
    towers : Sides of Tower
        Both towers.
    parts : sequence of (Part, float)
        What to compare by, and the weight of each.
    entity : id, ids, mapping or table
        Whom to compare: ids the model knows, or the features of one entity.
    k : int
        How many for each.
    """
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise InputError(f"k must be a whole number from 1 on, got {k!r}.")
    tower = towers[side]
    k = min(int(k), len(tower.ids))  # before memory is taken for it
    ids, found = _find(tower, entity)
    metrics = [_metric(part, side, towers.other(side).counts) for part, _ in parts]

    def directions(vectors_of: Any) -> np.ndarray:
        felt = [
            np.float32(weight) * (part.comparable(side, vectors_of(part.heads[side])) @ metric)
            for (part, weight), metric in zip(parts, metrics, strict=True)
        ]
        joined = np.hstack(felt)
        length = np.linalg.norm(joined, axis=1, keepdims=True)
        return (joined / np.maximum(length, 1e-12)).astype(np.float32)

    query = directions(lambda head: head.of(found))
    places, similarity = np.empty((len(query), 0), np.int64), np.empty((len(query), 0), np.float32)
    for start in range(0, len(tower.ids), BLOCK):
        here = slice(start, min(start + BLOCK, len(tower.ids)))
        at, z = top_k(query, directions(lambda head, here=here: head.vectors[here]), k + 1)
        places = np.hstack([places, np.where(at >= 0, at + start, -1)])
        similarity = np.hstack([similarity, z])
        # Of equals the first comes first, as in one search.
        best = np.argsort(-similarity, axis=1, kind="stable")[:, : k + 1]
        places = np.take_along_axis(places, best, 1)
        similarity = np.take_along_axis(similarity, best, 1)
    keep = (places >= 0) & (places != np.where(found.rows < found.n_known, found.rows, -1)[:, None])
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
    if isinstance(entity, Mapping) or hasattr(entity, "column_names") or hasattr(entity, "columns"):
        if tower.encoder is None:
            raise InputError(
                f"{tower.singular}: the model was fitted without features; give an id."
            )
        given = (
            pa.table({name: [value] for name, value in entity.items()})
            if isinstance(entity, Mapping)
            else entity
        )
        table = given if isinstance(given, pa.Table) else pa.Table.from_pandas(given)
        if len(table) != 1:
            raise InputError(
                f"{tower.singular}: expected the features of one {tower.singular}, got "
                f"{len(table)} rows."
            )
        n = len(tower.ids)
        return None, Found(np.array([n]), n, tower.encoder.transform(table), np.zeros(1, bool))
    ids = one_or_several(entity, tower.id_column)
    return ids, tower.find(ids)


def _metric(part: Part, side: Side, partner_counts: Array) -> np.ndarray:
    """Return the root of the partners' second moments: it turns embeddings into scores."""
    other: Side = "users" if side == "items" else "items"
    head: Head = part.heads[other]
    total = max(sum(int(some.sum()) for _, some in blocks(partner_counts)), 1)
    moments: Any = 0.0
    for here, counts in blocks(partner_counts):
        embeddings = part.comparable(other, np.asarray(head.vectors[here])).astype(np.float64)
        weight = np.maximum(counts, 0) / total
        moments = moments + (embeddings * weight[:, None]).T @ embeddings
    values, vectors = np.linalg.eigh(moments)
    return vectors * np.sqrt(np.maximum(values, 0))
