"""What the page draws beside the answers of the service: a map of the items."""

from __future__ import annotations

from typing import Any

import numpy as np

from simrec.data.features.column import family
from simrec.serve.engine import Engine

# Items on the map, at most: those with most ratings.
_MOST = 2_000


def map_of(engine: Engine, colour: str) -> dict[str, Any]:
    """Return two principal components of the item tower, for the items with most ratings."""
    model = engine.model
    counts = np.asarray(model.towers_.items.counts)
    rows = np.sort(np.argsort(-counts, kind="stable")[:_MOST])
    unit = engine.directions_of(rows)
    unit = unit - unit.mean(0)
    _, axes = np.linalg.eigh(unit.T @ unit)
    at = unit @ axes[:, :-3:-1]
    at /= np.maximum(np.abs(at).max(0, initial=1e-12), 1e-12)
    values: list[str] | None = None
    if model.catalogue_ is not None and colour in model.catalogue_.column_names:
        column = model.catalogue_[colour].take(rows)
        held = family(column.type)
        raw = column.to_pylist()
        first = [one[0] if isinstance(one, list) and one else one for one in raw]
        if held == "number":
            first = [None if one is None else f"{int(one) // 10 * 10}s" for one in first]
        values = ["" if one is None or one == [] else str(one) for one in first]
    found = engine.listed(rows)
    for i, one in enumerate(found):
        one |= {"x": float(at[i, 0]), "y": float(at[i, 1]), "ratings": int(counts[rows[i]])}
        if values is not None:
            one["colour"] = values[i]
    return {"items": found, "of": len(counts)}
