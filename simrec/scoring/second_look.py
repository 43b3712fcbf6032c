"""The second look of the top-k search: exact scores of the few items that can be results."""

import numpy as np
from scipy import sparse

from simrec.scoring.pairs import dot_rows

_GATHERED_FLOATS = 1 << 18  # item vectors gathered at a time: 1 MB
_KEPT = 1 << 20  # results kept before they are sorted in
_HEAVY = 8  # where more than one in so many cells is a candidate, all items are scored

# Query, item row and score of candidates.
Found = tuple[np.ndarray, np.ndarray, np.ndarray]


def look_again(
    maxima: np.ndarray,
    queries: np.ndarray,
    items: np.ndarray,
    first: int,
    cell: int,
    slack: np.ndarray,
    excluded: sparse.csr_matrix | None,
    ids: np.ndarray,
    scores: np.ndarray,
) -> None:
    """Merge the best of `items`, rows from `first` on, into the `ids` and `scores` so far.

    `maxima` (cells x queries) are the largest scores of cells of `cell` items, from a matrix
    product and without the excluded. `slack` says for each query how far a score of that product
    may be from that of `dot_rows`. `excluded` has sorted indices.
    """
    k, n = ids.shape[1], len(queries)
    # k scores of the matrix product reach the k-th largest maximum, so as many exact ones reach it
    # less the slack. What was found in earlier chunks may raise the bar.
    bar = np.maximum(_kth_largest(maxima, k) - slack, scores[:, -1])
    # Below the lowest finite number are only the excluded, at -inf.
    reached = maxima >= np.maximum(bar - slack, np.finfo(np.float32).min)
    found = np.flatnonzero(reached)
    kept: list[Found] = []
    if len(found) > 2 * k * n:
        # Too close to tell apart by the maxima: most often a query whose scores are all equal.
        heavy = reached.sum(axis=0) > max(4 * k, len(maxima) // _HEAVY)
        kept = [_best_of_all(int(q), queries[q], items, k, excluded) for q in np.flatnonzero(heavy)]
        found = found[~heavy[found % n]]
    d = queries.shape[1]
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
            merge(kept, excluded, first, ids, scores)
            kept = []
    merge(kept, excluded, first, ids, scores)


def merge(
    found: list[Found],
    excluded: sparse.csr_matrix | None,
    first: int,
    ids: np.ndarray,
    scores: np.ndarray,
) -> None:
    """Sort what was found, rows counted from `first`, into the k best of each query so far."""
    if not found:
        return
    query, row, score = (np.concatenate(parts) for parts in zip(*found, strict=True))
    if excluded is not None and excluded.nnz:
        per_query = np.diff(excluded.indptr)
        taken = np.repeat(np.arange(len(ids), dtype=np.int64), per_query) * excluded.shape[1]
        taken += excluded.indices  # ascending, as the indices of each row are sorted
        wanted = query * excluded.shape[1] + row
        at = np.minimum(np.searchsorted(taken, wanted), len(taken) - 1)
        free = taken[at] != wanted
        query, row, score = query[free], row[free], score[free]
    item = row + first
    if ids[:, 0].max() >= 0:
        old_query, old_rank = np.nonzero(ids >= 0)
        query = np.concatenate([old_query, query])
        item = np.concatenate([ids[old_query, old_rank], item])
        score = np.concatenate([scores[old_query, old_rank], score])
    order = np.lexsort((item, -score, query))
    query, item, score = query[order], item[order], score[order]
    rank = np.arange(len(query)) - np.searchsorted(query, np.arange(len(ids)))[query]
    top = rank < ids.shape[1]
    ids[query[top], rank[top]] = item[top]
    scores[query[top], rank[top]] = score[top]


def _best_of_all(
    number: int,
    query: np.ndarray,
    items: np.ndarray,
    k: int,
    excluded: sparse.csr_matrix | None,
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
