"""Known entities that stand for what a score comes from, by title where there is one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from simrec.data.sides import Side, Sides
from simrec.model.catalogue import title_column
from simrec.model.head import Encoder
from simrec.model.part import Entity, Part
from simrec.model.tower import Tower
from simrec.storage.arrays import blocks

# Kinds of columns without words of their own.
_WORDLESS = ("vector", "sentences", "image")
# What the history of a user adds, as parts of a model call it.
_HISTORY = ("what they rated", "how they rated", "what they took up")
_N_NAMED = 3


class Liked:
    """The items that a user liked, to explain another one by those that are nearest to it.

    `rows` are those items, `did` says what the user did: "liked", or "took up". `part` and the
    vector of the item in it say which are nearest.
    """

    def __init__(
        self,
        towers: Sides[Tower],
        entities: Sides[Entity],
        rows: np.ndarray,
        did: str,
        part: Part,
        item: np.ndarray,
    ) -> None:
        self._towers, self._entities, self._rows, self._did = towers, entities, rows, did
        vectors = np.concatenate([item[None], np.asarray(part.heads.items.vectors[rows])])
        vectors = part.comparable("items", vectors)
        cosines = _cosines(vectors[1:], vectors[0])
        self._because = _nearest(towers.items, rows, cosines, entities.items.row)

    def value(
        self,
        side: Side,
        name: str,
        value: str,
        adds: bool,
        encoder: Encoder,
        partner: np.ndarray,
    ) -> str:
        """Return the value of a part of an explanation, with the names of items if it has any.

        `adds`: whether the part makes the score larger; only then it is due to what was liked.
        """
        if side == "users" and name in _HISTORY:
            return f"{value}; {self._did} {self._because}" if adds and self._because else value
        tower, entity, named = self._towers[side], self._entities[side], ""
        if side == "items" and adds:
            named = _carriers(tower, entity, name, encoder, partner, self._rows)
        if named:
            return f"like {named} ({self._did})"
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
    names, title = tower.ids.take(best).to_pylist(), title_column(tower.table)
    if tower.table is not None and title is not None and len(best):
        titles = tower.table[title].take(pa.array(best)).to_pylist()
        names = [title or name for title, name in zip(titles, names, strict=True)]
    return ", ".join(map(str, names))
