"""Why a score is what it is: the parts of both vectors, and what they add."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.sides import SINGULAR, Side, Sides
from simrec.data.tables import TableLike
from simrec.model.catalogue import title_column
from simrec.model.head import Found
from simrec.model.lists.blend import Blend
from simrec.model.part import Entity, Part
from simrec.model.tower import Tower, Unknown
from simrec.scoring.shares import Parts, shares
from simrec.storage.rows import shards_of

# Columns without words of their own: they are told by entities that have much the same.
_WORDLESS = ("vector", "sentences", "image")
# Entities that are named, and those of the largest products among whom they are looked for.
_N_ALIKE, _CANDIDATES = 3, 100


def explain(
    towers: Sides[Tower],
    parts: Mapping[str, Part],
    blend: Blend | None,
    ids: Sides[Any],
    tables: Sides[TableLike | None],
    unknown: Unknown,
) -> pa.Table:
    """List what adds to the score of a pair; see `TwoTower.explain`."""
    found = Sides.of(lambda side: towers[side].find([ids[side]], tables[side], unknown))
    entities = Sides.of(lambda side: _entity(towers[side], found[side]))
    told = Sides.of(lambda side: _alike(towers[side], entities[side]))
    rows: list[tuple[str, str, str, float, float]] = []
    for name, part in parts.items():

        def apart(side: Side, part: Part = part, name: str = name) -> Parts:
            pieces = part.explained(entities[side], part.heads[side].of(found[side])[0])
            if blend is None:
                return pieces
            factors = blend.of(name, side, np.array([entities[side].count]))[0]
            vectors, constant = pieces.vectors * factors, pieces.constant * factors
            return replace(pieces, vectors=vectors, constant=constant)

        pieces = Sides.of(apart)
        if not pieces.items.vectors.any():
            continue
        prefix = "" if len(parts) == 1 else f"{part.name}: "
        if blend is None:
            rows.append(("model", "mean", "", part.output.shift, 0.0))
        for side, mine in pieces.named():
            bias, taste = shares(mine, pieces.other(side))
            for i in np.argsort(-np.abs(bias + taste), kind="stable"):
                what, value = mine.names[i], mine.values[i]
                value = told[side].get(what, value)
                what = f"{prefix}{what}"
                rows.append((SINGULAR[side], what, value, float(bias[i]), float(taste[i])))
    names = ("side", "feature", "value", "bias", "taste")
    table = pa.table({n: list(v) for n, v in zip(names, zip(*rows, strict=True), strict=True)})
    return table.append_column("contribution", pc.add(table["bias"], table["taste"]))


def _entity(tower: Tower, found: Found) -> Entity:
    """Return what is known of the one entity that was found."""
    row = int(found.rows[0])
    if row < found.n_known:
        features = tower.features[row]
        return Entity(tower.side, row, int(tower.counts[row]), features, tower.encoder)
    new = None if found.average[0] or found.fresh is None else found.fresh[row - found.n_known]
    return Entity(tower.side, -1, 0, new, tower.encoder)


def _alike(tower: Tower, entity: Entity) -> dict[str, str]:
    """Name known entities that are most like this one in each column without words of its own."""
    encoder, x = entity.encoder, entity.features
    if encoder is None or x is None or not x.nnz:
        return {}
    found, words, title = {}, encoder.words(x), title_column(tower.table)
    for group, (column, kind) in enumerate(encoder.columns_.items()):
        if kind not in _WORDLESS or words[column] == "missing":
            continue
        features = np.flatnonzero(encoder.groups_ == group)
        own = np.zeros(x.shape[1], np.float32)
        own[features] = x[:, features].toarray()[0]
        products = np.concatenate([one.tocsr() @ own for one in shards_of(tower.features)])
        if entity.row >= 0:
            products[entity.row] = 0
        best = np.argsort(-products, kind="stable")[:_CANDIDATES]
        best = best[products[best] > 0]
        block = tower.features[best][:, features]
        length = np.sqrt(np.asarray(block.multiply(block).sum(axis=1)).ravel())
        best = best[np.argsort(-products[best] / length, kind="stable")][:_N_ALIKE]
        if len(best):
            named = tower.ids.take(best)
            if tower.table is not None and title is not None:
                named = tower.table[title].take(pa.array(best))
            found[column] = f"like {', '.join(map(str, named.to_pylist()))}"
    return found
