"""A fitted `SimEc` as a model directory, and back."""

import json
import os
from typing import Any, TypeVar

import numpy as np

from simrec import artifacts
from simrec.errors import InputError
from simrec.scoring.output import Output
from simrec.simec.encoders import check_no_code, encoder_from_json
from simrec.simec.params import plain

T = TypeVar("T")
KIND = "simec"


def save(model: Any, path: str | os.PathLike[str]) -> None:
    """Write the model's options, layers (Keras JSON) and weights."""
    config = model.get_params()
    # The encoder is saved as it was trained; the one given was only its start.
    given = config.pop("encoder") is not None
    layers = {"encoder": json.loads(model.encoder_.to_json())}
    weights = {"encoder": model.encoder_.get_weights()}
    if model.decoder_ is not None:
        layers["decoder"] = json.loads(model.decoder_.to_json())
        weights["decoder"] = model.decoder_.get_weights()
    for network in layers.values():
        check_no_code(network)
    artifacts.save(
        path,
        KIND,
        config=plain(config),
        arrays={
            "last_layer": np.ascontiguousarray(model.last_layer_, dtype=np.float32),
            "targets": np.asarray(model.targets_),
        },
        tables={},
        documents={"layers": layers, "history": model.history_},
        keras_weights=weights,
        facts={
            "feature_kind": model.feature_kind_,
            "feature_shape": list(model.feature_shape_),
            "n_relations": model.n_relations_,
            "own_encoder": given,
            "output": [model.output_.lower, model.output_.upper, model.output_.shift],
        },
    )


def load(cls: type[T], path: str | os.PathLike[str]) -> T:
    """Return the model saved at `path`; nothing in it is executed."""
    artifact = artifacts.load(path, kind=KIND)
    config = dict(artifact.manifest["config"])
    facts = artifact.manifest["facts"]
    for name in ("hidden_layers", "bounds", "relation_weights"):
        if config.get(name) is not None:
            config[name] = tuple(config[name])
    model: Any = cls(**config)
    networks = {}
    for name, layers in artifact.documents["layers"].items():
        networks[name] = encoder_from_json(layers)
        weights = artifact.keras_weights[name]
        if len(weights) != len(networks[name].get_weights()):
            raise InputError(f"{os.fspath(path)}: the weights do not fit the {name}'s layers")
        networks[name].set_weights(weights)
    model.encoder_ = networks["encoder"]
    model.decoder_ = networks.get("decoder")
    if facts["own_encoder"]:
        model.encoder = model.encoder_
    model.last_layer_ = np.array(artifact.arrays["last_layer"])
    model.targets_ = np.array(artifact.arrays["targets"])
    model.history_ = artifact.documents["history"]
    model.output_ = Output(*facts["output"])
    model.n_relations_ = facts["n_relations"]
    model.feature_kind_ = facts["feature_kind"]
    model.feature_shape_ = tuple(facts["feature_shape"])
    return model
