"""A `TwoTower` as a model directory, and back."""

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
    config: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in artifact.config.items()
    }
    model = cls(**config)
    model.output_ = Output(**artifact.documents["output"])
    for name in ("item", "user"):
        table = artifact.tables[f"{name}s"]
        encoder = artifact.documents.get(f"{name}_encoder")
        tower = Tower(
            name,
            IdMap(table[f"{name}_id"]),
            as_numpy(table["n_ratings"].combine_chunks()),
            artifact.arrays[f"{name}_vectors"],
            artifact.arrays[f"{name}_weights"],
            artifact.arrays[f"{name}_prior"],
            None if encoder is None else FeatureEncoder.from_dict(encoder),
            _features(artifact.arrays, name, len(table)),
            [
                Network.restore(
                    artifact.documents[network], weights, artifact.arrays[f"{network}_place"]
                )
                for network, weights in sorted(artifact.keras_weights.items())
                if network.startswith(f"{name}_network_")
            ],
        )
        setattr(model, f"{name}_tower_", tower)
    model.evidence_ = Evidence.restored(artifact.arrays)
    facts = artifact.facts
    model.schema_, model.chosen_, model.history_ = (
        facts["schema"],
        facts["chosen"],
        facts["history"],
    )
    model.parent_, model.updates_ = facts["parent"], facts["updates"]
    model.model_id_ = artifact.model_id
    return model


def _features(arrays: Mapping[str, np.ndarray], name: str, n_rows: int) -> sparse.csr_matrix:
    parts = tuple(arrays[f"{name}_features_{part}"] for part in _SPARSE)
    width = len(arrays[f"{name}_weights"]) - 1
    return sparse.csr_matrix(parts, shape=(n_rows, width), copy=False)
