"""Scores of (user, item) pairs: gathered rows, one scalar product each, then the output.

And how much the parts of two vectors add to their scalar product.
"""

from dataclasses import dataclass

import numpy as np

from simrec.errors import InputError
from simrec.scoring.output import Output

# Rows of a block are gathered into buffers that stay in the processor's cache (2 x 1 MB at d = 64).
BLOCK_FLOATS = 1 << 18


def score_pairs(
    user_vectors: np.ndarray,
    item_vectors: np.ndarray,
    user_rows: np.ndarray,
    item_rows: np.ndarray,
    output: Output | None = None,
) -> np.ndarray:
    """Score pairs of a user row and an item row.

    Each score is computed by itself, in an order fixed by the dimension alone: it does not depend
    on the other pairs of the call, and equals the score `top_k` gives for the same pair. Embeddings
    may be memory-mapped; other types than float32 are converted. The `output` is
    applied to the scalar products. Shapes that do not agree, rows out of range and scores that are
    not finite are an InputError.
    """
    users = as_vectors(user_vectors, "user_vectors")
    items = as_vectors(item_vectors, "item_vectors")
    if users.shape[1] != items.shape[1]:
        raise InputError(
            f"user_vectors have {users.shape[1]} coordinates and item_vectors {items.shape[1]}: "
            "both must come from the same model"
        )
    user_rows = _as_rows(user_rows, len(users), "user_rows")
    item_rows = _as_rows(item_rows, len(items), "item_rows")
    if len(user_rows) != len(item_rows):
        raise InputError(
            f"user_rows has {len(user_rows)} entries and item_rows {len(item_rows)}: "
            "a pair needs one of each"
        )
    n, d = len(user_rows), users.shape[1]
    z = np.empty(n, np.float32)
    block = max(1, min(n, BLOCK_FLOATS // max(d, 1)))
    left, right = np.empty((2, block, d), np.float32)
    for start in range(0, n, block):
        size = min(block, n - start)
        part = slice(start, start + size)
        # mode="clip" lets NumPy write into the buffer directly; all rows are in range.
        np.take(users, user_rows[part], axis=0, out=left[:size], mode="clip")
        np.take(items, item_rows[part], axis=0, out=right[:size], mode="clip")
        products = dot_rows(left[:size], right[:size])
        z[part] = products if output is None else output(products)
    if not np.isfinite(z).all():
        raise InputError(
            f"{int((~np.isfinite(z)).sum())} of {n} scores are no finite numbers: the vectors are "
            "too large, or not finite themselves. Train the model again."
        )
    return z


def dot_rows(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the scalar products along the last axis, leading axes broadcast.

    The one definition of a score. A matrix product may add the terms in another order for another
    shape, and so differ in the last bits; this order depends on the length of the rows alone.
    Both arrays must be C-contiguous float32.
    """
    return np.einsum("...d,...d->...", left, right)


def as_vectors(vectors: np.ndarray, name: str) -> np.ndarray:
    """Return `vectors` as a C-contiguous float32 matrix, without a copy where it is one."""
    array = np.ascontiguousarray(vectors, dtype=np.float32)
    if array.ndim != 2:
        raise InputError(f"{name} must have two dimensions (rows, d), got shape {array.shape}")
    return array


def _as_rows(rows: np.ndarray, n: int, name: str) -> np.ndarray:
    rows = np.asarray(rows)
    if not rows.size:
        return np.empty(0, np.intp)
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        raise InputError(f"{name} must be a row of integers, got {rows.dtype} {rows.shape}")
    if rows.min() < 0 or rows.max() >= n:
        bad = (rows < 0) | (rows >= n)
        raise InputError(
            f"{name}: {int(bad.sum())} of {len(rows)} rows are outside 0..{n - 1} "
            f"(first: {int(rows[bad][0])} at position {int(np.argmax(bad))}); "
            "unknown ids have row -1 and must be handled before scoring"
        )
    return rows


@dataclass(frozen=True, eq=False)
class Parts:
    """A vector as a sum of named parts (rows of `vectors`) with the entity's value of each.

    `constant` has the coordinates of the vector that stand for "one" and let the other's biases
    through; it is zero elsewhere.
    """

    names: list[str]
    values: list[str]
    vectors: np.ndarray
    constant: np.ndarray


def shares(one: Parts, other: Parts) -> tuple[np.ndarray, np.ndarray]:
    """Give for each part of `one` its bias and its taste.

    A bias meets the constants of the other vector and is a part's own. What two parts make together
    belongs to both: each has half (their Shapley values). All biases and tastes of both vectors
    sum to the scalar product.
    """
    bias = one.vectors.astype(np.float64) @ other.constant
    taste = 0.5 * (one.vectors.astype(np.float64) @ other.vectors.sum(0, dtype=np.float64))
    return bias, taste
