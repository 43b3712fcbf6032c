"""What a column is (its family, by Arrow type) and how it is encoded (its kind)."""

import pyarrow as pa
import pyarrow.compute as pc

KINDS = ("number", "category", "list", "vector", "text", "ignore")
"""The ways to encode a column; "ignore" is not to."""

_ALLOWED = {
    "number": ("number", "category"),
    "boolean": ("category", "number"),
    "string": ("category", "text", "number"),
    "time": ("number", "category"),
    "list of strings": ("list",),
    "list of numbers": ("vector", "list"),
}

# Free text: most rows have a value of their own, and most values are several words.
_MOSTLY = 0.5


def family(type_: pa.DataType) -> str:
    """Say what a column of this Arrow type holds.

    Two types of one family can stand in for one another: a column may be int32 in one table and
    int64 (or, from pandas, float with gaps) in the next.

    Returns
    -------
    str
        "number", "boolean", "string", "time", "list of strings", "list of numbers", "nothing"
        (the null type), or the name of the type where SimRec has no use for it.
    """
    types = pa.types
    if types.is_dictionary(type_):
        return family(type_.value_type)
    if types.is_integer(type_) or types.is_floating(type_) or types.is_decimal(type_):
        return "number"
    if types.is_boolean(type_):
        return "boolean"
    if types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_):
        return "string"
    if types.is_date(type_) or types.is_timestamp(type_) or types.is_duration(type_):
        return "time"
    if types.is_null(type_):
        return "nothing"
    if is_list(type_):
        inner = family(type_.value_type)
        if inner in ("string", "number"):
            return f"list of {inner}s"
        if inner == "nothing":
            return "nothing"  # a column of empty lists
    return str(type_)


def is_list(type_: pa.DataType) -> bool:
    """Tell list types, of fixed and of varying length."""
    types = pa.types
    return types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_)


def allowed(type_: pa.DataType) -> tuple[str, ...]:
    """List the kinds that a column of this type can be encoded as."""
    return _ALLOWED.get(family(type_), ())


def default_kind(values: pa.ChunkedArray) -> tuple[str, str]:
    """Choose how to encode a column about which nothing was said.

    Parameters
    ----------
    values : pyarrow.ChunkedArray
        The column.

    Returns
    -------
    kind : str
        One of `KINDS`.
    reason : str
        Why the column is ignored, if it is.
    """
    held = family(values.type)
    if values.null_count == len(values) or held == "nothing":
        return "ignore", "no row has a value"
    if held in ("number", "time"):
        return "number", ""
    if held == "boolean":
        return "category", ""
    if held == "string":
        return _category_or_text(values)
    if held == "list of strings":
        return "list", ""
    if held == "list of numbers":
        fixed = pa.types.is_fixed_size_list(values.type)
        # Lists of integers are ids of something (tags); floats are coordinates. pandas has no
        # fixed-size lists: embeddings come from there as lists of floats.
        return ("vector" if fixed or not _of_integers(values.type) else "list"), ""
    return "ignore", f"columns of type {values.type} are not supported"


def _of_integers(type_: pa.DataType) -> bool:
    inner = type_.value_type
    return pa.types.is_integer(inner.value_type if pa.types.is_dictionary(inner) else inner)


def _category_or_text(values: pa.ChunkedArray) -> tuple[str, str]:
    if pa.types.is_dictionary(values.type):
        return "category", ""  # whoever made a dictionary meant categories
    if pa.types.is_string_view(values.type):
        values = values.cast(pa.large_string())
    known = len(values) - values.null_count
    distinct = pc.unique(values.drop_null())
    if len(distinct) < _MOSTLY * known:
        return "category", ""
    wordy = pc.sum(pc.match_substring(pc.utf8_trim_whitespace(distinct), " ")).as_py()
    if wordy < _MOSTLY * len(distinct):
        return "category", ""
    return "ignore", (
        f"free text ({len(distinct):,} different values in {known:,} rows); "
        "ask for it as 'text' to use its words"
    )
