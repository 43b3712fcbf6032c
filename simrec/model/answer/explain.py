"""Columns without words of their own (vectors, images), explained by entities that are alike."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from simrec.model.catalogue import title_column
from simrec.model.part import Entity
from simrec.model.tower import Tower
from simrec.storage.rows import shards_of

_WORDLESS = ("vector", "sentences", "image")
# Entities that are named, and those of the largest products among whom they are looked for.
_N_ALIKE, _CANDIDATES = 3, 100


def alike(tower: Tower, entity: Entity) -> dict[str, str]:
    """Name rated entities that are most like this one in each column without words of its own."""
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
        products[np.asarray(tower.counts) == 0] = 0
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
