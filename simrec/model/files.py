"""A `TwoTower` as a model directory, and back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from scipy import sparse

from simrec import artifacts
from simrec.data.arrays import as_numpy
from simrec.data.features import FeatureEncoder
from simrec.data.ids import IdMap
from simrec.data.sides import ID_COLUMNS, Side, Sides
from simrec.model.part import Part
from simrec.model.rating.evidence import EVIDENCE
from simrec.model.rating.part import RatingPart
from simrec.model.tower import Tower
from simrec.scoring.output import Output
from simrec.simec.params import plain

if TYPE_CHECKING:
    from simrec.model.two_tower import TwoTower

KIND = "two_tower"
_SPARSE = ("data", "indices", "indptr")
# Every kind of part, by the name under which it is saved.
PARTS: dict[str, type[Part]] = {part.name: part for part in (RatingPart,)}


def save(model: TwoTower, path: str | os.PathLike[str]) -> str:
    """Write a fitted model; return its id."""
    arrays: dict[str, np.ndarray] = {}
    tables: dict[str, pa.Table] = {}
    documents: dict[str, Any] = {
        "parts": {name: asdict(part.output) for name, part in model.parts_.items()},
        "lists": {"uptake_weight": model.uptake_weight_},
    }
    networks: dict[str, list[np.ndarray]] = {}
    for side, tower in model.towers_.named():
        for piece in _SPARSE:
            arrays[f"{side}_features_{piece}"] = getattr(tower.features, piece)
        tables[side] = pa.table({tower.id_column: tower.ids.ids, "n_ratings": tower.counts})
        if tower.encoder is not None:
            documents[f"{side}_encoder"] = tower.encoder.to_dict()
    for part in model.parts_.values():
        saved = part.saved()
        arrays |= saved.arrays
        documents |= saved.documents
        networks |= saved.networks
    arrays |= {"rated_indices": model.rated_.indices, "rated_indptr": model.rated_.indptr}
    counts = model.towers_.map(lambda tower: tower.counts)
    return artifacts.save(
        path,
        KIND,
        config=plain(model.get_params()),
        arrays=arrays,
        tables=tables,
        documents=documents,
        keras_weights=networks,
        facts={
            "seed": model.random_state,
            "counts": {
                "ratings": int(counts.items.sum()),
                "items": len(counts.items),
                "users": len(counts.users),
                "rated_items": int((counts.items > 0).sum()),
                "rating_users": int((counts.users > 0).sum()),
            },
            "schema": model.schema_,
            "chosen": model.chosen_,
            "history": model.history_,
            "parent": model.parent_,
            "updates": model.updates_,
        },
    )


def load(cls: type[TwoTower], path: str | os.PathLike[str], evidence: bool = True) -> TwoTower:
    """Read a model directory.

    Parameters
    ----------
    cls : type
        `TwoTower`.
    path : path
        The directory.
    evidence : bool
        Whether to read the posteriors, which are most of it and of no use to a job that scores.
    """
    artifact = artifacts.load(path, KIND, skip=None if evidence else EVIDENCE)
    config: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in artifact.config.items()
    }
    model = cls(**config)
    model.towers_ = Sides.of(
        lambda side: _tower(side, artifact.arrays, artifact.tables[side], artifact.documents)
    )
    model.parts_ = {
        name: PARTS[name].restored(
            Output(**output), artifact.arrays, artifact.documents, artifact.keras_weights
        )
        for name, output in artifact.documents["parts"].items()
    }
    indices, indptr = artifact.arrays["rated_indices"], artifact.arrays["rated_indptr"]
    shape = (len(model.users_), len(model.items_))
    ones = np.ones(len(indices), np.int8)
    model.rated_ = sparse.csr_matrix((ones, indices, indptr), shape=shape, copy=False)
    model.uptake_weight_ = artifact.documents["lists"]["uptake_weight"]
    for name in ("schema", "chosen", "history", "parent", "updates"):
        setattr(model, f"{name}_", artifact.facts[name])
    model.model_id_ = artifact.model_id
    return model


def _tower(
    side: Side,
    arrays: Mapping[str, np.ndarray],
    table: pa.Table,
    documents: Mapping[str, Any],
) -> Tower:
    encoder = documents.get(f"{side}_encoder")
    fitted = None if encoder is None else FeatureEncoder.from_dict(encoder)
    pieces = tuple(arrays[f"{side}_features_{piece}"] for piece in _SPARSE)
    width = 0 if fitted is None else fitted.n_features_
    features = sparse.csr_matrix(pieces, shape=(len(table), width), copy=False)
    counts = as_numpy(table["n_ratings"].combine_chunks())
    return Tower(side, IdMap(table[ID_COLUMNS[side]]), counts, fitted, features)
