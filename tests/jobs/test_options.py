import os
from dataclasses import dataclass
from typing import Literal

import pytest

from simrec import InputError
from simrec.jobs.options import call, nearest, options_of


@dataclass(frozen=True)
class Extra:
    """Extra.

    Parameters
    ----------
    workers : int, optional
        How many. Not too many.
    """

    workers: int | None = None


def job(
    out: str | os.PathLike,
    k: int = 10,
    share: float = 0.5,
    layers: tuple[int, ...] = (),
    bounds: tuple[float, float] | None = None,
    mode: Literal["fast", "exact"] = "exact",
    l2: float | Literal["auto"] = "auto",
    kinds: dict[str, str] | None = None,
    flag: bool = False,
    callback: "Unimportable | None" = None,  # noqa: F821
    extra: Extra = Extra(),
):
    """Do it.

    Parameters
    ----------
    out : path
        Where to. And more.
    k, share : number
        How much,
        over two lines.

    Returns
    -------
    tuple
    """
    return out, k, share, layers, bounds, mode, l2, kinds, flag, extra


def test_a_signature_becomes_options():
    options = options_of(job)
    assert list(options) == [
        *("out", "k", "share", "layers", "bounds", "mode", "l2", "kinds", "flag"),
        "workers",
    ]
    assert options["out"].required and options["out"].path
    assert options["out"].help == "Where to"
    assert options["k"].help == options["share"].help == "How much, over two lines"
    assert options["bounds"].count == 2 and options["layers"].count == "*"
    assert options["mode"].choices == ("fast", "exact")
    assert options["workers"].group == "extra" and options["workers"].help == "How many"
    assert options["k"].flag == "--k"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("k", "3", 3),
        ("share", "3", 3.0),
        ("l2", "0.1", 0.1),
        ("l2", "auto", "auto"),
        ("mode", "fast", "fast"),
        ("workers", "none", None),
        ("flag", "yes", True),
        ("out", "a/b", "a/b"),
    ],
)
def test_words_are_read(name, text, value):
    parsed = options_of(job)[name].parse(text)
    assert parsed == value and type(parsed) is type(value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("k", 1.5, "k: expected an integer, got 1.5"),
        ("k", True, "expected an integer"),
        ("share", "x", "expected a number"),
        ("mode", "slow", "one of fast, exact"),
        ("bounds", [1], "a list of 2, each a number"),
        ("layers", 3, "a list"),
        ("l2", "lots", "a number or one of auto"),
        ("kinds", ["age"], "a table of names"),
        ("flag", 1, "true or false"),
    ],
)
def test_wrong_values_are_refused(name, value, message):
    with pytest.raises(InputError, match=message):
        options_of(job)[name].check(value)


def test_right_values_are_checked_and_converted():
    options = options_of(job)
    assert options["bounds"].check([1, 5]) == (1.0, 5.0)
    assert options["layers"].check([8, 4]) == (8, 4)
    assert options["kinds"].check({"age": "category"}) == {"age": "category"}
    assert options["share"].check(1) == 1.0


def test_calling_gathers_groups():
    result = call(job, {"out": "x", "workers": 2, "k": 3})
    assert result[:2] == ("x", 3) and result[-1] == Extra(workers=2)


def test_nearest_names():
    assert nearest("embeding_dim", ["embedding_dim", "k"]) == "did you mean 'embedding_dim'?"
    assert nearest("zzz", ["b", "a"]) == "known: a, b"
