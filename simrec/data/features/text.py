"""Free text as weighted, hashed words and pairs of words."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.features.column import Column, ColumnSettings, Context, family
from simrec.data.features.matrix import Block
from simrec.errors import InputError

_NOT_A_WORD = r"[^\p{L}\p{N}']+"
_ROWS_AT_ONCE = 1 << 15
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_SILVER = np.uint64(0xC2B2AE3D27D4EB4F)
# Free text: most rows have a value of their own, and most values are several words.
_MOSTLY = 0.5


@dataclass(frozen=True)
class TextColumn(Column):
    """Words and pairs of neighbouring words, hashed to a fixed number of features.

    A feature's value grows with the logarithm of how often its words occur in the text, times how
    rare they are over all texts (tf-idf); each text has length 1. Hashing makes words share
    features, but needs no vocabulary, and new words do no harm: what no text had when fitting is
    left out.

    Attributes
    ----------
    weights : tuple of float
        The idf weight of each feature, 0 for those that no text had.
    terms : tuple of str
        The most frequent word or pair of each feature, which names it.
    """

    kind: ClassVar[str] = "text"
    families: ClassVar[tuple[str, ...]] = ("string",)

    weights: tuple[float, ...]
    terms: tuple[str, ...]

    @classmethod
    def claim(cls, values: pa.ChunkedArray) -> bool | str:
        """Leave free text aside unless it is asked for: its words are many features."""
        if family(values.type) != "string" or not is_free_text(values):
            return False
        known = len(values) - values.null_count
        return (
            f"free text ({len(pc.unique(values.drop_null())):,} different values in {known:,} "
            "rows); ask for it as 'text' to use its words"
        )

    @classmethod
    def fit(
        cls, values: pa.ChunkedArray, context: Context, settings: ColumnSettings
    ) -> "TextColumn":
        """Learn how rare the words are."""
        n_texts, n_hash = 0, settings.n_hash
        frequency = np.zeros(n_hash, dtype=np.int64)
        best = np.zeros(n_hash, dtype=np.int64)
        words = [""] * n_hash
        counts: dict[str, int] = {}
        for texts in _slices(values):
            terms = _terms(texts, n_hash)
            n_texts += len(texts) - texts.null_count
            rows_and_features = np.unique(terms.rows * n_hash + terms.features)
            frequency += np.bincount(rows_and_features % n_hash, minlength=n_hash)
            for word, feature, count in terms.common():
                counts[word] = counts.get(word, 0) + count
                if counts[word] > best[feature]:
                    best[feature], words[feature] = counts[word], word
        weights = np.where(frequency > 0, np.log((1 + n_texts) / (1 + frequency)) + 1, 0.0)
        return cls(family(values.type), tuple(weights.tolist()), tuple(words))

    @property
    def width(self) -> int:
        """Number of features."""
        return len(self.weights)

    def names(self, column: str) -> list[str]:
        """Name the features: `plot~space ship`, or `plot~#17` where no text had any."""
        return [f"{column}~{word or f'#{place}'}" for place, word in enumerate(self.terms)]

    def encode(self, values: pa.ChunkedArray, context: Context) -> Block:
        """Give each row the features of its words; a null or empty text has none."""
        weights = np.array(self.weights)
        indices, data, counts = [], [], []
        for texts in _slices(values):
            terms = _terms(texts, self.width)
            keys, times = np.unique(terms.rows * self.width + terms.features, return_counts=True)
            rows, features = np.divmod(keys, self.width)
            known = weights[features] > 0
            rows, features, times = rows[known], features[known], times[known]
            value = (1 + np.log(times)) * weights[features]
            length = np.sqrt(np.bincount(rows, value**2, minlength=len(texts)))
            indices.append(features.astype(np.int32))
            data.append((value / length[rows]).astype(np.float32))
            counts.append(np.bincount(rows, minlength=len(texts)))
        if not counts:
            return Block(np.empty(0, np.int32), np.empty(0, np.float32), np.empty(0, np.int64))
        return Block(np.concatenate(indices), np.concatenate(data), np.concatenate(counts))

    def to_dict(self) -> dict[str, Any]:
        """Return weights and names."""
        return {"weights": list(self.weights), "words": list(self.terms)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "TextColumn":
        """Restore from `to_dict`."""
        weights, words = tuple(map(float, data["weights"])), tuple(map(str, data["words"]))
        if not weights or len(weights) != len(words) or not all(0 <= w < np.inf for w in weights):
            raise InputError(f"column {data['name']!r}: the weights of its words are damaged")
        return cls(data["family"], weights, words)


def is_free_text(values: pa.ChunkedArray) -> bool:
    """Check whether strings are text in words rather than names and codes, which are categories."""
    if pa.types.is_dictionary(values.type):
        return False  # whoever made a dictionary meant categories
    known = len(values) - values.null_count
    distinct = pc.unique(values.drop_null())
    if len(distinct) < _MOSTLY * known:
        return False
    in_words = pc.sum(pc.match_substring(pc.utf8_trim_whitespace(distinct), " ")).as_py() or 0
    return in_words >= _MOSTLY * len(distinct)


@dataclass(frozen=True)
class _Terms:
    """The words and pairs of some texts: row and feature of each, and how to read them."""

    rows: np.ndarray
    features: np.ndarray
    first: np.ndarray  # code of the word, or of the pair's first
    second: np.ndarray  # code of the pair's second, or -1
    vocabulary: pa.Array

    def common(self) -> Iterator[tuple[str, int, int]]:
        """Yield for each feature the most frequent of its words and pairs, and how often."""
        n_words = len(self.vocabulary) + 1
        pairs, places, times = np.unique(
            self.first * n_words + self.second + 1, return_index=True, return_counts=True
        )
        features = self.features[places]
        order = np.lexsort((pairs, -times, features))
        starts = np.flatnonzero(np.diff(features[order], prepend=-1))
        for lead in order[starts]:
            first, second = divmod(int(pairs[lead]), n_words)
            word = self.vocabulary[first].as_py()
            if second:
                word = f"{word} {self.vocabulary[second - 1].as_py()}"
            yield word, int(features[lead]), int(times[lead])


def _slices(values: pa.ChunkedArray) -> Iterator[pa.Array]:
    """Cut a column into pieces that do not depend on how Arrow has it in chunks."""
    values = values.cast(pa.large_string())
    for start in range(0, len(values), _ROWS_AT_ONCE):
        piece = values.slice(start, _ROWS_AT_ONCE).combine_chunks()
        yield piece.chunk(0) if isinstance(piece, pa.ChunkedArray) else piece


def _terms(texts: pa.Array, n_hash: int) -> _Terms:
    split = pc.split_pattern_regex(pc.utf8_lower(texts), _NOT_A_WORD)
    lengths = pc.fill_null(pc.list_value_length(split), 0).to_numpy().astype(np.int64)
    rows = np.repeat(np.arange(len(texts)), lengths)
    words = split.flatten()
    real = pc.greater(pc.binary_length(words), 0)
    words, rows = words.filter(real).dictionary_encode(), rows[real.to_numpy(zero_copy_only=False)]
    codes = words.indices.to_numpy().astype(np.int64)
    # A hash that is the same everywhere and always: Python's own is salted.
    hashes = np.fromiter(
        (
            int.from_bytes(hashlib.blake2b(w.encode(), digest_size=8).digest(), "little")
            for w in words.dictionary.to_pylist()
        ),
        dtype=np.uint64,
        count=len(words.dictionary),
    )
    single = hashes[codes]
    follows = rows[1:] == rows[:-1]
    pairs = (single[:-1] * _GOLDEN + single[1:] * _SILVER)[follows]
    features = ((np.concatenate([single, pairs]) * _GOLDEN) >> np.uint64(32)) % np.uint64(n_hash)
    return _Terms(
        rows=np.concatenate([rows, rows[1:][follows]]),
        features=features.astype(np.int64),
        first=np.concatenate([codes, codes[:-1][follows]]),
        second=np.concatenate([np.full(len(codes), -1), codes[1:][follows]]),
        vocabulary=words.dictionary,
    )
