"""Id maps: both ways, for every kind of id, and what is refused."""

import pickle
import threading

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simrec.data.ids import IdMap, encode_ids
from simrec.errors import InputError
from simrec.model.tower import unique_ids

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
UNSIGNED = [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
STRINGS = [pa.string(), pa.large_string(), pa.string_view()]

any_ids = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1),
    st.lists(st.integers(-50, 50), min_size=1),
    st.lists(st.integers(0, 2**64 - 1), min_size=1).map(lambda v: pa.array(v, pa.uint64())),
    st.lists(st.text(max_size=4), min_size=1),
)


def as_list(values):
    return values.to_pylist() if isinstance(values, pa.Array) else values


@settings(max_examples=30, deadline=None)
@given(any_ids)
def test_rows_and_ids_are_inverse(values):
    ids, rows = encode_ids(values)
    assert ids.ids.to_pylist() == sorted(set(as_list(values)))
    assert ids.take(rows).to_pylist() == as_list(values)
    assert ids.rows(values).tolist() == rows.tolist()
    assert ids.rows(ids.ids).tolist() == list(range(len(ids)))
    assert IdMap.from_values(values) == ids


@settings(max_examples=30, deadline=None)
@given(st.sets(st.integers(-(2**63), 2**63 - 1)), st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_unknown_integers_have_row_minus_one(known, asked):
    ids = IdMap.from_values(sorted(known))
    place = {value: row for row, value in enumerate(sorted(known))}
    asked = asked + sorted(known)[:3]
    assert ids.rows(asked).tolist() == [place.get(value, -1) for value in asked]
    assert ids.contains(asked).tolist() == [value in known for value in asked]


@pytest.mark.parametrize("n_known", [3, 1000])
@pytest.mark.parametrize("n_asked", [1, 10, 5000])
@pytest.mark.parametrize("spread", [1, 10**12])
@pytest.mark.parametrize("make", [int, str], ids=["integers", "strings"])
def test_every_way_of_looking_up_agrees(n_known, n_asked, spread, make):
    rng = np.random.default_rng(0)
    known = [make(spread * i) for i in range(0, 2 * n_known, 2)]
    asked = [make(spread * i) for i in rng.integers(0, 2 * n_known, n_asked)]
    ids = IdMap.from_values(known)
    place = {value: row for row, value in enumerate(sorted(known))}
    assert ids.rows(asked).tolist() == [place.get(value, -1) for value in asked]


@pytest.mark.parametrize("kind", INTEGERS + UNSIGNED, ids=str)
def test_integer_types_come_back_and_any_width_is_found(kind):
    low = 0 if kind in UNSIGNED else -100
    ids = IdMap.from_values(pa.array([low, 100, 100, 7], kind))
    assert ids.type == kind
    assert ids.take([2, 0]).equals(pa.array([100, low], kind))
    for other in INTEGERS + UNSIGNED:
        assert ids.rows(pa.array([7, 8, 100], other)).tolist() == [1, -1, 2]
    assert ids.rows(np.array([2**63 + 7], np.uint64)).tolist() == [-1]
    assert ids.rows(np.array([-(2**40)], np.int64)).tolist() == [-1]


def test_a_wrapped_integer_is_not_mistaken():
    # As bits, 2**64 - 5 and -5 are the same.
    assert IdMap.from_values([-5, 3]).rows(np.array([2**64 - 5], np.uint64)).tolist() == [-1]
    huge = IdMap.from_values(pa.array([2**64 - 5, 2**64 - 1], pa.uint64()))
    assert huge.rows([-5, -1]).tolist() == [-1, -1]
    assert huge.rows(pa.array([2**64 - 1], pa.uint64())).tolist() == [1]


@pytest.mark.parametrize("kind", STRINGS, ids=str)
def test_string_types_come_back_and_any_is_found(kind):
    ids = IdMap.from_values(pa.array(["b", "a", "ü", "b"], kind))
    assert ids.type == (kind if kind != pa.string_view() else pa.large_string())
    assert ids.take([2, 0]).equals(pa.array(["ü", "a"], ids.type))
    for other in STRINGS:
        assert ids.rows(pa.array(["a", "x", "ü"] * 50, other)).tolist() == [0, -1, 2] * 50


def test_dictionaries_give_the_ids_they_stand_for():
    series = pd.Series(["b", "a", "b"], dtype=pd.CategoricalDtype(["z", "b", "a"]))
    ids, rows = encode_ids(series)
    assert ids.ids.to_pylist() == ["a", "b"]  # and not the unused "z"
    assert rows.tolist() == [1, 0, 1]
    assert ids.rows(series).tolist() == [1, 0, 1]
    chunks = [pa.array(c).dictionary_encode() for c in (["a", "b"], ["c", "a"])]
    ids, rows = encode_ids(pa.chunked_array(chunks))
    assert ids.ids.to_pylist() == ["a", "b", "c"]
    assert rows.tolist() == [0, 1, 2, 0]


def test_a_dictionary_that_names_a_value_twice():
    twice = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2]), pa.array(["a", "b", "a"]))
    ids, rows = encode_ids(twice)
    assert ids.ids.to_pylist() == ["a", "b"]
    assert rows.tolist() == [0, 1, 0]


def test_chunks_and_slices_are_taken_for_what_they_show():
    values = pa.chunked_array([pa.array([9, 5, 7, 9])[1:], pa.array([1, 5])[:1]])
    ids, rows = encode_ids(values)
    assert ids.ids.to_pylist() == [1, 5, 7, 9]
    assert rows.tolist() == [1, 2, 3, 0]


@pytest.mark.parametrize(
    "values",
    [[2, 1], (2, 1), np.array([2, 1]), pd.Series([2, 1]), pa.array([2, 1]), range(2, 0, -1)],
)
def test_ids_in_any_container(values):
    assert IdMap.from_values(values).rows(values).tolist() == [1, 0]


def test_rows_of_nothing_and_in_nothing():
    assert IdMap.from_values([]).rows([1, 2]).tolist() == [-1, -1]
    assert IdMap.from_values([1]).rows([]).tolist() == []
    assert len(IdMap.from_values([])) == 0


def test_the_constructor_takes_ascending_ids_only():
    assert len(IdMap(pa.array(["a", "b"]))) == 2
    for ids in (["b", "a"], ["a", "a"]):
        with pytest.raises(InputError, match=r"not distinct and ascending.*from_values"):
            IdMap(pa.array(ids))


def test_take_refuses_rows_that_are_not_there():
    ids = IdMap.from_values([5, 6])
    for rows in ([-1], [2]):
        with pytest.raises(IndexError, match="between 0 and 1"):
            ids.take(rows)


def test_null_ids_are_refused_with_count_and_place():
    with pytest.raises(InputError, match=r"'user_id': 2 of 4 rows have no id.*first is row 1"):
        IdMap.from_values(pa.array([1, None, 2, None]), "user_id")
    with pytest.raises(InputError, match="1 of 2 rows have no id"):
        IdMap.from_values([1]).rows(pd.Series([1.0, np.nan]))
    hidden = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["a", None]))
    with pytest.raises(InputError, match="1 of 2 rows have no id"):
        IdMap.from_values(hidden)


def test_ids_of_the_other_kind_are_found_by_their_number():
    assert IdMap.from_values([7, 8]).rows(["8", "007", "9"]).tolist() == [1, 0, -1]
    padded = IdMap.from_values(["010526", "10", "tea"])
    assert padded.rows([10526, 10, 5]).tolist() == [0, 1, -1]
    assert padded.rows(pa.array([10], pa.uint16()).dictionary_encode()).tolist() == [1]
    assert IdMap.from_values([7]).union(IdMap.from_values(["7", "12"])).ids.to_pylist() == [7, 12]
    assert IdMap.from_values(["x"]).union(IdMap.from_values([7])).ids.to_pylist() == ["7", "x"]


def test_ids_of_the_other_kind_that_are_no_numbers_or_several_are_refused():
    with pytest.raises(
        InputError, match=r"item_id: string ids.*'x7'.*integers \(such as 7\).*train again"
    ):
        IdMap.from_values([7, 8]).rows(["7", "x7"], "item_id")
    with pytest.raises(InputError, match=r"integer ids.*such as 7.*strings \(such as 'a'\)"):
        IdMap.from_values(["a", "b"]).rows([7])
    with pytest.raises(InputError, match="7 could be any of '007', '7', which.*as text"):
        IdMap.from_values(["007", "7", "8"]).rows([8, 7])
    assert IdMap.from_values(["007", "7", "8"]).rows([8]).tolist() == [2]
    with pytest.raises(InputError, match="two kinds"):
        IdMap.from_values([7]).union(IdMap.from_values(["x"]))


def test_types_that_are_no_ids():
    with pytest.raises(
        InputError, match=r"'u' holds double values, such as 1\.5.*astype\('int64'\)"
    ):
        IdMap.from_values([1.5, 2.0], "u")
    for values in ([True], [b"x"], [[1]], [pd.Timestamp(0)]):
        with pytest.raises(InputError, match="ids must be integers or strings"):
            IdMap.from_values(values)
    with pytest.raises(InputError, match="all be integers or all be strings"):
        IdMap.from_values([1, "a"])
    with pytest.raises(InputError, match="several ids, got the single value 'abc'"):
        IdMap.from_values("abc")


def test_ids_of_entities_are_unique():
    known, place = unique_ids(pa.chunked_array([["b", "a"]]), "items", "items.parquet")
    assert known.ids.to_pylist() == ["a", "b"] and place.tolist() == [1, 0]
    with pytest.raises(InputError, match="items.parquet: 1 rows repeat the item_id .* such as 1"):
        unique_ids(pa.chunked_array([[1, 2, 1]]), "items", "items.parquet")


def test_union_widens_types_and_keeps_order():
    small = IdMap.from_values(pa.array([3, 1], pa.int32()))
    both = small.union(IdMap.from_values(pa.array([2**40, 1], pa.int64())))
    assert both.ids.equals(pa.array([1, 3, 2**40], pa.int64()))
    assert small.union(IdMap.from_values([])) == small
    signed = IdMap.from_values(pa.array([-1], pa.int64()))
    assert signed.union(IdMap.from_values(pa.array([5], pa.uint64()))).ids.to_pylist() == [-1, 5]


def test_integers_that_fit_no_common_type():
    high = IdMap.from_values(pa.array([2**64 - 1], pa.uint64()))
    low = IdMap.from_values(pa.array([-1], pa.int64()))
    with pytest.raises(InputError, match="fit no common type.*strings"):
        high.union(low)
    assert high.rows(pa.array([-1])).tolist() == [-1]
    assert high.rows([2**64 - 1, 3]).tolist() == [0, -1]
    with pytest.raises(InputError, match="ids must all be"):
        high.rows([2**64, 3])


def test_run_ends_and_views_are_ids_too():
    words = pa.array(["b", "b", "a"])
    for values in (pa.compute.run_end_encode(words), words.cast(pa.string_view())):
        ids, rows = encode_ids(values)
        assert ids.ids.to_pylist() == ["a", "b"] and rows.tolist() == [1, 1, 0]
        assert IdMap.from_values(["a", "b"]).rows(values).tolist() == [1, 1, 0]


def test_text_that_is_no_unicode_is_refused():
    with pytest.raises(InputError, match="ids must all be"):
        IdMap.from_values(["a"]).rows(["\ud800"])


def test_equality_and_pickling():
    ids = IdMap.from_values(["a", "b"])
    assert ids == IdMap.from_values(["b", "a"])
    assert ids != IdMap.from_values(["a"])
    assert ids != ["a", "b"]
    assert pickle.loads(pickle.dumps(ids)) == ids
    assert "2 ids" in repr(ids)


def test_threads_that_look_up_at_once_find_all():
    """The table of rows by id is built by the first lookup, and seen by others once it is whole."""
    for _ in range(20):
        ids = IdMap.from_values(np.arange(200_000))
        found: list[np.ndarray] = []
        barrier = threading.Barrier(4)

        def look(ids=ids, found=found, barrier=barrier):
            barrier.wait()
            found.append(ids.rows(np.arange(199_000, 200_000)))

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 4 and all((rows >= 0).all() for rows in found)
