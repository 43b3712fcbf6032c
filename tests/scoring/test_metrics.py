"""Metrics against straightforward loops, and on cases whose answer is obvious."""

import doctest
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from simrec.errors import InputError
from simrec.scoring import metrics


def test_docstring_examples():
    result = doctest.testmod(metrics)
    assert result.attempted > 8
    assert result.failed == 0


def plain(listed, relevant, k):
    """Return precision, recall, NDCG, average precision and reciprocal rank of one list."""
    found, dcg, precisions, first = 0, 0.0, 0.0, 0.0
    for rank, item in enumerate(listed, start=1):
        if item in relevant:
            found += 1
            dcg += 1 / math.log2(rank + 1)
            precisions += found / rank
            first = first or 1 / rank
    most = min(k, len(relevant))
    best = sum(1 / math.log2(rank + 1) for rank in range(1, most + 1))
    return found / k, found / len(relevant), dcg / best, precisions / most, first


@st.composite
def rankings(draw):
    n_items = draw(st.integers(1, 12))
    k = draw(st.integers(1, 8))
    order = st.permutations(range(n_items))
    size = st.integers(1, n_items)
    user = st.tuples(order, st.integers(0, n_items), order, size)
    users = draw(st.lists(user, min_size=1, max_size=6))
    users = [(listed[:n], relevant[:m]) for listed, n, relevant, m in users]
    return n_items, k, [(listed[:k], set(relevant)) for listed, relevant in users]


@given(rankings())
def test_ranking_metrics_equal_the_loops(problem):
    n_items, k, users = problem
    ids = np.array([listed + [-1] * (k - len(listed)) for listed, _ in users])
    relevant = sparse.lil_matrix((len(users), n_items), dtype=np.float32)
    for user, (_, wanted) in enumerate(users):
        relevant[user, list(wanted)] = 1
    relevant = relevant.tocsr()
    relevant.data[:] = 0  # stored counts, whatever the value
    n_relevant = np.diff(relevant.indptr)
    hit = metrics.hits(ids, relevant)
    got = np.stack(
        [
            metrics.precision_at_k(hit),
            metrics.recall_at_k(hit, n_relevant),
            metrics.ndcg_at_k(hit, n_relevant),
            metrics.map_at_k(hit, n_relevant),
            metrics.mrr(hit),
        ],
        axis=1,
    )
    np.testing.assert_allclose(got, [plain(*user, k) for user in users], rtol=1e-12)
    assert (got >= 0).all() and (got <= 1 + 1e-12).all()


finite = st.floats(-100, 100, width=32)


@given(st.lists(st.tuples(finite, finite), min_size=1))
def test_errors_equal_the_loops(pairs):
    ratings, predictions = np.array(pairs, np.float32).T
    differences = [float(p) - float(r) for r, p in pairs]
    square = sum(d * d for d in differences) / len(pairs)
    np.testing.assert_allclose(metrics.rmse(ratings, predictions), math.sqrt(square))
    absolute = sum(abs(d) for d in differences) / len(pairs)
    np.testing.assert_allclose(metrics.mae(ratings, predictions), absolute)


def test_the_best_list_scores_one_and_the_empty_list_zero():
    n_relevant = np.array([2, 7])
    best = np.array([[True, True, False], [True, True, True]])
    for metric in (metrics.ndcg_at_k, metrics.map_at_k):
        np.testing.assert_allclose(metric(best, n_relevant), 1)
        np.testing.assert_array_equal(metric(np.zeros((2, 3), bool), n_relevant), 0)


def test_users_without_relevant_items_are_nan():
    nothing = np.zeros((1, 3), bool)
    for metric in (metrics.recall_at_k, metrics.ndcg_at_k, metrics.map_at_k):
        assert np.isnan(metric(nothing, np.array([0]))).all()


def test_nothing_to_measure():
    assert math.isnan(metrics.rmse(np.empty(0), np.empty(0)))
    assert math.isnan(metrics.mae(np.empty(0), np.empty(0)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.rmse(np.ones(2), np.ones(3)), "equal length"),
        (lambda: metrics.rmse(np.ones(2), np.array([1, np.nan])), "1 of 2 predictions are missing"),
        (lambda: metrics.hits(np.ones((2, 2), int), sparse.csr_matrix((1, 3))), r"\(1, 3\)"),
        (lambda: metrics.hits(np.array([[3]]), sparse.csr_matrix((1, 3))), "up to 3"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
