"""Why a score is what it is: the parts of both vectors, and what they add."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from scipy import sparse

from simrec.data.features import FeatureEncoder
from simrec.data.tables import TableLike, read_table
from simrec.model.fit.linear_encoder import history_weight
from simrec.model.fit.networks import Network
from simrec.model.layout import item_priors, item_vectors, user_priors, user_vectors
from simrec.model.tower import Tower, Unknown
from simrec.model.update.evidence import SideEvidence
from simrec.scoring.shares import Parts, shares

if TYPE_CHECKING:
    from simrec.model.life import Life

_HISTORY = {
    "item": ("who rated it", "how it was rated"),
    "user": ("what they rated", "how they rated"),
}
_ASSEMBLE = {"item": (item_vectors, item_priors), "user": (user_vectors, user_priors)}


def explain(
    model: Life,
    user_id: Any,
    item_id: Any,
    users: TableLike | None,
    items: TableLike | None,
    unknown: Unknown,
) -> pa.Table:
    """List what adds to the score of a pair; see `TwoTower.explain`."""
    evidence = model.evidence_
    parts = {}
    for tower, side, value, extra in (
        (model.item_tower_, None if evidence is None else evidence.items, item_id, items),
        (model.user_tower_, None if evidence is None else evidence.users, user_id, users),
    ):
        scale = 1.0 if evidence is None else evidence.scale
        parts[tower.name] = _parts(tower, side, scale, value, extra, unknown)
    rows = [("model", "mean", "", model.output_.shift, 0.0)]
    for name, other in (("item", "user"), ("user", "item")):
        mine = parts[name]
        bias, taste = shares(mine, parts[other])
        for i in np.argsort(-np.abs(bias + taste), kind="stable"):
            rows.append((name, mine.names[i], mine.values[i], float(bias[i]), float(taste[i])))
    columns = list(zip(*rows, strict=True))
    bias, taste = np.array(columns[3]), np.array(columns[4])
    return pa.table(
        {
            "side": list(columns[0]),
            "feature": list(columns[1]),
            "value": list(columns[2]),
            "bias": bias,
            "taste": taste,
            "contribution": bias + taste,
        }
    )


def _parts(
    tower: Tower,
    side: SideEvidence | None,
    scale: float,
    value: Any,
    extra: TableLike | None,
    unknown: Unknown,
) -> Parts:
    """Take the vector of one entity apart."""
    vectors, rows, _ = tower.find([value], extra, unknown)
    vector, row = np.asarray(vectors[rows[0]], np.float64), int(rows[0])
    known = row < len(tower.ids)
    count = int(tower.counts[row]) if known else 0
    warmth = float(side.warmth[row]) if known and side is not None else 0.0
    constant = _constant(tower, side is None, warmth, scale)
    x = _features(tower, row if known else -1, value, extra)
    if x is None:
        return Parts([f"average {tower.name}"], [""], (vector - constant)[None], constant)
    names, values = [f"average {tower.name}"], [""]
    columns: dict[str, str] = {}
    if tower.encoder is not None and not x.nnz:
        # Without a row of features: taken as average.
        pieces = (np.array(tower.prior, np.float64) if count else vector.copy())[None]
    else:
        columns, pieces = _columns(tower, x)
    if side is not None:
        if warmth == 1:
            own = beside = _by_column(tower.encoder, x, side.weights)[: len(pieces)]
        else:
            own, beside = _ASSEMBLE[tower.name][1](pieces, scale)
        pieces = _coordinates(tower, own, beside, warmth, scale)
    else:
        pieces[0] -= constant
    names, values = names + list(columns), values + list(columns.values())
    found = [pieces]
    if side is not None and known and count:
        history = (history_weight(np.array([count])) * side.history[row])[None]
        names, values = [*names, _HISTORY[tower.name][0]], [*values, f"{count:,} ratings"]
        found.append(_coordinates(tower, history, history, warmth, scale))
    if count:
        names, values = [*names, _HISTORY[tower.name][1]], [*values, f"{count:,} ratings"]
        found.append((vector - constant - np.concatenate(found).sum(0))[None])
    return Parts(names, values, np.concatenate(found), constant)


def _features(
    tower: Tower, row: int, value: Any, extra: TableLike | None
) -> sparse.csr_matrix | None:
    """Give the encoded features of an entity; None if there is nothing to encode."""
    if row >= 0:
        return tower.features[row]
    if extra is None or tower.encoder is None:
        return None
    table = read_table(extra, name=f"{tower.name}s", allow_empty=True)
    place = table[tower.id_column].to_pylist()
    return tower.encoder.transform(table.slice(place.index(value), 1)) if value in place else None


def _columns(tower: Tower, x: sparse.csr_matrix) -> tuple[dict[str, str], np.ndarray]:
    """Name the columns with their values, and encode each by itself; a first row is the rest."""
    pieces = _by_column(tower.encoder, x, tower.weights).astype(np.float64)
    for network in tower.networks:
        pieces = pieces + _by_column(tower.encoder, x, _attributed(network, x))
    return ({} if tower.encoder is None else tower.encoder.words(x)), pieces


def _by_column(
    encoder: FeatureEncoder | None, x: sparse.csr_matrix, weights: np.ndarray
) -> np.ndarray:
    """Apply the weights to the features of each column; the first row is that of the constant."""
    out = np.zeros((1 + (0 if encoder is None else len(encoder.columns_)), weights.shape[1]))
    out[0] = weights[-1]
    if encoder is not None:
        np.add.at(out, 1 + encoder.groups_[x.indices], x.data[:, None] * weights[x.indices])
    return out


def _attributed(network: Network, x: sparse.csr_matrix) -> np.ndarray:
    """Give weights that act at x as the network does: its integrated gradients over x."""
    from simrec.simec.inputs import Features
    from simrec.simec.relevance import relevance

    D = len(network.place)
    # One row for each output, in one go.
    rows = Features.check(sparse.vstack([x] * D, format="csr"))
    share, base = relevance(network.simec.encoder_, rows, np.eye(D, dtype=np.float32))
    weights = np.zeros((x.shape[1] + 1, D))
    there = x.data != 0
    weights[x.indices[there]] = (share[:, x.indices[there]] / x.data[there]).T
    weights[-1] = base
    return weights @ network.place


def _coordinates(
    tower: Tower, own: np.ndarray, beside: np.ndarray, warmth: float, scale: float
) -> np.ndarray:
    """Write embeddings as parts of vectors, without the constants."""
    assemble = _ASSEMBLE[tower.name][0]
    full = assemble(own, beside, np.full(len(own), warmth), scale)
    none = assemble(0 * own[:1], 0 * beside[:1], np.array([warmth]), scale)
    return full.astype(np.float64) - none


def _constant(tower: Tower, ranking: bool, warmth: float, scale: float) -> np.ndarray:
    width = tower.vectors.shape[1]
    if ranking:
        constant = np.zeros(width)
        constant[-1 if tower.name == "item" else -2] = 1
        return constant
    none = np.zeros((1, width // 3 - 1))
    return _ASSEMBLE[tower.name][0](none, none, np.array([warmth]), scale)[0].astype(np.float64)
