"""Options of commands, read off Python signatures.

The command line, the sections of a pipeline file and the Python functions take the same options
under the same names, because the first two are derived from the third: names, types, choices and
defaults from the signature, help from the NumPy docstring.
"""

import builtins
import dataclasses
import functools
import inspect
import os
import re
import time
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, ParamSpec

from simrec import errors
from simrec.errors import InputError

Given = ParamSpec("Given")
Path = str | os.PathLike
REQUIRED = inspect.Parameter.empty
# Options that mean the same wherever a docstring does not say more.
_HELP = {
    "model": "The model directory",
    "out": "Output directory of Parquet parts, or one file, if it ends in .parquet, .csv or .tsv",
    "items": "Features of items the model does not know, by item_id",
    "users": "Features of users the model does not know, by user_id",
    "k": "Length of the lists",
    "rank_by": "Which score: both (the blend of all components), rating or uptake",
}


@dataclass(frozen=True)
class Option:
    """One option of a command, named as the Python parameter."""

    name: str
    kinds: tuple[type, ...]  # of bool, int, float, str, tried in this order
    choices: tuple[str, ...] = ()  # the only words; of a path, words that are no files
    count: int | str | None = None  # None for one value, a number, or "*"
    mapping: bool = False  # a table of names and words: name=word on the command line
    optional: bool = False  # None is a value
    path: bool = False
    default: Any = REQUIRED
    help: str = ""
    group: str = ""  # the parameter this is a field of, where it is a dataclass of options

    @property
    def flag(self) -> str:
        """Return the option as written on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def words(self) -> tuple[str, ...]:
        """Return the only words allowed; empty for any."""
        return () if self.path else self.choices

    @property
    def required(self) -> bool:
        """Return whether it has no default."""
        return self.default is REQUIRED

    def expects(self) -> str:
        """Say in words what a value looks like."""
        words = {bool: "true or false", int: "an integer", float: "a number", str: "text"}
        one = " or ".join(
            "one of " + ", ".join(self.words) if kind is str and self.words else words[kind]
            for kind in self.kinds
            if not (kind is int and float in self.kinds)
        )
        if self.mapping:
            return f"a table of names, each with {one}"
        if self.count == "*":
            return f"a list, each {one}"
        return one if self.count is None else f"a list of {self.count}, each {one}"

    def parse(self, words: str | Sequence[str]) -> Any:
        """Read a word of the command line, or the words of an option that takes several."""
        if isinstance(words, str):
            if self.optional and words.lower() == "none":
                return None
            for kind in self.kinds:
                with suppress(ValueError, KeyError):
                    return self._one(kind(words) if kind is not bool else _BOOLS[words.lower()])
            raise InputError(f"{self.flag}: expected {self.expects()}, got {words!r}")
        if self.mapping:
            pairs = [word.partition("=") for word in words]
            if not all(equals for _, equals, _ in pairs):
                raise InputError(f"{self.flag}: expected NAME=WORD, got {' '.join(words)!r}")
            return self.check({name: word for name, _, word in pairs})
        parsed = [self.parse(word) for word in words]
        return None if parsed == [None] else self.check(parsed)

    def check(self, value: Any) -> Any:
        """Check a value that comes from a pipeline file; lists become tuples."""
        try:
            if self.optional and (value is None or value == "none"):
                return None  # TOML has no other way to say it
            if self.mapping:
                if not isinstance(value, Mapping):
                    raise ValueError
                return {str(key): self._one(word) for key, word in value.items()}
            if self.count is None:
                return self._one(value)
            if isinstance(value, str) or not isinstance(value, Sequence):
                raise ValueError
            if self.count not in ("*", len(value)):
                raise ValueError
            return tuple(self._one(word) for word in value)
        except ValueError:
            message = f"{self.name}: expected {self.expects()}, got {value!r}"
            raise InputError(message) from None

    def _one(self, value: Any) -> Any:
        for kind in self.kinds:
            if kind is float and isinstance(value, int) and not isinstance(value, bool):
                return float(value)
            if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
                continue
            if kind is str and self.words and value not in self.words:
                continue
            return value
        raise ValueError(value)


_BOOLS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def options_of(function: Callable, skip: Iterable[str] = ()) -> dict[str, Option]:
    """Return the options of a function or class, by name, in the order of its parameters.

    Parameters whose type cannot be written on a command line (models) are left out.
    """
    hints, options = _hints(function), {}
    help_texts: dict[str, str] = {}
    for one in reversed(inspect.getmro(function)) if inspect.isclass(function) else (function,):
        help_texts |= parameter_help(inspect.getdoc(one) or "")
    for name, parameter in inspect.signature(function).parameters.items():
        if name in skip or name not in hints:
            continue
        if dataclasses.is_dataclass(hints[name]):
            for field, option in options_of(hints[name]).items():
                options[field] = dataclasses.replace(option, group=name)
            continue
        kind = _read_type(hints[name])
        if kind is not None:
            options[name] = Option(
                name,
                **kind,
                default=parameter.default,
                help=help_texts.get(name) or _HELP.get(name, ""),
            )
    return options


def call(function: Callable, values: Mapping[str, Any]) -> Any:
    """Call a function with options by name, those of a group gathered in their dataclass."""
    hints, options = _hints(function), options_of(function)
    arguments: dict[str, Any] = {}
    groups: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        group = options[name].group if name in options else ""
        (groups.setdefault(group, {}) if group else arguments)[name] = value
    gathered = {group: hints[group](**fields) for group, fields in groups.items()}
    return function(**arguments, **gathered)


def job(function: Callable[Given, dict[str, Any]]) -> Callable[Given, dict[str, Any]]:
    """Add the name of the job to its result, and the seconds it took."""

    @functools.wraps(function)
    def timed(*args: Given.args, **kwargs: Given.kwargs) -> dict[str, Any]:
        started = time.perf_counter()
        result = function(*args, **kwargs)
        seconds = round(time.perf_counter() - started, 3)
        return {"job": function.__name__, **result, "seconds": seconds}

    return timed


class _Names(dict):
    """The names an annotation may use; one that only type checkers can import stands for object."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, object)


def _hints(function: Callable) -> dict[str, Any]:
    """Return the types of the parameters."""
    target: Any = function.__init__ if inspect.isclass(function) else inspect.unwrap(function)  # type: ignore[misc]
    return typing.get_type_hints(target, localns=_Names(target.__globals__))


def _read_type(hint: Any) -> dict[str, Any] | None:
    """Turn a type hint into the fields of an Option; None if it is no option."""
    origin = typing.get_origin(hint)
    members = typing.get_args(hint) if origin in (typing.Union, types.UnionType) else (hint,)
    kinds: list[type] = []
    choices: list[str] = []
    fields: dict[str, Any] = {}
    for member in members:
        origin, arguments = typing.get_origin(member), typing.get_args(member)
        if member is type(None):
            fields["optional"] = True
        elif inspect.isclass(member) and issubclass(member, os.PathLike):
            fields["path"] = True
        elif member in (bool, int, float, str):
            kinds.append(member)
        elif origin is Literal:
            choices += [word for word in arguments if isinstance(word, str)]
        elif inspect.isclass(origin) and issubclass(origin, Sequence | Mapping):
            mapping = issubclass(origin, Mapping)
            inner = _read_type(arguments[1 if mapping else 0])
            if inner is None:
                return None
            fixed = origin is tuple and len(arguments) > 1 and arguments[1] is not Ellipsis
            how = {"mapping": True} if mapping else {"count": len(arguments) if fixed else "*"}
            fields |= {**inner, **how}
            kinds += fields.pop("kinds")
        else:
            return None
    if choices:
        kinds.append(str)
        fields["choices"] = tuple(choices)
    if not kinds:
        return None
    order = (bool, int, float, str)
    return {"kinds": tuple(kind for kind in order if kind in kinds), **fields}


def parameter_help(docstring: str) -> dict[str, str]:
    """Return the first sentence of each entry in the Parameters section of a NumPy docstring."""
    match = re.search(r"^Parameters\n-+\n(.*?)(?=^\w[^\n]*\n-{3,}|\Z)", docstring, re.M | re.S)
    help_texts: dict[str, str] = {}
    entries = re.findall(r"^(\w[^\n:]*)[^\n]*\n((?:[ \n].*\n?)*)", match[1] if match else "", re.M)
    for names, text in entries:
        words = " ".join(text.split())
        sentence = re.split(r"(?<=[.;:]) (?=[A-Z(`])", words, maxsplit=1)[0].rstrip(".;:")
        for name in names.split(","):
            help_texts[name.strip()] = sentence.replace("`", "")
    return help_texts


def nearest(word: str, known: Iterable[str]) -> str:
    """Say which known name is meant by `word`, as the end of an error message."""
    names = sorted(known)
    # A slip is rarely in the first letter: `date` is [data], not [update].
    alike = [name for name in names if name[:1].lower() == word[:1].lower()]
    meant = (errors.nearest(word, alike) or errors.nearest(word, names)).strip()
    return meant[:1].lower() + meant[1:] if meant else f"known: {', '.join(names)}"
