"""Distinct ids in ascending order, and the place of every id among them."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.arrays import empty

_BLOCK = 1 << 17
_LONG, _PIECES = 1 << 20, 2


def number_ids(array: pa.ChunkedArray) -> tuple[pa.Array, np.ndarray]:
    """Collect the distinct ids, ascending, and the place of every id among them.

    Parameters
    ----------
    array : pyarrow.ChunkedArray
        Ids as `check_ids` gives them.

    Returns
    -------
    ids : pyarrow.Array
        The distinct ids.
    rows : numpy.ndarray
        The place of each, int32 (int64 beyond 2**31 distinct ids).
    """
    if pa.types.is_integer(array.type) and len(array):
        span = pc.min_max(array)
        low, high = span["min"].as_py(), span["max"].as_py()
        if high - low < dense_span(len(array)):
            return _number_dense(array, low, high)
    return _number_hashed(array)


def _number_dense(array: pa.ChunkedArray, low: int, high: int) -> tuple[pa.Array, np.ndarray]:
    # Block by block: the offsets of a whole column would be its size again, twice.
    blocks = [
        chunk.slice(start, _BLOCK).to_numpy()
        for chunk in array.chunks
        for start in range(0, len(chunk), _BLOCK)
    ]
    seen = np.zeros(high - low + 1, dtype=bool)
    gaps = True
    for number, block in enumerate(blocks):
        # `take` lets other threads run meanwhile, which indexing does not; and soon there is
        # hardly an id left that was not seen before.
        offsets = id_offsets(block, low)
        new = ~seen.take(offsets)
        if new.any():
            seen[offsets[new]] = True
        if number & (number - 1) == 0 and seen.all():
            gaps = False  # an id's row is its offset
            break
    places = np.cumsum(seen, dtype=np.int32)
    places -= 1
    rows = empty(len(array), np.int32)
    start = 0
    for block in blocks:
        out = rows[start : start + len(block)]
        if gaps:
            np.take(places, id_offsets(block, low), out=out, mode="clip")
        else:
            out[:] = id_offsets(block, low)
        start += len(block)
    known = np.flatnonzero(seen).astype(blocks[0].dtype) + blocks[0].dtype.type(low)
    return pa.array(known, type=array.type), rows


def _number_hashed(array: pa.ChunkedArray) -> tuple[pa.Array, np.ndarray]:
    if not pa.types.is_dictionary(array.type):
        array = _hashed(array)
    array = array.unify_dictionaries()
    if not array.num_chunks:
        return pa.array([], type=array.type.value_type), np.empty(0, dtype=np.int32)
    # After unification the dictionary of the last chunk is that of all.
    words = array.chunk(array.num_chunks - 1).dictionary
    if pc.count_distinct(words).as_py() < len(words):  # Arrow does not forbid it
        return _number_hashed(array.cast(array.type.value_type))
    dtype = np.int32 if len(words) <= np.iinfo(np.int32).max else np.int64
    codes = [chunk.indices.to_numpy() for chunk in array.chunks]
    used = np.zeros(len(words), dtype=bool)
    for some in codes:
        used[some] = True
    order = pc.sort_indices(words).to_numpy()
    order = order[used[order]]  # a pandas category may list values that no row has
    places = np.empty(len(words), dtype=dtype)
    places[order] = np.arange(len(order), dtype=dtype)
    rows = empty(len(array), dtype)
    start = 0
    for some in codes:
        np.take(places, some, out=rows[start : start + len(some)], mode="clip")
        start += len(some)
    return words.take(pa.array(order)), rows


def _hashed(array: pa.ChunkedArray) -> pa.ChunkedArray:
    """Encode as a dictionary, in a few pieces side by side: putting together few is cheap."""
    if len(array) < _LONG:
        return array.dictionary_encode()
    step = -(-len(array) // _PIECES)
    pieces = [array.slice(start, step) for start in range(0, len(array), step)]
    with ThreadPoolExecutor(_PIECES) as pool:
        chunks = [c for part in pool.map(pc.dictionary_encode, pieces) for c in part.chunks]
    return pa.chunked_array(chunks)


def dense_span(n: int) -> int:
    """Bound the tables addressed by the id itself, so that memory stays in proportion."""
    return max(4 * n, 1 << 16)


def id_offsets(values: np.ndarray, low: int) -> np.ndarray:
    """Subtract the lowest id, to address a table by what is left."""
    if low == 0:
        return values.view(np.int64) if values.dtype == np.uint64 else values
    # In 64 bits, where what overflows (uint64) comes round to the right offset again.
    wrapped = (low + 2**63) % 2**64 - 2**63
    return np.subtract(values.astype(np.int64, copy=False), np.int64(wrapped))
