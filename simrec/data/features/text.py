"""Free text as its words (TF-IDF), and the principal components of these."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy import sparse

from simrec.data.features.column import (
    MOST_FEATURES,
    ColumnSettings,
    Context,
    Graph,
    family,
    restored_array,
    sparse_rows,
    word_table,
)
from simrec.data.features.strings import MISSING_WORDS, is_free_text, is_missing, with_letters
from simrec.data.features.vector import Components, VectorColumn
from simrec.errors import InputError

_NOT_A_WORD = r"[^\p{L}\p{N}']+"
# Tags and entities of HTML, in lower case; "<b and c>" is none. It is apart from the above because
# one expression for both takes four times as long.
_MARKUP = r"</?[a-z][a-z0-9]*(?:\s+[a-z-]+=[^<>]*)?\s*/?>|&(?:[a-z]+|#[0-9]+|#x[0-9a-f]+);"
_ROWS_AT_ONCE = 1 << 15
# Words of a vocabulary, at most, and those that are features themselves: the ones in most texts.
_MOST_WORDS, _MOST_FEATURES = 1 << 17, 1 << 14
# Share of the texts from which on a word is no feature: half of all entries, and little weight.
_COMMON = 0.1
# Words are spread thinner over components than the numbers of trained vectors: half as many did as
# well on plots and titles of MovieLens 1M, and cost half.
_SHARE = 2
# Words of a text, on average, from which on it has components: those of titles are noise.
_LONG = 10
WORDS = "words"
"""What follows the kind of short texts, such as titles: their words alone are features."""
# Words that describe a text, and the share of the weight of the first of them that
# the others need.
_N_WORDS, _CLEARLY = 3, 0.5


@dataclass(frozen=True, eq=False)
class TextColumn(VectorColumn):
    """The principal components of texts as bags of weighted words, of length 1 (TF-IDF).

    Words of a single text are left out: they say nothing of others. A text without a known word is
    taken as missing. On request, the weights of the words are features beside the components.
    """

    kind: ClassVar[str] = "text"
    families: ClassVar[tuple[str, ...]] = ("string",)

    components: Components
    terms: pa.Array  # the words, ascending
    idf: np.ndarray  # their weights
    spelled: np.ndarray  # places of the words that are features

    def names(self, column: str) -> list[str]:
        """Name the features: `plot[0]`, `plot[1]`, `plot=missing`, and `plot:wizard`."""
        words = self.terms.take(pa.array(self.spelled)).to_pylist()
        return [*super().names(column), *(f"{column}:{word}" for word in words)]

    @property
    def n_words(self) -> int:
        """The number of features that are words; they are the last ones."""
        return len(self.spelled)

    @classmethod
    def claim(cls, values: pa.ChunkedArray) -> bool | str:
        """Take free text; of short texts, such as titles, only the words."""
        if family(values.type) != "string" or not is_free_text(values):
            return False
        words = pc.add(pc.count_substring(pc.utf8_trim_whitespace(values), " "), 1)
        return (pc.mean(words).as_py() or 0) >= _LONG or WORDS

    @classmethod
    def fit(cls, values: pa.ChunkedArray, context: Context, settings: ColumnSettings) -> Self:
        """Learn which words there are, how rare they are, and their components."""
        frequency: Counter[str] = Counter()
        n_texts = 0
        for texts in _slices(values):
            rows, codes, words = _words(texts)
            n_texts += len(texts) - texts.null_count
            of_texts = np.unique(rows * max(len(words), 1) + codes) % max(len(words), 1)
            counts = np.bincount(of_texts, minlength=len(words))
            frequency.update(dict(zip(words.to_pylist(), counts.tolist(), strict=True)))
        least = max(settings.min_count, 2)
        common = [(-count, word) for word, count in frequency.items() if count >= least]
        terms = sorted(word for _, word in sorted(common)[:_MOST_WORDS])
        # Words of nearly every text weigh nothing: they would make the first components.
        idf = np.array([np.log((1 + n_texts) / (1 + frequency[word])) for word in terms])
        own = restored_array(terms, pa.large_string()), idf.astype(np.float32)
        matrix = _weighted(values, *own)
        there = np.diff(matrix.indptr) > 0
        width = 0 if settings.argument == WORDS else max(settings.components // _SHARE, 1)
        components = Components.fit(matrix[there], width)
        counts = np.array([frequency[word] for word in terms], np.int64)
        telling = np.flatnonzero(counts <= max(_COMMON * n_texts, least))
        often = telling[np.argsort(-counts[telling], kind="stable")]
        spelled = np.sort(often[: _MOST_FEATURES * settings.spell])
        missing = not there.all() and components.width > 0
        return cls(family(values.type), missing, len(terms), components, *own, spelled)

    def encode(self, values: pa.ChunkedArray, context: Context) -> sparse.csr_matrix:
        """Return the components of each text, and its words; all zeros without a known one."""
        matrix = _weighted(values, self.terms, self.idf)
        there = np.diff(matrix.indptr) > 0
        dense = self.encode_dense(matrix[there], there)
        return sparse.hstack([dense, matrix[:, self.spelled]], format="csr")

    def to_dict(self) -> dict[str, Any]:
        return {
            "words": self.terms.to_pylist(),
            "idf": [float(f"{weight:.9g}") for weight in self.idf.tolist()],
            "components": self.components.to_dict(),
            "missing": self.missing,
            "spelled": self.spelled.tolist(),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any], *more: Any) -> Self:
        idf, words = np.array(data["idf"], np.float32), tuple(map(str, data["words"]))
        if len(words) > MOST_FEATURES or idf.shape != (len(words),) or not np.isfinite(idf).all():
            raise InputError(f"column {data['name']!r}: the weights of its words are damaged")
        components = Components.from_dict(data["components"], len(words), data["name"])
        terms, missing = restored_array(words, pa.large_string()), bool(data["missing"])
        places = data["spelled"]
        spelled = np.array(places, np.int64)
        whole = all(type(place) is int for place in places)
        if not whole or (np.diff(spelled, prepend=-1, append=len(words)) < 1).any():
            raise InputError(f"column {data['name']!r}: the places of its words are damaged")
        return cls(data["family"], missing, len(words), components, terms, idf, spelled)

    def reading(self) -> str:
        if not self.components.width:
            return f"text: {self.n_words:,} words in lists"
        more = f"; in lists {self.n_words:,} words" if self.n_words else ""
        return f"text: {len(self.terms):,} words, as {self.components.width} components{more}"

    def words(self, features: Sequence[int], values: Sequence[float]) -> str:
        """Return the words that texts with these components have more than others."""
        at, found = np.array(features, np.int64), np.array(values)
        width = self.components.width
        if self.missing and width in at:
            return "missing"
        row, weights = np.zeros(width), np.zeros(len(self.terms))
        row[at[at < width]] = found[at < width]
        own = at >= width + self.missing
        if own.any():
            weights[self.spelled[at[own] - width - self.missing]] = found[own]
        else:
            weights = self.components.back(row)
        heavy = np.argsort(-weights, kind="stable")[:_N_WORDS]
        heavy = heavy[weights[heavy] > max(_CLEARLY * weights.max(initial=0), 0)]
        return ", ".join(self.terms[int(place)].as_py() for place in heavy) or self.kind

    def graph(self, tf: Any, label: str) -> Graph:
        """Build the components of texts; a missing one is the empty string."""
        n_terms = len(self.terms)
        table = word_table(tf, self.terms.to_pylist())
        idf, axes = tf.constant(self.idf), tf.constant(self.components.axes)

        def encode(x: Any) -> tuple[Any, Any]:
            n_rows = tf.shape(x, tf.int64)[0]
            for upper, lower in ("\u0130", "i"), ("\u03a3", "\u03c3"):  # I with a dot, sigma
                x = tf.strings.regex_replace(x, upper, lower)
            x = tf.strings.strip(tf.strings.lower(x, "utf-8"))
            x = tf.where(tf.reduce_any(x[:, None] == tf.constant(MISSING_WORDS), 1), "", x)
            x = tf.strings.regex_replace(x, _MARKUP, " ")
            words = tf.strings.split(tf.strings.regex_replace(x, _NOT_A_WORD, " "))
            places = table.lookup(words.values)
            known = (places >= 0) & (tf.gather(idf, tf.maximum(places, 0)) > 0)
            keys = tf.boolean_mask(words.value_rowids() * n_terms + places, known)
            keys, _, times = tf.unique_with_counts(keys)
            rows, places = keys // max(n_terms, 1), keys % max(n_terms, 1)
            data = (1 + tf.math.log(tf.cast(times, tf.float32))) * tf.gather(idf, places)
            length = tf.sqrt(tf.math.unsorted_segment_sum(data**2, rows, n_rows))
            data = data / tf.gather(length, rows)
            products = data[:, None] * tf.gather(axes, places)
            found = tf.math.unsorted_segment_sum(products, rows, n_rows)
            indices, found = self.slots(tf, self.components.scaled(tf, found), length > 0)
            if not self.n_words:
                return indices, found
            of_word = np.full(n_terms, -1, np.int64)
            of_word[self.spelled] = self.components.width + self.missing + np.arange(self.n_words)
            own = tf.gather(tf.constant(of_word), places)
            rows, own, data = (tf.boolean_mask(one, own >= 0) for one in (rows, own, data))

            def table_of(flat: Any) -> Any:
                return tf.RaggedTensor.from_value_rowids(flat, rows, n_rows).to_tensor()

            return tf.concat([indices, table_of(own)], 1), tf.concat([found, table_of(data)], 1)

        return Graph(tf.string, [None], encode, (table,))


def _weighted(values: pa.ChunkedArray, terms: pa.Array, idf: np.ndarray) -> sparse.csr_matrix:
    """Return texts x words, float32: each text's weights of words, of length 1."""
    pieces, n_terms = [sparse.csr_matrix((0, len(terms)), dtype=np.float32)], len(terms)
    for texts in _slices(values):
        rows, codes, words = _words(texts)
        places = pc.fill_null(pc.index_in(words, value_set=terms), -1)
        places = places.to_numpy().astype(np.int64)[codes]
        known = (places >= 0) & (idf[places] > 0 if n_terms else False)
        keys, times = np.unique(rows[known] * n_terms + places[known], return_counts=True)
        rows, places = np.divmod(keys, max(n_terms, 1))
        data = ((1 + np.log(times)) * idf[places]).astype(np.float32)
        length = np.sqrt(np.bincount(rows, data.astype(np.float64) ** 2, len(texts)))
        data = (data / length[rows]).astype(np.float32)
        counts = np.bincount(rows, minlength=len(texts))
        pieces.append(sparse_rows(places, data, counts, n_terms))
    return sparse.vstack(pieces, format="csr")


def _slices(values: pa.ChunkedArray) -> Iterator[pa.Array]:
    """Cut a column into pieces that do not depend on how Arrow has it in chunks.

    Texts that only say that there is none, such as "n/a", are null.
    """
    values = values.cast(pa.large_string())
    values = pc.if_else(is_missing(values), pa.scalar(None, values.type), values)
    for start in range(0, len(values), _ROWS_AT_ONCE):
        piece = values.slice(start, _ROWS_AT_ONCE).combine_chunks()
        yield piece.chunk(0) if isinstance(piece, pa.ChunkedArray) else piece


def _words(texts: pa.Array) -> tuple[np.ndarray, np.ndarray, pa.Array]:
    """Return the row of each word of some texts, its code, and the word of each code."""
    texts = pc.replace_substring_regex(pc.utf8_lower(with_letters(texts)), _MARKUP, " ")
    split = pc.split_pattern_regex(texts, _NOT_A_WORD)
    lengths = pc.fill_null(pc.list_value_length(split), 0).to_numpy().astype(np.int64)
    rows, words = np.repeat(np.arange(len(texts)), lengths), split.flatten()
    real = pc.greater(pc.binary_length(words), 0)
    words, rows = words.filter(real).dictionary_encode(), rows[real.to_numpy(zero_copy_only=False)]
    return rows, words.indices.to_numpy().astype(np.int64), words.dictionary
