"""Rows of arrays and sparse matrices: some at a time, columns as rows, new rows among others."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from simrec.data.ids import IdMap
from simrec.storage.arrays import Insertion, blocks, columns


def test_blocks_and_columns_hold_all():
    whole = np.arange(14, dtype=np.float32).reshape(7, 2)
    for size in (1, 3, 100):
        found = list(blocks(whole, size))
        np.testing.assert_array_equal(np.concatenate([some for _, some in found]), whole)
        assert all(len(some) <= size for _, some in found)
    matrix = sparse.random(7, 5, 0.4, format="csr", dtype=np.float32, random_state=0)
    which = np.array([4, 0])
    np.testing.assert_array_equal(columns(matrix, which).toarray(), matrix.toarray().T[which])


@given(
    known=st.lists(st.integers(-30, 30), unique=True, min_size=1, max_size=9),
    new=st.lists(st.integers(-40, 40), unique=True, min_size=1, max_size=6),
)
def test_rows_follow_their_ids(known, new):
    """Those before, and the new ones, of which some take the place of one before."""
    whole, more = IdMap.from_values(known), IdMap.from_values(new)
    grown = whole.union(more)
    at, added = grown.rows(more.ids), ~whole.contains(more.ids)
    before, rows_of_new = np.arange(len(whole)), -1 - np.arange(len(more))
    expected = np.empty(len(grown), int)
    expected[grown.rows(whole.ids)] = before
    kept = expected.copy()
    expected[at] = rows_of_new
    kept[at[added]] = rows_of_new[added]
    insert = Insertion.of(len(whole), len(grown), at, added)
    np.testing.assert_array_equal(insert(before, rows_of_new), expected)
    np.testing.assert_array_equal(insert(before, rows_of_new, replace=False), kept)
    one, other = (sparse.csr_matrix(rows[:, None]) for rows in (before, rows_of_new))
    np.testing.assert_array_equal(insert(one, other).toarray()[:, 0], expected)
    assert Insertion()(before, rows_of_new) is before
