"""Wide columns: principal components of vectors and of the words of texts."""

import json
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse

from simrec.data.features import FeatureEncoder
from simrec.data.features.vector import Components
from simrec.errors import InputError

PLOTS = [
    "A ship sails the sea.",
    "The SEA; a ship, a storm!",
    "Soldiers fight a war",
    "the war of soldiers and their sea",
    "",
    None,
    " N/A",
]


def vector_table(rows):
    flat = pa.array(np.asarray(rows, np.float32).ravel())
    return pa.table({"v": pa.FixedSizeListArray.from_arrays(flat, rows.shape[1])})


def low_rank(n, width, rank, rng, noise=0.01):
    rows = rng.normal(size=(n, rank)) @ rng.normal(size=(rank, width))
    return (rows + noise * rng.normal(size=(n, width)) + 3).astype(np.float32)


def restored(encoder):
    return FeatureEncoder.from_dict(json.loads(json.dumps(encoder.to_dict())))


@pytest.mark.parametrize(("n", "width"), [(40, 200), (300, 100)])
@pytest.mark.parametrize("factor", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("make", [np.asarray, sparse.csr_matrix])
def test_components_are_those_of_the_singular_value_decomposition(n, width, factor, make):
    rows = low_rank(n, width, 5, np.random.default_rng(0)) * np.float32(factor)
    found = Components.fit(make(rows), 5)(make(rows))
    left, spread, _ = np.linalg.svd(rows.astype(np.float64) - rows.mean(0), full_matrices=False)
    expected = left[:, :5] * spread[:5]
    expected /= np.sqrt(np.square(expected).sum() / n)
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=5e-3)
    assert np.var(found, axis=0).sum() == pytest.approx(1, abs=5e-3)


@pytest.mark.parametrize("n", [1, 2, 9])
def test_rows_that_do_not_differ_have_no_components(n):
    assert Components.fit(np.ones((n, 70), np.float32), 8).width == 0
    assert Components.fit(np.zeros((n, 70), np.float32), 8).width == 0


def test_long_vectors_are_reduced_and_short_ones_are_not():
    rng = np.random.default_rng(1)
    table = vector_table(low_rank(500, 384, 10, rng, noise=0.1))
    encoder = FeatureEncoder()
    X = encoder.fit_transform(table)
    assert X.shape == (500, 64) and encoder.feature_names_[3] == "v[3]"
    assert encoder.describe()[0].read_as == "vector of 384, as 64 components"
    assert X.toarray().var(axis=0).sum() == pytest.approx(1, abs=0.01)
    # The ten directions that there are carry it all.
    assert X.toarray().var(axis=0)[:10].sum() > 0.99
    again = restored(encoder)
    np.testing.assert_array_equal(again.transform(table).toarray(), X.toarray())
    assert encoder.words(X[0]) == {"v": "vector"}
    assert (
        FeatureEncoder().fit(vector_table(low_rank(500, 64, 3, rng))).feature_names_[63] == "v[63]"
    )
    assert FeatureEncoder(components=8).fit_transform(table).shape == (500, 8)


def test_any_rows_of_long_vectors_are_encoded_as_among_all():
    table = vector_table(low_rank(700, 300, 9, np.random.default_rng(2)))
    encoder = FeatureEncoder().fit(table)
    whole = encoder.transform(table).toarray()
    for start, stop in ((0, 1), (5, 8), (300, 700), (699, 700)):
        part = encoder.transform(table.slice(start, stop - start)).toarray()
        np.testing.assert_array_equal(part, whole[start:stop])


def test_a_zero_is_told_as_zero():
    """Not as 5e-09: numbers are stored standardised, as float32."""
    table = pa.table({"x": [0.0] * 7 + [1.0] * 4, "year": [*range(1990, 2001)]})
    encoder = FeatureEncoder()
    X = encoder.fit_transform(table)
    assert encoder.words(X[0]) == {"x": "0", "year": "1990"}
    assert encoder.words(X[9])["x"] == "1"


def test_missing_long_vectors_and_stray_ones():
    rows = low_rank(50, 100, 4, np.random.default_rng(3)).tolist()
    table = pa.table({"v": pa.array([*rows, None], pa.list_(pa.float32(), 100))})
    encoder = FeatureEncoder()
    X = encoder.fit_transform(table).toarray()
    assert encoder.feature_names_[-1] == "v=missing"
    assert X[-1, -1] == 1 and not X[-1, :-1].any() and not X[:-1, -1].any()
    assert encoder.words(encoder.transform(table)[50]) == {"v": "missing"}
    far = pa.table({"v": pa.array([[1e14] * 100], pa.list_(pa.float32(), 100))})
    assert np.abs(encoder.transform(far).toarray()).max() <= 1000


def test_a_fit_takes_well_under_a_second():
    table = vector_table(low_rank(3700, 384, 30, np.random.default_rng(4), noise=0.5))
    start = time.process_time()
    encoder = FeatureEncoder()
    encoder.fit_transform(table)
    assert time.process_time() - start < 1.5  # 0.15 on an idle core
    assert FeatureEncoder().fit(table).to_dict() == encoder.to_dict()


def test_a_hundred_thousand_words():
    rng = np.random.default_rng(5)
    n, width = 5000, 100_000
    words, start = rng.integers(0, width, n * 50), np.arange(n + 1) * 50
    rows = sparse.csr_matrix((np.ones(n * 50, np.float32), words, start), shape=(n, width))
    assert Components.fit(rows, 64).axes.shape == (width, 64)


# --- text ---


def test_text_becomes_components_of_its_words():
    encoder = FeatureEncoder({"plot": "text"})
    X = encoder.fit_transform(pa.table({"plot": PLOTS})).toarray()
    assert encoder.feature_names_[-1] == "plot=missing"
    assert encoder.feature_names_[0] == "plot[0]"
    np.testing.assert_array_equal(X[:, -1], [0, 0, 0, 0, 1, 1, 1])
    assert not X[4:, :-1].any()
    # The two about a ship are alike, the two about a war are alike, and those are not.
    close = X[:4, :-1] @ X[:4, :-1].T
    assert close[0, 1] > 0 > close[0, 2] and close[2, 3] > 0 > close[1, 2]
    assert encoder.describe()[0].read_as == "text: 6 words, as 3 components"
    saved = encoder.to_dict()["columns"][0]
    assert saved["words"] == ["a", "sea", "ship", "soldiers", "the", "war"]
    # "sea" is in three texts, "ship" in two.
    assert saved["idf"][2] > saved["idf"][1] > 0
    np.testing.assert_array_equal(
        restored(encoder).transform(pa.table({"plot": PLOTS})).toarray(), X
    )


def test_words_never_seen_do_nothing():
    encoder = FeatureEncoder({"plot": "text"}).fit(pa.table({"plot": PLOTS}))
    texts = ["completely different", "war", "war, differently"]
    later = encoder.transform(pa.table({"plot": texts})).toarray()
    assert later[0, -1] == 1 and not later[0, :-1].any()
    np.testing.assert_array_equal(later[1], later[2])


def test_a_row_of_text_is_told_by_its_words():
    encoder = FeatureEncoder({"plot": "text"})
    X = encoder.fit_transform(pa.table({"plot": PLOTS}))
    told = [encoder.words(X[row])["plot"] for row in range(7)]
    assert "ship" in told[0] and {"soldiers", "war"} & set(told[2].split(", "))
    assert told[4:] == ["missing"] * 3


def test_markup_is_no_word():
    marked = [
        "The <b>sea</b>&nbsp;&amp; a<br />ship",
        '<a href="x.org/ship">Sea</a>&quot;ship&#39;',
    ]
    plain, marked = ["the sea a ship", "sea ship", "b < a"] * 2, [*marked, "b < a"] * 2
    encoders = [FeatureEncoder({"t": "text"}).fit(pa.table({"t": t})) for t in (plain, marked)]
    assert encoders[0].to_dict()["columns"] == encoders[1].to_dict()["columns"]


def test_letters_written_as_entities_are_letters():
    written = ["Caf&eacute; No&#235;l &amp; &#xe9;t&eacute;"] * 2
    encoder = FeatureEncoder({"t": "text"}, spell=True).fit(pa.table({"t": written}))
    assert encoder.to_dict()["columns"][0]["words"] == ["café", "noël", "été"]


def test_texts_without_any_common_word():
    """A title whose words are in no other says nothing; it is left out, and the reason is told."""
    for kind, spell in (("text", False), ("text", True), (None, True)):
        encoder = FeatureEncoder({"plot": kind} if kind else None, spell=spell)
        table = {"plot": [f"w{k} v{k}" for k in range(40)], "x": np.arange(40)}
        assert encoder.fit_transform(pa.table(table)).shape == (40, 2)
        assert encoder.feature_names_ == ["x", "x=missing"]
        assert "no word of it is in several texts" in encoder.ignored_["plot"]


def test_thousands_of_short_texts_a_second():
    rng = np.random.default_rng(6)
    words = np.array([f"word{i}" for i in range(5000)])
    texts = [" ".join(words[rng.zipf(1.3, 12) % 5000]) for _ in range(20_000)]
    encoder = FeatureEncoder({"t": "text"}).fit(pa.table({"t": texts}))
    start = time.process_time()
    encoder.transform(pa.table({"t": texts}))
    assert len(texts) / (time.process_time() - start) > 5000  # 300,000 on an idle core


def test_plots_of_movielens_tell_what_they_are_about(movielens_1m):
    table = pq.read_table(movielens_1m / "items.parquet", columns=["title", "plot"])
    encoder = FeatureEncoder({"title": "text", "plot": "text"})
    X = encoder.fit_transform(table)
    assert X.shape[1] <= 66 and X.toarray().var() > 0
    told, there = 0, 0
    for row, plot in list(enumerate(table["plot"].to_pylist()))[::40]:
        words = encoder.words(X[row])["plot"].split(", ")
        told += len(words)
        there += sum(word in (plot or "missing").lower() for word in words)
    assert (
        there / told > 0.75
    )  # components tell of words that such texts have, not all of them here


# --- the graph of TensorFlow ---


@pytest.fixture(scope="module")
def tf():
    from simrec.simec.keras import tf

    return tf


def through_graph(tf, encoder, column, given):
    graph = encoder.encoders_[column].graph(tf, "items: column")
    tensor = tf.constant(given, graph.dtype)
    indices, data = graph.encode(tensor)
    dense = np.zeros((len(given), encoder.n_features_), np.float32)
    np.add.at(dense, (np.arange(len(given))[:, None], indices.numpy()), data.numpy())
    return dense


def test_text_and_long_vectors_in_the_graph(tf):
    texts = [
        *PLOTS[:5],
        "n/a",
        "Été: l'ÉTÉ, the sea",
        "unheard of",
        "A&amp;sea<BR>war &#38; sea<br/>",
        "İstanbul, İZMİR: ΟΔΟΣ SEA",
    ]
    encoder = FeatureEncoder({"t": "text"}).fit(pa.table({"t": texts * 2}))
    expected = encoder.transform(pa.table({"t": texts})).toarray()
    np.testing.assert_allclose(through_graph(tf, encoder, "t", texts), expected, atol=1e-5)
    rows = low_rank(50, 100, 4, np.random.default_rng(3))
    gaps = pa.array([*rows.tolist(), None], pa.list_(pa.float32(), 100))
    encoder = FeatureEncoder().fit(pa.table({"v": gaps}))
    expected = encoder.transform(pa.table({"v": gaps})).toarray()
    given = np.vstack([rows, np.full((1, 100), np.nan)])
    np.testing.assert_allclose(through_graph(tf, encoder, "v", given), expected, atol=1e-5)


def test_words_of_texts_are_features_on_request():
    table = pa.table({"plot": PLOTS * 5 + [f"dragon number{k} sleeps" for k in range(2)]})
    plain = FeatureEncoder({"plot": "text"}).fit(table)
    encoder = FeatureEncoder({"plot": "text"}, spell=True).fit(table)
    n = plain.n_features_
    assert encoder.feature_names_[:n] == plain.feature_names_
    # Words of one text, and of more than a tenth of all texts, are no features.
    assert encoder.feature_names_[n:] == ["plot:dragon", "plot:sleeps"]
    assert encoder.spelled_.tolist() == [False] * n + [True] * 2
    assert set(encoder.groups_) == {0} and not plain.spelled_.any()
    X = encoder.transform(table)
    assert (X[:, :n] != plain.transform(table)).nnz == 0
    np.testing.assert_allclose(X[-1:, n:].toarray(), [[np.sqrt(0.5)] * 2], rtol=1e-6)
    assert X[:-2, n:].nnz == 0
    assert encoder.words(X[-1:]) == {"plot": "dragon, sleeps"}
    again = restored(encoder)
    assert (again.transform(table) != X).nnz == 0
    assert encoder.describe()[0].read_as.endswith("components; in lists 2 words")
    damaged = encoder.to_dict()
    for places in ([10**6], [3, 3], [4, 1], [0.7], ["1"], [True], [-1]):
        damaged["columns"][0]["spelled"] = places
        with pytest.raises(InputError, match="places of its words"):
            FeatureEncoder.from_dict(damaged)


def test_titles_are_words_for_lists_alone(tf):
    names = [f"{a}{b}" for a in ("ash", "elm", "oak", "yew", "fir") for b in ("ton", "ham", "ley")]
    table = pa.table({"title": [f"{names[k % 15]} no {k}" for k in range(60)]})
    assert FeatureEncoder().fit(table).ignored_["title"].startswith("short free text")
    encoder = FeatureEncoder(spell=True, min_count=2).fit(table)
    assert encoder.spelled_.all() and encoder.n_features_ > 0
    assert encoder.describe()[0].read_as == f"text: {encoder.n_features_} words in lists"
    X = encoder.transform(table)
    found = through_graph(tf, encoder, "title", table["title"].to_pylist())
    np.testing.assert_allclose(found, X.toarray(), atol=1e-6)
    assert (restored(encoder).transform(table) != X).nnz == 0
