"""The only module that imports TensorFlow; it selects Keras 2 first.

TensorFlow Recommenders is written for Keras 2 (the package ``tf_keras``). TensorFlow decides which
Keras ``tf.keras`` is when that name is first used, by the variable ``TF_USE_LEGACY_KERAS``. Every
other module writes ``from simrec.simec.keras import keras, tf, tfrs``.
"""

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def _as_it_is() -> Iterator[None]:
    yield


with _without_startup_noise() if _QUIET else _as_it_is():
    import tensorflow as tf

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

__all__ = ["keras", "tf", "tfrs"]
