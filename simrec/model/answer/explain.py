"""Why a score is what it is: the parts of both vectors, and what they add."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from simrec.data.sides import SIDES, SINGULAR, Side, Sides
from simrec.data.tables import TableLike
from simrec.model.part import Entity, Part
from simrec.model.tower import Tower, Unknown
from simrec.scoring.shares import Parts, shares


def explain(
    towers: Sides[Tower],
    parts: Sequence[tuple[Part, float]],
    ids: Sides[Any],
    tables: Sides[TableLike | None],
    unknown: Unknown,
) -> pa.Table:
    """List what adds to the score of a pair; see `TwoTower.explain`.

    Parameters
    ----------
    towers : Sides of Tower
        Both towers.
    parts : sequence of (Part, float)
        What the score is the sum of, and the weight of each.
    ids : Sides of id
        The pair.
    tables : Sides of table-like or None
        Features of an id the model does not know.
    unknown : {"error", "prior"}
        What to do with an id that has neither ratings nor features.
    """

    def find(side: Side) -> Any:
        return towers[side].find([ids[side]], tables[side], unknown)

    found = Sides.of(find)
    rows: list[tuple[str, str, str, float, float]] = []
    for part, weight in parts:

        def apart(side: Side, part: Part = part) -> Parts:
            tower, row = towers[side], int(found[side].rows[0])
            known = row < found[side].n_known
            entity = Entity(
                side,
                row if known else -1,
                int(tower.counts[row]) if known else 0,
                tower.feature_row(found[side]),
                tower.encoder,
            )
            return part.explained(entity, part.heads[side].of(found[side])[0])

        pieces = Sides.of(apart)
        prefix = "" if len(parts) == 1 else f"{part.name}: "
        rows.append(("model", f"{prefix}mean", "", weight * part.output.shift, 0.0))
        for side in SIDES:
            mine = pieces[side]
            bias, taste = (weight * share for share in shares(mine, pieces.other(side)))
            for i in np.argsort(-np.abs(bias + taste), kind="stable"):
                name = f"{prefix}{mine.names[i]}"
                rows.append((SINGULAR[side], name, mine.values[i], float(bias[i]), float(taste[i])))
    sides, features, values, biases, tastes = zip(*rows, strict=True)
    bias, taste = np.array(biases), np.array(tastes)
    return pa.table(
        {
            "side": list(sides),
            "feature": list(features),
            "value": list(values),
            "bias": bias,
            "taste": taste,
            "contribution": bias + taste,
        }
    )
