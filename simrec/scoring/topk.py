"""Exact top-k by scalar product: block maxima first, then only the few blocks that matter.

How it works. Scores of a block of items for a block of queries come from one matrix product, and
are reduced at once to the maxima of small runs of items ("cells"). The k-th largest of a query's
cell maxima bounds its k-th best score from below, so only the cells that reach it can hold a
result: about k cells of 16 items. Their scores are computed once more by `dot_rows`, whose result
does not depend on how the work was cut up, and sorted.

The threshold is lowered by a bound on the rounding error of a matrix product, so that the result
is the exact top-k of the scores as `dot_rows` defines them, ties included, whatever library
multiplied the matrices and whatever the block sizes.

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
from simrec.scoring.pairs import as_vectors, dot_rows
from simrec.scoring.threads import one_blas_thread, processors

_CELL = 16  # items per cell: larger costs more second looks, smaller more maxima to keep
_QUERIES = 512  # queries per block
_FEWEST = 64  # queries that are worth a block, and a thread, of their own
_ITEMS = 2048  # items per matrix product: with 512 queries a 4 MB block, inside most L3 caches
_KEPT_FLOATS = 1 << 23  # cell maxima kept per block of queries: 32 MB
_MOST_THREADS = 8
_GATHERED_FLOATS = 1 << 18  # item vectors gathered at a time: 1 MB
_KEPT = 1 << 20  # candidates kept before all but the k best of each query are dropped
_HEAVY = 8  # where more than one in so many cells is a candidate, all items are scored

# Query, item row and score of candidates.
Found = tuple[np.ndarray, np.ndarray, np.ndarray]


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
    bounded (about 60 MB a thread), whatever the number of queries and items.

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
    excluded, shape = None, (len(queries), len(items))
    if exclude is not None:
        if not sparse.issparse(exclude) or exclude.shape != shape:
            got = exclude.shape if sparse.issparse(exclude) else type(exclude).__name__
            raise InputError(f"exclude must be a scipy sparse matrix of shape {shape}, got {got}")
        excluded = sparse.csr_matrix(exclude)
        excluded = excluded if excluded.has_sorted_indices else excluded.sorted_indices()
    # Also the check that all numbers are finite.
    norms, item_norms = _norms(queries, "queries"), _norms(items, "items")
    k = int(k)
    ids, scores = np.full((shape[0], k), -1, np.int64), np.full((shape[0], k), -np.inf, np.float32)
    if not len(queries) or not len(items):
        return ids, scores
    cell = _CELL if len(items) >= 16 * _CELL * k else 1
    # How far a score of a matrix product may be from that of `dot_rows`. Each errs by at most
    # d u |q| |v| with u = eps / 2, in any order of summation; the factors leave room for the
    # rounding of the norms and of the thresholds themselves.
    float32 = np.finfo(np.float32)
    slack = 1.1 * (items.shape[1] + 8) * float32.eps * norms * item_norms.max() + float32.tiny
    slack = slack.astype(np.float32)
    wanted = min(threads or processors(), _MOST_THREADS)
    share = max(-(-len(queries) // wanted), _FEWEST)
    # The results of a block leave room for as many candidates: few have to be dropped in between.
    most = min(_KEPT_FLOATS * cell // len(items), _KEPT // (2 * min(k, len(items))))
    size = min(len(queries), share, _QUERIES, max(1, most))
    starts = range(0, len(queries), size)

    def search(start: int) -> None:
        rows = slice(start, start + size)
        hidden = None if excluded is None else excluded[rows]
        maxima = _cell_maxima(queries[rows], items, cell, hidden)
        best, rank = _look_again(maxima, queries[rows], items, cell, k, slack[rows], hidden)
        ids[rows][best[0], rank], scores[rows][best[0], rank] = best[1:]

    # A lone block of few queries is left to the threads of the BLAS.
    limit = one_blas_thread() if len(starts) > 1 or threads == 1 else nullcontext()
    with limit, ThreadPoolExecutor(min(wanted, len(starts))) as pool:
        list(pool.map(search, starts))
    return ids, scores


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


def _look_again(
    maxima: np.ndarray,
    queries: np.ndarray,
    items: np.ndarray,
    cell: int,
    k: int,
    slack: np.ndarray,
    excluded: sparse.csr_matrix | None,
) -> tuple[Found, np.ndarray]:
    """Score exactly the few items that can be results; return the k best of each query, and ranks.

    `maxima` (cells x queries) are the largest scores of cells of `cell` items, from a matrix
    product and without the excluded. `slack` says for each query how far a score of that product
    may be from that of `dot_rows`.
    """
    n, d = queries.shape
    # k scores of the matrix product reach the k-th largest maximum, so as many exact ones reach it
    # less the slack.
    bar = _kth_largest(maxima, k) - slack
    # Below the lowest finite number are only the excluded, at -inf.
    reached = maxima >= np.maximum(bar - slack, np.finfo(np.float32).min)
    found = np.flatnonzero(reached)
    kept: list[Found] = []
    if len(found) > 2 * k * n:
        # Too close to tell apart by the maxima: most often a query whose scores are all equal.
        heavy = reached.sum(axis=0) > max(4 * k, len(maxima) // _HEAVY)
        kept = [_best_of_all(int(q), queries[q], items, k, excluded) for q in np.flatnonzero(heavy)]
        found = found[~heavy[found % n]]
    step = max(1, _GATHERED_FLOATS // (cell * max(1, d)))
    whole = len(items) // cell
    by_cell = items[: whole * cell].reshape(whole, cell * d)
    buffer = np.empty((min(step, len(found)), cell, d), np.float32)
    for start in range(0, len(found), step):
        cells, query = np.divmod(found[start : start + step], n)
        rows = cells[:, None] * cell + np.arange(cell)
        vectors = buffer[: len(cells)]
        if whole:
            np.take(by_cell, cells, axis=0, out=vectors.reshape(len(cells), -1), mode="clip")
        rest = np.flatnonzero(cells == whole)  # the last items may not fill a cell
        vectors[rest] = items[np.minimum(rows[rest], len(items) - 1)]
        exact = dot_rows(queries[query][:, None], vectors)
        good = (exact >= bar[query][:, None]) & (rows < len(items))
        pair, _ = np.nonzero(good)
        kept.append((query[pair], rows[good], exact[good]))
        if sum(len(part[0]) for part in kept) > _KEPT:
            best, rank = _best(kept, n, k, excluded)
            kept, last = [best], rank == k - 1
            # Cells come in the order of their items: of equals, those that follow come too late.
            bar[best[0][last]] = np.nextafter(best[2][last], np.float32(np.inf))
    return _best(kept, n, k, excluded)


def _best(
    found: list[Found], n: int, k: int, excluded: sparse.csr_matrix | None
) -> tuple[Found, np.ndarray]:
    """Return the k best of what was found for each of n queries, not excluded, and their ranks."""
    if not found:
        none = np.empty(0, np.int64)
        return (none, none, np.empty(0, np.float32)), none
    query, item, score = (np.concatenate(parts) for parts in zip(*found, strict=True))
    if excluded is not None and excluded.nnz:
        per_query = np.diff(excluded.indptr)
        taken = np.repeat(np.arange(n, dtype=np.int64), per_query) * excluded.shape[1]
        taken += excluded.indices  # ascending, as the indices of each row are sorted
        wanted = query * excluded.shape[1] + item
        at = np.minimum(np.searchsorted(taken, wanted), len(taken) - 1)
        free = taken[at] != wanted
        query, item, score = query[free], item[free], score[free]
    order = np.lexsort((item, -score, query))
    query, item, score = query[order], item[order], score[order]
    rank = np.arange(len(query)) - np.searchsorted(query, np.arange(n))[query]
    top = rank < k
    return (query[top], item[top], score[top]), rank[top]


def _best_of_all(
    number: int, query: np.ndarray, items: np.ndarray, k: int, excluded: sparse.csr_matrix | None
) -> Found:
    """Score all items for one query, and return its k best."""
    exact = dot_rows(query[None], items)
    if excluded is not None:
        exact[excluded.indices[excluded.indptr[number] : excluded.indptr[number + 1]]] = -np.inf
    least = np.partition(exact, len(exact) - k)[len(exact) - k] if k < len(exact) else -np.inf
    better = np.flatnonzero(exact > least)
    equal = np.flatnonzero(exact == least)[: max(k - len(better), 0)]
    rows = np.concatenate([better, equal])
    rows = rows[exact[rows] > -np.inf]
    return np.full(len(rows), number, np.int64), rows, exact[rows]


def _kth_largest(maxima: np.ndarray, k: int) -> np.ndarray:
    """Return a lower bound, close in practice, of the k-th largest value of each column."""
    # Maxima of groups of cells leave few values to sort. The two best cells of a query seldom share
    # one of 16 k groups; where they do, or where the last cells fill no group, the bound is lower.
    group = max(1, len(maxima) // (16 * k))
    groups = len(maxima) // group
    if groups < k:
        return np.full(maxima.shape[1], -np.inf, np.float32)
    shape = (groups, group, maxima.shape[1])
    largest = np.maximum.reduce(maxima[: groups * group].reshape(shape), axis=1)
    return np.partition(np.ascontiguousarray(largest.T), groups - k, axis=1)[:, groups - k]


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
