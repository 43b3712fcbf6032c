"""A fitted `SimEc` as a model directory, and back."""

import os
from typing import Any, TypeVar

import numpy as np

from simrec import artifacts
from simrec.errors import InputError
from simrec.scoring.output import Output
from simrec.simec import options
from simrec.simec.encoder_files import encoder_document, encoder_from_document
from simrec.simec.encoders import DenseStack, check_encoder_shapes, check_hidden_layers
from simrec.simec.inputs import FEATURE_KINDS
from simrec.simec.params import plain

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
        tables={},
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
    try:
        return _restore(cls, artifact)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(
            f"{os.fspath(path)}: not a SimEc as this version saves it: {reason}. "
            "Restore it from a copy, or fit and save the model again"
        ) from error


def _restore(cls: type[T], artifact: artifacts.Artifact) -> T:
    config = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in artifact.config.items()
    }
    model: Any = cls(**config)
    options.check_params(model.get_params())
    learned, networks = artifact.documents["learned"], artifact.documents["networks"]
    for name in ("encoder", "decoder"):
        network = None
        if name == "encoder" or name in networks:
            network = encoder_from_document(networks[name], artifact.keras_weights[name])
        setattr(model, f"{name}_", network)
    if not isinstance(getattr(model.encoder_, "stack", None), DenseStack):
        model.encoder = model.encoder_
    model.last_layer_ = np.array(artifact.arrays["last_layer"], np.float32)
    model.targets_ = np.array(artifact.arrays["targets"])
    model.n_relations_ = 1 if model.last_layer_.ndim == 2 else model.last_layer_.shape[2]
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
    d, layer, targets = model.embedding_dim, model.last_layer_, model.targets_
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
    if layer.ndim not in (2, 3) or layer.shape[:2] != (d, len(targets)) or targets.ndim != 1:
        raise InputError(f"last_layer of shape {layer.shape} for {targets.shape} targets")
    if targets.dtype.kind not in "iu" or not isinstance(model.history_, list):
        raise InputError("targets are no integers, or the history is no list")
