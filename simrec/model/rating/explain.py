"""A rating vector as a sum: the average entity, its feature columns, its history, its ratings."""

from __future__ import annotations

import numpy as np

from simrec.data.sides import SINGULAR
from simrec.model.contributions import by_column, encoded_by_column
from simrec.model.head import StoredHead
from simrec.model.part import Entity
from simrec.model.rating.evidence import SideEvidence
from simrec.model.rating.layout import Layout
from simrec.model.rating.linear_encoder import history_weight
from simrec.scoring.shares import Parts

# What the ratings of an entity add: by which partners it has, and by what they say and how many
# they are.
_HISTORY = {
    "items": ("who rated it", "how it was rated"),
    "users": ("what they rated", "how they rated"),
}


def explained(
    entity: Entity, vector: np.ndarray, head: StoredHead, kept: SideEvidence, layout: Layout
) -> Parts:
    """Take the vector of one entity apart."""
    side, count, x = entity.side, entity.count, entity.features
    vector = np.asarray(vector, np.float64)
    warmth = float(kept.warmth[entity.row]) if entity.row >= 0 else 0.0
    constant = layout.constants(side, warmth)
    names, values = [f"average {SINGULAR[side]}"], [""]
    if x is None:
        return Parts(names, values, (vector - constant)[None], constant)
    if entity.encoder is not None and not x.nnz:
        # Without a row of features: taken as average.
        pieces = (np.array(head.prior, np.float64) if count else vector.copy())[None]
    else:
        pieces = encoded_by_column(entity.encoder, x, head.encoder)
        columns = {} if entity.encoder is None else entity.encoder.words(x)
        names, values = [*names, *columns], [*values, *columns.values()]
    if warmth == 1:
        own = to_new = by_column(entity.encoder, x, kept.weights)[: len(pieces)]
    else:
        own, to_new = layout.from_features(side, pieces)
    found = [layout.without_constants(side, own, to_new, warmth)]
    if count:
        which, how = _HISTORY[side]
        history = (history_weight(np.array([count])) * kept.history[entity.row])[None]
        found.append(layout.without_constants(side, history, history, warmth))
        found.append((vector - constant - np.concatenate(found).sum(0))[None])
        names, values = [*names, which, how], [*values, *[f"{count:,} ratings"] * 2]
    return Parts(names, values, np.concatenate(found), constant)
