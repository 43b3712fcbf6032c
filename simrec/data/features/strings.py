"""What strings hold: numbers, dates or lists, found from the data; and how each is taken apart."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.features.column import Context, restored_array
from simrec.errors import InputError

MISSING_WORDS = (
    *("", "-", "--", ".", "?", "\\n", "n.a.", "n/a", "na", "nan", "nil", "none"),
    *("not available", "null", "missing", "tba", "tbd", "undefined", "unknown"),
)
"""What people write where a number or a date is not known, in lower case."""

NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
"""A number in a string, as a regular expression."""

BRACKETS = "[,]"
"""The separator of lists as Python or JSON writes them: ``['a', 'b']``."""

_DATES = (
    *("%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%Y"),
    *("%d-%b-%Y", "%d %b %Y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y", "%m/%d/%Y", "%d/%m/%Y"),
    *("%d-%m-%Y", "%m/%d/%Y %H:%M", "%d/%m/%Y %H:%M", "%d.%m.%Y %H:%M"),
)
# Values that are looked at, and those that decide which formats of dates are tried on all.
_ENOUGH, _SOME = 20_000, 200
# Rows of a column of numbers or dates that may hold other words, and how many different ones.
_OTHER_ROWS, _OTHER_WORDS = 0.05, 5
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
    """Find out whether strings hold numbers, dates or lists; None if they are what they are."""
    if pa.types.is_dictionary(values.type):
        return None  # whoever made a dictionary meant categories
    counted = pc.value_counts(pc.utf8_trim_whitespace(values.drop_null().cast(pa.large_string())))
    counted = counted.slice(0, _ENOUGH)
    texts, counts = counted.field("values"), counted.field("counts").to_numpy()
    unknown = is_missing(texts)
    texts, counts = texts.filter(pc.invert(unknown)), counts[~_mask(unknown)]
    if not len(texts):
        return None
    found = _numbers(texts, counts, bool(_mask(unknown).any())) or _dates(texts, counts)
    separator = None if found else separator_of(texts)
    if separator is not None:
        return "list", separator, f"lists with {separator!r} between elements"
    return found


def _numbers(texts: pa.Array, counts: np.ndarray, some_missing: bool) -> Reading | None:
    is_number = pc.match_substring_regex(texts, NUMBER)
    others = _others(texts, counts, is_number)
    if others is None:
        return None
    found = texts.filter(is_number)
    whole, lengths = pc.match_substring_regex(found, r"^[+-]?\d+$"), pc.utf8_length(found)
    if pc.any(pc.match_substring_regex(found, r"^[+-]?0\d")).as_py():
        return None  # 01234 is a code
    if pc.all(whole).as_py() and not (some_missing or others):
        of_one_length = pc.min(lengths).as_py() == pc.max(lengths).as_py() >= 5
        if of_one_length or not _SOME_VALUES <= len(found) <= _MANY:
            return None
    elif len(found) < _FEW:
        return None
    return "number", "words", f"strings that are numbers{_as_missing(others)}"


def _dates(texts: pa.Array, counts: np.ndarray) -> Reading | None:
    few = texts.slice(0, _SOME)
    for form in _DATES:
        if pc.sum(pc.is_valid(_as_date(few, form))).as_py() < (1 - 2 * _OTHER_ROWS) * len(few):
            continue
        others = _others(texts, counts, pc.is_valid(_as_date(texts, form)))
        if others is not None:
            return "date", f"words:{form}", f"dates written as {form}{_as_missing(others)}"
    return None


def _others(texts: pa.Array, counts: np.ndarray, good: pa.Array) -> list[str] | None:
    """Return the few texts that are not good, None where they are too many."""
    bad = ~_mask(good)
    if counts[bad].sum() > _OTHER_ROWS * counts.sum() or np.count_nonzero(bad) > _OTHER_WORDS:
        return None
    return texts.filter(pc.invert(good)).to_pylist()


def _as_missing(others: list[str]) -> str:
    return f"; {', '.join(map(repr, others))} taken as missing" if others else ""


def separator_of(texts: pa.Array) -> str | None:
    """Find what separates the elements of lists in strings; None if these are no lists.

    Elements recur from list to list and are short; in prose neither is so.
    """
    if _share(pc.match_substring_regex(texts, r"^\[.*\]$")) > 1 - _OTHER_ROWS:
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

    Elements lose the blanks around them; empty ones are null.
    """
    texts = values.cast(pa.large_string()).combine_chunks()
    quotes = " \t"
    if separator == BRACKETS:
        texts, separator, quotes = pc.utf8_trim(texts, " []"), ",", " \t'\""
    lists = pc.split_pattern(texts, separator)
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
    elements = pc.utf8_trim(lists.flatten(), quotes)
    none = pa.scalar(None, elements.type)
    return lengths, pc.if_else(pc.equal(elements, ""), none, elements)


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


def to_numbers(values: pa.ChunkedArray, context: Context, lenient: bool) -> pa.ChunkedArray:
    """Read strings as float64; words for what is not known become null.

    All other words become null too if `lenient`, and are an error otherwise.
    """
    texts = pc.utf8_trim_whitespace(values.cast(pa.large_string()))
    good = pc.fill_null(pc.match_substring_regex(texts, NUMBER), False)
    _check(texts, good, context, lenient, "are not numbers", "category' or 'text")
    return pc.if_else(good, texts, pa.scalar(None, texts.type)).cast(pa.float64())


def to_dates(
    values: pa.ChunkedArray, form: str, context: Context, lenient: bool
) -> pa.ChunkedArray:
    """Read strings in this format as timestamps; see `to_numbers`."""
    texts = pc.utf8_trim_whitespace(values.cast(pa.large_string()))
    dates = _as_date(texts, form)
    problem = f"are not dates written as {form}"
    _check(texts, pc.is_valid(dates), context, lenient, problem, "category' or 'date:%Y-%m-%d")
    return dates


def date_format(values: pa.ChunkedArray, context: Context) -> str:
    """Find how the dates of a column are written."""
    found = reading(values)
    if found is None or found[0] != "date":
        raise InputError(
            f"{context.label}: column {context.column!r}: how its dates are written was not found. "
            "Give it, as in 'date:%d/%m/%Y'."
        )
    return found[1].removeprefix("words:")


def _check(
    texts: pa.ChunkedArray,
    good: pa.ChunkedArray,
    context: Context,
    lenient: bool,
    problem: str,
    other_kind: str,
) -> None:
    """Refuse texts that are not good and do not mean missing either."""
    bad = pc.and_not(pc.is_valid(texts), pc.or_(good, is_missing(texts)))
    if not lenient and pc.any(bad).as_py():
        remedy = f"Correct them, or encode the column as '{other_kind}'."
        raise context.bad(_mask(bad), problem, remedy)


def _as_date(texts: pa.Array, form: str) -> pa.Array:
    if form.startswith("%Y-%m-%d"):  # ISO 8601: T or a blank, fractions of seconds, a zone
        texts = pc.replace_substring_regex(texts, r"^(\d{4}-\d\d-\d\d)T", r"\1 ")
        pattern = r"^(\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)?)(\.\d+)?(Z|[+-]\d\d:?\d\d)?$"
        texts = pc.replace_substring_regex(texts, pattern, r"\1")
    dates = pc.strptime(texts, form, "s", error_is_null=True)
    # %Y takes 95 for the year 95.
    true = pc.greater_equal(pc.year(dates), 1000)
    return pc.if_else(true, dates, pa.scalar(None, dates.type))


def is_missing(texts: pa.Array) -> pa.Array:
    """Return which texts are words for what is not known."""
    lower = pc.utf8_lower(pc.utf8_trim_whitespace(texts))
    return pc.is_in(lower, restored_array(MISSING_WORDS, pa.large_string()))


def _mask(values: pa.Array | pa.ChunkedArray) -> np.ndarray:
    return np.asarray(values.to_numpy(zero_copy_only=False), dtype=bool)
