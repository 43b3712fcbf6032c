"""Matrix products behind the search: NumPy's, or TensorFlow's where the work is large."""

import ctypes
import logging
import sys
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from simrec.errors import InputError

logger = logging.getLogger(__name__)

Backend = Literal["auto", "numpy", "tensorflow"]
# (first, last item) -> scores of these items (rows) for the queries of a block (columns).
# The array is the caller's to keep and to change.
Product = Callable[[int, int], np.ndarray]
Multiply = Callable[[np.ndarray], Product]

# Multiply-adds above which TensorFlow's matrix product is used: where it is loaded, and where it
# would have to be imported first (some seconds).
_WORK_LOADED = 1 << 27
_WORK_IMPORT = 1 << 39


def choose_product(backend: Backend, work: int) -> Callable[[np.ndarray], Multiply]:
    """Return what prepares items for multiplication.

    `work` is the number of multiply-adds to come: where it is large, TensorFlow multiplies.
    """
    tf = _tensorflow(backend, work)
    if tf is None:
        return _numpy_product
    return lambda items: _tensorflow_product(tf, items)


def _numpy_product(items: np.ndarray) -> Multiply:
    def multiply(queries: np.ndarray) -> Product:
        columns = np.ascontiguousarray(queries.T)
        return lambda a, b: np.matmul(items[a:b], columns)

    return multiply


def _tensorflow_product(tf: Any, items: np.ndarray) -> Multiply:
    # On the processor: a GPU may multiply with fewer bits than the slack allows for.
    with tf.device("/CPU:0"):
        rows = tf.convert_to_tensor(items)

    def multiply(queries: np.ndarray) -> Product:
        with tf.device("/CPU:0"):
            columns = tf.convert_to_tensor(np.ascontiguousarray(queries.T))

        def product(a: int, b: int) -> np.ndarray:
            with tf.device("/CPU:0"):
                return np.asarray(tf.matmul(rows[a:b], columns))

        return product

    return multiply


def writable(block: np.ndarray) -> np.ndarray:
    """Return a writable view of a block of ours; `block` must outlive it."""
    if block.flags.writeable:
        return block
    # NumPy sees a tensor's memory as read-only. This tensor is a temporary nobody else holds, and
    # to copy it would cost more than the search.
    address = (ctypes.c_float * block.size).from_address(block.ctypes.data)
    return np.ctypeslib.as_array(address).reshape(block.shape)


def _tensorflow(backend: Backend, work: int) -> Any:
    """Return TensorFlow where it is to multiply, else None."""
    if backend not in ("auto", "numpy", "tensorflow"):
        raise InputError(f'backend must be "auto", "numpy" or "tensorflow", got {backend!r}')
    enough = _WORK_LOADED if "tensorflow" in sys.modules else _WORK_IMPORT
    if backend == "numpy" or (backend == "auto" and work < enough):
        return None
    try:
        from simrec.model.keras import tf
    except ImportError:
        if backend == "tensorflow":
            raise
        logger.debug("TensorFlow cannot be used here; NumPy multiplies", exc_info=True)
        return None
    return tf
