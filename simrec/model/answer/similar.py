"""Entities that are alike: neighbours by correlation of scores, and those that explain a score."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from simrec.data.id_columns import one_or_several
from simrec.data.sides import Side, Sides, other
from simrec.data.tables import is_table, read_table
from simrec.errors import InputError
from simrec.model.catalogue import titles
from simrec.model.head import Encoder, Found
from simrec.model.part import Entity, Part
from simrec.model.tower import Tower
from simrec.scoring.topk import top_k_of_blocks
from simrec.storage.arrays import blocks

# Kinds of columns without words of their own.
_WORDLESS = ("vector", "sentences", "image")
# What the history of a user adds, as parts of a model call it.
_HISTORY = ("what they rated", "how they rated", "what they took up")
_N_NAMED = 3


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
        x = tower.encoded(table, tower.singular)
        n = len(tower.ids)
        return None, Found(np.array([n]), n, x, np.zeros(1, bool))
    ids = one_or_several(entity, tower.id_column)
    return ids, tower.find(ids)


def unit_vectors(
    part: Part, side: Side, towers: Sides[Tower]
) -> Callable[[np.ndarray], np.ndarray]:
    """Return what makes unit vectors of a side's vectors: their products are correlations."""
    vectors_of_partners, partner_counts = part.heads.other(side).vectors, towers.other(side).counts
    total = max(sum(int(some.sum()) for _, some in blocks(partner_counts)), 1)
    moments: Any = 0.0
    mean: Any = 0.0
    for here, counts in blocks(partner_counts):
        partners = part.comparable(other(side), np.asarray(vectors_of_partners[here]))
        weight, partners = np.maximum(counts, 0) / total, partners.astype(np.float64)
        moments = moments + (partners * weight[:, None]).T @ partners
        mean = mean + weight @ partners
    # Without the mean partner: what all feel alike about, popularity, makes nobody alike. The root
    # of the partners' covariance turns embeddings into centred scores.
    values, axes = np.linalg.eigh(moments - np.outer(mean, mean))
    metric = axes * np.sqrt(np.maximum(values, 0))

    def unit(vectors: np.ndarray) -> np.ndarray:
        scores = part.comparable(side, vectors) @ metric
        length = np.linalg.norm(scores, axis=1, keepdims=True)
        return (scores / np.maximum(length, 1e-12)).astype(np.float32)

    return unit


@dataclass(frozen=True, eq=False)
class Liked:
    """The items that a user liked, to explain another one by those that are nearest to it."""

    towers: Sides[Tower]
    entities: Sides[Entity]
    rows: np.ndarray  # of those items
    did: str  # what the user did: "liked", or "took up"
    part: Part  # whose vectors say which are nearest
    item: np.ndarray  # the vector of the item that is explained

    @cached_property
    def _because(self) -> str:
        liked = np.asarray(self.part.heads.items.vectors[self.rows])
        vectors = self.part.comparable("items", np.concatenate([self.item[None], liked]))
        cosines = _cosines(vectors[1:], vectors[0])
        return _nearest(self.towers.items, self.rows, cosines, self.entities.items.row)

    def value(
        self, side: Side, name: str, value: str, adds: bool, encoder: Encoder, partner: np.ndarray
    ) -> str:
        """Return the value of a part of an explanation, with the names of items if it has any."""
        # Only what `adds` to the score is due to what was liked.
        if side == "users" and name in _HISTORY:
            return f"{value}; {self.did} {self._because}" if adds and self._because else value
        tower, entity, named = self.towers[side], self.entities[side], ""
        if side == "items" and adds:
            named = _carriers(tower, entity, name, encoder, partner, self.rows)
        if named:
            return f"like {named} ({self.did})"
        named = _carriers(tower, entity, name, encoder, partner)
        return f"like {named}" if named else value


def _carriers(
    tower: Tower,
    entity: Entity,
    column: str,
    encoder: Encoder,
    partner: np.ndarray,
    rows: np.ndarray | None = None,
) -> str:
    """Name entities (of `rows`, or all rated ones) with the same in a column without words.

    They are compared by the relevance of its features: what each adds to the score with the
    partner beyond biases. Directions that do not matter to the partner do not count.
    """
    x, features = entity.features, entity.encoder
    if features is None or x is None or features.columns_.get(column) not in _WORDLESS:
        return ""
    if not x.nnz or features.words(x)[column] == "missing":
        return ""
    rows = np.flatnonzero(np.asarray(tower.counts)) if rows is None else rows
    own = np.flatnonzero(features.groups_ == list(features.columns_).index(column))
    weights = encoder.weights[own] @ partner
    if not weights.any():  # it acts by a network alone
        weights = np.ones(len(own), np.float32)
    mine = x[:, own].toarray()[0] * weights
    cosines = [
        _cosines(tower.features[some][:, own].toarray() * weights, mine) for _, some in blocks(rows)
    ]
    return _nearest(tower, rows, np.concatenate([np.empty(0), *cosines]), entity.row)


def _cosines(vectors: np.ndarray, vector: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(vectors, axis=1) * np.linalg.norm(vector)
    return np.asarray(vectors @ vector / np.maximum(length, 1e-30))


def _nearest(tower: Tower, rows: np.ndarray, cosines: np.ndarray, own: int) -> str:
    """Name the rows with the largest positive cosines, but the entity's own."""
    order = np.argsort(-cosines, kind="stable")
    best = rows[order[(cosines[order] > 0) & (rows[order] != own)][:_N_NAMED]]
    ids = tower.ids.take(best)
    named = titles(tower.table, tower.ids, ids)
    return ", ".join(str(named.get(one) or one) for one in ids.to_pylist())
