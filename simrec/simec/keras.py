"""The only module that imports TensorFlow; it selects Keras 2 first.

TensorFlow Recommenders is written for Keras 2 (the package ``tf_keras``). TensorFlow decides which
Keras ``tf.keras`` is when that name is first used, by the variable ``TF_USE_LEGACY_KERAS``. Every
other module writes ``from simrec.simec.keras import keras, tf, tfrs``.
"""

import importlib
import json
import os
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from simrec.errors import InputError

# Read when TensorFlow starts, so set before the imports below. A user who has set the log level
# gets all of TensorFlow's messages.
os.environ["TF_USE_LEGACY_KERAS"] = "1"
_QUIET = "TF_CPP_MIN_LOG_LEVEL" not in os.environ
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

CURE = (
    "set TF_USE_LEGACY_KERAS=1 in the environment before Python starts, or import SimEc or "
    "TwoTower from simrec before anything that uses tf.keras"
)

# Information lines that C++ writes at start-up; no log level silences all of them.
_NOISE = re.compile(
    rb"^(WARNING: All log messages before absl::InitializeLog.*|[IW]\d{4} .*"
    rb"|E\d{4} .*cuda.*|To enable the following instructions:.*)\n?$"
)


@contextmanager
def _without_startup_noise() -> Iterator[None]:
    """Collect what C++ writes to stderr while importing, and pass on all but the noise."""
    try:
        sys.stderr.flush()
        saved = os.dup(2)
    except (AttributeError, OSError, ValueError):  # no usable stderr
        yield
        return
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            held.seek(0)
            rest = b"".join(line for line in held if not _NOISE.match(line))
            if rest:
                os.write(2, rest)


with _without_startup_noise() if _QUIET else nullcontext():
    try:
        import tensorflow as tf
    except ModuleNotFoundError as error:
        raise ImportError(
            "networks (SimEc, hidden_layers, encoders of your own, images, callbacks, SavedModel) "
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
    import tensorflow_recommenders as tfrs

    # Asks for GPUs now, while messages about missing drivers are filtered.
    tf.config.list_physical_devices()

__all__ = ["keras", "load_model", "tf", "tfrs"]


def load_model(path: str) -> Any:
    """Load a model that somebody saved by Keras 2 or 3, as .keras or .h5; code in it is refused."""
    try:
        version, config = _saved_by(path)
        # Keras 3 beside Keras 2: models of the two are not mixed.
        loader = importlib.import_module("keras") if version >= "3" else keras
        if '"Lambda"' in config:
            raise InputError(f"{path} has a Lambda layer, whose code would be run. Leave it out.")
        return loader.models.load_model(path, compile=False)
    except (OSError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is no model of Keras that can be read here: {error}") from error


def _saved_by(path: str) -> tuple[str, str]:
    """Return the version of Keras that wrote a file, and what it says of layers."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            version = json.loads(archive.read("metadata.json"))["keras_version"]
            return version, archive.read("config.json").decode()
    import h5py

    with h5py.File(path) as file:
        texts = [file.attrs[name] for name in ("keras_version", "model_config")]
    version, config = (text.decode() if isinstance(text, bytes) else text for text in texts)
    return version, config
