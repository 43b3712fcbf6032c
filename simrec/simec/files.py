"""A fitted `SimEc`, or an encoder, as plain data and arrays, and back; loading never runs code.

Built-in encoders are rebuilt from their widths. A user's own Keras model is rebuilt by Keras, but
only after every part of its configuration was found to be of a class listed here, with plain
arguments.
"""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NoReturn, TypeVar

import numpy as np

from simrec.errors import InputError, is_number
from simrec.scoring.output import Output
from simrec.simec import options
from simrec.simec.encoders import DenseStack, check_encoder_shapes
from simrec.simec.inputs import FEATURE_KINDS
from simrec.simec.keras import keras, tf
from simrec.simec.options import ACTIVATIONS, check_hidden_layers
from simrec.storage import artifacts

T = TypeVar("T")
KIND = "simec"

# Classes a saved Keras encoder may hold. Each computes a fixed formula from plain arguments: none
# of them takes a function, an expression, a file or the name of a module.
_LAYERS = """
    InputLayer Dense Embedding Activation ReLU LeakyReLU PReLU ELU Softmax ThresholdedReLU
    Dropout SpatialDropout1D SpatialDropout2D SpatialDropout3D AlphaDropout GaussianDropout
    GaussianNoise BatchNormalization LayerNormalization GroupNormalization UnitNormalization
    Flatten Reshape Permute RepeatVector Masking Rescaling
    Conv1D Conv2D Conv3D Conv1DTranspose Conv2DTranspose Conv3DTranspose
    SeparableConv1D SeparableConv2D DepthwiseConv1D DepthwiseConv2D
    MaxPooling1D MaxPooling2D MaxPooling3D AveragePooling1D AveragePooling2D AveragePooling3D
    GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D
    GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D
    ZeroPadding1D ZeroPadding2D ZeroPadding3D Cropping1D Cropping2D Cropping3D
    UpSampling1D UpSampling2D UpSampling3D
    Add Subtract Multiply Average Maximum Minimum Concatenate Dot
    SimpleRNN LSTM GRU Bidirectional TimeDistributed Sequential Functional
"""
_INITIALIZERS = """
    Constant GlorotNormal GlorotUniform HeNormal HeUniform Identity LecunNormal LecunUniform Ones
    Orthogonal RandomNormal RandomUniform TruncatedNormal VarianceScaling Zeros
"""
_CLASSES = {
    "layers": frozenset(_LAYERS.split()),
    "initializers": frozenset(_INITIALIZERS.split()),
    "regularizers": frozenset(("L1", "L1L2", "L2", "OrthogonalRegularizer")),
    "constraints": frozenset(("MaxNorm", "MinMaxNorm", "NonNeg", "RadialConstraint", "UnitNorm")),
}
_OBJECT_KEYS = {"module", "class_name", "config", "registered_name", "build_config"}
_LAYER_KEYS = _OBJECT_KEYS | {"name", "inbound_nodes"}
# The fields `module` and `registered_name` of models, which are not exported beside the layers.
_MODELS = {
    "Sequential": ("keras", None),
    "Functional": ("tf_keras.src.engine.functional", "Functional"),
}


def save(model: Any, path: str | os.PathLike[str]) -> None:
    """Write a fitted SimEc: its options, its networks as plain data, and its arrays."""
    config = model.get_params()
    # The encoder is saved as it was trained; the one given was only its start.
    config.pop("encoder")
    artifacts.save(
        path,
        KIND,
        config=config,
        arrays={
            "last_layer": np.ascontiguousarray(model.last_layer_, dtype=np.float32),
            "targets": np.asarray(model.targets_),
        },
        # Everything an answer depends on is in a file with a checksum, not in the facts.
        documents={
            "networks": {"encoder": encoder_document(model.encoder_)},
            "learned": {
                "feature_kind": model.feature_kind_,
                "feature_shape": list(model.feature_shape_),
                "shift": model.output_.shift,
                "history": model.history_,
            },
        },
        keras_weights={"encoder": model.encoder_.get_weights()},
    )


def load(cls: type[T], path: str | os.PathLike[str]) -> T:
    """Return the SimEc saved at `path`; nothing in it is executed."""
    artifact = artifacts.load(path, kind=KIND)
    with artifact.fitting_together():
        model: Any = cls(**artifact.arguments)
        options.check_params(model.get_params())
        learned, document = artifact.documents["learned"], artifact.documents["networks"]["encoder"]
        model.encoder_ = encoder_from_document(document, artifact.keras_weights["encoder"])
        model.targets_ = np.array(artifact.array("targets", (None,), "iu"))
        d, relations = model.embedding_dim, np.shape(artifact.arrays["last_layer"])[2:3]
        layer = artifact.array("last_layer", (d, len(model.targets_), *relations))
        model.last_layer_ = np.array(layer, np.float32)
        model.n_relations_ = layer.shape[2] if relations else 1
        model.history_, shift = learned["history"], learned["shift"]
        if not isinstance(model.history_, list):
            raise InputError("the history is no list")
        if not is_number(shift) or not np.isfinite(shift):
            raise InputError(f"the output's shift is {shift!r}")
        lower, upper = model.bounds or (None, None)
        model.output_ = Output(lower, upper, shift)
        kind, shape = learned["feature_kind"], check_hidden_layers(learned["feature_shape"])
        if kind not in FEATURE_KINDS:
            raise InputError(f"features of kind {kind!r}")
        model.feature_kind_, model.feature_shape_ = kind, shape
        stack = getattr(model.encoder_, "stack", None)
        if not isinstance(stack, DenseStack):
            model.encoder = model.encoder_
            check_encoder_shapes(model.encoder_, shape, d)
        elif (stack.features, (stack.n_inputs,), stack.widths[-1]) != (kind, shape, d):
            raise InputError(f"{stack} does not take {kind} rows of {shape} to {d} numbers")
    return model


def encoder_document(encoder: Any) -> dict[str, Any]:
    """Return an encoder as plain data; refuse what `encoder_from_document` would."""
    stack = getattr(encoder, "stack", None)
    if isinstance(stack, DenseStack):
        return {"kind": "dense_stack", **asdict(stack)}
    config = json.loads(encoder.to_json())
    document = {"class_name": config["class_name"], "config": config["config"]}
    _check_object(document, "layers", "the encoder")
    return {"kind": "keras", "model": document}


def encoder_from_document(document: Any, weights: Sequence[np.ndarray]) -> Any:
    """Return the Keras model that `encoder_document` described, with these weights.

    Anything but plain data about allowed layers is an InputError, before Keras sees it.
    """
    kind = document.get("kind") if isinstance(document, dict) else None
    # Layers may keep a few numbers besides their weights, such as the state of a dropout.
    room = sum(np.size(w) for w in weights) + 10_000

    def create(next_creator: Any, **arguments: Any) -> Any:
        nonlocal room
        room -= math.prod(arguments.get("shape") or ())
        if room < 0:
            raise InputError("the layers of a saved encoder are larger than its saved weights")
        return next_creator(**arguments)

    # Before it takes memory: a false width must not exhaust it.
    with tf.variable_creator_scope(create):
        if kind == "dense_stack":
            model = _stack_from_document(document).build(np.random.default_rng(0))
        elif kind == "keras":
            model = _keras_model(document.get("model"))
        else:
            raise InputError("a saved encoder is neither of the built-in kind nor a Keras model")
    found, expected = ([tuple(w.shape) for w in some] for some in (weights, model.weights))
    if found != expected:
        raise InputError(f"saved weights of shapes {found} do not fit layers of {expected}")
    model.set_weights(weights)
    return model


def _stack_from_document(document: dict[str, Any]) -> DenseStack:
    facts = {name: value for name, value in document.items() if name != "kind"}
    try:
        stack = DenseStack(**{**facts, "widths": check_hidden_layers(facts["widths"])})
        check_hidden_layers([stack.n_inputs])
        known = stack.features in FEATURE_KINDS and stack.activation in ACTIVATIONS
        plain = isinstance(stack.bias, bool) and 0 <= stack.dropout < 1
        if not (known and plain and stack.widths):
            raise InputError(f"got {facts!r}")
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"a saved encoder cannot be read: {error}") from error
    return stack


def _keras_model(document: Any) -> Any:
    """Return a user's model from its configuration, checked against the allowed classes."""
    try:
        _check_object(document, "layers", "the encoder")
        if document["class_name"] not in _MODELS:
            raise InputError("a saved encoder is a single layer, expected a Keras model")
        return keras.models.model_from_json(json.dumps(document))
    except InputError:
        raise
    except Exception as error:  # Keras raises nearly any class on a wrong configuration
        raise InputError(f"the layers of a saved encoder cannot be rebuilt: {error}") from error


def _refuse(where: str, what: str) -> NoReturn:
    raise InputError(
        f"{where} holds {what}. That could run code when it is loaded, so it is neither saved nor "
        "loaded. Build the encoder from plain Keras layers (Dense, Conv2D, Add, ...) with "
        "activations by name"
    )


def _check_object(value: Any, family: str, where: str) -> None:
    """Raise unless a serialised Keras object is of an allowed class with plain arguments."""
    if not isinstance(value, dict) or not isinstance(value.get("config"), dict):
        _refuse(where, f"{value!r:.100} in place of one of its {family}")
    name, config = value.get("class_name"), value["config"]
    if family == "layers":
        where = f"layer {config.get('name')!r:.100}"
    if not isinstance(name, str) or name not in _CLASSES[family]:
        _refuse(where, f"{name!r:.100}, which is none of the allowed {family}")
    expected = _MODELS.get(name, (f"keras.{family}", None))
    found = value.get("module", expected[0]), value.get("registered_name")
    if found not in (expected, (expected[0], None)):
        _refuse(where, f"a class from elsewhere ({found[0]!r:.100}, {found[1]!r:.100})")
    extra = set(value) - (_LAYER_KEYS if family == "layers" else _OBJECT_KEYS)
    if extra:
        _refuse(where, f"unknown fields {sorted(extra)}")
    _check_plain(value.get("name"), where)
    _check_inbound(value.get("inbound_nodes", []), where)
    for part in value.get("build_config") or {}, config:
        if not isinstance(part, dict):
            _refuse(where, f"{part!r:.100} in place of its arguments")
        for key, argument in part.items():
            _check_argument(name, key, argument, where)


def _check_argument(name: str, key: str, argument: Any, where: str) -> None:
    kind = key.rpartition("_")[2]
    if key == "layers" and name in _MODELS and isinstance(argument, list):
        for layer in argument:
            _check_object(layer, "layers", where)
    elif key in ("layer", "backward_layer") and argument is not None:
        _check_object(argument, "layers", where)
    elif f"{kind}s" in _CLASSES and argument is not None:
        _check_object(argument, f"{kind}s", where)
    elif kind == "activation" and argument not in (None, *ACTIVATIONS):
        _refuse(where, f"the activation {argument!r:.100}")
    else:
        _check_plain(argument, where)


def _check_inbound(nodes: Any, where: str) -> None:
    """Raise unless the calls of a layer are lists of [layer name, node, tensor, {}]."""
    calls = nodes if isinstance(nodes, list) else [None]
    for call in calls:
        for source in call if isinstance(call, list) else [None]:
            if not isinstance(source, list) or len(source) != 4 or source[3] != {}:
                _refuse(where, f"the input {source!r:.100}, which is no output of another layer")
            _check_plain(source[:3], where)


def _check_plain(value: Any, where: str) -> None:
    if isinstance(value, list):
        for one in value:
            _check_plain(one, where)
    elif not (value is None or isinstance(value, bool | int | float | str)):
        _refuse(where, f"the argument {value!r:.100}, which is no plain value")
