"""Exact top-k by scalar product: block maxima first, then only the few blocks that matter.

How it works. Scores of a block of items for a block of queries come from one matrix product, and
are reduced at once to the maxima of small runs of items ("cells"). The k-th largest of a query's
cell maxima bounds its k-th best score from below, so only the cells that reach it can hold a
result: about k cells of 16 items. Their scores are computed once more by `dot_rows`, whose result
does not depend on how the work was cut up, and sorted.

The threshold is lowered by a bound on the rounding error of a matrix product, so that the result
is the exact top-k of the scores as `dot_rows` defines them, ties included, whatever library
multiplied the matrices and whatever the block sizes. Items with equal vectors, as new items with
few features often have, are searched as one.

Blocks of queries are searched side by side, each by one thread that multiplies, reduces and looks
again while its block is in the cache; the BLAS has no threads of its own meanwhile. That took two
thirds of the time of products by all threads followed by the rest.
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import numpy as np
from scipy import sparse

from simrec.errors import InputError, is_whole
from simrec.scoring.equal_items import find_equal
from simrec.scoring.pairs import as_vectors, dot_rows
from simrec.scoring.second_look import look_again
from simrec.scoring.threads import one_blas_thread, processors

_CELL = 16  # items per cell: larger costs more second looks, smaller more maxima to keep
_QUERIES = 512  # queries per block
_FEWEST = 64  # queries that are worth a block, and a thread, of their own
_ITEMS = 2048  # items per matrix product: with 512 queries a 4 MB block, inside most L3 caches
_KEPT_FLOATS = 1 << 22  # cell maxima kept per block of queries: 16 MB
_MOST_THREADS = 8
_WORTH_GROUPING = 512  # queries from which on it pays to look for equal items


def top_k(
    queries: np.ndarray,
    items: np.ndarray,
    k: int,
    exclude: Any = None,
    *,
    threads: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Find the k items with the largest scalar product for each query, exactly.

    The result for a query does not depend on the other queries of the call or on `threads`. Of
    equal scores the lower item row comes first. Memory beyond the arguments and the result is
    bounded (about 40 MB a thread), whatever the number of queries and items.

    Parameters
    ----------
    queries : ndarray of shape (n_queries, d)
        Converted to float32 if it is not.
    items : ndarray of shape (n_items, d)
        The candidates; pass a subset of rows to rank a subset. May be memory-mapped.
    k : int
        Results per query; may exceed the number of items.
    exclude : scipy sparse matrix of shape (n_queries, n_items), optional
        Every stored entry, whatever its value, is an item the query must not get.
    threads : int, optional
        Threads that search; by default as many as there are processors at hand, at most 8.

    Returns
    -------
    ids : ndarray of shape (n_queries, k), int64
        Rows of `items`, best first; -1 where a query has fewer than k candidates.
    scores : ndarray of shape (n_queries, k), float32
        Their scalar products; -inf where there is none.

    Raises
    ------
    InputError
        If shapes do not agree, k is not positive or a vector is not finite.

    Examples
    --------
    >>> import numpy as np
    >>> ids, scores = top_k(np.array([[1.0, 0.0]]), np.array([[0.5, 1.0], [2.0, 0.0]]), k=2)
    >>> ids
    array([[1, 0]])
    >>> scores
    array([[2. , 0.5]], dtype=float32)
    """
    queries, items = as_vectors(queries, "queries"), as_vectors(items, "items")
    if queries.shape[1] != items.shape[1]:
        raise InputError(
            f"queries have {queries.shape[1]} coordinates and items {items.shape[1]}: "
            "both must come from the same model"
        )
    if not is_whole(k, 1):
        raise InputError(f"k must be a positive integer, got {k!r}")
    excluded = _as_csr(exclude, (len(queries), len(items)))
    # Also the check that all numbers are finite.
    norms = _norms(queries, "queries"), _norms(items, "items")
    groups = find_equal(items, excluded) if len(queries) >= _WORTH_GROUPING else None
    if groups is None:
        return _search(queries, items, *norms, int(k), excluded, threads)
    if excluded is not None:
        excluded = _as_csr(excluded[:, groups.first], (len(queries), len(groups.first)))
    items, norms = items[groups.first], (norms[0], norms[1][groups.first])
    return groups.expand(*_search(queries, items, *norms, int(k), excluded, threads))


def top_k_of_blocks(
    queries: np.ndarray, blocks: Iterable[np.ndarray], k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Find the k best items of each query, as `top_k`, where blocks of items come one by one."""
    ids, scores = np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0), np.float32)
    start = 0
    for items in blocks:
        found, z = top_k(queries, items, k)
        ids = np.hstack([ids, np.where(found >= 0, found + start, -1)])
        scores = np.hstack([scores, z])
        # Of equals the first comes first, as in one search.
        best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        ids, scores = np.take_along_axis(ids, best, 1), np.take_along_axis(scores, best, 1)
        start += len(items)
    return ids, scores


def _search(
    queries: np.ndarray,
    items: np.ndarray,
    query_norms: np.ndarray,
    item_norms: np.ndarray,
    k: int,
    excluded: sparse.csr_matrix | None,
    threads: int | None,
) -> tuple[np.ndarray, np.ndarray]:
    ids = np.full((len(queries), k), -1, np.int64)
    scores = np.full((len(queries), k), -np.inf, np.float32)
    if not len(queries) or not len(items):
        return ids, scores
    cell = _CELL if len(items) >= 16 * _CELL * k else 1
    # All queries go through one chunk of items before the next, and keep their k best so far.
    chunk = min(len(items), max(_KEPT_FLOATS // _QUERIES * cell, -(-2 * k // cell) * cell))
    wanted = min(threads or processors(), _MOST_THREADS)
    share = max(-(-len(queries) // wanted), _FEWEST)
    size = min(len(queries), share, _QUERIES, max(1, _KEPT_FLOATS * cell // chunk))
    starts = range(0, len(queries), size)

    def search(start: int) -> None:
        rows = slice(start, start + size)
        hidden = None if excluded is None else excluded[rows]
        if hidden is not None and len(part) < len(items):
            hidden = hidden[:, first : first + chunk]
        maxima = _cell_maxima(queries[rows], part, cell, hidden)
        arguments = (queries[rows], part, first, cell, slack[rows], hidden)
        look_again(maxima, *arguments, ids[rows], scores[rows])

    # A lone block of few queries is left to the threads of the BLAS.
    limit = one_blas_thread() if len(starts) > 1 or threads == 1 else nullcontext()
    with limit, ThreadPoolExecutor(min(wanted, len(starts))) as pool:
        for first in range(0, len(items), chunk):
            part = items[first : first + chunk]
            slack = _slack(query_norms, item_norms[first : first + chunk].max(), items.shape[1])
            list(pool.map(search, starts))
    return ids, scores


def _cell_maxima(
    queries: np.ndarray, items: np.ndarray, cell: int, excluded: sparse.csr_matrix | None
) -> np.ndarray:
    """Return the largest score of each cell of items for each query, (cells, queries)."""
    columns = np.ascontiguousarray(queries.T)
    n = columns.shape[1]
    maxima = np.empty((-(-len(items) // cell), n), np.float32)
    block = np.empty((min(_ITEMS, len(items)), n), np.float32)
    if excluded is not None:
        by_item = excluded.tocsc()
        offsets = by_item.indptr
        flat = np.repeat(np.arange(len(items), dtype=np.int64), np.diff(offsets)) * n
        flat += by_item.indices
    for start in range(0, len(items), _ITEMS):
        stop = min(start + _ITEMS, len(items))
        scores = np.matmul(items[start:stop], columns, out=block[: stop - start])
        if excluded is not None:
            scores.reshape(-1)[flat[offsets[start] : offsets[stop]] - start * n] = -np.inf
        whole, out = len(scores) // cell, maxima[start // cell : -(-stop // cell)]
        cells = scores[: whole * cell].reshape(whole, cell, n)
        np.maximum.reduce(cells, axis=1, out=out[:whole])
        if whole < len(out):
            out[whole] = scores[whole * cell :].max(axis=0)
    return maxima


def _slack(query_norms: np.ndarray, item_norm: float, d: int) -> np.ndarray:
    """Bound the difference between a score of a matrix product and that of `dot_rows`."""
    # Each errs by at most d u |q| |v| with u = eps / 2, in any order of summation; the factors
    # leave room for the rounding of the norms and of the thresholds themselves.
    relative = 1.1 * (d + 8) * np.finfo(np.float32).eps
    return (relative * query_norms * item_norm + np.finfo(np.float32).tiny).astype(np.float32)


def _norms(vectors: np.ndarray, name: str) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.sqrt(dot_rows(vectors, vectors))
    bad = ~np.isfinite(norms)
    if bad.any():
        raise InputError(
            f"{name}: {int(bad.sum())} of {len(vectors)} vectors hold NaN, infinity or numbers "
            f"beyond float32 (first: row {int(np.argmax(bad))}); such scores would mean nothing"
        )
    return norms


def _as_csr(exclude: Any, shape: tuple[int, int]) -> sparse.csr_matrix | None:
    if exclude is None:
        return None
    if not sparse.issparse(exclude) or exclude.shape != shape:
        got = exclude.shape if sparse.issparse(exclude) else type(exclude).__name__
        raise InputError(f"exclude must be a scipy sparse matrix of shape {shape}, got {got}")
    matrix = sparse.csr_matrix(exclude)
    return matrix if matrix.has_sorted_indices else matrix.sorted_indices()
