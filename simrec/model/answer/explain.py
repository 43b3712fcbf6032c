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
from simrec.model.head import Found
from simrec.model.lists.blend import Blend
from simrec.model.part import Entity, Part
from simrec.model.tower import Tower, Unknown
from simrec.scoring.shares import Parts, shares


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
                what = f"{prefix}{mine.names[i]}"
                rows.append((SINGULAR[side], what, mine.values[i], float(bias[i]), float(taste[i])))
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
