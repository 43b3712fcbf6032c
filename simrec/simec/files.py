"""A fitted `SimEc` as a model directory, and back."""

import os
from typing import Any, TypeVar

import numpy as np

from simrec.errors import InputError
from simrec.scoring.output import Output
from simrec.simec import options
from simrec.simec.encoder_files import encoder_document, encoder_from_document
from simrec.simec.encoders import DenseStack, check_encoder_shapes
from simrec.simec.inputs import FEATURE_KINDS
from simrec.simec.options import check_hidden_layers
from simrec.simec.params import plain
from simrec.storage import artifacts

T = TypeVar("T")
KIND = "simec"


def save(model: Any, path: str | os.PathLike[str]) -> None:
    """Write a fitted SimEc: its options, its networks as plain data, and its arrays."""
    config = model.get_params()
    # The encoder is saved as it was trained; the one given was only its start.
    config.pop("encoder")
    networks = {"encoder": model.encoder_}
    if model.decoder_ is not None:
        networks["decoder"] = model.decoder_
    artifacts.save(
        path,
        KIND,
        config=plain(config),
        arrays={
            "last_layer": np.ascontiguousarray(model.last_layer_, dtype=np.float32),
            "targets": np.asarray(model.targets_),
        },
        # Everything an answer depends on is in a file with a checksum, not in the facts.
        documents={
            "networks": {name: encoder_document(network) for name, network in networks.items()},
            "learned": {
                "feature_kind": model.feature_kind_,
                "feature_shape": list(model.feature_shape_),
                "shift": model.output_.shift,
                "history": model.history_,
            },
        },
        keras_weights={name: network.get_weights() for name, network in networks.items()},
    )


def load(cls: type[T], path: str | os.PathLike[str]) -> T:
    """Return the SimEc saved at `path`; nothing in it is executed."""
    artifact = artifacts.load(path, kind=KIND)
    with artifact.fitting_together():
        return _restore(cls, artifact)


def _restore(cls: type[T], artifact: artifacts.Artifact) -> T:
    model: Any = cls(**artifact.arguments)
    options.check_params(model.get_params())
    learned, networks = artifact.documents["learned"], artifact.documents["networks"]
    for name in ("encoder", "decoder"):
        network = None
        if name == "encoder" or name in networks:
            network = encoder_from_document(networks[name], artifact.keras_weights[name])
        setattr(model, f"{name}_", network)
    if not isinstance(getattr(model.encoder_, "stack", None), DenseStack):
        model.encoder = model.encoder_
    model.targets_ = np.array(artifact.array("targets", (None,), "iu"))
    relations = (None,) if np.ndim(artifact.arrays["last_layer"]) == 3 else ()
    layer = artifact.array("last_layer", (model.embedding_dim, len(model.targets_), *relations))
    model.last_layer_ = np.array(layer, np.float32)
    model.n_relations_ = layer.shape[2] if relations else 1
    model.history_ = learned["history"]
    shift = learned["shift"]
    if isinstance(shift, bool) or not isinstance(shift, int | float) or not np.isfinite(shift):
        raise InputError(f"the output's shift is {shift!r}")
    lower, upper = model.bounds or (None, None)
    model.output_ = Output(lower, upper, shift)
    model.feature_kind_ = learned["feature_kind"]
    model.feature_shape_ = check_hidden_layers(learned["feature_shape"])
    _check_consistent(model)
    return model


def _check_consistent(model: Any) -> None:
    """Raise where parts of a loaded model do not fit each other."""
    kind, shape = model.feature_kind_, model.feature_shape_
    d = model.embedding_dim
    if kind not in FEATURE_KINDS:
        raise InputError(f"features of kind {kind!r}")
    stack = getattr(model.encoder_, "stack", None)
    if isinstance(stack, DenseStack):
        if (stack.features, (stack.n_inputs,), stack.widths[-1]) != (kind, shape, d):
            raise InputError(f"{stack} does not take {kind} rows of {shape} to {d} numbers")
    else:
        check_encoder_shapes(model.encoder_, shape, d)
    if model.decoder_ is not None:
        check_encoder_shapes(model.decoder_, (d,), shape[0])
    if not isinstance(model.history_, list):
        raise InputError("the history is no list")
