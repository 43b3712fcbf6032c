"""A model directory is data: whoever wrote it, loading runs nothing of theirs."""

import copy
import json

import numpy as np
import pytest

from simrec import SimEc
from simrec.errors import InputError
from simrec.simec.encoders import DenseStack
from simrec.simec.files import encoder_document, encoder_from_document
from simrec.simec.keras import keras
from simrec.storage import artifacts

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 6)).astype(np.float32)
R = RNG.uniform(1, 5, size=(20, 9)).astype(np.float32)
layers = keras.layers


# Round trips


@pytest.mark.parametrize("features", ["dense", "sparse", "identity"])
@pytest.mark.parametrize("widths", [(3,), (5, 4, 3)])
@pytest.mark.parametrize("bias", [True, False])
def test_built_in_encoders_are_rebuilt_from_plain_facts(features, widths, bias):
    stack = DenseStack(features, 6, widths, "relu", bias, 0.2)
    encoder = stack.build(RNG)
    document = json.loads(json.dumps(encoder_document(encoder)))
    assert "config" not in document and document["widths"] == list(widths)
    rebuilt = encoder_from_document(document, encoder.get_weights())
    assert rebuilt.stack == stack
    for a, b in zip(rebuilt.get_weights(), encoder.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def branches():
    inputs = keras.Input((4,))
    hidden = layers.Dense(3, activation=keras.activations.tanh)
    joined = layers.Concatenate()([hidden(inputs), inputs])
    return keras.Model(inputs, layers.Add()([layers.Dense(3)(joined), hidden(inputs)]))


def nested():
    part = keras.Sequential([layers.Dense(4, activation="relu"), layers.PReLU()])
    last = layers.Dense(2, kernel_regularizer="l2", kernel_constraint="non_neg")
    return keras.Sequential([keras.Input((4,)), branches(), part, last])


def sequences():
    return keras.Sequential(
        [
            keras.Input((5, 3)),
            layers.Masking(),
            layers.TimeDistributed(layers.Dense(2)),
            layers.Bidirectional(layers.SimpleRNN(2)),
            layers.BatchNormalization(),
            layers.LayerNormalization(),
            layers.LeakyReLU(),
            layers.Dense(2, kernel_initializer=keras.initializers.Constant(2.0)),
        ]
    )


def images():
    return keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            layers.SeparableConv2D(2, 2),
            layers.DepthwiseConv2D(2),
            layers.ZeroPadding2D(),
            layers.MaxPooling2D(),
            layers.ReLU(6.0),
            layers.SpatialDropout2D(0.1),
            layers.GlobalAveragePooling2D(),
            layers.Rescaling(0.5),
        ]
    )


@pytest.mark.parametrize("build", [branches, nested, sequences, images])
def test_own_encoders_of_allowed_layers_come_back(build):
    model = build()
    document = json.loads(json.dumps(encoder_document(model)))
    rebuilt = encoder_from_document(document, model.get_weights())
    x = np.random.default_rng(0).normal(size=(2, *model.input_shape[1:])).astype(np.float32)
    np.testing.assert_array_equal(rebuilt(x), model(x))


# Attacks. Each would leave a file called "ran", by copying "seed" or by importing "payload".


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A SimEc with an encoder of its own, saved."""
    encoder = keras.Sequential([keras.Input((6,)), layers.Dense(3, name="embedding")])
    path = tmp_path_factory.mktemp("saved") / "model"
    SimEc(3, encoder=encoder, epochs=1).fit(X, R).save(path)
    return path


def replace_network(documents, network):
    """Put another Keras model in the place of each one in a document."""
    if isinstance(documents, dict):
        if documents.get("class_name") in ("Sequential", "Functional"):
            return network
        return {name: replace_network(part, network) for name, part in documents.items()}
    return documents


def rewrite(source, target, documents):
    """Write the model again with other documents and with checksums that fit."""
    found = artifacts.load(source)
    artifacts.save(
        target,
        found.manifest["kind"],
        found.manifest["config"],
        found.arrays,
        documents,
        found.keras_weights,
        found.facts,
    )


def keras_object(class_name, config, module="keras.layers", registered=None):
    return {
        "module": module,
        "class_name": class_name,
        "config": config,
        "registered_name": registered,
    }


def functional(layer, inbound):
    first = keras_object("InputLayer", {"batch_input_shape": [None, 6], "name": "x"})
    layer["config"]["name"] = "attack"
    nodes = [{**first, "name": "x", "inbound_nodes": []}]
    nodes.append({**layer, "name": "attack", "inbound_nodes": inbound})
    config = {"name": "model", "layers": nodes, "input_layers": [["x", 0, 0]]}
    return {"class_name": "Functional", "config": {**config, "output_layers": [["attack", 0, 0]]}}


def sequential(layer):
    first = keras_object("InputLayer", {"batch_input_shape": [None, 6], "name": "x"})
    return {"class_name": "Sequential", "config": {"name": "model", "layers": [first, layer]}}


def dense(**changes):
    return keras_object("Dense", {"name": "attack", "units": 3, **changes})


PAYLOAD = keras_object("Thing", {"name": "attack"}, "payload", "Thing")
CALL = [[["_CONSTANT_VALUE", -1, name, {"kwargs": {}}] for name in ("seed", "ran")]]
NETWORKS = {
    "ClassMethod": functional(
        keras_object(
            "ClassMethod",
            {"cls_symbol": "io.gfile.copy", "method_name": "__call__"},
            "tf_keras.src.layers.core.tf_op_layer",
            "ClassMethod",
        ),
        CALL,
    ),
    "TFOpLambda": functional(
        keras_object(
            "TFOpLambda",
            {"function": "io.gfile.copy"},
            "tf_keras.src.layers.core.tf_op_layer",
            "TFOpLambda",
        ),
        CALL,
    ),
    "SlicingOpLambda": functional(
        keras_object(
            "SlicingOpLambda",
            {"function": "io.gfile.copy"},
            "tf_keras.src.layers.core.tf_op_layer",
            "SlicingOpLambda",
        ),
        CALL,
    ),
    "constant input of an allowed layer": functional(dense(), CALL),
    "Lambda": sequential(
        keras_object("Lambda", {"name": "attack", "function": PAYLOAD, "arguments": {}})
    ),
    "input_dim": sequential(
        keras_object("Embedding", {"name": "attack", "input_dim": PAYLOAD, "output_dim": 3})
    ),
    "initialiser's argument": sequential(
        keras_object(
            "Embedding",
            {
                "name": "attack",
                "input_dim": 6,
                "output_dim": 3,
                "embeddings_initializer": keras_object(
                    "Constant", {"value": PAYLOAD}, "keras.initializers"
                ),
            },
        )
    ),
    "initialiser": sequential(dense(kernel_initializer=PAYLOAD)),
    "activation": sequential(
        dense(activation=keras_object("function", "Thing", "payload", "Thing"))
    ),
    "module of a layer": sequential(
        keras_object("Dense", {"name": "attack", "units": 3}, "payload")
    ),
    "registered name": sequential(
        keras_object("Dense", {"name": "attack", "units": 3}, None, "Attack>Dense")
    ),
    "custom class": sequential(
        keras_object("Custom", {"name": "attack"}, "payload", "Attack>Custom")
    ),
    "argument in a list": sequential(dense(batch_input_shape=[None, PAYLOAD])),
    "build_config": sequential({**dense(), "build_config": {"input_shape": [None, PAYLOAD]}}),
    "wrapped layer": sequential(
        keras_object("TimeDistributed", {"name": "attack", "layer": dense(units=PAYLOAD)})
    ),
    "nested model": sequential(
        keras_object("Sequential", {"name": "attack", "layers": [PAYLOAD]}, "keras")
    ),
}


@keras.utils.register_keras_serializable("Attack", "Dense")
class Custom(layers.Dense):
    """A class that somebody registered: its constructor is code."""

    def __init__(self, **arguments):
        with open("ran", "w"):
            super().__init__(**arguments)


@pytest.fixture
def scene(tmp_path, monkeypatch):
    """A directory with a module that leaves a mark when it is imported, and a file to copy."""
    (tmp_path / "payload.py").write_text(
        "open('ran', 'w').close()\nThing = Dense = Custom = dict\n"
    )
    (tmp_path / "seed").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("attack", NETWORKS)
def test_code_in_a_model_directory_is_refused_and_not_run(attack, saved, scene):
    documents = artifacts.load(saved).documents
    rewrite(saved, scene / "model", replace_network(documents, copy.deepcopy(NETWORKS[attack])))
    with pytest.raises(InputError, match="attack.*plain Keras layers"):
        SimEc.load(scene / "model")
    assert not (scene / "ran").exists()


@pytest.mark.parametrize("attack", NETWORKS)
def test_code_in_the_encoder_of_a_tower_is_refused_and_not_run(attack, scene):
    from simrec.model.head import Network

    fitted = SimEc(3, (4,), epochs=1)
    fitted.encoder_ = keras.Sequential([keras.Input((6,), sparse=True), layers.Dense(3)])
    fitted.feature_kind_, fitted.feature_shape_ = "sparse", (6,)
    place = np.eye(3, dtype=np.float32)
    document = replace_network(Network(fitted, place).document(), copy.deepcopy(NETWORKS[attack]))
    with pytest.raises(InputError, match="attack.*plain Keras layers"):
        Network.restored(document, fitted.encoder_.get_weights(), place)
    assert not (scene / "ran").exists()


def test_layers_with_code_are_not_saved(tmp_path):
    code = keras.Sequential(
        [keras.Input((6,)), layers.Dense(3), layers.Lambda(lambda y: y * 2, name="twice")]
    )
    with pytest.raises(InputError, match=r"'Lambda'.*plain Keras layers"):
        SimEc(3, encoder=code, epochs=1).fit(X, R).save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


# Broken documents

STACK = {
    "kind": "dense_stack",
    "features": "dense",
    "n_inputs": 6,
    "widths": [3],
    "activation": "tanh",
    "bias": True,
    "dropout": 0.0,
}
WEIGHTS = [np.zeros((6, 3), np.float32), np.zeros(3, np.float32)]
BROKEN = [
    None,
    {},
    {"kind": "pickle"},
    {**STACK, "widths": []},
    {**STACK, "widths": 3},
    {**STACK, "widths": [-3]},
    {**STACK, "widths": ["3"]},
    {**STACK, "widths": [10**12]},
    {**STACK, "n_inputs": {}},
    {**STACK, "activation": "payload"},
    {**STACK, "activation": {"class_name": "function"}},
    {**STACK, "features": "other"},
    {**STACK, "bias": 1},
    {**STACK, "dropout": None},
    {**STACK, "more": 1},
    {name: value for name, value in STACK.items() if name != "widths"},
    {"kind": "keras"},
    {"kind": "keras", "model": []},
    {"kind": "keras", "model": dense()},
    {"kind": "keras", "model": sequential(dense(units=-1))},
    {"kind": "keras", "model": sequential(dense(units=10**9))},
    {"kind": "keras", "model": sequential(dense(units=4))},
    {"kind": "keras", "model": sequential(dense(surprise=4))},
]


def test_the_unbroken_document_is_read():
    assert encoder_from_document(STACK, WEIGHTS).output_shape == (None, 3)


@pytest.mark.parametrize("document", BROKEN, ids=lambda d: str(d)[-60:])
def test_broken_documents_are_input_errors(document):
    with pytest.raises(InputError):
        encoder_from_document(document, WEIGHTS)
