"""A `TwoTower` as a model directory, and back."""

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import numpy as np
import pyarrow as pa

from simrec import artifacts
from simrec.data.features import FeatureEncoder
from simrec.data.ids import IdMap
from simrec.data.memory import as_numpy
from simrec.errors import InputError
from simrec.model.fit.networks import Network
from simrec.model.tower import Tower
from simrec.model.update.evidence import EVIDENCE, Evidence
from simrec.scoring.output import Output
from simrec.simec.params import plain

if TYPE_CHECKING:
    from simrec.model.two_tower import TwoTower

KIND = "two_tower"
_SPARSE = ("data", "indices", "indptr")


def save(model: "TwoTower", path: str | os.PathLike[str]) -> None:
    """Write a fitted model."""
    arrays: dict[str, np.ndarray] = {}
    tables: dict[str, pa.Table] = {}
    documents: dict[str, Any] = {"output": asdict(model.output_)}
    weights: dict[str, list[np.ndarray]] = {}
    for tower in (model.item_tower_, model.user_tower_):
        arrays[f"{tower.name}_vectors"] = tower.vectors
        arrays[f"{tower.name}_weights"] = tower.weights
        arrays[f"{tower.name}_prior"] = tower.prior
        for part in _SPARSE:
            arrays[f"{tower.name}_features_{part}"] = getattr(tower.features, part)
        tables[f"{tower.name}s"] = pa.table(
            {tower.id_column: tower.ids.ids, "n_ratings": tower.counts}
        )
        if tower.encoder is not None:
            documents[f"{tower.name}_encoder"] = tower.encoder.to_dict()
        for number, network in enumerate(tower.networks):
            name = f"{tower.name}_network_{number}"
            documents[name] = network.document()
            arrays[f"{name}_place"] = network.place
            weights[name] = network.simec.encoder_.get_weights()
    if model.evidence_ is not None:
        arrays |= model.evidence_.arrays()
    model.model_id_ = artifacts.save(
        path,
        KIND,
        config=plain(model.get_params()),
        arrays=arrays,
        tables=tables,
        documents=documents,
        keras_weights=weights,
        facts={
            "seed": model.random_state,
            "counts": {
                "ratings": int(model.item_counts_.sum()),
                "items": len(model.items_),
                "users": len(model.users_),
                "rated_items": int((model.item_counts_ > 0).sum()),
                "rating_users": int((model.user_counts_ > 0).sum()),
            },
            "schema": model.schema_,
            "chosen": model.chosen_,
            "history": model.history_,
            "parent": model.parent_,
            "updates": model.updates_,
        },
    )


def load(cls: type["TwoTower"], path: str | os.PathLike[str], evidence: bool = True) -> "TwoTower":
    """Read a model directory; without the evidence, which is most of it, if only answers count."""
    artifact = artifacts.load(path, KIND, skip=None if evidence else EVIDENCE)
    with artifact.fitting_together():
        config: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in artifact.config.items()
        }
        model = cls(**config)
        model.output_ = _output(artifact.documents["output"])
        model.item_tower_, model.user_tower_ = _tower(artifact, "item"), _tower(artifact, "user")
        widths = model.item_tower_.vectors.shape[1], model.user_tower_.vectors.shape[1]
        if widths[0] != widths[1]:
            raise InputError(f"vectors of items have {widths[0]} coordinates, of users {widths[1]}")
        _check_evidence(artifact, {"item": model.item_tower_, "user": model.user_tower_})
        model.evidence_ = Evidence.restored(artifact.arrays)
        for name in ("schema", "chosen", "history", "parent", "updates"):
            setattr(model, f"{name}_", artifact.facts[name])
    model.model_id_ = artifact.model_id
    return model


def _output(document: Mapping[str, Any]) -> Output:
    output = Output(**document)
    bounds = [output.lower, output.upper]
    numbers = [output.shift] if bounds == [None, None] else [output.shift, *bounds]
    if (
        not all(isinstance(n, int | float) and np.isfinite(n) for n in numbers)
        or output.kind not in get_args(get_type_hints(Output)["kind"])
        or (output.bounded and not output.lower < output.upper)  # type: ignore[operator]
    ):
        raise InputError(f"output: {document} is no output function")
    return output


def _tower(artifact: artifacts.Artifact, name: str) -> Tower:
    """Make a tower of its parts, none of which is believed: lengths and widths must agree."""
    table = artifact.tables[f"{name}s"]
    counts = table["n_ratings"].combine_chunks()
    if not pa.types.is_integer(counts.type) or counts.null_count:
        raise InputError(f"{name}s.arrow: n_ratings are {counts.type}, expected whole numbers")
    vectors = artifact.array(f"{name}_vectors", (len(table), None))
    width = vectors.shape[1]
    weights = artifact.array(f"{name}_weights", (None, width))
    n_features = len(weights) - 1
    document = artifact.documents.get(f"{name}_encoder")
    encoder = None if document is None else FeatureEncoder.from_dict(document)
    if n_features != (0 if encoder is None else encoder.n_features_):
        raise InputError(f"{name}_weights.npy: {n_features} features, the encoder has others")
    networks = []
    for network, layers in sorted(artifact.keras_weights.items()):
        if network.startswith(f"{name}_network_"):
            place = artifact.array(f"{network}_place", (None, width))
            networks.append(Network.restore(artifact.documents[network], layers, place))
    return Tower(
        name,
        IdMap(table[f"{name}_id"]),
        as_numpy(counts),
        vectors,
        weights,
        artifact.array(f"{name}_prior", (width,)),
        encoder,
        artifact.csr_matrix(f"{name}_features", (len(table), n_features)),
        networks,
    )


def _check_evidence(artifact: artifacts.Artifact, towers: Mapping[str, Tower]) -> None:
    """Check the arrays that `Evidence.restored` takes as they are."""
    if f"{EVIDENCE}_units" not in artifact.arrays:
        return
    artifact.array(f"{EVIDENCE}_units", (2,))
    D = None
    for name, tower in towers.items():
        prefix, n = f"{name}_{EVIDENCE}", len(tower.ids)
        D = artifact.array(f"{prefix}_own_mean", (n, D)).shape[1]
        square, entities = (D, D), (n, D)
        shapes: dict[str, tuple[int, ...]] = {
            **dict.fromkeys(["own_mean", "beside_mean", "history", "pull", "cold"], entities),
            **dict.fromkeys(["own_packed", "beside_packed"], (n, D * (D + 1) // 2)),
            **dict.fromkeys(["own_scales_L", "beside_scales_L", "moments"], square),
            **dict.fromkeys(["own_scales_t", "beside_scales_t", "width"], ()),
            "warmth": (n,),
            "weights": (len(tower.weights), D),
        }
        for array, shape in shapes.items():
            artifact.array(f"{prefix}_{array}", shape)
