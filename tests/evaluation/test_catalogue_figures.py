"""Figures beyond accuracy against straightforward loops."""

import doctest
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from simrec.errors import InputError
from simrec.evaluation import catalogue


def test_docstring_examples():
    result = doctest.testmod(catalogue)
    assert result.attempted > 6
    assert result.failed == 0


@st.composite
def lists(draw):
    n_items, k = draw(st.integers(2, 9)), draw(st.integers(1, 5))
    rows = draw(st.lists(st.permutations(range(n_items)), min_size=1, max_size=5))
    lengths = draw(st.lists(st.integers(0, k), min_size=len(rows), max_size=len(rows)))
    listed = [row[:k][:n] for row, n in zip(rows, lengths, strict=True)]
    counts = draw(st.lists(st.integers(0, 6), min_size=n_items, max_size=n_items))
    vectors = draw(
        st.lists(
            st.lists(st.integers(0, 3), min_size=3, max_size=3), min_size=n_items, max_size=n_items
        )
    )
    return n_items, k, listed, counts, vectors


def plain_gini(times):
    total = sum(abs(a - b) for a in times for b in times)
    return total / (2 * len(times) * sum(times))


def plain_diversity(listed, vectors):
    def cosine(a, b):
        length = math.hypot(*a) * math.hypot(*b)
        return sum(x * y for x, y in zip(a, b, strict=True)) / length if length else 0.0

    each = []
    for row in listed:
        pairs = [
            1 - cosine(vectors[row[i]], vectors[row[j]])
            for i in range(len(row))
            for j in range(i + 1, len(row))
        ]
        if pairs:
            each.append(sum(pairs) / len(pairs))
    return sum(each) / len(each) if each else math.nan


def mean(values):
    return sum(values) / len(values) if values else math.nan


@given(lists())
def test_figures_equal_the_loops(problem):
    n_items, k, listed, counts, vectors = problem
    n_users = 7
    ids = np.array([row + [-1] * (k - len(row)) for row in listed])
    shown = [item for row in listed for item in row]
    times = [shown.count(item) for item in range(n_items)]
    assert catalogue.times_listed(ids, n_items).tolist() == times
    got = {
        "coverage": catalogue.coverage(ids, n_items),
        "distinct": catalogue.distinct(ids, n_items),
        "gini": catalogue.gini(ids, n_items),
        "popularity": catalogue.popularity(ids, np.array(counts) / n_users),
        "novelty": catalogue.novelty(ids, np.array(counts), n_users),
        "diversity": catalogue.diversity(ids, np.array(vectors, float)),
        "new": catalogue.share_new(ids, np.array(counts)),
    }
    expected = {
        "coverage": len(set(shown)) / n_items,
        "distinct": len(set(shown)),
        "gini": plain_gini(times) if shown else math.nan,
        "popularity": mean([counts[item] / n_users for item in shown]),
        "novelty": mean([-math.log2((counts[item] + 1) / (n_users + 1)) for item in shown]),
        "diversity": plain_diversity(listed, vectors),
        "new": mean([counts[item] == 0 for item in shown]),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, atol=1e-9, err_msg=name)
    as_sparse = catalogue.diversity(ids, sparse.csr_matrix(np.array(vectors, float)))
    np.testing.assert_allclose(as_sparse, got["diversity"])


def test_nothing_and_too_much():
    nothing = np.empty((0, 3), int)
    assert math.isnan(catalogue.coverage(nothing, 0))
    assert math.isnan(catalogue.gini(nothing, 5))
    with pytest.raises(InputError, match="up to 3"):
        catalogue.coverage(np.array([[3]]), 3)
