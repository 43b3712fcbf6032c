"""The entries that columns contribute to a sparse matrix, and the matrix of all columns."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

_ROWS_AT_ONCE = 1 << 14


@dataclass(frozen=True)
class Block:
    """The entries of one column's features, row after row.

    Attributes
    ----------
    indices : numpy.ndarray
        Feature of each entry, counted within the column; ascending within each row. Or those of
        one row, if all rows have the same.
    data : numpy.ndarray or None
        Value of each entry, float32; None if all are 1.
    counts : int or numpy.ndarray
        Entries in each row: one number if all rows have as many.
    """

    indices: np.ndarray
    data: np.ndarray | None
    counts: int | np.ndarray


def assemble(blocks: Sequence[Block], widths: Sequence[int], n_rows: int) -> sparse.csr_matrix:
    """Put the blocks of all columns side by side.

    Parameters
    ----------
    blocks : sequence of Block
        One per column.
    widths : sequence of int
        Number of features of each.
    n_rows : int
        Number of rows.

    Returns
    -------
    scipy.sparse.csr_matrix
        float32, with sorted indices; 64-bit indices only where there are too many entries for 32.
    """
    starts = np.concatenate([[0], np.cumsum(widths, dtype=np.int64)])
    each = sum(block.counts for block in blocks if isinstance(block.counts, int))
    varying = [block.counts for block in blocks if not isinstance(block.counts, int)]
    indptr = np.arange(n_rows + 1, dtype=np.int64) * each
    if varying:
        indptr[1:] += np.cumsum(sum(varying[1:], varying[0].astype(np.int64)))
    n_entries = int(indptr[-1])
    narrow = max(n_entries, int(starts[-1])) <= np.iinfo(np.int32).max
    indices = np.empty(n_entries, dtype=np.int32 if narrow else np.int64)
    data = np.empty(n_entries, dtype=np.float32)
    if varying:
        _fill(blocks, starts, indptr, indices, data)
    else:
        _fill_even(blocks, starts, indices.reshape(n_rows, each), data.reshape(n_rows, each))
    if narrow:
        indptr = indptr.astype(np.int32)
    matrix = sparse.csr_matrix((n_rows, int(starts[-1])), dtype=np.float32)
    matrix.indptr, matrix.indices, matrix.data = indptr, indices, data
    matrix.has_sorted_indices = True
    matrix.has_canonical_format = True
    return matrix


def _fill_even(
    blocks: Sequence[Block], starts: np.ndarray, indices: np.ndarray, data: np.ndarray
) -> None:
    """Fill in blocks that all have a fixed number of entries per row, as a rectangle."""
    left = 0
    for block, start in zip(blocks, starts, strict=False):
        assert isinstance(block.counts, int)
        width = block.counts
        if not width or not len(data):
            continue
        here = np.s_[:, left : left + width]
        np.add(block.indices.reshape(-1, width), start, out=indices[here], casting="same_kind")
        data[here] = 1 if block.data is None else block.data.reshape(-1, width)
        left += width


def _fill(
    blocks: Sequence[Block],
    starts: np.ndarray,
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
) -> None:
    """Fill in blocks of any shape, some rows at a time to stay within the processor's cache."""
    n_rows = len(indptr) - 1
    firsts = [_first_entries(block.counts, n_rows) for block in blocks]
    for top in range(0, n_rows, _ROWS_AT_ONCE):
        bottom = min(top + _ROWS_AT_ONCE, n_rows)
        places = indptr[top:bottom].copy()  # where the next entry of each row goes
        for block, start, first in zip(blocks, starts, firsts, strict=False):
            counts = block.counts
            if isinstance(counts, int):
                to = places if counts == 1 else (places[:, None] + np.arange(counts)).ravel()
                here = slice(top * counts, bottom * counts)
                own = block.indices
                own = np.tile(own, bottom - top) if len(own) == counts else own[here]
                indices[to] = own + start
            else:
                counts = counts[top:bottom]
                here = slice(first[top], first[bottom])
                to = np.repeat(places - first[top:bottom], counts)
                to += np.arange(here.start, here.stop)
                indices[to] = block.indices[here] + start
            data[to] = 1 if block.data is None else block.data[here]
            places += counts


def _first_entries(counts: int | np.ndarray, n_rows: int) -> np.ndarray:
    """Return the place of each row's first entry within its block, and the end of the last."""
    if isinstance(counts, int):
        return np.empty(0, dtype=np.int64)
    first = np.zeros(n_rows + 1, dtype=np.int64)
    np.cumsum(counts, out=first[1:])
    return first
