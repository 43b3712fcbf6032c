"""Pipelines in TOML: a section per job, with the options of its command.

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

Jobs run in the order of their sections. Paths are relative to the file.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from simrec.errors import InputError
from simrec.jobs import commands
from simrec.jobs.batch import BatchOptions
from simrec.jobs.options import Option, call, nearest, options_of
from simrec.jobs.train import DataOptions

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_BATCH = ("score", "recommend", "embed")
_FITTED = ("train", "evaluate", "replay")
_JOBS = (*_FITTED, *_BATCH, "report", "export", "compare")
# What a training takes of [engine].
_CLUSTER = ("engine", "workers", "address")
_SECTIONS = ("data", "model", "engine", *_JOBS)


def section_options(section: str) -> dict[str, Option]:
    """Return the options a section may hold."""
    if section == "data":
        return options_of(DataOptions)
    if section == "engine":
        return options_of(BatchOptions)
    if section == "model":
        return commands.model_options()
    options = options_of(commands.function(section))
    return {name: option for name, option in options.items() if option.group != "data"}


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


def read(file: str | os.PathLike, overrides: Sequence[str] = ()) -> dict[str, list[dict[str, Any]]]:
    """Read and check a pipeline file: the values of each section, in order."""
    path = Path(file)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not valid TOML: {error}") from None
    sections: dict[str, list[dict[str, Any]]] = {}
    for section, content_of in content.items():
        if section not in _SECTIONS:
            raise InputError(f"{path}: unknown section [{section}]; {nearest(section, _SECTIONS)}")
        several = isinstance(content_of, list)
        if several and section not in _BATCH:
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
        if options[key].path and isinstance(value, str) and "://" not in value:
            values[key] = os.path.normpath(path.resolve().parent / value)
    return values


def _override(sections: dict[str, list[dict[str, Any]]], text: str) -> None:
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


def _plan(
    sections: Mapping[str, list[dict[str, Any]]], file: str, verbose: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Give each job with all its options, checked for those that are missing."""
    if not any(section in _JOBS for section in sections):
        raise InputError(f"{file}: no job in it: add a section of {', '.join(_JOBS)}")
    data = sections.get("data", [{}])[0]
    settings = sections.get("model", [{}])[0]
    shared = sections.get("engine", [{}])[0]
    trained = sections.get("train", [{}])[0].get("out")
    for section, tables in sections.items():
        for table in tables if section in _JOBS else ():
            values = dict(table)
            if section in _BATCH:
                values = {**shared, **values}
            elif section == "train" and values.get("engine", shared.get("engine")) == "ray":
                values = {**{k: shared[k] for k in _CLUSTER if k in shared}, **values, **data}
            elif section != "export":
                values |= data
            if section not in (*_FITTED, "compare") and trained is not None:
                values.setdefault("model", trained)
            options = options_of(commands.function(section))
            for name, option in options.items():
                if option.required and name not in values:
                    where = "data" if option.group == "data" else section
                    raise InputError(f"{file}: [{where}] lacks {name!r} ({option.help})")
            if section in _FITTED:
                values["model"] = commands.make_model(settings, verbose)
            yield section, values
