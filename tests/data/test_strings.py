"""Strings that hold numbers or lists; and what is told of how columns are read."""

import json
import logging

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from simrec.data.features import FeatureEncoder
from simrec.errors import InputError

YEARS = [str(year) for year in range(1960, 2000)]
PRICES = [f"{price / 4}" for price in range(1, 41)]


def read(values, kind=None, **options):
    table = pa.table({"x": pa.array(values)})
    encoder = FeatureEncoder({"x": kind} if kind else None, **options)
    X = encoder.fit_transform(table)
    again = FeatureEncoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
    np.testing.assert_array_equal(again.transform(table).toarray(), X.toarray())
    assert again.describe() == encoder.describe()
    return encoder, X.toarray()


# --- numbers ---


@pytest.mark.parametrize(
    "values",
    [
        YEARS,
        PRICES,
        [f" {price} " for price in PRICES],
        [*YEARS, "unknown", None],
        [*PRICES, "N/A", "", "-"],
        [*PRICES[:12], "1e3", "-5"],
        [str(v) for v in range(2000)] + ["unknown"],
    ],
)
def test_numbers_in_strings(values, caplog):
    with caplog.at_level(logging.INFO):
        encoder, X = read(values)
    assert encoder.columns_ == {"x": "number"}
    assert encoder.describe()[0].read_as == "number in text"
    assert "column 'x' is read as number: strings that are numbers" in caplog.text
    numbers = []
    for value in values:
        try:
            numbers.append(float(value))
        except (TypeError, ValueError):
            numbers.append(None)
    expected = FeatureEncoder().fit_transform(pa.table({"x": pa.array(numbers, pa.float64())}))
    np.testing.assert_array_equal(X, expected.toarray())
    # A later file without words among its numbers is read as numbers already.
    as_numbers = encoder.transform(pa.table({"x": pa.array(numbers, pa.float64())}))
    np.testing.assert_array_equal(as_numbers.toarray(), X)


@pytest.mark.parametrize(
    "values",
    [
        [f"{i:05d}" for i in range(60)],  # leading zeros
        [str(10_000 + 7 * i) for i in range(60)],  # of one length: areas
        [str(i % 21) for i in range(600)],  # few: occupations
        [str(i // 2) for i in range(4000)],  # very many
        [*PRICES[:20], *"abcdefghijklmnopqrst"],
        [*PRICES, "Free"] * 2,
        ["4.0", "4.1"] * 20,  # versions
        ["unknown"] * 9,
    ],
)
def test_codes_stay_categories(values):
    assert read(values)[0].columns_ == {"x": "category"}
    frame = pa.table({"x": pa.array(YEARS).dictionary_encode()})
    assert FeatureEncoder().fit(frame).columns_ == {"x": "category"}


def test_words_among_numbers_are_missing_or_refused():
    encoder, X = read([*PRICES, "n/a"])
    assert X[-1].tolist() == [0, 1]
    for one in (encoder, read([*PRICES, "n/a"], "number")[0]):
        later = one.transform(pa.table({"x": ["1.5", "Unknown"]})).toarray()
        np.testing.assert_array_equal(later[:, 1], [0, 1])
        with pytest.raises(
            InputError, match=r"'x': 1 of 2 rows are not numbers.*row 1: x='sold out'"
        ):
            one.transform(pa.table({"x": ["1.5", "sold out"]}))
    assert read(PRICES, "category")[0].columns_ == {"x": "category"}


# --- lists ---

GENRES = [["War", "Drama"], ["War"], ["Drama", "Comedy"], [], None, ["Comedy"], ["War", "Comedy"]]


@pytest.mark.parametrize(
    ("separator", "write"),
    [
        ("|", "|".join),
        (";", "; ".join),
        (",", ", ".join),
        ("[,]", lambda elements: f"[{', '.join(map(repr, elements))}]"),
        ("[,]", json.dumps),
        ("[,]", lambda elements: json.dumps(elements, indent=1)),
        ("[,]", lambda elements: f"[{(',' + chr(13) + chr(10)).join(map(repr, elements))}]"),
        ("|", "|\n".join),
        ("[,]", lambda elements: str(np.array(elements))),
    ],
)
def test_lists_in_strings(separator, write, caplog):
    texts = [None if genres is None else write(genres) for genres in GENRES]
    with caplog.at_level(logging.INFO):
        encoder, X = read(texts)
    assert encoder.columns_ == {"x": "list"}
    assert f"read as list: lists with {separator!r} between elements" in caplog.text
    assert encoder.describe()[0].read_as == f"list split at {separator!r}"
    assert encoder.feature_names_ == ["x=Comedy", "x=Drama", "x=War", "x=<unknown>"]
    expected = FeatureEncoder().fit_transform(pa.table({"x": GENRES})).toarray()
    np.testing.assert_array_equal(X, expected)
    assert read(texts, "category")[0].columns_ == {"x": "category"}
    assert read(texts, f"list:{separator}")[0].columns_ == {"x": "list"}
    assert read(texts, "list")[0].describe()[0].read_as == f"list split at {separator!r}"


@pytest.mark.parametrize(
    "values",
    [
        ["1,000 - 5,000", "5,000 - 10,000", "10,000 - 50,000"] * 9,
        ["Smith, John", "Doe, Jane", "Roe, Richard", "Poe, Edgar"] * 3,
        ["plain", "words"] * 5,
    ],
)
def test_strings_that_are_no_lists(values):
    assert read(values)[0].columns_ == {"x": "category"}


def test_prose_with_commas_is_no_list():
    texts = [
        f"In the year {i}, a man of village {i % 7}, it is said, went away." for i in range(40)
    ]
    assert FeatureEncoder().fit(pa.table({"x": texts})).columns_ == {"x": "text"}


def test_lists_as_pandas_writes_them():
    lists = [["it's", "b"], ["b"], ["a b", "it's", "b"]] * 3
    written = ["""["it's" 'b']""", "['b']", """['a b', "it's", 'b']"""]
    written += ["""["it's", 'b']""", "['b']", """['a b' "it's"\n 'b']"""] * 2
    expected = FeatureEncoder().fit_transform(pa.table({"x": lists})).toarray()
    encoder, X = read(written)
    assert encoder.feature_names_ == ["x=a b", "x=b", "x=it's", "x=<unknown>"]
    np.testing.assert_array_equal(X, expected)


NUMPY = ["['a' None]", "[None None 'a' 'b']", "['a', nan, 'b']", "['b' nan 'a']", "[None]"] * 2


def test_lists_as_numpy_writes_them():
    encoder, X = read(NUMPY)
    assert encoder.feature_names_ == ["x=a", "x=b", "x=<unknown>"]
    np.testing.assert_array_equal(X[:5], [[1, 0, 0], [1, 1, 0], [1, 1, 0], [1, 1, 0], [0, 0, 0]])
    rows = encoder.transform(pa.table({"x": NUMPY[3:5]}))
    assert [encoder.words(row)["x"] for row in rows] == ["a, b", "none"]
    lists = [[1, 2], [2, 30], [1]] * 3
    encoder, X = read([str(np.array(numbers)) for numbers in lists])
    assert encoder.feature_names_ == ["x=1", "x=2", "x=30", "x=<unknown>"]
    np.testing.assert_array_equal(X[:3, :3], [[1, 1, 0], [0, 1, 1], [1, 0, 0]])
    assert read(['["None", "a"]', '["a"]'] * 2)[0].feature_names_[0] == "x=None"


@pytest.mark.parametrize("values", [np.arange(1001), np.arange(1001).astype(str)])
def test_lists_that_numpy_has_cut_short_are_refused(values):
    cut, whole = pa.table({"x": ["[1 2]", str(values)]}), pa.table({"x": ["[1 2]", "['2']"]})
    encoder = FeatureEncoder({"x": "list"}, min_count=1).fit(whole)
    for learn in (FeatureEncoder({"x": "list"}).fit, encoder.transform):
        with pytest.raises(InputError, match=r"cut short .* row 1: .*apply \.tolist\(\)"):
            learn(cut)


def test_lists_over_several_lines_are_the_same_in_tensorflow():
    tf = pytest.importorskip("tensorflow")
    for written in (
        [json.dumps(genres or [], indent=1) for genres in GENRES],
        ["|\r\n".join(genres or []) for genres in GENRES],
        NUMPY,
        ["[1 2]", "[ 2  30]", "[]", "[-1. 2e3]", "[1, 2]"] * 2,
    ):
        encoder, X = read(written)
        codes, there = encoder.encoders_["x"].graph(tf, "x").encode(tf.constant(written))
        found = np.zeros_like(X)
        rows = np.repeat(np.arange(len(X)), codes.shape[1])
        np.add.at(found, (rows, codes.numpy().ravel()), there.numpy().ravel())
        np.testing.assert_array_equal(found, X)


@pytest.mark.parametrize(
    "write",
    [
        *("|".join, "; ".join, ", ".join, json.dumps),
        lambda elements: json.dumps(elements, indent=1),
        lambda elements: str(np.array(elements)),
    ],
)
def test_lists_and_strings_that_are_lists_replace_one_another(write):
    lists = [pa.table({"x": GENRES})]
    texts = [pa.table({"x": [None if genres is None else write(genres) for genres in GENRES]})]
    lists += [lists[0].slice(row, 1) for row in range(len(GENRES))]
    texts += [texts[0].slice(row, 1) for row in range(len(GENRES))]
    for trained in (lists[0], texts[0]):
        encoder = FeatureEncoder().fit(trained)
        for as_list, as_text in zip(lists, texts, strict=True):
            expected = encoder.transform(as_list).toarray()
            np.testing.assert_array_equal(encoder.transform(as_text).toarray(), expected)
    assert encoder.transform(lists[0]).nnz == 8
    numbers = FeatureEncoder({"x": "list"}).fit(pa.table({"x": [[1, 2], [2, 1]]}))
    with pytest.raises(InputError, match="was list of numbers when the encoder was fitted"):
        numbers.transform(pa.table({"x": ["[1, 2]"]}))


def test_strings_for_lists_are_split_where_elements_are_known():
    encoder = FeatureEncoder().fit(pa.table({"x": [["Roe, R.", "War"], ["War", "Roe, R."]]}))
    assert encoder.feature_names_ == ["x=Roe, R.", "x=War", "x=<unknown>"]
    texts = ["Roe, R.|War", "Roe, R.", "War, Other", "Other", "", "[]", None]
    X = encoder.transform(pa.table({"x": texts})).toarray()
    expected = [[1, 1, 0], [1, 0, 0], [0, 1, 1], [0, 0, 1], [0, 0, 0], [0, 0, 0], [0, 0, 0]]
    np.testing.assert_array_equal(X, expected)


def test_any_separator_by_force():
    encoder, _ = read(["a/b", "b/a"], "list:/")
    assert encoder.feature_names_ == ["x=a", "x=b", "x=<unknown>"]
    with pytest.raises(
        InputError, match=r"what separates the elements .* Give it, as in 'list:\|'"
    ):
        FeatureEncoder({"x": "list"}).fit(pa.table({"x": ["one", "two"]}))


# --- what is told ---


def test_describe_tells_of_every_column(caplog):
    table = pa.table(
        {
            "item_id": [1, 2, 3],
            "year": [1990, None, 2000],
            "genres": [["a", "b"], ["a"], None],
            "raw": [b"1", b"2", b"3"],
            "kind": ["a", "a", None],
            "poster": pa.array([[0.5, 1.0]] * 3, pa.list_(pa.float32(), 2)),
            "long": ["x" * 100] * 3,
            "gone": pa.nulls(3),
        }
    )
    encoder = FeatureEncoder({"long": "ignore"}, id_column="item_id").fit(table, name="items")
    rows = {row.column: tuple(row)[1:] for row in encoder.describe()}
    assert list(rows) == table.column_names
    assert rows["item_id"] == ("", "1", 3, 0, "the id")
    assert rows["year"] == ("number", "1990", 2, 1, "yes")
    assert rows["genres"] == ("list", "['a', 'b']", 2, 1, "yes")
    assert rows["kind"] == ("category", "a", 1, 1, "yes")
    assert rows["poster"] == ("vector of 2", "[0.5, 1.0]", None, 0, "yes")
    assert rows["raw"][1:] == (
        "b'1'",
        None,
        0,
        "binary; name a model for images, as in 'image:model.keras'",
    )
    assert rows["long"][1] == "x" * 37 + "..." and rows["long"][-1] == "as asked"
    assert rows["gone"] == ("", "", None, 3, "no row has a value")
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [message.split("'")[1] for message in warned] == ["raw", "gone"]
    assert FeatureEncoder.from_dict(encoder.to_dict()).describe() == encoder.describe()


def test_a_damaged_example_is_refused():
    saved = FeatureEncoder().fit(pa.table({"x": [1]})).to_dict()
    saved["seen"][0][1] = 3
    with pytest.raises(InputError, match="damaged"):
        FeatureEncoder.from_dict(saved)


def test_real_tables_are_read_as_they_are_meant(movielens_1m):
    columns = ["item_id", "genres", "actors"]
    items = pq.read_table(movielens_1m / "items.parquet", columns=columns)
    plain = FeatureEncoder(id_column="item_id").fit(items)
    for separator in ("|", ", "):
        for column in ("genres", "actors"):
            place = items.column_names.index(column)
            joined = pc.binary_join(items[column], separator)
            other = items.set_column(place, column, joined.cast(pa.string()))
            found = FeatureEncoder(id_column="item_id").fit(other)
            assert found.columns_ == plain.columns_
    users = FeatureEncoder(id_column="user_id").fit(movielens_1m / "users.parquet")
    assert users.columns_["occupation"] == users.columns_["zip"] == "category"


# --- the graph of TensorFlow ---


def test_strings_in_the_graph():
    from simrec.simec.keras import tf

    def through(encoder, given):
        graph = encoder.encoders_["x"].graph(tf, "items: column 'x'")
        indices, data = graph.encode(tf.constant(given, graph.dtype))
        dense = np.zeros((len(given), encoder.n_features_), np.float32)
        np.add.at(dense, (np.arange(len(given))[:, None], indices.numpy()), data.numpy())
        return dense

    for write in ("|".join, ", ".join, lambda e: f"[{', '.join(map(repr, e))}]"):
        texts = ["" if genres is None else write(genres) for genres in GENRES]
        encoder, X = read(texts)
        assert encoder.columns_ == {"x": "list"}
        np.testing.assert_array_equal(through(encoder, texts), X)
    texts = [*PRICES, "n/a", "?", ""]
    encoder, X = read(texts)
    np.testing.assert_allclose(through(encoder, texts), X, atol=1e-6)
