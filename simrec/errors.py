"""The one exception SimRec raises for input it cannot use, and wording that errors share."""

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral, Real
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
# What other libraries call an argument.
_ELSEWHERE = {
    **dict.fromkeys(("n", "N", "top_k", "top_n", "topk", "limit", "n_items"), "k"),
    **dict.fromkeys(("factors", "n_factors", "no_components", "latent_dim"), "embedding_dim"),
    **dict.fromkeys(("n_epochs", "iterations", "n_iter", "num_epochs"), "epochs"),
    **{"item_features": "items", "user_features": "users", "seed": "random_state"},
    **{"seed_value": "random_state", "filter_already_liked_items": "exclude"},
}


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


def wrong_argument(what: str, word: str, known: Sequence[str]) -> str:
    """Say that there is no such argument, and which one is meant.

    Examples
    --------
    >>> wrong_argument("recommend", "n", ["users", "k"])
    "recommend has no argument 'n'. Did you mean 'k'? It takes users, k."
    """
    other = _ELSEWHERE.get(word)
    meant = f" Did you mean {other!r}?" if other in known else nearest(word, known)
    return f"{what} has no argument {word!r}.{meant} It takes {', '.join(known)}."


def named_arguments(function: Function) -> Function:
    """Name the right arguments where a call has others."""
    signature = inspect.signature(function).parameters.values()
    known = [one.name for one in signature if one.name != "self"]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError:
            unknown = [name for name in kwargs if name not in known]
            if unknown:
                raise TypeError(wrong_argument(function.__name__, unknown[0], known)) from None
            places = [one.name for one in signature if one.kind is one.POSITIONAL_OR_KEYWORD]
            if len(args) > len(places):
                first = ", ".join(name for name in places if name not in ("self", "y"))
                rest = ", ".join(f"{name}=..." for name in known if name not in places)
                raise TypeError(
                    f"{function.__name__}: give tables and settings by name: "
                    f"{function.__name__}({first}, {rest})"
                ) from None
            raise

    return call  # type: ignore[return-value]
