"""A `TwoTower` as a model directory, and back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import numpy as np
import pyarrow as pa

from simrec import artifacts
from simrec.data.arrays import as_numpy
from simrec.data.features import FeatureEncoder
from simrec.data.ids import IdMap
from simrec.data.sides import ID_COLUMNS, Side, Sides
from simrec.errors import InputError
from simrec.model.ordered.part import OrderedPart
from simrec.model.params import check_params
from simrec.model.part import Part
from simrec.model.rating.evidence import EVIDENCE
from simrec.model.rating.part import RatingPart
from simrec.model.tower import Tower
from simrec.model.uptake.part import UptakePart
from simrec.scoring.output import Output
from simrec.simec.params import plain

if TYPE_CHECKING:
    from simrec.model.two_tower import TwoTower

KIND = "two_tower"
_SPARSE = ("data", "indices", "indptr")
# Every kind of part.
PARTS: dict[str, type[Part]] = {part.kind: part for part in (RatingPart, OrderedPart, UptakePart)}
# Arguments that are networks: what was trained from them is in the parts.
_NETWORKS = ("item_encoder", "user_encoder")
# What was noted while fitting, and as what.
_FACTS = {
    "schema": dict,
    "chosen": dict,
    "history": list,
    "parent": str | None,
    "updates": list,
}


def save(model: TwoTower, path: str | os.PathLike[str]) -> str:
    """Write a fitted model; return its id."""
    arrays: dict[str, np.ndarray] = {}
    tables: dict[str, pa.Table] = {}
    documents: dict[str, Any] = {
        "parts": {
            name: {"kind": part.kind, "output": asdict(part.output)}
            for name, part in model.parts_.items()
        },
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
    for piece in _SPARSE:
        arrays[f"rated_{piece}"] = getattr(model.rated_, piece)
    counts = model.towers_.map(lambda tower: tower.counts)
    params = {name: v for name, v in model.get_params().items() if name not in _NETWORKS}
    return artifacts.save(
        path,
        KIND,
        config=plain(params),
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
    with artifact.fitting_together():
        config: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in artifact.config.items()
        }
        model = cls(**config)
        check_params(model.get_params())
        model.towers_ = towers = Sides.of(lambda side: _tower(artifact, side))
        model.parts_ = {
            name: _part(name, document, artifact, towers)
            for name, document in artifact.documents["parts"].items()
        }
        rating = model.parts_.get("rating")
        if isinstance(rating, OrderedPart):
            model.item_encoder, model.user_encoder = rating.own_encoders()
        shape = (len(towers.users.ids), len(towers.items.ids))
        model.rated_ = artifact.csr_matrix("rated", shape)
        model.uptake_weight_ = float(artifact.documents["lists"]["uptake_weight"])
        if not model.parts_:
            raise InputError("parts.json: the model has learned nothing")
        if not np.isfinite(model.uptake_weight_):
            raise InputError("lists.json: the weight of uptake is no number")
        for name, kind in _FACTS.items():
            if not isinstance(artifact.facts[name], kind):
                raise InputError(f"manifest.json: {name} is {artifact.facts[name]!r}")
            setattr(model, f"{name}_", artifact.facts[name])
    model.model_id_ = artifact.model_id
    return model


def _part(
    name: str, document: Mapping[str, Any], artifact: artifacts.Artifact, towers: Sides[Tower]
) -> Part:
    kind = PARTS[document["kind"]]
    if kind.name != name:
        raise InputError(f"parts.json: {document['kind']!r} is no {name!r} part")
    return kind.restored(_output(document["output"]), artifact, towers)


def _output(document: Mapping[str, Any]) -> Output:
    output = Output(**document)
    bounds = [output.lower, output.upper]
    numbers = [output.shift] if bounds == [None, None] else [output.shift, *bounds]
    if (
        not all(isinstance(n, int | float) and np.isfinite(n) for n in numbers)
        or output.kind not in get_args(get_type_hints(Output)["kind"])
        or (output.bounded and not output.lower <= output.upper)  # type: ignore[operator]
    ):
        raise InputError(f"output: {document} is no output function")
    return output


def _tower(artifact: artifacts.Artifact, side: Side) -> Tower:
    """Make a tower of its parts, none of which is believed: lengths and widths must agree."""
    table = artifact.tables[side]
    counts = table["n_ratings"].combine_chunks()
    if not pa.types.is_integer(counts.type) or counts.null_count:
        raise InputError(f"{side}.arrow: n_ratings are {counts.type}, expected whole numbers")
    document = artifact.documents.get(f"{side}_encoder")
    encoder = None if document is None else FeatureEncoder.from_dict(document)
    width = 0 if encoder is None else encoder.n_features_
    features = artifact.csr_matrix(f"{side}_features", (len(table), width))
    return Tower(side, IdMap(table[ID_COLUMNS[side]]), as_numpy(counts), encoder, features)
