"""The one exception SimRec raises for input it cannot use, and wording that errors share."""

import difflib
from collections.abc import Iterable, Sequence


class InputError(ValueError):
    """Input that cannot be used as given.

    The message names what was received, what was expected and how to mend it; the command line
    prints it as it is and exits with code 2.

    Examples
    --------
    >>> try:
    ...     raise InputError("ratings.parquet: no column 'rating'.")
    ... except ValueError as error:
    ...     print(error)
    ratings.parquet: no column 'rating'.
    """


def nearest(word: str, words: Iterable[str]) -> str:
    """Suggest the names closest to a misspelt one, or nothing.

    Examples
    --------
    >>> nearest("raitng", ["rating", "timestamp"])
    " Did you mean 'rating'?"
    """
    by_lower = {known.lower(): known for known in words}
    close = difflib.get_close_matches(word.lower(), by_lower, n=2, cutoff=0.6)
    return f" Did you mean {' or '.join(repr(by_lower[c]) for c in close)}?" if close else ""


def listing(names: Sequence[str], most: int = 20) -> str:
    """List names for a message, a long list cut short."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more
