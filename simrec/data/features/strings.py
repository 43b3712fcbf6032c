"""What strings hold: numbers or lists, found from the data; and how each is taken apart."""

import html
import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.features.column import Context, restored_array
from simrec.data.tables import NUMBER

MISSING_WORDS = (
    *("", "-", "--", ".", "?", "\\n", "n.a.", "n/a", "na", "nan", "nil", "none"),
    *("not available", "null", "missing", "tba", "tbd", "undefined", "unknown"),
)
"""What people write where a number is not known, in lower case."""

BRACKETS = "[,]"
"""The separator of lists as Python, JSON or NumPy writes them: ``['a', 'b']``, ``['a' 'b']``."""

# Lists as NumPy writes them: elements without a comma between (replaced twice: None is both of
# its ends), numbers alone, where elements were left out, and what stands for a missing one.
_END = r"""(['"]|\bNone\b|\bnan\b)"""
NO_COMMA, BARE_NUMBERS = rf"{_END}\s+{_END}", r"[\s\d.eE+-]+"
CUT_SHORT = r"""^[^'"]*[\d.],?\s+\.\.\.,?\s+[\d-]|['"],?\s+\.\.\.,?\s+['"]"""
NO_ELEMENT = r"^[ \t\r\n]*(None|nan|null)[ \t\r\n]*$"
_ENTITY = "&#?[0-9A-Za-z]+;"
# Values that are looked at.
_ENOUGH = 20_000
# Numbers are measures if they have decimals (or some are unknown) and this many values. Whole ones
# are codes, such as occupations and areas, unless they have some more values but not very many.
_FEW, _SOME_VALUES, _MANY = 10, 30, 1000
# Separators: share of the strings that have it, occurrences of an element, longest mean length.
_BLANKS = 1.5  # in an element
_SEPARATORS = {"|": (0.02, 1.1, 60), ";": (0.1, 1.2, 40), ",": (0.5, 1.5, 25)}
# Free text: most rows have a value of their own, and most values are several words. Names that some
# rows share, such as those of companies, are categories: they are shorter than this, in words.
_MOSTLY, _NEARLY_ALL, _LONG = 0.5, 0.95, 3


Reading = tuple[str, str, str]
"""How to encode strings: kind and argument, as in `list:|`, and why, for the log."""


def reading(values: pa.ChunkedArray) -> Reading | None:
    """Find out whether strings hold numbers or lists; None if they are what they are."""
    if pa.types.is_dictionary(values.type):
        return None  # whoever made a dictionary meant categories
    texts = pc.unique(pc.utf8_trim_whitespace(values.drop_null().cast(pa.large_string())))
    texts = texts.slice(0, _ENOUGH)
    known = texts.filter(pc.invert(is_missing(texts)))
    if not len(known):
        return None
    if _are_measures(known, some_missing=len(known) < len(texts)):
        return "number", "", "strings that are numbers"
    separator = separator_of(known)
    if separator is None:
        return None
    return "list", separator, f"lists with {separator!r} between elements"


def _are_measures(texts: pa.Array, some_missing: bool) -> bool:
    """Check whether strings are numbers that measure something, and no codes."""
    if not pc.all(pc.match_substring_regex(texts, NUMBER)).as_py():
        return False
    if pc.any(pc.match_substring_regex(texts, r"^[+-]?0\d")).as_py():
        return False  # 01234 is a code
    whole, lengths = pc.match_substring_regex(texts, r"^[+-]?\d+$"), pc.utf8_length(texts)
    if some_missing or not pc.all(whole).as_py():
        return len(texts) >= _FEW
    of_one_length = pc.min(lengths).as_py() == pc.max(lengths).as_py() >= 5
    return not of_one_length and _SOME_VALUES <= len(texts) <= _MANY


def separator_of(texts: pa.Array) -> str | None:
    """Find what separates the elements of lists in strings; None if these are no lists.

    Elements recur from list to list and are short; in prose neither is so.
    """
    if _share(pc.match_substring_regex(texts, r"(?s)^\[.*\]$")) > _NEARLY_ALL:
        return BRACKETS
    for separator, (share, recurring, longest) in _SEPARATORS.items():
        if _share(pc.match_substring(texts, separator)) < share or (
            separator == "," and pc.any(pc.match_substring_regex(texts, r"\d,\d")).as_py()
        ):
            continue
        elements = split(pa.chunked_array([texts]), separator)[1].drop_null()
        distinct = pc.unique(elements)
        if (
            len(distinct)
            and len(elements) >= recurring * len(distinct)
            and pc.mean(pc.utf8_length(distinct)).as_py() <= longest
            and pc.mean(pc.count_substring(distinct, " ")).as_py() <= _BLANKS
        ):
            return separator
    return None


def _share(which: pa.Array) -> float:
    return pc.mean(which.cast(pa.int8())).as_py() or 0.0


def split(values: pa.ChunkedArray, separator: str) -> tuple[np.ndarray, pa.Array]:
    """Take lists in strings apart: the number of elements of each, and all elements.

    Elements lose the blanks and line ends around them; empty ones are null.
    """
    texts = values.cast(pa.large_string()).combine_chunks()
    quotes = " \t\r\n"
    if separator == BRACKETS:
        texts, separator, quotes = pc.utf8_trim(texts, " \t\r\n[]"), ",", " \t\r\n'\""
        for _ in range(2):
            texts = pc.replace_substring_regex(texts, NO_COMMA, r"\1,\2")
        bare = pc.match_substring_regex(texts, f"^{BARE_NUMBERS}$")
        texts = pc.if_else(bare, pc.replace_substring_regex(texts, r"\s+", separator), texts)
    lists = pc.split_pattern(texts, separator)
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
    elements = lists.flatten()
    if "'" in quotes:
        elements = pc.replace_substring_regex(elements, NO_ELEMENT, "")
    elements = pc.utf8_trim(elements, quotes)
    none = pa.scalar(None, elements.type)
    return lengths, pc.if_else(pc.equal(elements, ""), none, elements)


def lists(values: pa.ChunkedArray, separator: str) -> pa.Array:
    """Return lists in strings as lists."""
    lengths, elements = split(values, separator)
    ends = pa.array(np.append(0, np.cumsum(lengths)), pa.int32())
    return pa.ListArray.from_arrays(ends, elements, mask=values.is_null().combine_chunks())


def with_letters(texts: pa.Array) -> pa.Array:
    """Return texts with letters in place of those that are entities of HTML: ``&eacute;``."""
    if not pc.any(pc.match_substring_regex(texts, _ENTITY)).as_py():
        return texts

    def letter(entity: re.Match[str]) -> str:
        found = html.unescape(entity[0])
        return found if found.isalpha() else entity[0]

    found = [text and re.sub(_ENTITY, letter, text) for text in texts.to_pylist()]
    return pa.array(found, texts.type)


def is_free_text(values: pa.ChunkedArray) -> bool:
    """Check whether strings are text in words rather than names and codes, which are categories."""
    if pa.types.is_dictionary(values.type):
        return False  # whoever made a dictionary meant categories
    known = len(values) - values.null_count
    distinct = pc.unique(values.drop_null())
    if not len(distinct) or len(distinct) < _MOSTLY * known:
        return False
    blanks = pc.count_substring(pc.utf8_trim_whitespace(distinct), " ")
    if pc.sum(pc.greater(blanks, 0)).as_py() < _MOSTLY * len(distinct):
        return False
    return len(distinct) > _NEARLY_ALL * known or pc.mean(blanks).as_py() + 1 >= _LONG


def to_numbers(values: pa.ChunkedArray, context: Context) -> pa.ChunkedArray:
    """Read strings as float64; words for what is not known become null, others are an error."""
    texts = pc.utf8_trim_whitespace(values.cast(pa.large_string()))
    good = pc.fill_null(pc.match_substring_regex(texts, NUMBER), False)
    bad = pc.and_not(pc.is_valid(texts), pc.or_(good, is_missing(texts)))
    if pc.any(bad).as_py():
        remedy = "Correct them, or encode the column as 'category' or 'text'."
        raise context.bad(np.asarray(bad, dtype=bool), "are not numbers", remedy)
    return pc.if_else(good, texts, pa.scalar(None, texts.type)).cast(pa.float64())


def is_missing(texts: pa.Array) -> pa.Array:
    """Return which texts are words for what is not known."""
    lower = pc.utf8_lower(pc.utf8_trim_whitespace(texts))
    return pc.is_in(lower, restored_array(MISSING_WORDS, pa.large_string()))
