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
"""

from concurrent.futures import Executor, Future
from typing import Any

import numpy as np
from scipy import sparse

from simrec.errors import InputError
from simrec.scoring.equal_items import find_equal
from simrec.scoring.pairs import as_vectors, dot_rows
from simrec.scoring.products import Backend, Product, choose_product, writable
from simrec.scoring.second_look import look_again
from simrec.scoring.workers import processors, workers

_CELL = 16  # items per cell: larger costs more second looks, smaller more maxima to keep
_QUERIES = 1024  # queries per block
_ITEMS = 2048  # items per matrix product: with 1,024 queries an 8 MB block, inside most L3 caches
_KEPT_FLOATS = 1 << 23  # cell maxima kept per block of queries: 32 MB
_MOST_THREADS = 4
_WORTH_GROUPING = 512  # queries from which on it pays to look for equal items


def top_k(
    queries: np.ndarray,
    items: np.ndarray,
    k: int,
    exclude: Any = None,
    *,
    backend: Backend = "auto",
    threads: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Find the k items with the largest scalar product for each query, exactly.

    The result for a query does not depend on the other queries of the call, on `backend` or on
    `threads`. Of equal scores the lower item row comes first. Memory beyond the arguments and the
    result is bounded (about 200 MB), whatever the number of queries and items.

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
    backend : {"auto", "numpy", "tensorflow"}
        The library that multiplies the matrices. "auto" takes NumPy for small problems and
        TensorFlow for large ones; TensorFlow is imported only where the work outweighs that.
    threads : int, optional
        Threads that search while the calling one multiplies; 1: all in the calling thread.
        Default: the processors at hand, at most 4. The matrix product has threads of its own.

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
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise InputError(f"k must be a positive integer, got {k!r}")
    excluded = _as_csr(exclude, (len(queries), len(items)))
    # Also the check that all numbers are finite.
    norms = _norms(queries, "queries"), _norms(items, "items")
    groups = find_equal(items, excluded) if len(queries) >= _WORTH_GROUPING else None
    if groups is None:
        return _search(queries, items, *norms, int(k), excluded, backend, threads)
    if excluded is not None:
        excluded = _as_csr(excluded[:, groups.first], (len(queries), len(groups.first)))
    items, norms = items[groups.first], (norms[0], norms[1][groups.first])
    return groups.expand(*_search(queries, items, *norms, int(k), excluded, backend, threads))


def _search(
    queries: np.ndarray,
    items: np.ndarray,
    query_norms: np.ndarray,
    item_norms: np.ndarray,
    k: int,
    excluded: sparse.csr_matrix | None,
    backend: Backend,
    threads: int | None,
) -> tuple[np.ndarray, np.ndarray]:
    ids = np.full((len(queries), k), -1, np.int64)
    scores = np.full((len(queries), k), -np.inf, np.float32)
    if not len(queries) or not len(items):
        return ids, scores
    prepare = choose_product(backend, queries.shape[0] * items.shape[0] * items.shape[1])
    cell = _CELL if len(items) >= 16 * _CELL * k else 1
    # All queries go through one chunk of items before the next, and keep their k best so far.
    chunk = min(len(items), max(_KEPT_FLOATS // _QUERIES * cell, -(-2 * k // cell) * cell))
    size = min(len(queries), _QUERIES, max(1, _KEPT_FLOATS * cell // chunk))
    small = len(queries) <= size and len(items) <= _ITEMS
    threads = 1 if small else min(threads or processors(), _MOST_THREADS)
    with workers(threads) as pool:
        for first in range(0, len(items), chunk):
            part = items[first : first + chunk]
            multiply = prepare(part)
            slack = _slack(query_norms, item_norms[first : first + chunk].max(), items.shape[1])
            open_work: list[Future[None]] = []
            for start in range(0, len(queries), size):
                rows = slice(start, start + size)
                hidden = None if excluded is None else excluded[rows]
                if hidden is not None and len(part) < len(items):
                    hidden = hidden[:, first : first + chunk]
                product = multiply(queries[rows])
                maxima = _cell_maxima(product, len(part), len(queries[rows]), cell, hidden, pool)
                # While others look into the cells, this thread goes on multiplying.
                arguments = (queries[rows], part, first, cell, slack[rows], hidden)
                open_work.append(
                    pool.submit(look_again, maxima, *arguments, ids[rows], scores[rows])
                )
                _wait(open_work, 1)
            _wait(open_work, 0)
    return ids, scores


def _wait(work: "list[Future[None]]", most: int) -> None:
    """Wait until at most so many are open; raise what one of them raised."""
    while len(work) > most:
        work.pop(0).result()


def _cell_maxima(
    product: Product,
    n_items: int,
    n: int,
    cell: int,
    excluded: sparse.csr_matrix | None,
    pool: Executor,
) -> np.ndarray:
    """Return the largest score of each cell of items for each of n queries, (cells, n)."""
    maxima = np.empty((-(-n_items // cell), n), np.float32)
    if excluded is not None:
        by_item = excluded.tocsc()
        offsets = by_item.indptr
        flat = np.repeat(np.arange(n_items, dtype=np.int64), np.diff(offsets)) * n + by_item.indices
    nothing = np.empty(0, np.int64)
    open_work: list[Future[None]] = []
    for start in range(0, n_items, _ITEMS):
        stop = min(start + _ITEMS, n_items)
        hidden = nothing
        if excluded is not None:
            hidden = flat[offsets[start] : offsets[stop]] - start * n
        target = maxima[start // cell : -(-stop // cell)]
        # All products are made in this thread: memory that one thread takes and gives back again
        # and again stays its own, while that of a short-lived thread goes back to the system.
        open_work.append(pool.submit(_reduce, product(start, stop), hidden, cell, target))
        _wait(open_work, 1)
    _wait(open_work, 0)
    return maxima


def _reduce(block: np.ndarray, hidden: np.ndarray, cell: int, out: np.ndarray) -> None:
    """Write the maxima of the cells of a block, without what is hidden at these places of it."""
    target = block
    if len(hidden):
        target = writable(block)
        target.reshape(-1)[hidden] = -np.inf
    whole = len(block) // cell
    shape = (whole, cell, block.shape[1])
    np.maximum.reduce(target[: whole * cell].reshape(shape), axis=1, out=out[:whole])
    if whole < len(out):
        out[whole] = target[whole * cell :].max(axis=0)


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
