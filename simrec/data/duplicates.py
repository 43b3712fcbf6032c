"""(user, item) pairs that were rated more than once: finding them, keeping one rating each."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from simrec.data.arrays import empty

_BLOCK = 1 << 17
_TABLE_BITS = 20
_SHIFT = np.uint32(32 - _TABLE_BITS)
_MASK = np.uint32((1 << _TABLE_BITS) - 1)
# Odd multipliers that spread small numbers over 32 bits.
_GOLDEN = np.uint32(0x9E3779B1)
_SILVER = np.uint32(0x85EBCA6B)


def repeated_pairs(user_rows: np.ndarray, item_rows: np.ndarray, n_items: int) -> np.ndarray:
    """Find the ratings whose (user, item) pair occurs more than once.

    Pairs in ascending order, as in many files, need one pass. Other pairs are sorted by 32-bit
    hashes, at a third of the cost of sorting the pairs themselves, and only those with equal
    hashes are compared.

    Parameters
    ----------
    user_rows, item_rows : numpy.ndarray
        The pairs, as row numbers.
    n_items : int
        Number of items, more than any item row.

    Returns
    -------
    numpy.ndarray
        Positions of all ratings of such pairs, ascending, int64.
    """
    if _ascending(user_rows, item_rows, n_items):
        return np.empty(0, dtype=np.int64)
    blocks = range(0, len(user_rows), _BLOCK)
    hashes = empty(len(user_rows), np.uint32)
    half = len(hashes) // 2

    def fill(start: int) -> None:
        block = _hash(user_rows[start : start + _BLOCK], item_rows[start : start + _BLOCK])
        hashes[start : start + _BLOCK] = block

    with ThreadPoolExecutor(2) as pool:  # NumPy sorts, takes and adds in parallel
        list(pool.map(fill, blocks))
        ordered = empty(len(hashes), np.uint32)
        ordered[:] = hashes
        ordered.partition(half)
        list(pool.map(np.ndarray.sort, [ordered[:half], ordered[half:]]))
        met = ordered[1:][ordered[1:] == ordered[:-1]]
        del ordered
        if not len(met):
            return np.empty(0, dtype=np.int64)
        # Two small tables, by the high and by the low bits, tell nearly all other rows apart.
        high, low = np.zeros((2, 1 << _TABLE_BITS), dtype=bool)
        high[met >> _SHIFT] = True
        low[met & _MASK] = True

        def find(start: int) -> np.ndarray:
            block = hashes[start : start + _BLOCK]
            places = np.flatnonzero(high.take(block >> _SHIFT))
            return start + places[low.take(block[places] & _MASK)]

        maybe = np.concatenate(list(pool.map(find, blocks)))
    keys = pair_keys(user_rows[maybe], item_rows[maybe], n_items)
    order = np.argsort(keys, kind="stable")
    same = keys[order[1:]] == keys[order[:-1]]
    repeated = np.zeros(len(maybe), dtype=bool)
    repeated[order[1:][same]] = True
    repeated[order[:-1][same]] = True
    return maybe[repeated]


def _ascending(user_rows: np.ndarray, item_rows: np.ndarray, n_items: int) -> bool:
    for start in range(0, len(user_rows), _BLOCK):
        block = slice(start, start + _BLOCK + 1)  # one more: the step to the next block counts
        keys = pair_keys(user_rows[block], item_rows[block], n_items)
        if (keys[1:] <= keys[:-1]).any():
            return False
    return True


def _hash(user_rows: np.ndarray, item_rows: np.ndarray) -> np.ndarray:
    hashes = user_rows.astype(np.uint32)
    hashes *= _GOLDEN
    hashes ^= hashes >> np.uint32(15)
    hashes += item_rows.astype(np.uint32, copy=False)
    hashes *= _SILVER
    return hashes


def settle(
    rows: np.ndarray, keys: np.ndarray, values: np.ndarray, timestamps: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Settle on one rating for each pair: the latest, and the mean where time does not decide.

    Parameters
    ----------
    rows : numpy.ndarray
        Positions of the ratings, ascending.
    keys : numpy.ndarray
        The pair of each, as one number.
    values, timestamps : numpy.ndarray
        Rating and, optionally, time of each.

    Returns
    -------
    first : numpy.ndarray
        The first position of each pair.
    values, timestamps : numpy.ndarray
        The rating and the time to keep there.
    """
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(keys[order]) != 0])
    counts = np.diff(np.r_[starts, len(order)])
    weights = np.ones(len(order))
    latest = None
    if timestamps is not None:
        latest = np.maximum.reduceat(timestamps[order], starts)
        weights = (timestamps[order] == np.repeat(latest, counts)).astype(np.float64)
    totals = np.add.reduceat(weights * values[order].astype(np.float64), starts)
    means = totals / np.add.reduceat(weights, starts)
    return rows[order[starts]], means.astype(np.float32), latest


def total_weights(keys: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Add up the weights of each pair, float32, in the order of `settle`."""
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(keys[order]) != 0])
    totals = np.add.reduceat(weights[order].astype(np.float64), starts)
    return np.minimum(totals, np.finfo(np.float32).max).astype(np.float32)


def drop(array: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Copy an array without some of its rows."""
    keep = np.ones(len(array), dtype=bool)
    keep[rows] = False
    kept = empty(len(array) - len(rows), array.dtype)
    end = 0
    for start in range(0, len(array), _BLOCK):
        part = array[start : start + _BLOCK][keep[start : start + _BLOCK]]
        kept[end : end + len(part)] = part
        end += len(part)
    return kept


def pair_keys(user_rows: np.ndarray, item_rows: np.ndarray, n_items: int) -> np.ndarray:
    """Make one number of each (user, item) pair, int64."""
    keys = np.multiply(user_rows, n_items, dtype=np.int64)
    keys += item_rows
    return keys
