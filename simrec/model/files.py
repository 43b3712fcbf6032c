"""A `TwoTower` as a model directory, and back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

import numpy as np

from simrec.data.features import FeatureEncoder
from simrec.data.ids import IdMap
from simrec.data.sides import Columns, Side, Sides
from simrec.errors import InputError
from simrec.model import catalogue
from simrec.model.head import Saved
from simrec.model.lists.blend import KINDS, NEW, Blend
from simrec.model.lists.popularity import PopularityPart
from simrec.model.lists.uptake import UptakePart
from simrec.model.params import check_params
from simrec.model.part import Part
from simrec.model.posterior.evidence import EVIDENCE
from simrec.model.rating.part import RatingPart
from simrec.model.run.workers import ONE_WORKER, Workers, write_rows, written_together
from simrec.model.tower import Tower
from simrec.scoring.output import Output
from simrec.storage import artifacts
from simrec.storage.arrays import id_arrays, table_bytes
from simrec.storage.artifacts import Artifact

if TYPE_CHECKING:
    from simrec.model.fitted import FittedModel

Model = TypeVar("Model", bound="FittedModel")

KIND = "two_tower"
_LIKED = f"{EVIDENCE}_liked"
_PARTS = (RatingPart, UptakePart, PopularityPart)
# Every kind of part.
PARTS: dict[str, type[Part]] = {part.kind: part for part in _PARTS}
# Arguments that are networks: what was trained from them is in the parts.
_NETWORKS = ("item_encoder", "user_encoder")
# What was noted while fitting, and as what.
_FACTS = {"schema": dict, "chosen": dict, "history": list, "parent": str | None, "updates": list}


def save(model: FittedModel, path: str | os.PathLike[str], workers: Workers = ONE_WORKER) -> str:
    """Write a fitted model; return its id.

    Each of several workers writes its own users, into its rows of each array, the first one what
    all share, on storage that all of them see.
    """
    saved = content(model)
    users = {**saved.whole("users"), **id_arrays("users_ids", model.users_.ids)}
    rated = users["users_n_ratings"] > 0
    n_users, n_rating = int(workers.total(len(rated))), int(workers.total(int(rated.sum())))
    with written_together(path, workers) as directory:
        write_rows(directory, users, workers)
        found = ""
        if workers.rank == 0:
            items = {**saved.whole("items"), **id_arrays("items_ids", model.items_.ids)}
            artifacts.write(directory, saved.arrays | items, saved.documents, saved.networks)
            counts = items["items_n_ratings"]
            # Progress is no part of a model: its id is the same with and without.
            left_out = (*_NETWORKS, "verbose")
            params = {name: v for name, v in model.get_params().items() if name not in left_out}
            facts = {
                "seed": params["random_state"],
                "counts": {
                    "ratings": int(counts.sum()),
                    "items": len(counts),
                    "users": n_users,
                    "rated_items": int((counts > 0).sum()),
                    "rating_users": n_rating,
                },
                "columns": asdict(model.columns_),
                **{name: getattr(model, f"{name}_") for name in _FACTS},
            }
            found = artifacts.write_manifest(directory, KIND, params, facts)
    return workers.agreed(found)


def content(model: FittedModel) -> Saved:
    """Return all of a model but its ids as plain data."""
    saved = Saved()
    saved.documents |= {
        "parts": {
            name: {"kind": part.kind, "output": asdict(part.output)}
            for name, part in model.parts_.items()
        },
    }
    for name, factors in model.blend_.factors.items():
        for side, one in factors.named():
            saved.arrays[f"lists_{name}_{side}"] = one
    for side, tower in model.towers_.named():
        saved.rows[side][f"{side}_n_ratings"] = tower.counts
        saved.sparse[side][f"{side}_features"] = tower.features
        if tower.encoder is not None:
            saved.documents[f"{side}_encoder"] = tower.encoder.to_dict()
    if model.catalogue_ is not None:
        saved.arrays[catalogue.NAME] = table_bytes(model.catalogue_)
    for part in model.parts_.values():
        saved.add(part.saved())
    saved.sparse.users["rated"] = model.rated_
    if model.liked_ is not None:
        saved.sparse.users[_LIKED] = model.liked_
    return saved


def load(cls: type[Model], path: str | os.PathLike[str], evidence: bool = True) -> Model:
    """Read a model directory.

    Without `evidence` the posteriors are not read: most of it, and of no use to a job that scores.
    """
    artifact = artifacts.load(path, KIND, skip=None if evidence else EVIDENCE)
    with artifact.fitting_together():
        model = cls(**artifact.arguments)
        check_params(model.get_params())
        model.columns_ = Columns.from_dict(artifact.facts.get("columns", {}))
        model.towers_ = towers = Sides.of(lambda side: _tower(artifact, side))
        for side, tower in towers.named():
            tower.own_column = model.columns_.of(side)
        towers.items.table = catalogue.restored(artifact, len(towers.items.ids))
        model.parts_ = {}
        for name, document in artifact.documents["parts"].items():
            kind = PARTS[document["kind"]]
            if kind.name != name:
                raise InputError(f"parts.json: {document['kind']!r} is no {name!r} part")
            model.parts_[name] = kind.restored(_output(document["output"]), artifact, towers)
        shape = (len(towers.users.ids), len(towers.items.ids))
        model.rated_ = artifact.csr_matrix("rated", shape)
        model.liked_ = None
        if f"{_LIKED}_data" in artifact.arrays:
            model.liked_ = artifact.csr_matrix(_LIKED, shape, "i")
        rating = model.parts_.get("rating")
        if isinstance(rating, RatingPart):
            for name, head in zip(_NETWORKS, rating.heads, strict=True):
                if head.encoder.networks:  # None where they are built in
                    setattr(model, name, head.encoder.networks[-1].simec.encoder)
        if not model.parts_:
            raise InputError("parts.json: the model has learned nothing")
        model.blend_ = _blend(artifact, model.parts_)
        for name, expected in _FACTS.items():
            if not isinstance(artifact.facts[name], expected):
                raise InputError(f"manifest.json: {name} is {artifact.facts[name]!r}")
            setattr(model, f"{name}_", artifact.facts[name])
    model.model_id_ = artifact.model_id
    return model


def _blend(artifact: Artifact, parts: Mapping[str, Part]) -> Blend:
    """Read the blend of the components; it has factors for every kind of entity."""

    def factors(name: str, side: Side) -> np.ndarray:
        width = parts[name.removeprefix(NEW)].heads[side].width
        array = artifact.array(f"lists_{name}_{side}", (KINDS[side], None))
        if array.shape[1] not in (1, width):
            raise InputError(f"lists_{name}_{side}: expected 1 or {width} columns")
        return array

    names = [name for part in sorted(parts) for name in (part, f"{NEW}{part}")]
    names = sorted(name for name in names if f"lists_{name}_items" in artifact.arrays)
    if not names:
        raise InputError("lists: no component has a weight")
    found = {name: Sides(factors(name, "items"), factors(name, "users")) for name in names}
    return Blend(found)


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


def _tower(artifact: Artifact, side: Side) -> Tower:
    """Rebuild a tower; lengths and widths of its arrays are checked."""
    ids = IdMap(artifact.ids(f"{side}_ids"))
    counts = artifact.array(f"{side}_n_ratings", (len(ids),), "iu")
    if (np.asarray(counts) < 0).any():
        raise InputError(f"{side}_n_ratings: expected numbers of at least 0")
    fitted = artifact.documents.get(f"{side}_encoder")
    encoder = None if fitted is None else FeatureEncoder.from_dict(fitted)
    width = 0 if encoder is None else encoder.n_features_
    features = artifact.csr_matrix(f"{side}_features", (len(ids), width))
    return Tower(side, ids, counts, encoder, features)
