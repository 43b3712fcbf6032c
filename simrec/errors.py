"""The one exception SimRec raises for input it cannot use, and wording that errors share."""

import difflib
import json
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import Any


class InputError(ValueError):
    """Input that cannot be used as given.

    The message names what was received, what was expected and how to mend it; the command line
    prints it as it is and exits with code 2.

    >>> try:
    ...     raise InputError("ratings.parquet: no column 'rating'.")
    ... except ValueError as error:
    ...     print(error)
    ratings.parquet: no column 'rating'.
    """


def is_number(value: Any) -> bool:
    """Tell whether a value is a real number; True and False are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_whole(value: Any, least: int = 0) -> bool:
    """Tell whether a value is an integer from `least` on; 3.0 and True are none."""
    return isinstance(value, Integral) and is_number(value) and int(value) >= least


def check_seed(random_state: Any) -> int:
    """Return a seed, a whole number from 0 on."""
    if not is_whole(random_state):
        raise InputError(f"random_state: expected a whole number from 0 on, got {random_state!r}.")
    return int(random_state)


def nearest(word: str, words: Iterable[str]) -> str:
    """Suggest the names closest to a misspelt one, or nothing.

    >>> nearest("raitng", ["rating", "timestamp"])
    " Did you mean 'rating'?"
    """
    by_lower = {known.lower(): known for known in words}
    close = difflib.get_close_matches(word.lower(), by_lower, n=2, cutoff=0.6)
    return f" Did you mean {' or '.join(repr(by_lower[c]) for c in close)}?" if close else ""


def as_json(value: Any) -> str:
    """Write a value of a filter or request as JSON, a long one cut short."""
    try:
        return json.dumps(value, default=str, ensure_ascii=False)[:80]
    except (TypeError, ValueError):  # no JSON: from Python
        return repr(value)[:80]


def plural(n: int, word: str) -> str:
    """Count things: 1 rating, 2 ratings."""
    return f"{n:,} {word}" if n == 1 else f"{n:,} {word}s"


def listing(names: Sequence[str], most: int = 20) -> str:
    """List names for a message, a long list cut short."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more
