"""Figures beyond accuracy against straightforward loops."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simrec.data.ids import IdMap
from simrec.data.ratings import Ratings
from simrec.evaluation.evaluate import CATALOGUE_FIGURES, catalogue_figures


@st.composite
def lists(draw):
    n_items, k = draw(st.integers(2, 9)), draw(st.integers(1, 5))
    rows = draw(st.lists(st.permutations(range(n_items)), min_size=1, max_size=5))
    lengths = draw(st.lists(st.integers(0, k), min_size=len(rows), max_size=len(rows)))
    listed = [row[:k][:n] for row, n in zip(rows, lengths, strict=True)]
    counts = draw(st.lists(st.integers(0, 6), min_size=n_items, max_size=n_items))
    return n_items, k, listed, counts


def mean(values):
    return sum(values) / len(values) if values else math.nan


@given(lists())
def test_figures_equal_the_loops(problem):
    n_items, k, listed, counts = problem
    everyone, n_users = IdMap.from_values(range(n_items)), 7
    items = np.repeat(np.arange(n_items), counts).astype(np.int32)
    users = np.concatenate([np.arange(n) for n in (*counts, 0)]).astype(np.int32)
    ones = np.ones(len(items), np.float32)
    train = Ratings(IdMap.from_values(range(n_users)), everyone, users, items, ones)
    ids = np.array([row + [-1] * (k - len(row)) for row in listed])
    shown = [item for row in listed for item in row]
    got = catalogue_figures(train, ids, everyone, np.array([0, 1]))
    expected = {
        "coverage": len(set(shown)) / n_items,
        "popularity": mean([counts[item] / n_users for item in shown]),
        "popularity_rated": (counts[0] + counts[1]) / (2 * n_users),
        "new_share": mean([counts[item] == 0 for item in shown]),
    }
    assert tuple(got) == CATALOGUE_FIGURES
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, atol=1e-9, err_msg=name)


def test_nothing_is_measured_without_lists():
    none = IdMap.from_values([1]).none()
    empty = np.empty(0, np.int32)
    train = Ratings(none, none, empty, empty, empty.astype(np.float32))
    figures = catalogue_figures(train, None, none, empty)
    assert all(map(math.isnan, figures.values()))
