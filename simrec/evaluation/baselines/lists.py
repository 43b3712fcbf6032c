"""List baselines: popularity, EASE, and a TF-IDF profile of what a user has."""

import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
from scipy import sparse

from simrec.data.features import FeatureEncoder
from simrec.data.ids import IdMap
from simrec.data.ratings import Ratings
from simrec.data.tables import TableLike, read_table
from simrec.scoring.metrics import hits, ndcg_at_k

logger = logging.getLogger(__name__)

MOST_ITEMS = 20_000
"""Items up to which EASE is fitted: its weights are a dense matrix, 1.6 GB for so many."""

_CELLS = 2**23  # scores at once
BLOCK = 1024  # columns of EASE's matrix at once
# Of the regression of popularity; folds and items on which it is chosen.
_PENALTIES = (3.0, 30.0, 300.0, 1000.0)
_FOLDS, _CHOICE_ITEMS = 2, 10_000
# EASE's penalty is chosen on the most rated items and on some users; lists are this long there.
_EASE_PENALTIES = (10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
_EASE_ITEMS, _EASE_USERS, _EASE_K = 2000, 2000, 10


class ListBaseline:
    """Lists by a score of each user and item."""

    tasks: ClassVar[tuple[str, ...]] = ("warm", "new_items", "new_users", "new_both", "period")

    def scores(self, users: pa.Array, items: pa.Array) -> np.ndarray:
        """Return the scores, users x items."""
        raise NotImplementedError

    def recommend(
        self, users: pa.Array, k: int, items: pa.Array, exclude: Ratings | None = None
    ) -> pa.Table:
        """Return the best k of `items` for each user, without the pairs of `exclude`."""
        step, chosen = max(1, _CELLS // max(len(items), 1)), []
        for start in range(0, len(users), step):
            part = users.slice(start, step)
            scores = np.array(self.scores(part, items), np.float64)
            if exclude is not None:
                scores[pair_matrix(exclude, part, items).nonzero()] = -np.inf
            chosen += [best_places(row, k) for row in scores]
        lengths = [len(places) for places in chosen]
        return pa.table(
            {
                "user_id": users.take(pa.array(np.repeat(np.arange(len(users)), lengths))),
                "item_id": items.take(pa.array(np.concatenate([*chosen, []]).astype(np.int64))),
                "rank": np.concatenate([*(np.arange(1, n + 1) for n in lengths), []]).astype(int),
            }
        )


@dataclass(frozen=True, eq=False)
class PopularityBaseline(ListBaseline):
    """Recommend what most users took up, the same list for everyone.

    The score of a known item is log(1 + number of its ratings); that of an item without ratings
    is predicted by ridge regression from its features, its terms or both, whichever makes better
    lists of held-out training items; it is the mean (`default`) where there are none.
    """

    items: IdMap
    item_scores: np.ndarray
    default: float

    @classmethod
    def fit(
        cls, train: Ratings, items: TableLike | None = None, threshold: float | None = None
    ) -> Self:
        """Count the ratings of `train`, those from `threshold` on; `items` are the features."""
        liked = np.ones(len(train), bool) if threshold is None else train.values >= threshold
        counts = np.bincount(train.item_rows[liked], minlength=train.n_items)
        known, scores = train.items, np.log1p(counts)
        default = float(scores.mean()) if len(scores) else 0.0
        if items is None:
            return cls(known, scores, default)
        ids, table = _unique_items(items)
        rows = known.rows(ids.ids)
        rated = rows >= 0
        if rated.all() or rated.sum() < 20:
            return cls(known, scores, default)
        features, weights = _regression(table, rated, scores[rows[rated]] - default)
        everyone = known.union(ids)
        merged = np.empty(len(everyone))
        merged[everyone.rows(ids.ids)] = default + features @ weights
        merged[everyone.rows(known.ids)] = scores
        return cls(everyone, merged, default)

    def score(self, items: Any) -> np.ndarray:
        """Return the score of each item id."""
        rows = self.items.rows(items)
        return np.where(rows >= 0, self.item_scores[rows], self.default)

    def scores(self, users: pa.Array, items: pa.Array) -> np.ndarray:
        """Return the score of each item for each user, the same for all."""
        return np.broadcast_to(self.score(items), (len(users), len(items)))


@dataclass(frozen=True, eq=False)
class EaseBaseline(ListBaseline):
    """EASE (Steck 2019): item to item weights in closed form, no item explained by itself.

    Its penalty is chosen on held-out pairs of `train`.
    """

    tasks: ClassVar[tuple[str, ...]] = ("warm",)
    train: Ratings
    weights: np.ndarray
    l2: float

    @classmethod
    def fit(cls, train: Ratings, threshold: float | None = None) -> Self | None:
        """Choose the penalty, then invert n_items x n_items once; None if they are too many."""
        n = train.n_items
        if n > MOST_ITEMS:
            logger.warning("EASE is left out: %d items, and it is for at most %d", n, MOST_ITEMS)
            return None
        liked = train.values >= (-np.inf if threshold is None else threshold)
        l2 = _choose_l2(train, liked)
        weights = _ease(pair_matrix(train, train.users.ids, train.items.ids), l2)
        logger.info("EASE of %d items: penalty %g by held-out pairs", n, l2)
        return cls(train, weights, l2)

    def scores(self, users: pa.Array, items: pa.Array) -> np.ndarray:
        """Return the sum of the weights from what a user has; 0 of an item without ratings."""
        rows = self.train.items.rows(items)
        found = pair_matrix(self.train, users, self.train.items.ids) @ self.weights
        return np.where(rows >= 0, found[:, rows], 0)


@dataclass(frozen=True, eq=False)
class ContentBaseline(ListBaseline):
    """A TF-IDF profile: the cosine of an item's terms with the sum of those of a user's items.

    Rows of `terms` (items x terms) have length 1; the last, of zeros, is for any other item.
    """

    tasks: ClassVar[tuple[str, ...]] = ("warm", "new_items")
    train: Ratings
    items: IdMap
    terms: sparse.csr_matrix

    @classmethod
    def fit(cls, train: Ratings, items: TableLike | None) -> Self | None:
        """Weigh the terms of a table of items; None if it has none."""
        if items is None:
            return None
        ids, table = _unique_items(items)
        terms = term_counts(table)
        if not terms.nnz:
            return None
        terms.data = 1 + np.log(terms.data)
        weighted = terms @ sparse.diags(np.log(terms.shape[0] / terms.getnnz(axis=0)))
        length = np.sqrt(np.asarray(weighted.multiply(weighted).sum(axis=1)).ravel())
        scaled = sparse.diags(1 / np.maximum(length, 1e-9)) @ weighted
        nothing = sparse.csr_matrix((1, scaled.shape[1]))
        return cls(train, ids, sparse.vstack([scaled, nothing], format="csr"))

    def scores(self, users: pa.Array, items: pa.Array) -> np.ndarray:
        """Return the scalar product of profiles and items."""
        have = self.terms[self.items.rows(self.train.items.ids)]
        profiles = pair_matrix(self.train, users, self.train.items.ids) @ have
        return (profiles @ self.terms[self.items.rows(items)].T).toarray()


def pair_matrix(ratings: Ratings, users: pa.Array, items: pa.Array) -> sparse.csr_matrix:
    """Return a one for each pair of `ratings`, users x items in the order they are given."""
    stored, rows = ratings.to_csr(), ratings.users.rows(users)
    columns = ratings.items.rows(items)
    ones = (np.ones(stored.nnz, np.float32), stored.indices, stored.indptr)
    have = sparse.csr_matrix(ones, shape=stored.shape)[np.maximum(rows, 0)]
    have = sparse.diags((rows >= 0).astype(np.float32)) @ have[:, np.maximum(columns, 0)]
    found = sparse.csr_matrix(have @ sparse.diags((columns >= 0).astype(np.float32)))
    found.eliminate_zeros()
    return found


def best_places(scores: np.ndarray, k: int) -> np.ndarray:
    """Return the places of the k largest finite scores, of equal ones the first."""
    worst = np.partition(scores, len(scores) - k)[len(scores) - k] if k < len(scores) else -np.inf
    keep = np.flatnonzero((scores >= worst) & (scores > -np.inf))
    return keep[np.argsort(-scores[keep], kind="stable")[:k]]


def term_counts(table: pa.Table) -> sparse.csr_matrix:
    """Count the terms of each row: words, elements of lists, whole numbers; drop those of one row.

    >>> rows = {"item_id": [1, 2, 3], "tags": [["a", "b"], ["b"], None], "year": [1999, 1999, 5]}
    >>> term_counts(pa.table(rows)).toarray()
    array([[1., 1.],
           [1., 1.],
           [0., 0.]])
    """
    vocabulary: dict[str, int] = {}
    rows, columns, counts = [], [], []
    for name in table.column_names:
        if name == "item_id":
            continue
        for row, value in enumerate(table[name].to_pylist()):
            for term, count in Counter(_terms(value)).items():
                rows.append(row)
                columns.append(vocabulary.setdefault(f"{name}={term}", len(vocabulary)))
                counts.append(count)
    shape = (table.num_rows, len(vocabulary))
    found = sparse.csc_matrix((np.array(counts, np.float64), (rows, columns)), shape=shape)
    return sparse.csr_matrix(found[:, found.getnnz(axis=0) > 1])


def _terms(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from re.findall(r"\w+", value.lower())
    elif isinstance(value, bool | int) or (isinstance(value, float) and value.is_integer()):
        yield str(int(value))
    elif isinstance(value, Iterable) and not isinstance(value, bytes | dict):
        yield from (str(each).lower() for each in value if isinstance(each, str | int))


def _unique_items(items: TableLike) -> tuple[IdMap, pa.Table]:
    """Return the ids of a table of items, and the first row of each, in their order."""
    table = read_table(items, name="items")
    ids = IdMap.from_values(table["item_id"])
    _, first = np.unique(ids.rows(table["item_id"]), return_index=True)
    return ids, table.take(pa.array(first))


def _encode(table: pa.Table) -> sparse.csr_matrix:
    """Encode a table without the warnings of its columns: the model's encoder has given them."""
    log = logging.getLogger("simrec.data.features")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        return FeatureEncoder(id_column="item_id").fit_transform(table, name="items")
    finally:
        log.setLevel(level)


def _regression(
    table: pa.Table, rated: np.ndarray, target: np.ndarray
) -> tuple[sparse.csr_matrix, np.ndarray]:
    """Regress log counts on features, on terms or on both, with one of some penalties.

    Each choice is judged by the lists of rated items that it was not fitted on.
    """
    features = _encode(table)
    terms = term_counts(table)
    terms.data[:] = 1
    inputs = [features]
    if terms.nnz:
        inputs += [terms, sparse.hstack([features, terms], format="csr")]
    some = np.random.default_rng(0).permutation(len(target))[:_CHOICE_ITEMS]
    fold, known = np.arange(len(some)) % _FOLDS, np.flatnonzero(rated)[some]
    choices = [(X, l2) for X in inputs for l2 in _PENALTIES]
    quality = []
    for X, l2 in choices:
        predicted = np.empty(len(some))
        for k in range(_FOLDS):
            weights = _ridge(X[known[fold != k]], target[some[fold != k]], l2)
            predicted[fold == k] = X[known[fold == k]] @ weights
        folds = [(predicted[fold == k], target[some[fold == k]]) for k in range(_FOLDS)]
        quality.append(np.mean([_gain(*each) for each in folds]))
    X, l2 = choices[int(np.argmax(quality))]
    return X, _ridge(X[rated], target, l2)


def _gain(predicted: np.ndarray, target: np.ndarray) -> float:
    """Return how many ratings the first ten by a prediction have, relative to the best ten."""
    counts = np.exp(target - target.max())
    found, best = (np.argsort(-by, kind="stable")[:10] for by in (predicted, target))
    return float(counts[found].sum() / counts[best].sum())


def _ridge(X: sparse.csr_matrix, target: np.ndarray, l2: float) -> np.ndarray:
    from scipy.sparse.linalg import lsmr

    return lsmr(X, target, damp=np.sqrt(l2), maxiter=100)[0]


def _choose_l2(train: Ratings, liked: np.ndarray) -> float:
    """Choose EASE's penalty: the best NDCG on a tenth of the pairs, fitted on the others."""
    counts = np.bincount(train.item_rows, minlength=train.n_items)
    items = np.argsort(-counts, kind="stable")[:_EASE_ITEMS]
    place = np.full(train.n_items, -1)
    place[items] = np.arange(len(items))
    rng = np.random.default_rng(0)
    held_out = rng.random(len(train)) < 0.1
    use, shape = place[train.item_rows] >= 0, (train.n_users, len(items))

    def matrix(which: np.ndarray) -> sparse.csr_matrix:
        entries = (train.user_rows[which], place[train.item_rows[which]])
        return sparse.csr_matrix((np.ones(len(entries[0]), np.float32), entries), shape=shape)

    known, liked_later = matrix(use & ~held_out), matrix(use & held_out & liked)
    users = np.flatnonzero(np.diff(liked_later.indptr))
    if not len(users):
        return _EASE_PENALTIES[2]
    users = rng.permutation(users)[:_EASE_USERS]
    found, have, wanted = [], known[users], liked_later[users]
    for l2 in _EASE_PENALTIES:
        scores = have @ _ease(known, l2)
        scores[have.nonzero()] = -np.inf
        lists = np.full((len(users), _EASE_K), -1)
        for row, places in zip(lists, (best_places(s, _EASE_K) for s in scores), strict=True):
            row[: len(places)] = places
        found.append(ndcg_at_k(hits(lists, wanted), np.diff(wanted.indptr)).mean())
    return _EASE_PENALTIES[int(np.argmax(found))]


def _ease(pairs: sparse.csr_matrix, l2: float) -> np.ndarray:
    """Solve for the weights of EASE in place of the Gram matrix, in float32."""
    from scipy.linalg import lapack

    n, columns = pairs.shape[1], sparse.csc_matrix(pairs)
    gram = np.empty((n, n), np.float32, order="F")
    for start in range(0, n, BLOCK):
        part = columns[:, start : start + BLOCK]
        gram[:, start : start + BLOCK] = (columns.T @ part).toarray()
    gram[np.diag_indices(n)] += l2
    # The inverse of a symmetric matrix by its Cholesky factor takes half of the operations.
    factor, _ = lapack.spotrf(gram, lower=1, overwrite_a=1)
    inverse, _ = lapack.spotri(factor, lower=1, overwrite_c=1)
    for start in range(0, n, BLOCK):
        stop = start + BLOCK
        square = inverse[start:stop, start:stop]
        square[:] = np.tril(square) + np.tril(square, -1).T
        inverse[start:stop, stop:] = inverse[stop:, start:stop].T
    inverse /= -np.diag(inverse).copy()
    np.fill_diagonal(inverse, 0)
    return inverse
