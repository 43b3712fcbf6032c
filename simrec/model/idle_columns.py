"""Columns of items that tell nothing of them are left out, as if they were not in the table.

What is learned is then the same as without them: a column of noise, however wide, does no harm.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from simrec.model.head import Encoder
from simrec.model.lists.column_weights import ColumnRegression
from simrec.model.lists.components import PairWeight, histories
from simrec.model.lists.spectrum import spectrum
from simrec.model.lists.uptake.encoders import feature_weights
from simrec.model.prepare import Prepared, PreparedSide

logger = logging.getLogger(__name__)

# Leading coordinates of who took an item up, items to learn from at most (most pairs first), and
# ratings by which a mean rating is drawn to that of all.
_COORDINATES, _ITEMS, _SHRINK = 16, 4000, 5
_REASON = "it tells nothing of items that were held out"


def without_idle_columns(data: Prepared, asked: Collection[str], seed: int) -> Prepared:
    """Leave out columns of items without which held-out items are predicted as well.

    Predicted is who took them up, how many, and how they were rated. At least one column is kept,
    and so is what was asked for.
    """
    side = data.sides.items
    encoder, groups = side.tower.encoder, side.groups[:-1]
    if encoder is None or len(encoder.columns_) < 2:
        return data
    X, rng = side.X[:, :-1], np.random.default_rng(seed)
    rows = np.argsort(-side.counts, kind="stable")[:_ITEMS]
    weights = feature_weights(X, groups, "rarity and full columns")
    Z = Encoder(np.empty((0, 0)), idf=weights).inputs(X[rows])
    regression = ColumnRegression(Z, groups, _targets(data, rng)[rows], rng)
    found = regression.telling(regression.plain()).columns > 0
    tells = dict(zip(encoder.columns_, data.workers.agreed(found.tolist()), strict=True))
    idle = [name for name, told in tells.items() if not told and name not in asked]
    if not idle or not any(tells.values()):
        return data
    for name in idle:
        logger.info("items: column %r is left out: %s", name, _REASON)
    return replace(data, sides=data.sides.with_side("items", _without(side, idle)))


def _targets(data: Prepared, rng: np.random.Generator) -> np.ndarray:
    """Return what to predict of each item: blocks of numbers that count alike."""
    ratings, workers, counts = data.ratings, data.workers, np.maximum(data.sides.items.counts, 1)
    axes = spectrum(histories(data, PairWeight()), _COORDINATES, rng, workers)
    blocks = [axes.V * np.sqrt(axes.e / counts[:, None]), np.log1p(counts)[:, None]]
    if ratings.has_ratings:
        mean = workers.total(float(ratings.values.sum())) / workers.total(len(ratings))
        off = np.bincount(ratings.item_rows, ratings.values - mean, minlength=len(counts))
        blocks.append((workers.sum(off) / (counts + _SHRINK))[:, None])
    blocks = [block - block.mean(0) for block in blocks]
    return np.hstack([block / max(np.linalg.norm(block), 1e-30) for block in blocks])


def _without(side: PreparedSide, idle: Collection[str]) -> PreparedSide:
    before = side.tower.encoder
    assert before is not None
    encoder = before.without(dict.fromkeys(idle, _REASON))
    columns = [place for place, name in enumerate(before.columns_) if name not in idle]
    kept = np.flatnonzero(np.isin(before.groups_, columns))
    tower = replace(side.tower, encoder=encoder, features=side.tower.features[:, kept])
    X = side.X[:, np.append(kept, side.X.shape[1] - 1)]
    groups = np.append(encoder.groups_, len(columns))
    return replace(side, tower=tower, X=X, groups=groups)
