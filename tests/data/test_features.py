"""The feature encoder: each kind of column, names, missing values, bad input, JSON."""

import json
import logging
from datetime import date, datetime, timedelta
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simrec.data.features import FeatureEncoder
from simrec.errors import InputError

NAN, INF = float("nan"), float("inf")


def encode(table, **options):
    """Names and dense features of a table, fitted and encoded, checked to survive JSON."""
    encoder = FeatureEncoder(**options)
    features = encoder.fit_transform(table)
    assert features.dtype == np.float32
    assert features.has_canonical_format
    assert features.shape == (features.shape[0], encoder.n_features_)
    assert encoder.n_features_ == len(encoder.feature_names_) == len(encoder.groups_)
    assert len(set(encoder.feature_names_)) == encoder.n_features_
    again = FeatureEncoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
    assert again.feature_names_ == encoder.feature_names_
    same(again.transform(table), features)
    features.check_format()
    return encoder.feature_names_, features.toarray()


def same(one, other):
    """Two sparse matrices are the same to the bit."""
    assert one.shape == other.shape
    np.testing.assert_array_equal(one.indptr, other.indptr)
    np.testing.assert_array_equal(one.indices, other.indices)
    np.testing.assert_array_equal(one.data.view(np.int32), other.data.view(np.int32))


# --- numbers ---


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, 2, 6, None], pa.int16()),
        pa.array([1, 2, 6, None], pa.uint64()),
        pa.array([1.0, 2.0, 6.0, None], pa.float32()),
        pa.array([Decimal("1.0"), Decimal("2.0"), Decimal("6.0"), None]),
        pa.array([1, 2, 6, None]).dictionary_encode(),
        pa.array([date(2024, 1, d) if d else None for d in (1, 2, 6, 0)]),
        pa.array([date(2024, 1, d) if d else None for d in (1, 2, 6, 0)], pa.date64()),
        pa.array([datetime(2024, 1, d) if d else None for d in (1, 2, 6, 0)], pa.timestamp("ns")),
        pa.array([timedelta(d) if d else None for d in (1, 2, 6, 0)], pa.duration("ms")),
    ],
    ids=lambda values: str(values.type),
)
def test_numbers_are_standardised_and_missing_is_told(values):
    names, features = encode(pa.table({"x": values}), columns={"x": "number"})
    assert names == ["x", "x=missing"]
    expected = np.array([-2, -1, 3]) / np.sqrt(14 / 3)
    np.testing.assert_allclose(features[:3, 0], expected, rtol=1e-6)
    np.testing.assert_array_equal(features[:, 1], [0, 0, 0, 1])
    assert features[3, 0] == 0


def test_dates_are_days():
    days = pa.table({"x": [datetime(2024, 1, 1), datetime(2024, 1, 2, 12)]})
    encoder = FeatureEncoder().fit(days)
    assert encoder.to_dict()["columns"][0]["scale"] == 0.75


def test_nan_of_pandas_is_missing_in_frame_and_file(tmp_path):
    frame = pd.DataFrame({"x": [1.0, np.nan, 3.0]})
    frame.to_parquet(tmp_path / "x.parquet")
    for source in (frame, tmp_path / "x.parquet"):
        np.testing.assert_array_equal(encode(source)[1], [[-1, 0], [0, 1], [1, 0]])


@pytest.mark.parametrize(
    ("bad", "word"), [(NAN, "are NaN"), (INF, "are infinite"), (-INF, "are infinite")]
)
def test_nan_and_infinity_are_refused_with_their_place(bad, word, tmp_path):
    good = pa.table({"item_id": [7, 8, 9], "year": [1.0, 2.0, 3.0]})
    table = pa.table({"item_id": [7, 8, 9], "year": [1.0, bad, None]})
    pq.write_table(table, tmp_path / "items.parquet")
    encoder = FeatureEncoder(id_column="item_id").fit(good)
    for attempt in (FeatureEncoder(id_column="item_id").fit, encoder.transform):
        with pytest.raises(InputError) as error:
            attempt(tmp_path / "items.parquet", name="items")
        message = str(error.value)
        assert "items.parquet): column 'year': 1 of 3 rows " + word in message
        assert "the first is item_id=8" in message.replace(f"year={bad}, ", "")
        assert f"year={bad}" in message and "null" in message


def test_infinity_in_a_frame_is_refused_too():
    with pytest.raises(InputError, match="'x': 1 of 2 rows are infinite"):
        FeatureEncoder().fit(pd.DataFrame({"x": [1.0, np.inf]}))


@pytest.mark.parametrize("value", [0.1, 0, 1e300, 2**60])
def test_a_constant_number_encodes_to_zero(value):
    table = pa.table({"x": [value] * 7 + [None]})
    _, features = encode(table)
    np.testing.assert_array_equal(features[:, 0], 0)
    np.testing.assert_array_equal(features[:, 1], [0] * 7 + [1])
    encoder = FeatureEncoder().fit(table)
    assert encoder.transform(pa.table({"x": [value + 1]})).toarray().tolist() == [[0, 0]]


def test_numbers_too_large_for_float32():
    with pytest.raises(InputError, match="'x' has values up to 1e\\+308, too large"):
        FeatureEncoder().fit(pa.table({"x": [1e308, -1e308, 1e308]}))
    encoder = FeatureEncoder().fit(pa.table({"x": [1.0, 2.0]}))
    with pytest.raises(InputError, match=r"1 of 2 rows are too far from the mean of 1\.5"):
        encoder.transform(pa.table({"x": [1.0, 1e300]}))


def test_text_and_booleans_as_numbers_on_request():
    table = pa.table({"x": ["1", "3.0", None], "y": [True, False, True]})
    names, features = encode(table, columns={"x": "number", "y": "number"})
    assert names == ["x", "x=missing", "y", "y=missing"]
    np.testing.assert_array_equal(features[:, :2], [[-1, 0], [1, 0], [0, 1]])
    with pytest.raises(InputError, match=r"'x': 1 of 3 rows are not numbers.*row 1: x='many'"):
        FeatureEncoder({"x": "number"}).fit(pa.table({"x": ["1", "many", None]}))


def test_knots_make_a_piecewise_linear_curve():
    table = pa.table({"x": [0.0, 1.0, 2.0, 5.0, 10.0, None], "one": [7] * 6})
    names, features = encode(table, knots=5)
    assert names[:2] == ["x", "x=missing"]
    knots = [float(name.removeprefix("x~")) for name in names[2:7]]
    assert knots == [0, 1, 2, 5, 10]
    assert names[7:] == ["one", "one=missing"]  # a constant has no curve
    np.testing.assert_allclose(features[:5, 2:7] @ knots, [0, 1, 2, 5, 10], rtol=1e-6)
    np.testing.assert_allclose(features[:, 2:7].sum(axis=1), [1, 1, 1, 1, 1, 0])
    encoder = FeatureEncoder(knots=5).fit(table)
    beyond = encoder.transform(pa.table({"x": [-9.0, 99.0, 3.5], "one": [7, 7, 7]})).toarray()
    np.testing.assert_allclose(beyond[:, 2:7] @ knots, [0, 10, 3.5], rtol=1e-6)


def test_knots_that_are_close_keep_their_own_names():
    encode(pa.table({"x": [20_240_101, 20_240_102, 20_240_103, 20_240_104]}), knots=4)


# --- categories ---


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())],
)
def test_strings_are_one_hot_with_unknown(kind):
    table = pa.table({"g": pa.array(["b", "a", "b", "a", "rare"], pa.string()).cast(kind)})
    names, features = encode(table)
    assert names == ["g=a", "g=b", "g=<unknown>"]
    np.testing.assert_array_equal(features.argmax(axis=1), [1, 0, 1, 0, 2])
    np.testing.assert_array_equal(features.sum(axis=1), 1)
    encoder = FeatureEncoder().fit(table)
    later = encoder.transform(pa.table({"g": pa.array(["a", "new", None], pa.large_string())}))
    np.testing.assert_array_equal(later.toarray(), [[1, 0, 0], [0, 0, 1], [0, 0, 1]])


def test_null_is_a_value_like_others():
    names, features = encode(pa.table({"g": ["a", None, "a", None]}))
    assert names == ["g=a", "g=<missing>", "g=<unknown>"]
    np.testing.assert_array_equal(features.argmax(axis=1), [0, 1, 0, 1])
    names, features = encode(pa.table({"g": ["a", None, "a", "a"]}))
    assert names == ["g=a", "g=<unknown>"]
    np.testing.assert_array_equal(features.argmax(axis=1), [0, 1, 0, 0])


def test_values_that_read_like_buckets_keep_their_own_names():
    names, _ = encode(pa.table({"g": ["<unknown>", "<missing>"] * 2 + [None] * 2}))
    assert names == ['g="<missing>"', 'g="<unknown>"', "g=<missing>", "g=<unknown>"]


def test_booleans_are_categories():
    names, features = encode(pa.table({"g": [True, False, True, False, None]}))
    assert names == ["g=false", "g=true", "g=<unknown>"]
    np.testing.assert_array_equal(features.argmax(axis=1), [1, 0, 1, 0, 2])


def test_min_count_decides():
    table = pa.table({"g": ["a"] * 3 + ["b"] * 2 + ["c"]})
    assert encode(table, min_count=1)[0] == ["g=a", "g=b", "g=c", "g=<unknown>"]
    assert encode(table, min_count=3)[0] == ["g=a", "g=<unknown>"]
    assert encode(table, min_count=9)[0] == ["g=<unknown>"]


def test_numbers_as_categories_whatever_pandas_made_of_them():
    ages = pd.DataFrame({"age": [18, 25, 18, 25, 3]})
    encoder = FeatureEncoder({"age": "category"}).fit(ages)
    assert encoder.feature_names_ == ["age=18", "age=25", "age=<unknown>"]
    with_gaps = pd.DataFrame({"age": [25, np.nan, 18, 18.5]})
    found = encoder.transform(with_gaps).toarray().argmax(axis=1)
    assert found.tolist() == [1, 2, 0, 2]
    refitted = FeatureEncoder({"age": "category"}).fit(
        pd.DataFrame({"age": [18, 18, 25, 25, np.nan, np.nan]})
    )
    assert refitted.feature_names_ == ["age=18", "age=25", "age=<missing>", "age=<unknown>"]


def test_reals_dates_and_wide_integers_as_categories():
    table = pa.table(
        {
            "real": [0.5, 0.5, 1.0, 1.0],
            "day": [date(2024, 1, 1)] * 4,
            "span": pa.array([timedelta(1)] * 4, pa.duration("s")),
            "big": pa.array([2**64 - 1] * 4, pa.uint64()),
            "dec": [Decimal("1.5")] * 4,
        }
    )
    names, _ = encode(table, columns=dict.fromkeys(table.column_names, "category"))
    assert names[:3] == ["real=0.5", "real=1.0", "real=<unknown>"]
    assert names[3::2] == ["day=2024-01-01", "span=86400", f"big={2**64 - 1}", "dec=1.5"]
    encoder = FeatureEncoder({"real": "category"}).fit(table.select(["real"]))
    assert encoder.transform(pa.table({"real": [1, 7]})).toarray().argmax(axis=1).tolist() == [1, 2]


def test_category_refuses_nan():
    with pytest.raises(InputError, match="'x': 1 of 3 rows are NaN"):
        FeatureEncoder({"x": "category"}).fit(pa.table({"x": [1.0, NAN, 1.0]}))


def test_many_categories():
    values = np.repeat(np.arange(100_000), 2).astype(str)
    encoder = FeatureEncoder()
    features = encoder.fit_transform(pa.table({"zip": values}))
    assert encoder.n_features_ == 100_001
    assert features.nnz == len(values)
    assert encoder.feature_names_[features[7].indices[0]] == f"zip={values[7]}"


# --- lists ---

LISTS = [["War", "Drama"], ["War"], None, [], ["Drama", None, "Drama"], ["Rare", "Other"]]


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.string()),
        pa.large_list(pa.large_string()),
        pa.list_(pa.dictionary(pa.int32(), pa.string())),
    ],
    ids=str,
)
def test_lists_are_multi_hot(kind):
    names, features = encode(pa.table({"g": pa.array(LISTS, pa.list_(pa.string())).cast(kind)}))
    assert names == ["g=Drama", "g=War", "g=<unknown>"]
    expected = [[1, 1, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0], [1, 0, 0], [0, 0, 1]]
    np.testing.assert_array_equal(features, expected)


def test_lists_of_integers_and_lists_from_pandas():
    names, features = encode(pd.DataFrame({"g": [[3, 1], [3], [1, 3, 3]]}))
    assert names == ["g=1", "g=3", "g=<unknown>"]
    np.testing.assert_array_equal(features, [[1, 1, 0], [0, 1, 0], [1, 1, 0]])


def test_fixed_size_lists_of_strings_are_lists():
    table = pa.table({"g": pa.array([["a", "b"], None, ["b", "a"]], pa.list_(pa.string(), 2))})
    np.testing.assert_array_equal(encode(table)[1], [[1, 1, 0], [0, 0, 0], [1, 1, 0]])


def test_nan_among_elements_is_refused():
    table = pa.table({"g": [[1.0, 1.0, 1.0, 1.0, NAN], [1.0]]})
    with pytest.raises(InputError, match="column 'g': 1 of 6 rows are NaN"):
        FeatureEncoder({"g": "list"}).fit(table)
    words = pa.DictionaryArray.from_arrays(pa.array([0, 2]), pa.array([1.0, 2.0, NAN]))
    encoder = FeatureEncoder({"c": "category"}).fit(pa.table({"c": [1.0, 1.0]}))
    with pytest.raises(InputError, match="column 'c': 1 of 2 rows are NaN"):
        encoder.transform(pa.table({"c": words}))


def test_sliced_and_chunked_lists():
    whole = pa.array(LISTS)
    parts = pa.chunked_array([whole[1:3], whole[:1], whole[3:]])
    encoder = FeatureEncoder().fit(pa.table({"g": whole}))
    order = [1, 2, 0, 3, 4, 5]
    same(
        encoder.transform(pa.table({"g": parts})), encoder.transform(pa.table({"g": whole}))[order]
    )


def test_a_later_table_may_have_no_lists_at_all():
    encoder = FeatureEncoder().fit(pa.table({"g": LISTS, "x": [1] * 6}))
    for empty in (pa.nulls(2), pa.array([[], []]), pa.array([None, []], pa.list_(pa.null()))):
        assert encoder.transform(pa.table({"g": empty, "x": [1, 2]})).shape == (2, 5)


# --- vectors ---


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.float32(), 2), pa.list_(pa.float64()), pa.list_(pa.int8(), 2)]
)
def test_vectors_are_taken_as_they_are(kind):
    table = pa.table({"v": pa.array([[1, 2], [0, 4]], kind)})
    names, features = encode(table)
    assert names == ["v[0]", "v[1]"]
    np.testing.assert_array_equal(features, [[1, 2], [0, 4]])


def test_vectors_from_pandas_fit_those_from_parquet(tmp_path):
    vectors = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 3)
    pq.write_table(pa.table({"v": fixed}), tmp_path / "v.parquet")
    encoder = FeatureEncoder().fit(tmp_path / "v.parquet")
    frame = pd.DataFrame({"v": list(vectors)})
    np.testing.assert_array_equal(encoder.transform(frame).toarray(), vectors)


def test_missing_vectors_have_an_indicator_if_there_were_any():
    kind = pa.list_(pa.float32(), 2)
    gaps = pa.table({"v": pa.array([[1, 2], None], kind)})
    names, features = encode(gaps)
    assert names == ["v[0]", "v[1]", "v=missing"]
    np.testing.assert_array_equal(features, [[1, 2, 0], [0, 0, 1]])
    whole = FeatureEncoder().fit(pa.table({"v": pa.array([[1, 2]], kind)}))
    np.testing.assert_array_equal(whole.transform(gaps).toarray(), [[1, 2], [0, 0]])
    assert whole.transform(pa.table({"v": pa.nulls(2)})).nnz == 0


@pytest.mark.parametrize("bad", [NAN, INF, None, 1e300])
def test_bad_coordinates_are_refused(bad):
    good = pa.table({"v": pa.array([[1.0, 2.0]], pa.list_(pa.float64(), 2))})
    table = pa.table({"v": pa.array([None, [1.0, 2.0], [0.0, bad]], pa.list_(pa.float64(), 2))})
    for attempt in (FeatureEncoder().fit, FeatureEncoder().fit(good).transform):
        with pytest.raises(InputError, match="'v': 1 of 3 rows have NaN, null or inf.*row 2: v="):
            attempt(table)


def test_vectors_of_another_length_are_refused():
    with pytest.raises(InputError, match="'v': 1 of 2 rows have a vector whose length is not 3"):
        FeatureEncoder().fit(pa.table({"v": [[1.0, 2.0, 3.0], [1.0, 2.0]]}))
    encoder = FeatureEncoder().fit(pa.table({"v": [[1.0, 2.0]]}))
    with pytest.raises(InputError, match=r"length is not 2.*row 0: v=\[1\.0, 2\.0, 3\.0\]"):
        encoder.transform(pa.table({"v": [[1.0, 2.0, 3.0]]}))


def test_vectors_of_length_zero():
    table = pa.table({"v": pa.array([[], []], pa.list_(pa.float32())), "x": [1, 3]})
    assert encode(table)[0] == ["x", "x=missing"]


def test_vectors_beside_lists_over_many_rows():
    rng = np.random.default_rng(0)
    n = 40_000  # more than are filled in at a time
    vectors = rng.normal(size=(n, 3)).astype(np.float32)
    lists = [["a"] * (i % 3) for i in range(n)]
    columns = {
        "x": rng.normal(size=n),
        "v": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 3),
        "g": pa.array(lists),
        "s": np.where(np.arange(n) % 2, "odd", "even"),
    }
    names, features = encode(pa.table(columns))
    assert names == ["x", "x=missing", *(f"v[{i}]" for i in range(3)), *names[5:]]
    np.testing.assert_array_equal(features[:, 2:5], vectors)
    np.testing.assert_array_equal(features[:, names.index("g=a")], np.arange(n) % 3 > 0)
    np.testing.assert_array_equal(features[:, names.index("s=odd")], np.arange(n) % 2)


# --- free text ---

PLOTS = ["A toy comes to life.", "Life on Mars; the toy!", "", None, "mars mars MARS"]


def test_free_text_is_ignored_with_the_reason():
    encoder = FeatureEncoder().fit(pa.table({"plot": PLOTS, "x": [1, 2, 3, 4, 5]}))
    assert encoder.columns_ == {"x": "number"}
    assert encoder.ignored_["plot"].startswith("short free text; ask for it as 'text'")
    assert "'text'" in encoder.ignored_["plot"]


@pytest.mark.parametrize(
    "values",
    [
        [f"{i:05d}" for i in range(50)],  # zip codes: many, but not words
        ["New York", "Los Angeles"] * 25,  # words, but few
        [f"zip {i:05d}" if i % 3 == 0 else f"{i:05d}" for i in range(50)],
        [f"Company {i % 40}" for i in range(50)],  # names that some rows share
    ],
)
def test_strings_that_are_no_free_text(values):
    assert FeatureEncoder().fit(pa.table({"s": values})).columns_ == {"s": "category"}
    frame = pd.DataFrame({"s": [f"title {v}" for v in values]}).astype("category")
    assert FeatureEncoder().fit(frame).columns_ == {"s": "category"}


def test_text_is_the_same_in_any_chunks():
    texts = [f"word{i % 7} and word{i % 5} again" for i in range(100)]
    one, many = pa.chunked_array([texts]), pa.chunked_array([texts[:30], [], texts[30:]])
    encoders = [FeatureEncoder({"t": "text"}).fit(pa.table({"t": t})) for t in (one, many)]
    assert encoders[0].to_dict() == encoders[1].to_dict()
    same(*(encoder.transform(pa.table({"t": many})) for encoder in encoders))


# --- choosing columns ---


def test_columns_in_order_with_groups():
    table = pa.table(
        {"item_id": [1, 2], "b": ["x", "x"], "a": [1, 2], "c": [["k"], ["k"]], "d": [1, 2]}
    )
    encoder = FeatureEncoder({"d": "ignore"}, id_column="item_id").fit(table)
    assert encoder.columns_ == {"b": "category", "a": "number", "c": "list"}
    assert encoder.feature_names_ == ["b=x", "b=<unknown>", "a", "a=missing", "c=k", "c=<unknown>"]
    assert encoder.groups_.tolist() == [0, 0, 1, 1, 2, 2]
    assert encoder.ignored_ == {"item_id": "the id", "d": "as asked"}


def test_columns_that_cannot_be_used_are_listed(caplog):
    table = pa.table({"x": [1], "raw": [b"1"], "none": pa.nulls(1), "gone": pa.nulls(1, pa.int8())})
    with caplog.at_level(logging.INFO):
        encoder = FeatureEncoder().fit(table)
    assert "binary" in encoder.ignored_["raw"]
    assert encoder.ignored_["none"] == encoder.ignored_["gone"] == "no row has a value"
    assert "column 'raw' is ignored" in caplog.text


def test_nothing_to_encode_gives_no_features(caplog):
    table = pa.table({"item_id": [1, 2, 3]})
    features = FeatureEncoder(id_column="item_id").fit_transform(table)
    assert features.shape == (3, 0)
    assert "no column is left to encode" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": {"yaer": "number"}}, r"no column 'yaer'.*Did you mean 'year'"),
        ({"columns": {"yaer": "ignore"}}, r"no column 'yaer'.*Did you mean 'year'"),
        ({"columns": {"year": "categry"}}, r"'categry' \(for 'year'\).*Did you mean 'category'"),
        ({"columns": {"year": "list"}}, r"'year' holds int64 values and cannot.*number, category"),
        ({"columns": {"raw": "number"}}, r"'raw' holds binary values and cannot.*ignore"),
        ({"min_count": 0}, "min_count must be a whole number from 1 .*, got 0"),
        ({"components": 1.5}, r"components must be a whole number from 1 .*, got 1\.5"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(InputError, match=message):
        FeatureEncoder(**options).fit(pa.table({"year": [1, 2], "raw": [b"a", b"b"]}))


# --- later tables ---

FILMS = pa.table(
    {
        "item_id": [1, 2, 3, 4],
        "year": [1990, 1991, None, 1995],
        "kind": ["a", "b", "a", "b"],
        "genres": [["x"], ["x", "y"], [], None],
        "title": ["The A", "The B", "The C", "The D"],
        "seen": [True, False, True, None],
    }
)


def test_a_missing_column_is_refused_and_further_ones_do_not_matter():
    encoder = FeatureEncoder(id_column="item_id").fit(FILMS)
    plain = encoder.transform(FILMS)
    same(encoder.transform(FILMS.append_column("more", [[1, 2, 3, 4]])), plain)
    same(encoder.transform(FILMS.select(["seen", "genres", "kind", "year"])), plain)
    with pytest.raises(InputError, match=r"items .*no column 'kind'.*The columns are"):
        encoder.transform(FILMS.drop_columns(["kind"]), name="items")


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("year", ["1990"] * 4),
        ("kind", [1, 2, 3, 4]),
        ("genres", [True] * 4),
        ("genres", [[1]] * 4),
        ("seen", ["true"] * 4),
        ("year", [date(1990, 1, 1)] * 4),
    ],
)
def test_a_column_of_another_type_is_refused(column, values):
    encoder = FeatureEncoder(id_column="item_id").fit(FILMS)
    table = FILMS.set_column(FILMS.column_names.index(column), column, pa.array(values))
    with pytest.raises(InputError, match=rf"column '{column}' holds .* but was .*Convert"):
        encoder.transform(table)


def test_types_of_one_family_stand_in_for_one_another():
    encoder = FeatureEncoder(id_column="item_id").fit(FILMS)
    frame = FILMS.to_pandas()  # int with gaps to float, bool with gaps to object
    same(encoder.transform(frame), encoder.transform(FILMS))
    narrow = FILMS.set_column(1, "year", FILMS["year"].cast(pa.int16()))
    same(encoder.transform(narrow), encoder.transform(FILMS))
    gone = FILMS.set_column(2, "kind", pa.nulls(4)).set_column(1, "year", pa.nulls(4))
    found = encoder.transform(gone).toarray()
    assert found[:, encoder.feature_names_.index("year=missing")].tolist() == [1] * 4
    assert found[:, encoder.feature_names_.index("kind=<unknown>")].tolist() == [1] * 4


def test_any_part_of_a_table_encodes_as_within_the_whole():
    encoder = FeatureEncoder({"title": "text"}, id_column="item_id").fit(FILMS)
    whole = encoder.transform(FILMS)
    for start, stop in ((0, 2), (2, 4), (1, 2), (2, 2)):
        same(encoder.transform(FILMS.slice(start, stop - start)), whole[start:stop])
    pieces = pa.concat_tables([FILMS.slice(0, 1), FILMS.slice(1, 3)])
    same(encoder.transform(pieces), whole)


def test_fit_looks_at_its_table_only_and_forgets():
    part = FILMS.slice(0, 2)
    encoder = FeatureEncoder(id_column="item_id")
    encoder.fit(FILMS)
    assert encoder.fit(part) is encoder
    assert encoder.to_dict() == FeatureEncoder(id_column="item_id").fit(part).to_dict()
    before = encoder.to_dict()
    encoder.transform(FILMS)
    assert encoder.to_dict() == before


def test_not_fitted_and_unknown_format():
    with pytest.raises(InputError, match="before fit"):
        FeatureEncoder().transform(FILMS)
    with pytest.raises(InputError, match="before fit"):
        FeatureEncoder().to_dict()
    with pytest.raises(InputError, match="format 99 is not known"):
        FeatureEncoder.from_dict({**FeatureEncoder().fit(FILMS).to_dict(), "format": 99})


def test_an_empty_table():
    for table in (FILMS, FILMS.select(["year", "kind"])):
        encoder = FeatureEncoder().fit(table)
        assert encoder.transform(table.slice(0, 0)).shape == (0, encoder.n_features_)
    with pytest.raises(InputError, match="empty"):
        FeatureEncoder().fit(FILMS.slice(0, 0))


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.none() | st.floats(-1e9, 1e9),
            st.none() | st.sampled_from(["a", "b", "c", "dd e"]),
            st.none() | st.lists(st.none() | st.integers(0, 4), max_size=4),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_against_a_plain_loop(rows):
    x, s, g = (list(column) for column in zip(*rows, strict=True))
    table = pa.table(
        {
            "x": pa.array(x, pa.float64()),
            "s": pa.array(s, pa.string()),
            "g": pa.array(g, pa.list_(pa.int64())),
        }
    )
    kinds = {"x": "number", "s": "category", "g": "list"}
    names, features = encode(table, columns=kinds)
    there = [v for v in x if v is not None]
    # A spread too small for a float is none: the column counts as constant.
    scale = (np.std(there) or None) if there and min(there) < max(there) else None
    for row, (number, word, elements) in enumerate(rows):
        expected = dict.fromkeys(names, 0.0)
        if number is None:
            expected["x=missing"] = 1
        elif scale is not None:
            expected["x"] = (number - np.mean(there)) / scale
        shown = "<missing>" if word is None else word
        expected[f"s={shown}" if s.count(word) >= 2 else "s=<unknown>"] = 1
        for element in elements or []:
            if element is not None:
                count = sum((one or []).count(element) for one in g)
                expected[f"g={element}" if count >= 2 else "g=<unknown>"] = 1
        np.testing.assert_allclose(
            features[row], [expected[name] for name in names], rtol=1e-4, atol=1e-6
        )


# --- words for explanations, suspicious columns ---


def test_words_say_what_a_row_holds():
    table = pa.table(
        {
            "year": [1990, 2000, None],
            "kind": ["a", "a", "rare"],
            "genres": [["x", "y"], ["x", "y"], []],
            "poster": pa.array([[1.0, 0.0], None, [0.0, 0.0]], pa.list_(pa.float64(), 2)),
            "plot": ["one two", "two three", "one"],
        }
    )
    for knots in (0, 3):
        encoder = FeatureEncoder({"plot": "text"}, knots=knots).fit(table)
        X = encoder.transform(table)
        said = [list(encoder.words(X[row]).values()) for row in range(3)]
        assert said == [
            ["1990", "a", "x, y", "vector", "one, two"],
            ["2000", "a", "x, y", "missing", "two"],
            ["missing", "<unknown>", "none", "vector", "one"],
        ]
        assert list(encoder.words(X[0])) == table.column_names


def test_the_index_of_pandas_is_no_feature(tmp_path):
    frame = pd.DataFrame({"item_id": [7, 8, 9, 10], "year": [1, 2, 3, 4]}).iloc[[2, 0, 3]]
    frame.to_parquet(tmp_path / "items.parquet")
    assert "__index_level_0__" in pq.read_schema(tmp_path / "items.parquet").names
    for source in (frame, tmp_path / "items.parquet", pa.Table.from_pandas(frame)):
        assert FeatureEncoder(id_column="item_id").fit(source).columns_ == {"year": "number"}


@pytest.mark.parametrize("size", [1e16, 1e19, 1e37, 3e38])
def test_vectors_too_large_to_learn_from_are_refused(size):
    good = pa.table({"v": pa.array([[1.0, 2.0]], pa.list_(pa.float64(), 2))})
    table = pa.table({"v": pa.array([[1.0, 2.0], [0.0, -size]], pa.list_(pa.float64(), 2))})
    for attempt in (FeatureEncoder().fit, FeatureEncoder().fit(good).transform):
        with pytest.raises(InputError, match="'v': 1 of 2 rows have a coordinate beyond.*Rescale"):
            attempt(table)


def test_movielens(movielens_1m):
    encoder = FeatureEncoder(id_column="item_id")
    features = encoder.fit_transform(movielens_1m / "items.parquet", name="items")
    assert set(encoder.ignored_) == {"item_id", "title"}
    assert encoder.columns_["plot"] == "text"
    assert encoder.columns_["certificate"] == "category"
    assert encoder.columns_["actors"] == "list"
    table = pq.read_table(movielens_1m / "items.parquet")
    war = encoder.feature_names_.index("genres=War")
    expected = [("War" in genres) for genres in table["genres"].to_pylist()]
    np.testing.assert_array_equal(features[:, war].toarray().ravel(), expected)
    users = FeatureEncoder(id_column="user_id").fit(movielens_1m / "users.parquet")
    assert users.columns_["zip"] == "category"
    assert pc.count_distinct(table["title"]).as_py() == len(table)


@pytest.mark.parametrize(
    ("column", "field", "value"),
    [
        ("year", "scale", -1.0),
        ("year", "mean", 1e400),
        ("year", "knots", [3.0, 2.0, 1.0]),
        ("kind", "values", ["b", "a"]),
        ("poster", "size", 10**12),
        ("poster", "size", -1),
        ("plot", "idf", [1e400]),
        ("plot", "idf", []),
        ("plot", "components", {}),
        ("plot", "components", {"axes": "AAAA", "offset": [0.0], "scale": 1.0}),
        ("plot", "components", {"axes": "no base64", "offset": [0.0], "scale": 1.0}),
        ("face", "components", {"axes": "", "offset": [], "scale": -1.0}),
        ("", "components", 10**12),
        ("", "components", 0),
        ("", "min_count", "x"),
    ],
)
def test_what_was_saved_is_not_believed(column, field, value):
    table = pa.table(
        {
            "year": [1990.0, 1991.0, 1995.0],
            "kind": ["a", "b", "a"],
            "poster": pa.array([[1.0, 2.0]] * 3, pa.list_(pa.float32(), 2)),
            "plot": ["a ship", "a storm", "the sea ship"],
            "face": pa.array(np.eye(3, 9).tolist(), pa.list_(pa.float32(), 9)),
        }
    )
    encoder = FeatureEncoder({"plot": "text"}, min_count=1, components=8, knots=3).fit(table)
    saved = encoder.to_dict()
    assert FeatureEncoder.from_dict(saved).to_dict() == saved
    target = saved["parameters"]
    if column:
        target = next(one for one in saved["columns"] if one["name"] == column)
    assert field in target
    target[field] = value
    with pytest.raises(InputError):
        FeatureEncoder.from_dict(saved)
