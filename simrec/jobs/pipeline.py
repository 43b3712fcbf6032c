"""Run the jobs of a pipeline file (TOML): a section for each, with the options of its command.

::

    [data]                 # what train, evaluate and report read
    ratings = "ratings.parquet"
    [model]                # settings of TwoTower
    bounds = [1, 5]
    [train]
    out = "model"
    [score]                # [[score]] for several
    pairs = "pairs/"
    out = "scores"
    [engine]               # options all batch jobs share; its cluster is that of train too
    engine = "local"

Jobs run in the order of their sections. Paths are relative to the file. A section takes every
option of its command, and its own value counts more than that of a shared section. The new ratings
of ``[update]`` are its own; of ``[data]`` it takes the names of columns only.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from simrec.errors import InputError
from simrec.jobs import commands
from simrec.jobs.commands import COMMANDS
from simrec.jobs.engine.batch import BatchOptions
from simrec.jobs.options import Option, call, nearest, options_of
from simrec.jobs.train import DataOptions

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# What a training takes of [engine].
_CLUSTER = ("engine", "workers", "address")
_TABLES = ("ratings", "items", "users")
_SECTIONS = ("data", "model", "engine", *commands.SECTIONS)

Sections = dict[str, list[dict[str, Any]]]


def section_options(section: str) -> dict[str, Option]:
    """Return the options a section may hold."""
    if section == "data":
        return options_of(DataOptions)
    if section == "engine":
        return options_of(BatchOptions)
    return commands.model_options() if section == "model" else commands.options(section)


def run(
    file: str | os.PathLike, overrides: Sequence[str] = (), verbose: int = 1
) -> Iterator[dict[str, Any]]:
    """Run the jobs of a pipeline file one after the other; yield the result of each.

    Parameters
    ----------
    file : path
        The TOML file.
    overrides : sequence of str
        Options that replace those of the file, as ``section.option=value``; paths among them are
        relative to the working directory.
    verbose : int
        Whether models show their progress.

    Raises
    ------
    InputError
        Before any job starts, if a section or option is unknown, missing or of the wrong type.
    """
    sections = read(file, overrides)
    jobs = list(_plan(sections, str(file), verbose))
    for name, values in jobs:
        yield call(commands.function(name), values)


def read(file: str | os.PathLike, overrides: Sequence[str] = ()) -> Sections:
    """Read and check a pipeline file: the values of each section, in order."""
    path = Path(file)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not valid TOML: {error}") from None
    sections: Sections = {}
    for section, content_of in content.items():
        if section not in _SECTIONS:
            raise InputError(f"{path}: unknown section [{section}]; {nearest(section, _SECTIONS)}")
        several = isinstance(content_of, list)
        if several and (section not in COMMANDS or COMMANDS[section].once):
            raise InputError(f"{path}: section [{section}] can be given only once")
        tables = content_of if several else [content_of]
        if not all(isinstance(table, Mapping) for table in tables):
            raise InputError(f"{path}: {section} must be a section: [{section}]")
        sections[section] = [_check(path, section, table) for table in tables]
    for override in overrides:
        _override(sections, override)
    return sections


def _check(path: Path, section: str, table: Mapping[str, Any]) -> dict[str, Any]:
    options = section_options(section)
    values = {}
    for key, value in table.items():
        if key not in options:
            hint = nearest(key, options)
            raise InputError(f"{path}: [{section}] has no option {key!r}; {hint}")
        try:
            values[key] = options[key].check(value)
        except InputError as error:
            raise InputError(f"{path}: [{section}] {error}") from None
        text = values[key]
        is_word = not isinstance(text, str) or text in options[key].choices
        if options[key].path and not is_word and "://" not in text:
            values[key] = os.path.normpath(path.resolve().parent / text)
    return values


def _override(sections: Sections, text: str) -> None:
    name, equals, value = text.partition("=")
    section, dot, key = name.partition(".")
    if not (equals and dot):
        raise InputError(f"--set: expected section.option=value, got {text!r}")
    if section not in _SECTIONS:
        raise InputError(f"--set: unknown section {section!r}; {nearest(section, _SECTIONS)}")
    options = section_options(section)
    if key not in options:
        raise InputError(f"--set: [{section}] has no option {key!r}; {nearest(key, options)}")
    option = options[key]
    parsed: Any
    if option.count is not None:
        parsed = option.check([option.parse(word) for word in value.split(",") if word])
    else:
        parsed = option.parse(value)
    for table in sections.setdefault(section, [{}]):
        table[key] = parsed


def _plan(sections: Sections, file: str, verbose: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each job with all its arguments; raise if a required option is missing."""
    if not any(section in COMMANDS for section in sections):
        raise InputError(f"{file}: no job in it: add a section of {', '.join(commands.SECTIONS)}")
    model = sections.get("train", [{}])[0].get("out")
    for section, tables in sections.items():
        for table in tables if section in COMMANDS else ():
            options = commands.options(section)
            values = {**_shared(sections, section, table), **table}
            if model is not None and "model" in options:
                values.setdefault("model", model)
            for name, option in options.items():
                if option.required and name not in values:
                    where = "data" if option.group == "data" and section != "update" else section
                    raise InputError(f"{file}: [{where}] lacks {name!r} ({option.help})")
            yield section, commands.arguments(section, values, verbose)
            if section == "update":
                model = values["out"]


def _shared(sections: Sections, section: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a job takes from [data], [model] and [engine]."""
    data, settings, engine = (sections.get(n, [{}])[0] for n in ("data", "model", "engine"))
    groups = {option.group for option in commands.options(section).values()}
    values: dict[str, Any] = {}
    if COMMANDS[section].batch:
        values |= engine
    elif section == "train" and table.get("engine", engine.get("engine")) == "ray":
        values |= {key: engine[key] for key in _CLUSTER if key in engine}
    if "data" in groups:
        own = _TABLES if section == "update" else ()
        values |= {key: value for key, value in data.items() if key not in own}
    if COMMANDS[section].fits:
        values |= settings
    return values
