"""The only module that imports TensorFlow; it selects Keras 2 first.

TensorFlow Recommenders is written for Keras 2 (the package ``tf_keras``). TensorFlow decides which
Keras ``tf.keras`` is when that name is first used, by the variable ``TF_USE_LEGACY_KERAS``. Every
other module writes ``from simrec.simec.keras import keras, tf, tfrs``.
"""

import hashlib
import importlib
import json
import os
import sys
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from simrec.data.features.content import BadContent
from simrec.errors import InputError
from simrec.storage.files import sha256

_BATCH = 64
# Height and width where the model takes images of any size.
_SIZE = 224

# Read when TensorFlow starts, so set before the imports below.
os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

CURE = (
    "set TF_USE_LEGACY_KERAS=1 in the environment before Python starts, or import SimEc or "
    "TwoTower from simrec before anything that uses tf.keras"
)

try:
    import tensorflow as tf
except ModuleNotFoundError as error:
    raise ImportError(
        "networks (SimEc, hidden_layers, encoders of your own, images, SavedModel) "
        "need TensorFlow: pip install 'simrec[tensorflow]'"
    ) from error

try:
    import tf_keras as keras
except ImportError as error:
    raise ImportError(
        f"SimRec needs Keras 2 beside TensorFlow {tf.__version__}: "
        f"pip install 'tf-keras=={'.'.join(tf.__version__.split('.')[:2])}.*'"
    ) from error

if tf.keras.Model is not keras.Model:
    raise ImportError(
        "SimRec needs Keras 2 (tf_keras), but Keras 3 was already loaded as tf.keras earlier "
        f"in this process. To mend it, {CURE}."
    )
import tensorflow_recommenders as tfrs  # noqa: E402

__all__ = ["ImageModel", "keras", "tf", "tfrs"]


def _load_model(path: str) -> Any:
    """Load a model that somebody saved by Keras 2 or 3 as .keras; code in it is refused."""
    try:
        with zipfile.ZipFile(path) as archive:
            version = json.loads(archive.read("metadata.json"))["keras_version"]
            config = archive.read("config.json").decode()
        # Keras 3 beside Keras 2: models of the two are not mixed.
        loader = importlib.import_module("keras") if version >= "3" else keras
        if '"Lambda"' in config:
            raise InputError(f"{path} has a Lambda layer, whose code would be run. Leave it out.")
        return loader.models.load_model(path, compile=False)
    except (OSError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{path} is no model of Keras (.keras) that can be read here: {error}"
        ) from error


class ImageModel:
    """A model from images of one size to vectors: an application of Keras, or one's own model.

    Images are brought to the model's size and channels, with values from 0 to 255, and then go
    through the preprocessing of the application (`MobileNetV2`, with its weights at `path`). A
    model of one's own (at `path`, no application) has its preprocessing as layers (`Rescaling`).
    """

    def __init__(self, application: str, path: str) -> None:
        digest = hashlib.sha256(f"{application}\0{sha256(path)}".encode())
        self.checksum = digest.hexdigest()
        self._prepare = tf.identity
        if application:
            self._model, self._prepare = _application(application, path)
        else:
            self._model = _load_model(path)
        shape = self._model.input_shape
        if not isinstance(shape, tuple) or len(shape) != 4 or shape[3] not in (1, 3):
            raise InputError(
                f"{path}: a model of images takes one input of (height, width, 1 or 3 channels), "
                f"this one takes {shape}."
            )
        self._size, self._channels = (shape[1] or _SIZE, shape[2] or _SIZE), shape[3]

    def encode(self, contents: Sequence[bytes]) -> np.ndarray:
        """Return the vectors of images (PNG, JPEG, GIF or BMP)."""
        found = []
        for start in range(0, len(contents), _BATCH):
            images = [
                self._image(content, start + place)
                for place, content in enumerate(contents[start : start + _BATCH])
            ]
            vectors = self._model(self._prepare(tf.stack(images)), training=False)
            if isinstance(vectors, list | tuple | dict):
                raise InputError("the model has several outputs; give one with a single one.")
            found.append(np.asarray(vectors, np.float32).reshape(len(images), -1))
        return np.concatenate(found)

    def _image(self, content: bytes, place: int) -> Any:
        try:
            image = tf.io.decode_image(content, self._channels, expand_animations=False)
        except tf.errors.InvalidArgumentError as error:
            raise BadContent(place, "are no images (PNG, JPEG, GIF or BMP)") from error
        return tf.image.resize(tf.cast(image, tf.float32), self._size)


def _application(name: str, path: str) -> tuple[Any, Any]:
    make = getattr(keras.applications, name, None)
    if not callable(make):
        raise InputError(f"Keras has no application {name!r}; MobileNetV2 is one.")
    try:
        try:
            model = make(weights=path, include_top=False, pooling="avg")
        except ValueError:  # weights with the layer of classes
            model = make(weights=path, include_top=True)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: these are no weights of {name}: {error}") from error
    return model, sys.modules[make.__module__].preprocess_input
