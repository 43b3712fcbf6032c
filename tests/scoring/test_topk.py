"""Exact top-k: equal to the plain definition whatever the blocks, the threads and the ties."""

import doctest

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import imported_by
from scipy import sparse
from threadpoolctl import threadpool_info, threadpool_limits

from simrec.errors import InputError
from simrec.scoring import topk
from simrec.scoring.pairs import dot_rows, score_pairs
from simrec.scoring.threads import one_blas_thread
from simrec.scoring.topk import top_k


def plain_top_k(queries, items, k, exclude=None):
    """Score everything, sort everything: best first, of equal scores the lower row first."""
    ids = np.full((len(queries), k), -1)
    scores = np.full((len(queries), k), -np.inf, np.float32)
    for q, query in enumerate(queries):
        exact = dot_rows(np.repeat(query[None], len(items), axis=0), items)
        allowed = np.ones(len(items), bool)
        if exclude is not None:
            allowed[sparse.csr_matrix(exclude)[q].indices] = False
        order = np.lexsort((np.arange(len(items)), -exact))
        order = order[allowed[order]][:k]
        ids[q, : len(order)], scores[q, : len(order)] = order, exact[order]
    return ids, scores


def assert_same(got, expected):
    np.testing.assert_array_equal(got[0], expected[0])
    np.testing.assert_array_equal(got[1], expected[1])


# Cuts even small problems into many cells, blocks and chunks.
TINY = {
    "_CELL": 2,
    "_QUERIES": 4,
    "_FEWEST": 2,
    "_ITEMS": 8,
    "_KEPT_FLOATS": 100,
    "_GATHERED_FLOATS": 40,
    "_KEPT": 20,
}


@st.composite
def problems(draw):
    n, m = draw(st.integers(1, 11)), draw(st.integers(1, 150))
    d, k = draw(st.integers(1, 9)), draw(st.integers(1, 8))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(["ties", "near ties", "normal", "zero"]))
    if kind == "ties":
        queries, items = rng.integers(-1, 2, (n, d)), rng.integers(-1, 2, (m, d))
    elif kind == "near ties":  # copies of a few vectors that differ in the last bit
        queries = rng.standard_normal((n, d))
        items = rng.standard_normal((3, d))[rng.integers(0, 3, m)].astype(np.float32)
        items = np.where(rng.random((m, d)) < 0.5, items, np.nextafter(items, np.float32(9)))
    else:
        queries = rng.standard_normal((n, d)) * (kind == "normal")
        items = rng.standard_normal((m, d)) * np.exp(rng.standard_normal((m, 1)))
    density = draw(st.sampled_from([None, 0.0, 0.1, 0.5, 1.0]))
    exclude = None if density is None else sparse.csr_matrix(rng.random((n, m)) < density)
    return queries.astype(np.float32), items.astype(np.float32), k, exclude


@settings(max_examples=300, deadline=None)
@given(problem=problems(), threads=st.sampled_from([1, 2]), tiny=st.booleans())
def test_equals_the_plain_definition(problem, threads, tiny):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in TINY.items() if tiny else ():
            patch.setattr(topk, name, value)
        got = top_k(*problem, threads=threads)
    assert_same(got, plain_top_k(*problem))


@pytest.fixture(scope="module")
def large():
    """Enough items for cells, several blocks of queries, and a tail in each."""
    rng = np.random.default_rng(0)
    queries = rng.standard_normal((1100, 20)).astype(np.float32)
    items = rng.standard_normal((7777, 20)).astype(np.float32)
    items[rng.integers(0, 7777, 500)] = items[42]  # equal scores far apart
    best = top_k(queries, items, 30)[0]
    # The best items of each query, as seen items often are, and some others.
    seen = np.hstack([best, rng.integers(0, 7777, (1100, 20))])
    rows = np.repeat(np.arange(1100), seen.shape[1])
    exclude = sparse.coo_matrix((np.zeros(len(rows)), (rows, seen.ravel())), (1100, 7777))
    return queries, items, exclude


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("k", [1, 10, 200])
def test_threads_and_blocks_agree_to_the_bit(large, threads, k):
    queries, items, exclude = large
    some = [0, 1, 517, 1023, 1024, 1099]
    for excluded in (None, exclude.tocsr()):
        ids, scores = top_k(queries, items, k, excluded, threads=threads)
        part = None if excluded is None else excluded[some]
        assert_same((ids[some], scores[some]), plain_top_k(queries[some], items, k, part))
        assert_same((ids[some], scores[some]), top_k(queries[some], items, k, part))


def test_batch_equals_single(large):
    queries, items, exclude = large
    exclude = exclude.tocsr()
    ids, scores = top_k(queries, items, 10, exclude)
    for q in range(0, 1100, 100):
        one = slice(q, q + 1)
        assert_same(top_k(queries[one], items, 10, exclude[one]), (ids[one], scores[one]))


def test_scores_are_those_of_pairs(large):
    queries, items, _ = large
    ids, scores = top_k(queries, items, 10)
    rows = np.repeat(np.arange(len(queries)), 10)
    np.testing.assert_array_equal(score_pairs(queries, items, rows, ids.ravel()), scores.ravel())


def test_any_sparse_format_excludes_every_stored_entry(large):
    queries, items, exclude = large
    expected = top_k(queries[:50], items, 5, exclude.tocsr()[:50])
    shuffled = exclude.tocsr()[:50]
    order = np.concatenate(
        [np.arange(a, b)[::-1] for a, b in zip(shuffled.indptr, shuffled.indptr[1:], strict=False)]
    )
    shuffled = sparse.csr_matrix(
        (shuffled.data, shuffled.indices[order], shuffled.indptr), shuffled.shape
    )
    for same in (shuffled, exclude.tocsr()[:50].tocsc(), sparse.csr_array(shuffled)):
        assert_same(top_k(queries[:50], items, 5, same), expected)
    assert not np.isin(expected[0][0], exclude.tocsr()[0].indices).any()


def test_fewer_candidates_than_k_are_padded():
    items = np.array([[1.0], [2.0], [2.0]], np.float32)
    exclude = sparse.csr_matrix(np.array([[0, 0, 0], [0, 1, 0], [1, 1, 1]]))
    ids, scores = top_k(np.ones((3, 1), np.float32), items, 4, exclude)
    assert ids.tolist() == [[1, 2, 0, -1], [2, 0, -1, -1], [-1] * 4]
    assert scores.tolist() == [[2, 2, 1, -np.inf], [2, 1] + [-np.inf] * 2, [-np.inf] * 4]
    assert (ids.dtype, scores.dtype) == (np.int64, np.float32)


def test_all_scores_equal_gives_the_first_rows():
    exclude = sparse.csr_matrix(([1], ([0], [1])), (3, 20_000))
    ids, _ = top_k(np.zeros((3, 4)), np.ones((20_000, 4)), 3, exclude)
    assert ids.tolist() == [[0, 2, 3], [0, 1, 2], [0, 1, 2]]


def test_many_equal_items():
    rng = np.random.default_rng(0)
    distinct = rng.standard_normal((40, 8)).astype(np.float32)
    items = distinct[rng.integers(0, 40, 30_000)]
    queries = rng.standard_normal((600, 8)).astype(np.float32)
    seen = sparse.csr_matrix(rng.random((600, 30_000)) < 0.0005)
    for exclude in (None, seen):
        ids, scores = top_k(queries, items, 10, exclude)
        part = None if exclude is None else exclude[::100]
        assert_same((ids[::100], scores[::100]), plain_top_k(queries[::100], items, 10, part))


def test_docstring_examples():
    assert doctest.testmod(topk).failed == 0


def test_nothing_to_rank():
    ids, scores = top_k(np.ones((2, 3)), np.ones((0, 3)), 2)
    assert ids.tolist() == [[-1, -1]] * 2 and np.isneginf(scores).all()
    assert top_k(np.ones((0, 3)), np.ones((4, 3)), 2)[0].shape == (0, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 0}, "positive integer, got 0"),
        ({"k": 2.0}, "positive integer"),
        ({"queries": np.ones((2, 2))}, "2 coordinates and items 3"),
        ({"items": np.ones(3)}, "two dimensions"),
        ({"items": np.array([[1, 1, 1], [1, np.nan, 1]])}, r"items: 1 of 2 .*first: row 1"),
        ({"queries": np.full((2, 3), np.inf)}, "queries: 2 of 2"),
        ({"exclude": np.ones((2, 4))}, "scipy sparse matrix of shape"),
        ({"exclude": sparse.csr_matrix((2, 5))}, r"shape \(2, 4\), got \(2, 5\)"),
    ],
)
def test_bad_input_is_refused(arguments, message):
    good = {"queries": np.ones((2, 3)), "items": np.ones((4, 3)), "k": 1}
    with pytest.raises(InputError, match=message):
        top_k(**{**good, **arguments})


def test_no_tensorflow_is_loaded():
    code = (
        "import numpy as np; from simrec import top_k; "
        "top_k(np.ones((100, 8)), np.ones((5000, 8)), 10)"
    )
    assert "tensorflow" not in imported_by(code)


def test_overlapping_searches_give_the_blas_its_threads_back():
    def blas_threads():
        return [found["num_threads"] for found in threadpool_info() if found["user_api"] == "blas"]

    with threadpool_limits(2, "blas"):
        before = blas_threads()
        first, second = one_blas_thread(), one_blas_thread()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert set(blas_threads()) <= {1}
        second.__exit__(None, None, None)
        assert blas_threads() == before
