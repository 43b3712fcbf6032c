"""Arrays and sparse matrices in shards behave as those in one piece do."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from simrec import InputError
from simrec.data.id_columns import IdShard
from simrec.data.ids import IdMap, in_shards
from simrec.storage.rows import (
    Insertion,
    Rows,
    SparseRows,
    blocks,
    columns,
    take_rows,
    without,
    writable,
)

SIZES = [(7,), (0, 7), (3, 0, 4), (2, 2, 3), (7, 0)]


def array(width=2):
    return np.arange(7 * width, dtype=np.float32).reshape(7, width)


def cut(whole, sizes):
    bounds = np.cumsum([0, *sizes])
    return [whole[a:b] for a, b in pairwise(bounds)]


INDICES = [
    slice(None),
    slice(2, 6),
    slice(5, 1),
    slice(0, 7, 3),
    [3],
    [6, 0, 3, 3, 2],
    [],
    [-1, -7],
    np.arange(7) % 3 == 1,
    np.zeros(7, bool),
]


@pytest.mark.parametrize("sizes", SIZES)
def test_rows_are_those_of_one_piece(sizes):
    whole = array()
    rows = Rows(cut(whole, sizes))
    assert (rows.shape, rows.dtype, rows.ndim, len(rows)) == ((7, 2), np.float32, 2, 7)
    assert rows.sizes == sizes
    np.testing.assert_array_equal(rows, whole)
    for index in INDICES:
        expected = whole[np.asarray(index, int) if isinstance(index, list) else index]
        np.testing.assert_array_equal(rows[index], expected)
    np.testing.assert_array_equal(rows[4], whole[4])
    out = np.empty((2, 2), np.float32)
    take_rows(rows, np.array([6, 1]), out)
    np.testing.assert_array_equal(out, whole[[6, 1]])
    for size in (1, 3, 100):
        found = list(blocks(rows, size))
        np.testing.assert_array_equal(np.concatenate([some for _, some in found]), whole)
        assert all(len(some) <= size for _, some in found)


@pytest.mark.parametrize("wrong", [[7], [-8], [0.5], np.ones(6, bool), np.zeros((2, 2), int), 7])
def test_rows_out_of_range_are_refused(wrong):
    with pytest.raises(IndexError):
        Rows(cut(array(), (3, 4)))[wrong]
    with pytest.raises(ValueError, match="different kinds"):
        Rows([array(2), array(3)])


@pytest.mark.parametrize("sizes", SIZES)
def test_only_shards_that_change_are_copied(sizes):
    whole = array()
    rows = Rows(cut(whole, sizes))
    changed = writable(rows, np.array([6]))
    changed[[6]] = -1
    expected = array()
    expected[6] = -1
    np.testing.assert_array_equal(changed, expected)
    np.testing.assert_array_equal(rows, array())
    last = max(i for i, n in enumerate(sizes) if n)
    for i, (before, after) in enumerate(zip(rows.shards, changed.shards, strict=True)):
        assert (before is after) is (i != last)
    fewer = without(rows, np.array([6, 6]))
    np.testing.assert_array_equal(fewer, array()[:6])
    assert all(a is b for a, b in zip(rows.shards[:last], fewer.shards[:last], strict=True))


@pytest.mark.parametrize("sizes", SIZES)
def test_sparse_rows_are_those_of_one_piece(sizes):
    whole = sparse.random(7, 5, 0.4, format="csr", dtype=np.float32, random_state=0)
    rows = SparseRows(cut(whole, sizes))
    assert (rows.shape, rows.nnz) == (whole.shape, whole.nnz)
    assert (rows.tocsr() != whole).nnz == 0
    for index in INDICES:
        expected = whole[np.asarray(index, int) if isinstance(index, list) else index]
        found = rows[index]
        assert found.shape == expected.shape and (found != expected).nnz == 0
    assert (rows[4] != whole[4]).nnz == 0
    which = np.array([4, 0])
    assert (columns(rows, which) != columns(whole, which)).nnz == 0
    assert (without(rows, np.array([0, 5])).tocsr() != whole[[1, 2, 3, 4, 6]]).nnz == 0


def in_pieces(maps):
    """Make one map of several, a shard each."""
    return in_shards([IdShard.of(one.ids) for one in maps], maps[0].type)


@given(
    known=st.lists(st.integers(-30, 30), unique=True, min_size=1, max_size=9),
    new=st.lists(st.integers(-40, 40), unique=True, max_size=6),
    cuts=st.lists(st.integers(0, 9), max_size=3),
    text=st.booleans(),
)
@pytest.mark.slow
def test_ids_in_shards_are_those_of_one_piece(known, new, cuts, text):
    def ids(values):
        return [f"{v:+d}" for v in values] if text else list(values)

    whole = IdMap.from_values(ids(known))
    bounds = [0, *sorted(min(c, len(whole)) for c in cuts), len(whole)]
    shards = [IdMap(whole.ids.slice(a, b - a)) for a, b in pairwise(bounds)]
    divided = in_pieces(shards)
    assert divided == whole and len(divided) == len(whole) and divided.type == whole.type
    asked = pa.array(ids([*new, *known, 99]), whole.type)
    np.testing.assert_array_equal(divided.rows(asked), whole.rows(asked))
    words = asked.dictionary_encode()
    np.testing.assert_array_equal(divided.rows(words), whole.rows(asked))
    rows = np.arange(len(whole))[::-2]
    assert divided.take(rows).equals(whole.take(rows))
    gone = rows[: len(rows) // 2]
    assert divided.without(gone) == whole.without(gone)
    if not new:
        return
    more = IdMap.from_values(ids(new))
    grown = divided.union(more)
    assert grown == whole.union(more) and len(grown.sizes) == len(shards)
    # Rows follow: those before, and the new ones, of which some take the place of one before.
    at, added = grown.rows(more.ids), ~divided.contains(more.ids)
    before, rows_of_new = np.arange(len(whole)), -1 - np.arange(len(more))
    expected = np.empty(len(grown), int)
    expected[grown.rows(whole.ids)] = before
    kept = expected.copy()
    expected[at] = rows_of_new
    kept[at[added]] = rows_of_new[added]
    insert = Insertion.of(divided.sizes, grown.sizes, at, added)
    old = Rows(np.split(before, bounds[1:-1]))
    np.testing.assert_array_equal(insert(old, rows_of_new), expected)
    np.testing.assert_array_equal(insert(old, rows_of_new, replace=False), kept)


def test_ids_of_another_kind_are_refused():
    ids = in_pieces([IdMap(pa.array([1, 2])), IdMap(pa.array([5]))])
    with pytest.raises(InputError, match="string ids were given"):
        ids.rows(["x"])
    with pytest.raises(InputError, match="two kinds"):
        ids.union(IdMap(pa.array(["a"])))
    for wrong in ([[1, 5], [5, 6]], [[3], [1]]):
        with pytest.raises(InputError, match="distinct and ascending"):
            in_pieces([IdMap(pa.array(one)) for one in wrong])
    high = in_pieces(
        [IdMap(pa.array([1, 2**63], pa.uint64())), IdMap(pa.array([2**64 - 1], pa.uint64()))]
    )
    assert high.rows(pa.array([2**64 - 1, 2**63, 5], pa.uint64())).tolist() == [2, 1, -1]
    assert high.rows(pa.array([-1, 1])).tolist() == [-1, 0]
